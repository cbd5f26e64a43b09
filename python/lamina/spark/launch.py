"""Reads what a PySpark driver's JVM will be configured with before the session's own settings: the defaults file and
`PYSPARK_SUBMIT_ARGS`, with the precedence that Spark's launcher gives them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import MutableMapping
from pathlib import Path

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_OPTION_OF_KEY = {"spark.jars": "--jars"}
_READ_OPTIONS = {"--conf", "--jars", "--master", "--properties-file"}


def defaults(home: Path, environment: MutableMapping[str, str]) -> dict[str, str]:
    """The entries of the files that Spark would read: `--properties-file`, else `spark-defaults.conf`, or both."""
    words = _submit_words(environment)
    own = Path(environment.get("SPARK_CONF_DIR") or str(home / "conf")) / "spark-defaults.conf"
    given = [Path(path) for word, path in zip(words, words[1:], strict=False) if word == "--properties-file"][-1:]
    files = given if given and "--load-spark-defaults" not in words else [own, *given]
    entries: dict[str, str] = {}
    for path in files:
        if path.is_file():
            entries |= parse_properties(path.read_text(encoding="utf-8"))
    return entries


def submit_conf(environment: MutableMapping[str, str]) -> dict[str, str]:
    """The entries that `PYSPARK_SUBMIT_ARGS` sets with `--conf`, and its `--master`."""
    words = _submit_words(environment)
    entries: dict[str, str] = {}
    for word, value in zip(words, words[1:], strict=False):
        if word == "--master":
            entries["spark.master"] = value
        elif word in ("--conf", "-c") and "=" in value:
            key, _, text = value.partition("=")
            entries[key] = text
    return entries


def parse_properties(text: str) -> dict[str, str]:
    """Entries of a Java properties file as Spark writes them: `key value`, `key=value` or `key: value` per line."""
    entries: dict[str, str] = {}
    for line in re.sub(r"\\\n[ \t]*", "", text).splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = re.match(r"([^\s=:]+)\s*[=:\s]\s*(.*)", stripped)
        if match:
            entries[match[1]] = match[2].strip()
    return entries


def add_to_submit_args(key: str, entry: str, environment: MutableMapping[str, str]) -> bool:
    """Adds `entry` to the comma-separated list `key` where `PYSPARK_SUBMIT_ARGS` sets it.

    There it would win over the session's own value, which then never reaches the driver's class path.

    Returns:
        Whether the arguments set that key.
    """
    words = _submit_words(environment)
    found = False
    for index, word in enumerate(words[:-1]):
        if word == _OPTION_OF_KEY.get(key):
            words[index + 1] = merged(words[index + 1], entry)
            found = True
        elif word in ("--conf", "-c") and words[index + 1].startswith(f"{key}="):
            words[index + 1] = f"{key}={merged(words[index + 1][len(key) + 1 :], entry)}"
            found = True
    if found:
        environment[SUBMIT_ARGS] = shlex.join(words)
    return found


def merged(entries: str | None, entry: str) -> str:
    """A comma-separated list with `entry` in it once, at its end if it was not there."""
    present = [item.strip() for item in (entries or "").split(",") if item.strip()]
    return ",".join(present if entry in present else [*present, entry])


def _submit_words(environment: MutableMapping[str, str]) -> list[str]:
    """The words of the arguments; `--option=value` as two, which is the same to Spark."""
    words = []
    for word in shlex.split(environment.get(SUBMIT_ARGS, "")):
        option, equals, value = word.partition("=")
        words += [option, value] if equals and option in _READ_OPTIONS else [word]
    return words


def jvm_environment() -> MutableMapping[str, str]:
    """The environment that the driver's JVM will inherit."""
    return os.environ
