"""Local files that are as slow to write as an object store, for every state store that writes through Hadoop.

`slow:///path` is `/path`. Each JVM notes its requests in a trace, so that they can be counted by what they wrote.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scala import benchmark_jar
from benchmarks.slow_storage import S3_PUT

SUFFIXES = ("log", "lam", "seg", "sst", "rdb", "needs", "changelog", "zip", "delta", "snapshot")
"""Of files of state: lamina's log objects, commits, segments and tables, and those of the built-in stores."""
_SUFFIX = re.compile(rf"\.({'|'.join(SUFFIXES)})(\.|$)")


def jar() -> Path:
    """The jar of the file system."""
    return benchmark_jar("slow_files")


def url(folder: Path) -> str:
    """A local folder in that file system."""
    return f"slow://{folder}"


def settings(traces: Path, seed: int) -> dict[str, str]:
    """Spark's settings that let all processes reach it; it takes no time until `set_scale`."""
    points = ",".join(f"{share}:{seconds}" for share, seconds in S3_PUT)
    return {
        "spark.hadoop.fs.slow.impl": "lamina.benchmarks.slow.SlowFileSystem",
        "spark.hadoop.fs.slow.put": points,
        "spark.hadoop.fs.slow.seed": str(seed),
        "spark.hadoop.fs.slow.trace": str(traces),
    }


def set_scale(jvm: Any, scale: float) -> None:
    """From now on a PUT of this JVM takes so many times what it takes on S3."""
    jvm.lamina.benchmarks.slow.SlowFiles.setScale(float(scale))


@dataclass(frozen=True)
class Request:
    """A request that has been answered: `PUT` or `GET`, the time that it took, and the path of the file."""

    operation: str
    seconds: float
    path: str

    @property
    def in_state(self) -> bool:
        """Whether it is about a file of state, and not one of Spark's own logs."""
        return "/state/" in self.path

    @property
    def kind(self) -> str:
        """The suffix of the file, which has a temporary name while it is written."""
        name = self.path.rpartition("/")[2]
        if ".crc" in name:
            return "crc"
        found = _SUFFIX.search(name)
        return found.group(1) if found else "other"


class Trace:
    """What all JVMs have noted since it was last read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def unread(self) -> list[Request]:
        """The requests since the last call."""
        found = []
        for path in sorted(self._folder.glob("*.trace")):
            lines = path.read_text().splitlines()
            found += [_request(line) for line in lines[self._read.get(path, 0) :]]
            self._read[path] = len(lines)
        return found


def puts(requests: Iterable[Request]) -> Counter[str]:
    """Files of state that were written, by kind."""
    return Counter(one.kind for one in requests if one.operation == "PUT" and one.in_state)


def _request(line: str) -> Request:
    operation, seconds, path = line.split(" ", 2)
    return Request(operation, float(seconds), path)
