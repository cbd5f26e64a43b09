"""What the demo and its Spark driver say to each other: orders at the start, one JSON object per line from then on."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from typing import Any

TASKS_RUNNING = "tasks-running"
"""Tasks of the batch's last stage, which holds the state, are running."""

STATE_COMMITTED = "state-committed"
"""All tasks of the batch have ended, so their stores have committed; Spark has not yet written `commits/N`."""


@dataclass(frozen=True)
class Point:
    """Where the driver's JVM is to be killed: in `query`, in batch `batch` or the first after it that serves."""

    query: str
    batch: int
    at: str


@dataclass(frozen=True)
class Orders:
    """What a driver shall do: run the queries to the end of the feed, from where their checkpoints say.

    Args:
        root: the directory of the run.
        mode: the backend of lamina.
        events: the file descriptor to write events to.
        point: where to say "reached"; at `STATE_COMMITTED` the driver then waits to be killed.
        expected: whether to run the queries as batch afterwards.
    """

    root: str
    provider: str
    mode: str
    events: int
    point: Point | None
    expected: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Orders:
        fields = json.loads(text)
        point = fields.pop("point")
        return Orders(point=Point(**point) if point else None, **fields)


class Events:
    """The driver's side of the events: whole lines, from any thread."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # the reader sees the end when this process ends, whatever the JVM does
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()
