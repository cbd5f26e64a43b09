"""How long restarts take whose state is in log objects, beside those from a file for each commit."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import changelog_modes
from benchmarks.bars import Bar, Figures, between, most
from benchmarks.changelog_modes import EXECUTOR, MODES, OFF, TITLES
from benchmarks.questions import Parameters
from benchmarks.restore import evict
from benchmarks.rounds import progress, run_child, turns
from benchmarks.statistics import spread
from lamina.settings import PREFIX

if TYPE_CHECKING:
    from benchmarks.slow_s3 import SlowS3

CHILD = "benchmarks.aggregation_child"
LONGER = 2.0
KINDS = ("log", "lam", "seg")
"""Of files: log objects, commits that are files, and segments."""


def measure(parameters: Parameters, rounds: int) -> Figures:
    """Builds a checkpoint in each mode once, and restarts from copies of it, each in a fresh JVM."""
    modes: list[str] = parameters["modes"]
    changelog_modes.prepare(modes)
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    files: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as name, ExitStack() as held:
        server = None
        if "latency_s" in parameters:
            # what only reads results does without moto
            from benchmarks.slow_s3 import SlowS3

            server = held.enter_context(SlowS3(parameters["latency_s"], parameters["bytes_per_s"]))
        for mode in modes:
            built = Path(name) / mode
            variant, conf = MODES[mode]
            request = {**parameters, "variant": variant, "conf": conf, "action": "build", "checkpoint": str(built)}
            run_child(CHILD, request, 3600)
            suffixes = Counter(path.suffix[1:] for path in built.glob("state/**/*") if path.is_file())
            files[mode] = {kind: suffixes[kind] for kind in KINDS}
            progress(f"{mode}: {files[mode]}")
        for number, mode in turns(modes, rounds):
            answer = _restarted(parameters, Path(name), mode, server)
            found[mode].append(answer["restart_s"])
            progress(f"round {number + 1}/{rounds} {mode}: {answer['restart_s']:.2f} s, load {answer['load']}")
    return {
        "restart_s": {mode: spread(times) for mode, times in found.items()},
        "longer": spread([one / other for one, other in zip(found[EXECUTOR], found[OFF], strict=True)]),
        "files": files,
    }


def _restarted(parameters: Parameters, folder: Path, mode: str, server: SlowS3 | None) -> dict[str, Any]:
    variant, conf = MODES[mode]
    request = {**parameters, "variant": variant, "action": "restart"}
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder) as copy:
        if server is None:
            shutil.copytree(folder / mode, Path(copy) / mode)
            evict(Path(copy))
            return run_child(CHILD, {**request, "conf": conf, "checkpoint": str(Path(copy) / mode)}, 1800)
        from benchmarks.hadoop_jars import hadoop_aws_jars

        conf = {
            **conf,
            **{f"spark.hadoop.{key}": value for key, value in server.settings.items()},
            PREFIX + "storage.cache.directory": copy,
            PREFIX + "storage.cache.maxBytes": "0",
        }
        request |= {"conf": conf, "checkpoint": server.put(folder / mode, mode)}
        request["jars"] = [str(jar) for jar in hadoop_aws_jars()]
        try:
            return run_child(CHILD, request, 1800)
        finally:
            server.remove(mode)


def bars(parameters: Parameters, figures: Figures) -> list[Bar]:
    """Beside restarts without the changelog."""
    place = "S3" if "latency_s" in parameters else "local files"
    changed = ", of a state that changed again and again" if parameters["rows"] > parameters["keys"] else ""
    return [most(f"restart from {place}{changed}, to that without the changelog", LONGER, figures["longer"], " times")]


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """A row for each mode."""
    return ["store", "restart, s", "log objects", "commits in files", "segments"], [
        [TITLES[mode], between(found), *(str(figures["files"][mode][kind]) for kind in KINDS)]
        for mode, found in figures["restart_s"].items()
    ]


def setup(parameters: Parameters, _: Figures) -> str:
    """What ran."""
    words = (
        f"Count, max and sum per key, {parameters['keys']:,} keys, {parameters['partitions']} partitions, "
        f"{parameters['preload'] + parameters['warmup']} batches of {parameters['rows']:,} rows before the restart. "
        "A restart is the time from the query's start, in a fresh JVM whose session is there, to the end of its first "
        "batch, less the median of those after it; the engine's start is in it. Files are those that the checkpoint "
        "has then. "
    )
    if "latency_s" in parameters:
        words += f"S3 is moto's server behind {parameters['latency_s'] * 1000:.0f} ms and "
        words += f"{parameters['bytes_per_s'] / 1e6:.0f} MB/s a connection, without local copies."
    return words
