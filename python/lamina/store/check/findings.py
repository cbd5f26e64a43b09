"""What is wrong with files, and which were not read, before it is known which versions need them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lamina.errors import LaminaError
from lamina.store.check.places import Place
from lamina.store.check.report import NEWER, UNREAD, Problem
from lamina.store.files.locator import is_part

DAMAGE = ("file.", "state.", "attempt-id.")
"""How the kinds of errors begin that say that a file is damaged or lost; of others it was not read."""


@dataclass
class Found:
    """What is wrong with a file or a version, and the versions that are known to need it."""

    error: LaminaError
    versions: set[int] = field(default_factory=set)


class Findings:
    """The first thing that was found at each place; `broken` is damaged, `unread` may be whole."""

    def __init__(self) -> None:
        self.broken: dict[Place, Found] = {}
        self.unread: dict[Place, Found] = {}

    def note(self, place: Place, error: LaminaError, *versions: int) -> None:
        """Notes what is wrong with a file; one of a newer release is unread.

        Raises:
            LaminaError: `error`, where the storage of the checkpoint that is checked failed. Another one's, and one of
                log objects, leaves the file unread.
        """
        if error.kind in NEWER:
            self.note_unread(place, error, *versions)
        elif error.kind.startswith(DAMAGE):
            self.broken.setdefault(place, Found(error)).versions.update(versions)
        elif place[0] is not None or is_part(place[1]):
            self.note_unread(place, error, *versions)
        else:
            raise error

    def note_unread(self, place: Place, error: LaminaError, *versions: int) -> None:
        """Notes why a file was not read."""
        self.unread.setdefault(place, Found(error)).versions.update(versions)

    def versions(self) -> set[int]:
        """Those that are known to need what is broken or was not read."""
        return {version for found in (*self.broken.values(), *self.unread.values()) for version in found.versions}

    def unread_problems(self) -> list[Problem]:
        """What was not read: one problem for each root and kind of reason, with the reason that came first."""
        by_reason: dict[tuple[str | None, str], list[Place]] = {}
        for place, found in self.unread.items():
            by_reason.setdefault((place[0], found.error.kind), []).append(place)
        return [self._unread_problem(places) for places in by_reason.values()]

    def _unread_problem(self, places: Iterable[Place]) -> Problem:
        found = [self.unread[place] for place in places]
        versions = {version for one in found for version in one.versions}
        names = ", ".join(path for _, path in places)
        kind = found[0].error.kind if found[0].error.kind in NEWER else UNREAD
        return Problem(kind, tuple(sorted(versions)), f"{names} not checked: {found[0].error.message}")
