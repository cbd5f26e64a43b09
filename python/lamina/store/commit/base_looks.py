"""Whether the file of a base is still there, asked beside the batch and not before it.

A collector never deletes the file of a version that is being built on, so it is lost only if somebody else took it. The
rows are in the caller's table then, and the next attempt writes them in full: so it is enough to know before the commit
counts, and to look now and then.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from lamina.components import Clock

LOOK_EVERY_MS = 60_000
"""A base that was seen this long ago, or less, is not looked for again."""

_KEPT = 8


class BaseLook:
    """A look that goes on in a thread of its own: a storage that does not answer keeps nobody else's."""

    def __init__(self, exists: Callable[[], bool]) -> None:
        self._exists = exists
        self._found = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lamina-base-look", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._exists()
        except Exception as error:
            self._error = error

    @property
    def under_way(self) -> bool:
        """Whether the storage has not answered yet."""
        return self._thread.is_alive()

    def found(self) -> bool:
        """Waits for the answer: whether the file is there.

        Raises:
            LaminaError: `storage.*`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found


class BaseLooks:
    """When the files of a store's newest versions were last seen. Thread-safe."""

    def __init__(self, exists: Callable[[str], bool], clock: Clock) -> None:
        self._exists = exists
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._newest: tuple[str, BaseLook] | None = None

    def seen(self, name: str) -> None:
        """Tells that the file is there now."""
        with self._lock:
            self._seen[name] = self._clock.monotonic()
            self._seen.move_to_end(name)
            while len(self._seen) > _KEPT:
                self._seen.popitem(last=False)

    def begun(self, name: str) -> BaseLook | None:
        """A look for the file, or the one that is under way; None where it was seen a short while ago."""
        with self._lock:
            seen = self._seen.get(name)
            newest = self._newest
        if seen is not None and (self._clock.monotonic() - seen) * 1000 <= LOOK_EVERY_MS:
            return None
        if newest is not None and newest[0] == name and newest[1].under_way:
            # a storage that hangs gets no thread more with each attempt
            return newest[1]

        def exists() -> bool:
            found = self._exists(name)
            if found:
                self.seen(name)
            return found

        look = BaseLook(exists)
        with self._lock:
            self._newest = name, look
        return look
