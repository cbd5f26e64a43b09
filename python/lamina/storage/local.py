"""Local files: publish = temporary name in the same directory, (fsync,) rename.

A reader never sees a part of a file: rename replaces a name in one step. With fsync the file is flushed before the
rename, its directory after it, and once per directory all those above it, since whoever made them may not have done it.
Nothing is memory-mapped: a sector that cannot be read, or a network file system whose file went away, would kill the
process instead of failing the read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.storage.backend import Backend, Listed, NotDurable, ranges
from lamina.storage.temporary import temporary_name

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What `link` says on file systems without hard links (FAT, some network and FUSE mounts)."""

PIECE_BYTES = 4 << 20
"""What is in memory at once of a file that is read in pieces."""


class LocalBackend(Backend):
    """Files below the directory `root`."""

    def __init__(self, root: str, *, fsync: bool) -> None:
        self._root = root
        self._fsync = fsync
        self._counter = itertools.count()
        self._synced: set[str] = set()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        target = self._path(path)
        size = 0
        renaming = False
        try:
            with self._temporary(target) as (temporary, file):
                for chunk in chunks:
                    size += len(chunk)
                    file.write(chunk)
                self._end(file)
                renaming = True
                os.replace(temporary, target)
            self._sync_directory(target)
        except OSError as error:
            if renaming and self._fsync and not isinstance(error, PermissionError):
                raise NotDurable(error.errno, error.strerror, target) from error
            raise
        return size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with self._temporary(target) as (temporary, file):
            file.write(data)
            self._end(file)
            # a link fails where the name exists, and a rename would replace it
            try:
                os.link(temporary, target)
                written = True
            except FileExistsError:
                written = False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                written = self._rename_alone(temporary, target)
            _remove(temporary)
        # whoever lost goes on with the winner's object, which the winner may not have flushed yet
        self._sync_directory(target)
        return written

    @staticmethod
    def _rename_alone(temporary: str, target: str) -> bool:
        """Renames unless the name is taken, while nobody else does: for file systems without hard links.

        The lock is the directory's, leaves nothing behind, and ends with the process that holds it, however that ends.
        """
        directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            if os.path.lexists(target):
                return False
            os.rename(temporary, target)
            return True
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _temporary(self, target: str) -> Iterator[tuple[str, IO[bytes]]]:
        """A new file beside `target`, for its user to rename; removed where that fails."""
        temporary, file = self._create(target)
        try:
            with file:
                yield temporary, file
        except BaseException:
            _remove(temporary)
            raise

    def _create(self, target: str) -> tuple[str, IO[bytes]]:
        directory, name = os.path.split(target)
        made = False
        while True:
            temporary = os.path.join(directory, temporary_name(name, os.getpid(), next(self._counter)))
            try:
                return temporary, open(temporary, "xb", buffering=1 << 16)
            except FileExistsError:
                continue
            except FileNotFoundError:
                if made:
                    raise
                os.makedirs(directory, exist_ok=True)
                made = True

    def _end(self, file: IO[bytes]) -> None:
        """Closes it: some file systems say only then that there was no room for what was written."""
        file.flush()
        if self._fsync:
            os.fsync(file.fileno())
        file.close()

    def _sync_directory(self, target: str) -> None:
        if not self._fsync:
            return
        directory = os.path.dirname(target)
        _sync(directory)
        if directory in self._synced:
            return
        above = directory
        while not os.path.ismount(above):
            above = os.path.dirname(above)
            try:
                _sync(above)
            except PermissionError:
                break  # not ours to read, so neither this process nor Spark made it
        self._synced.add(directory)

    def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
        try:
            os.link(self._path(path), target)
        except OSError:
            # on another file system, another user's, or not there, which a read says
            return False
        return True

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        return self.read_range(path, 0, self.size(path) if size is None else size)

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        with open(self._path(path), "rb", buffering=0) as file:
            return _pread(file, offset, length)

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        # one handle, so that the file may be deleted meanwhile
        with open(self._path(path), "rb", buffering=0) as file:
            for start, wanted in ranges(offset, length, PIECE_BYTES):
                yield _pread(file, start, wanted)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        with open(self._path(path), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _pread(file, max(0, size - length), min(length, size)), size

    def list(self, directory: str) -> Sequence[Listed]:
        found = []
        try:
            with os.scandir(self._path(directory)) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            found_stat = entry.stat()
                            found.append(Listed(entry.name, found_stat.st_size, found_stat.st_mtime_ns // 1_000_000))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            _remove(self._path(path))

    def stamp(self, path: str) -> bool:
        os.utime(self._path(path))
        return True

    def size(self, path: str) -> int:
        found = os.stat(self._path(path))
        if stat.S_ISDIR(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "a directory, not an object", path)
        return found.st_size

    def _path(self, path: str) -> str:
        parts = path.split("/") if path else []
        if "" in parts or ".." in parts or "\0" in path:
            raise LaminaError.from_kind("storage.denied", f"{path!r} is no path below {self._root}")
        return os.path.join(self._root, *parts)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pread(file: IO[bytes], offset: int, length: int) -> pa.Buffer:
    parts = []
    while length > 0:
        part = os.pread(file.fileno(), length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))
