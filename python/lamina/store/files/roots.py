"""Roots of references: they lead to the files of other stores, which pins keep, never to the store's own directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lamina.format import container, paths
from lamina.format.manifest import Reference
from lamina.storage import Storage


def check_roots(references: Iterable[Reference], storage: Storage, directory: str, where: Callable[[], str]) -> None:
    """Raises `file.damaged` where a reference leads to the store's own directory by a root.

    Args:
        storage, directory: where the store's own files are.
        where: how the file with the references is named to people.
    """
    for root in {_directory(reference.root, reference.path or "") for reference in references if reference.root}:
        if storage.leads_to(root, directory):
            raise container.damaged(where(), f"it refers to files of its own directory by the root {root}")


def _directory(root: str, path: str) -> str:
    """The directory that a path from a root is in."""
    return f"{root.rstrip('/')}/{paths.directory_and_name(path)[0]}".rstrip("/")
