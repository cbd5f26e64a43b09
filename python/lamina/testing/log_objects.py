"""Publishing the log objects of groups, in one attempt and where the caller is: for tests and state machines."""

from __future__ import annotations

from collections.abc import Callable

from lamina._version import __version__
from lamina.components import Clock
from lamina.format import log_object
from lamina.store.changelog.groups import Sealed
from lamina.store.files.log_places import LogPlace


def publisher(place: LogPlace, checkpoint: str | None, clock: Clock) -> Callable[[Sealed], None]:
    """What `Groups` publishes with, for the checkpoint of that uuid, into a place."""

    def publish(group: Sealed) -> None:
        chunks = log_object.chunks(group.log, checkpoint or "", clock.now_ms(), f"lamina {__version__}", group.commits)
        place.storage.publish(place.path(group.log), chunks)

    return publish
