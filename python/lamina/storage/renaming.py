"""File systems of fsspec that show an object while it is written: publish = temporary name, rename.

`publish_if_absent` needs a rename that does not replace: HDFS's fails where its target exists, and WebHDFS's does
nothing, without an error.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lamina.storage.backend import PIECE_BYTES
from lamina.storage.remote import FsspecBackend
from lamina.storage.temporary import random_numbers, temporary_name

RENAMING = frozenset({"hdfs", "webhdfs"})
"""Protocols whose objects are visible while they are written, and whose rename is known."""

UNKNOWN_RENAME = frozenset({"arrow_hdfs", "ftp", "sftp", "smb"})
"""Protocols whose objects are visible while they are written, and whose rename nobody has tried."""


class RenamingBackend(FsspecBackend):
    """Objects below `root` of a file system with directories and renames."""

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self._numbers = random_numbers()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        target = self._path(path)
        with self._temporary(target) as temporary:
            size = self._upload(temporary, chunks)
            if self._rename(temporary, target):
                return size
            if self._is_same(temporary, target):
                # another try of the same publication was first, and others count on it: it is never away
                return size
            # The name is its writer's alone, so what is in the way is something older of it.
            self._filesystem.rm_file(target)
            if not self._rename(temporary, target):
                raise FileExistsError(f"{target} was written by somebody else at the same time")
        return size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        if self._filesystem.exists(target):
            return self._holds(path, data)
        with self._temporary(target) as temporary:
            self._upload(temporary, [data])
            return self._rename(temporary, target) or self._holds(path, data)

    def delete_many(self, paths: Sequence[str]) -> None:
        # WebHDFS takes one path at a time
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm_file(self._path(path))

    def _is_same(self, one: str, other: str) -> bool:
        if self._filesystem.size(one) != self._filesystem.size(other):
            return False
        with self._filesystem.open(one, "rb") as ours, self._filesystem.open(other, "rb") as theirs:
            while piece := ours.read(PIECE_BYTES):
                if piece != theirs.read(PIECE_BYTES):
                    return False
        return True

    def _upload(self, target: str, chunks: Iterable[Any]) -> int:
        size = 0
        with self._filesystem.open(target, "wb") as file:
            for chunk in chunks:
                size += len(chunk)
                file.write(memoryview(chunk))
        return size

    @contextlib.contextmanager
    def _temporary(self, target: str) -> Iterator[str]:
        """A name beside `target`, in a directory that is there; what is left under it is removed."""
        directory, name = posixpath.split(target)
        self._filesystem.makedirs(directory, exist_ok=True)
        temporary = posixpath.join(directory, temporary_name(name, os.getpid(), next(self._numbers)))
        try:
            yield temporary
        finally:
            with contextlib.suppress(Exception):
                self._filesystem.rm_file(temporary)

    def _rename(self, temporary: str, target: str) -> bool:
        """Gives a whole object its name unless the name is taken; whether it did."""
        try:
            self._filesystem.mv(temporary, target)
        except FileNotFoundError:
            raise
        except Exception:
            if self._filesystem.exists(target):
                return False
            raise
        return not self._filesystem.exists(temporary)
