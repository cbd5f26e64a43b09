"""Local copies of what was written to, or read from, a remote storage: a bounded directory, shared by processes.

    <directory>/                       mode 0700
        lock                           held while the figure in it, all files' bytes together, changes
        <SHA-256 of an object's URL>   one object (`cache_file`)
        .<…>.<process>-<number>.tmp    being written; its writer holds a lock on it

1. A copy has its name only once it is whole, and is verified whenever it is read: a crash, or a damaged disk, costs a
   read from the storage. Nothing is flushed to the disk.
2. Only objects that never change are kept (`holds`), so a copy is never old. Whether an object is there, and
   listings, are asked of the storage, always.
3. All files with a name take at most `max_bytes`. The ones used longest ago go first; the time of use is the time of
   modification. What is being written comes on top.
4. No failure of the cache is a failure of the storage: it is logged, counted, and the storage is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import stat
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from lamina.storage.backend import PIECE_BYTES, Backend, Listed, split
from lamina.storage.cache_file import CacheFile, CacheFileWriter, Damaged
from lamina.storage.temporary import is_temporary, temporary_name

log = logging.getLogger(__name__)

_LOCK = "lock"
_TOTAL = struct.Struct("<Q")
_AUTO_BYTES = 4 << 30
_AUTO_SHARE = 10
_NAME_LENGTH = 64

_MANY_TIMES, _LITTLE_BYTES = 4, 8 << 20
"""An object more than so many times as large as the part that is wanted, and so many bytes, is not fetched for a copy:
a reader of an increment would wait for the state that was written in full beside it."""

_PIECE_BYTES = 4 << 20
"""What is in memory at once of the bytes that only a copy needs."""


def default_directory() -> str:
    """Where the cache lies unless a setting says otherwise: it outlives this process, and belongs to this user."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"lamina_cache_{os.getuid()}")


