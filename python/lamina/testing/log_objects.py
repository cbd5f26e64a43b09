"""Publishing the log objects of groups, in one attempt and where the caller is: for tests and state machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lamina._version import __version__
from lamina.components import Clock
from lamina.format import log_object
from lamina.store.changelog.groups import Sealed
from lamina.store.files.log_places import LogPlace


def publisher(
    place: LogPlace,
    checkpoint: str | None,
    clock: Clock,
    written: Callable[[str, LogPlace, bytes, int], None] = lambda *_: None,
    process: Callable[[], Mapping[str, Any]] = dict,
) -> Callable[[Sealed], None]:
    """What `Groups` publishes with, for the checkpoint of that uuid, into a place; `written` as of `Changelog`, and
    `process` gives what each object says of its process."""

    def publish(group: Sealed) -> None:
        writer, now = f"lamina {__version__}", clock.now_ms()
        chunks = [*log_object.chunks(group.log, checkpoint or "", now, writer, group.commits, process())]
        place.storage.publish(place.path(group.log), chunks)
        written(group.log, place, b"".join(chunks[-2:]), sum(map(len, chunks)))

    return publish
