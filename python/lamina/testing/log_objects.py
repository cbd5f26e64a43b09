"""Publishing the log objects of groups, in one attempt and where the caller is: for tests and state machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina._version import __version__
from lamina.components import Clock
from lamina.format import log_object
from lamina.format.log_object import Whole
from lamina.store.files.log_places import LogPlace


def publisher(place: LogPlace, checkpoint: str | None, clock: Clock) -> Callable[[str, Sequence[Whole], float], None]:
    """What `Groups` publishes with, for the checkpoint of that uuid, into a place."""

    def publish(log: str, commits: Sequence[Whole], _: float) -> None:
        chunks = log_object.chunks(log, checkpoint or "", clock.now_ms(), f"lamina {__version__}", commits)
        place.storage.publish(place.path(log), chunks)

    return publish
