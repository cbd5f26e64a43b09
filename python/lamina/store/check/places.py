"""Where the files are that versions need, and which versions need each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lamina.format.manifest import Reference
from lamina.store.files.locator import attempt_of, is_part
from lamina.store.files.store_files import Opened

Place = tuple[str | None, str]
"""Of a file: the root and the path of references to it."""


def users_of(versions: Iterable[tuple[int, Opened]]) -> dict[Place, list[tuple[int, Reference | None]]]:
    """The versions that need each file, with the reference to it where it is not only the version's own file."""
    users: dict[Place, list[tuple[int, Reference | None]]] = {}
    for version, found in versions:
        users.setdefault((None, found.name), []).append((version, None))
        for reference in found.references:
            users.setdefault(place_of(reference), []).append((version, reference))
    return users


def place_of(reference: Reference) -> Place:
    """Where the file of a reference is."""
    return reference.root, reference.path or ""


def parts_of(needed: Iterable[Place]) -> Iterator[str]:
    """The attempts of the files that are commits in log objects of this checkpoint."""
    for root, path in needed:
        if root is None and is_part(path):
            yield str(attempt_of(path))