class LocalCache:
    """The directory of local copies.

    Args:
        directory: made where it is not there; None: `default_directory()`.
        max_bytes: bound of all copies; 0 keeps none; None: 4 GiB, at most a tenth of the disk.
        holds: whether an object of this path never changes once it was written.
    """

    def __init__(self, directory: str | None, max_bytes: int | None, holds: Callable[[str], bool]) -> None:
        self.directory = directory or default_directory()
        self.holds = holds
        self._counter = itertools.count()
        self._lock = threading.Lock()
        self._figures = dict.fromkeys(("hits", "hit_bytes", "misses", "kept", "evicted", "damaged", "failed"), 0)
        self._wanted = max_bytes
        self._bound: int | None = None
        self._held = 0
        self._opening = threading.Lock()

    @property
    def max_bytes(self) -> int:
        """The bound of all copies; 0 where none are kept. The directory is made when this is first asked."""
        with self._opening:
            if self._bound is None:
                self._bound = 0 if self._wanted == 0 else self._open()
            return self._bound

    def _open(self) -> int:
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            found = os.stat(self.directory)
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"{self.directory} is not this user's alone; set storage.cache.directory")
            disk = os.statvfs(self.directory)
            auto = min(_AUTO_BYTES, disk.f_frsize * disk.f_blocks // _AUTO_SHARE)
            bound = auto if self._wanted is None else self._wanted
            with self._locked() as total:
                for name in filter(is_temporary, os.listdir(self.directory)):
                    _remove_if_dead(os.path.join(self.directory, name))
                self._write_total(total, self._shrink(bound))
            return bound
        except OSError as error:
            log.warning("no local copies are kept: %s", error)
            self._count("failed")
            return 0

    @property
    def held_bytes(self) -> int:
        """What all copies take, of whatever process, when this one last added or removed any."""
        return self._held

    def stats(self) -> dict[str, Any]:
        """Directory, bound, bytes, and figures of this process since its start; `hit_bytes` were read from copies."""
        with self._lock:
            return {"directory": self.directory, "max_bytes": self._bound, "bytes": self._held, **self._figures}

    def use(self, url: str, read: Callable[[CacheFile], pa.Buffer]) -> tuple[pa.Buffer, int] | None:
        """What `read` gives of the copy of `url`, and the object's size; None where there is none, or a damaged one."""
        if not self.max_bytes:
            return None
        path = self._path(url)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._count("misses")
            return None
        try:
            file = CacheFile(descriptor, url)
            data = read(file)
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        except (Damaged, OSError) as error:
            log.warning("the local copy %s of %s is damaged (%s); it is read from the storage", path, url, error)
            self._count("damaged")
            self.drop([url])
            return None
        finally:
            os.close(descriptor)
        self._count("hits")
        self._count("hit_bytes", data.size)
        return data, file.size

    def writing(self, url: str) -> Writing:
        """A copy in the making."""
        return Writing(self, url)

    def keep(self, url: str, data: Any) -> None:
        """Keeps a copy of a whole object."""
        writing = self.writing(url)
        writing.write(data)
        writing.keep()

    def drop(self, urls: Iterable[str]) -> int:
        """Removes copies, where there are any; how many."""
        dropped = 0
        if not self.max_bytes:
            return dropped
        with contextlib.suppress(OSError), self._locked() as total:
            freed = 0
            for url in urls:
                with contextlib.suppress(OSError):
                    size = os.stat(self._path(url)).st_size
                    os.unlink(self._path(url))
                    freed += size
                    dropped += 1
            self._write_total(total, max(0, self._read_total(total) - freed))
        return dropped

    def _path(self, url: str) -> str:
        return os.path.join(self.directory, hashlib.sha256(url.encode()).hexdigest())

    def _temporary(self, url: str) -> IO[bytes]:
        """A new file, locked before anybody who looks for what dead processes left can see it."""
        name = os.path.basename(self._path(url))
        path = os.path.join(self.directory, temporary_name(name, os.getpid(), next(self._counter)))
        with self._locked(fcntl.LOCK_SH):
            file = open(path, "xb", buffering=1 << 16)  # noqa: SIM115 - the caller closes it
            fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def _name(self, temporary: str, url: str, size: int) -> bool:
        """Gives a whole copy its name, after room was made for it; False where it is larger than the bound."""
        if size > self.max_bytes:
            return False
        path = self._path(url)
        with self._locked() as total:
            used = self._read_total(total) + size
            with contextlib.suppress(FileNotFoundError):
                used -= os.stat(path).st_size
            if used > self.max_bytes:
                used = self._shrink(self.max_bytes - size) + size
            # before the name: a crash between the two makes the figure too great, which the next look corrects
            self._write_total(total, used)
            os.replace(temporary, path)
        self._count("kept")
        return True

    def _shrink(self, to: int) -> int:
        """Removes the copies used longest ago until the rest takes at most `to` bytes; gives what it takes."""
        copies = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if len(entry.name) == _NAME_LENGTH:
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat()
                        copies.append((found.st_mtime_ns, entry.path, found.st_size))
        used = sum(size for _, _, size in copies)
        for _, path, size in sorted(copies):
            if used <= to:
                break
            os.unlink(path)
            used -= size
            self._count("evicted")
        return used

    @contextlib.contextmanager
    def _locked(self, how: int = fcntl.LOCK_EX) -> Iterator[int]:
        """The lock of all processes, and of the threads of this one."""
        descriptor = os.open(os.path.join(self.directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield descriptor
        finally:
            os.close(descriptor)

    def _read_total(self, descriptor: int) -> int:
        data = os.pread(descriptor, _TOTAL.size, 0)
        # nobody wrote it, or somebody emptied the directory: a look at the files tells
        return int(_TOTAL.unpack(data)[0]) if len(data) == _TOTAL.size else self.max_bytes + 1

    def _write_total(self, descriptor: int, total: int) -> None:
        os.pwrite(descriptor, _TOTAL.pack(total), 0)
        self._held = total

    def _count(self, figure: str, by: int = 1) -> None:
        with self._lock:
            self._figures[figure] += by


class Writing:
    """A copy that is being written; a failure only means that there will be none."""

    def __init__(self, cache: LocalCache, url: str) -> None:
        self._cache = cache
        self._url = url
        self._file: IO[bytes] | None = None
        self._writer: CacheFileWriter | None = None
        if cache.max_bytes > 0:
            try:
                self._file = cache._temporary(url)
                self._writer = CacheFileWriter(self._file, url)
            except OSError as error:
                self._failed(error)

    @property
    def open(self) -> bool:
        """Whether it goes on: it neither ended nor failed."""
        return self._writer is not None

    def write(self, data: Any) -> None:
        """Adds a piece of the object."""
        if self._writer is None:
            return
        try:
            self._writer.write(data)
        except OSError as error:
            self._failed(error)
        else:
            if self._writer.size > self._cache.max_bytes:
                self.discard()

    def keep(self, size: int | None = None) -> None:
        """Makes it a copy, where the object is whole: of `size` bytes, if that is known."""
        writer, file = self._writer, self._file
        if writer is None or file is None or (size is not None and writer.size != size):
            self.discard()
            return
        try:
            whole = writer.finish()
            if not self._cache._name(file.name, self._url, whole):
                os.unlink(file.name)
        except OSError as error:
            self._failed(error)
        else:
            self._close()

    def discard(self) -> None:
        """Removes what was written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._file.name)
            self._close()

    def _close(self) -> None:
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _failed(self, error: OSError) -> None:
        log.warning("no local copy of %s is kept: %s", self._url, error)
        self._cache._count("failed")
        self.discard()


def _remove_if_dead(path: str) -> None:
    """Removes what a process that is no more was writing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


class CachingBackend(Backend):
    """A remote storage with local copies.

    Args:
        inner: the storage.
        cache: the directory of copies, shared with other storages.
        url: the root of `inner`.
    """

    def __init__(self, inner: Backend, cache: LocalCache, url: str) -> None:
        self._inner = inner
        self._cache = cache
        self._root = url
        self._being_copied: set[str] = set()
        self._lock = threading.Lock()

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        if not self._cache.holds(path):
            return self._inner.publish(path, chunks)
        writing = self._cache.writing(self._url(path))

        def both() -> Iterator[Any]:
            for chunk in chunks:
                writing.write(chunk)
                yield chunk

        try:
            size = self._inner.publish(path, both())
        except BaseException:
            # what is there now is for the storage to say
            writing.discard()
            self._cache.drop([self._url(path)])
            raise
        writing.keep(size)
        return size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        return self._inner.publish_if_absent(path, data)

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        found = self._copy(path, lambda file: file.read(0, file.size))
        if found is not None:
            return found[0]
        data = self._inner.read(path, size)
        if self._cache.holds(path):
            self._cache.keep(self._url(path), data)
        return data

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        found = self._copied(path, offset, length)
        return self._inner.read_range(path, offset, length) if found is None else found

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        much = size > _MANY_TIMES * length + _LITTLE_BYTES
        if much or not self._cache.holds(path) or size > self._cache.max_bytes:
            yield from super().read_pieces(path, offset, length, size)
            return
        with self._lock:
            alone = path not in self._being_copied
            self._being_copied.add(path)
        writing: Writing | None = None
        try:
            for start, wanted in split(offset, length, PIECE_BYTES):
                piece = self._copied(path, start, wanted)
                if piece is None:
                    if alone and start == offset:
                        writing = self._cache.writing(self._url(path))
                        self._fill(writing, path, 0, offset)
                    piece = self._inner.read_range(path, start, wanted)
                if writing is not None:
                    writing.write(piece)
                yield piece
            if writing is not None:
                self._fill(writing, path, offset + length, size)
                writing.keep(size)
        finally:
            if writing is not None:
                writing.discard()
            if alone:
                with self._lock:
                    self._being_copied.discard(path)

    def _copied(self, path: str, offset: int, length: int) -> pa.Buffer | None:
        found = self._copy(path, lambda file: file.read(offset, length))
        return None if found is None else found[0]

    def _fill(self, writing: Writing, path: str, start: int, end: int) -> None:
        """Adds what only the copy needs; a failure only means that there will be none."""
        try:
            for position, wanted in split(start, end - start, _PIECE_BYTES):
                if not writing.open:
                    return
                writing.write(self._inner.read_range(path, position, wanted))
        except Exception as error:
            # what was asked for is read without it; whoever needs the rest will meet the error
            log.warning("no local copy of %s is kept: %s", self._url(path), error)
            writing.discard()

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        found = self._copy(path, lambda file: file.read(max(0, file.size - length), length))
        if found is not None:
            return found
        tail, size = self._inner.read_tail(path, length)
        if tail.size == size and self._cache.holds(path):
            self._cache.keep(self._url(path), tail)
        return tail, size

    def list(self, directory: str) -> Sequence[Listed]:
        return self._inner.list(directory)

    def delete_many(self, paths: Sequence[str]) -> None:
        self._cache.drop(self._url(path) for path in paths)
        self._inner.delete_many(paths)

    def stamp(self, path: str) -> bool:
        return self._inner.stamp(path)

    def forget(self, path: str) -> bool:
        return self._cache.holds(path) and self._cache.drop([self._url(path)]) > 0

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def _copy(self, path: str, read: Callable[[CacheFile], pa.Buffer]) -> tuple[pa.Buffer, int] | None:
        return self._cache.use(self._url(path), read) if self._cache.holds(path) else None

    def _url(self, path: str) -> str:
        return f"{self._root}/{path}"
