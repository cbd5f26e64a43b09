"""Finished segments that wait for a commit to refer to them in place of what they were merged from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from lamina.format.manifest import Reference
from lamina.store.files.store_files import Opened
from lamina.store.versions import chain
from lamina.store.versions.chain import Replacement

Young = Callable[[Replacement], bool]
"""Whether no collector can have a segment in its hands, so that a manifest may refer to it now."""


class WaitingSegments:
    """The finished segments of one store, in the order in which they were finished. Thread-safe.

    All handles of the store in one run share them: a store may be closed and opened again between two commits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[Replacement] = []

    def add(self, segment: Replacement) -> None:
        """Lets the next commit refer to the segment."""
        with self._lock:
            self._segments.append(segment)

    def names(self) -> list[str]:
        """The names of their files."""
        return [name for segment in self.all() for name in segment.new_names()]

    def set(self, segments: Sequence[Replacement]) -> None:
        """Lets these segments wait, and no others."""
        with self._lock:
            self._segments = list(segments)

    def keep(self, missing: Callable[[Sequence[str]], AbstractSet[str]]) -> None:
        """Forgets the segments whose files are not there any more.

        Args:
            missing: says which files are not there.
        """
        lost = missing(self.names())
        with self._lock:
            self._segments = [kept for kept in self._segments if lost.isdisjoint(kept.new_names())]

    def expected(self, base: Opened) -> tuple[Reference, ...]:
        """What the references of `base` become when a commit on it refers to the segments; forgets those that do not
        fit, and changes nothing on storage."""
        references = base.references
        with self._lock:
            for segment in list(self._segments):
                replaced = chain.adopt(references, segment)
                if replaced is None:
                    self._segments.remove(segment)
                else:
                    references = replaced
        return references

    def applied(self, base: Opened, young: Young) -> tuple[Reference, ...]:
        """The references of `base` with the segments in place of what they were merged from.

        A segment that is too old goes on waiting until it is stamped anew, with those after it, which may have been
        merged from it; one that does not fit is forgotten.
        """
        references = base.references
        for segment in self.all():
            replaced = chain.adopt(references, segment)
            if replaced is None:
                self.replace(str(segment.name), None)
            elif not young(segment):
                break
            else:
                references = replaced
        return references

    def all(self) -> list[Replacement]:
        """The segments that wait."""
        with self._lock:
            return list(self._segments)

    def replace(self, name: str, stamped: Replacement | None) -> None:
        """Puts `stamped` in place of the segment of that file; None forgets it."""
        with self._lock:
            found = [(stamped if str(kept.name) == name else kept) for kept in self._segments]
            self._segments = [kept for kept in found if kept is not None]
