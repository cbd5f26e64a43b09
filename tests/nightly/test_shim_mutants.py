"""The concurrent model of the shim finds what it is for: each mutant fails the rule that should find it, and no other.

The tree is copied once, and sbt compiles in the copy what a mutant changes. One mutant takes about a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.nightly.shim_mutants import MODEL, MUTANTS, SHIM, Mutant

PACKAGE = "org.apache.spark.sql.lamina"
TEST = "in any order of steps the rules hold that the model knows"

_RULE = re.compile(r"seed \d+: \[([^\]]+)\]")
_FAILED = re.compile(r"- (.+) \*\*\* FAILED \*\*\*")


@pytest.fixture(scope="module")
def copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what sbt builds the shim from, whose warnings are no errors: a mutant may leave a name unused."""
    root = tmp_path_factory.mktemp("mutants") / "tree"
    root.mkdir()
    shutil.copy2(repository / "LICENSE", root / "LICENSE")
    build = (repository / "build.sbt").read_text(encoding="utf-8")
    assert build.count('"-Werror", ') == 1
    (root / "build.sbt").write_text(build.replace('"-Werror", ', ""), encoding="utf-8")
    for name in ("project", "jvm-shim", "python", "build/sbt-launch"):
        shutil.copytree(repository / name, root / name, ignore=shutil.ignore_patterns("target", "__pycache__"))
    return root


def run(root: Path, suite: str) -> str:
    """What a suite prints in a tree; of the model's, the test whose order of steps follows from seeds."""
    name = f"{PACKAGE}.{suite.removesuffix('.scala').replace('/', '.')}"
    tests = f"spark43/testOnly {name}" + (f' -- -z "{TEST}"' if suite == MODEL else "")
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    (launcher,) = (root / "build/sbt-launch").glob("*.jar")
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else Path("java")
    command = [str(java), "-Xmx1g", "-Xss8m", "-Dsbt.color=false", "-Dsbt.supershell=false"]
    command += ["-Dsbt.server.autostart=false", "-jar", str(launcher), tests]
    jars = str(Path(spec.origin).parent / "jars")
    environment = {**os.environ, "LAMINA_PYSPARK_JARS": jars, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found_by_its_rule(mutant: Mutant, copy: Path) -> None:
    file = copy / SHIM / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(original), encoding="utf-8")
    try:
        output = run(copy, mutant.suite)
    finally:
        file.write_text(original, encoding="utf-8")
    failed = set(_FAILED.findall(output))
    if mutant.suite == MODEL:
        assert failed == {TEST}, output[-5000:]
        rule = _RULE.search(output)
        assert rule is not None, output[-5000:]
        assert rule.group(1) in mutant.rules
    else:
        assert failed == set(mutant.rules), output[-5000:]


def test_the_tree_without_a_mutant_passes(copy: Path) -> None:
    output = run(copy, MODEL)
    assert "All tests passed." in output, output[-5000:]
