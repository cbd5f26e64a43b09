"""Publishing the log objects of groups, in one attempt and where the caller is: for tests and state machines."""

from __future__ import annotations

from collections.abc import Callable

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
) -> Callable[[Sealed], None]:
    """What `Groups` publishes with, for the checkpoint of that uuid, into a place; `written` as of `Changelog`."""

    def publish(group: Sealed) -> None:
        chunks = [
            *log_object.chunks(group.log, checkpoint or "", clock.now_ms(), f"lamina {__version__}", group.commits)
        ]
        place.storage.publish(place.path(group.log), chunks)
        written(group.log, place, b"".join(chunks[-2:]), sum(map(len, chunks)))

    return publish
