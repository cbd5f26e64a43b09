"""Publishing the log objects of groups, in one attempt and where the caller is: for tests and state machines."""

from __future__ import annotations

from collections.abc import Callable

from lamina._version import __version__
from lamina.components import Clock
from lamina.format import log_object, paths
from lamina.storage import Storage
from lamina.store.changelog.groups import Sealed


def publisher(storage: Storage, checkpoint: str | None, clock: Clock) -> Callable[[Sealed], None]:
    """What `Groups` publishes with, into the checkpoint of that uuid."""

    def publish(group: Sealed) -> None:
        chunks = log_object.chunks(group.log, checkpoint or "", clock.now_ms(), f"lamina {__version__}", group.commits)
        storage.publish(paths.log_path(group.log), chunks)

    return publish
