"""Local copies of what was written to, or read from, a remote storage: a bounded directory, shared by processes.

    <directory>/                       mode 0700
        total                          what all files below take together (`cache_total`)
        evictor                        locked by the process that makes room (`cache_eviction`)
        <SHA-256 of an object's URL>   one object (`cache_file`), or the object's bytes alone
        .<…>.<process>-<number>.tmp    being written, and locked by its writer; or being removed

1. A copy has its name only once it is whole, and is verified whenever it is read: a crash, or a damaged disk, costs a
   read from the storage. Nothing is flushed to the disk.
2. Only objects that never change are kept (`holds`, `links`), so a copy is never old. Whether an object is there, and
   listings, are asked of the storage, always.
3. All files take at most `max_bytes`, those being written included: room is reserved before it is used. For a moment
   the last step of each writer may come on top, as a length without contents. A copy for which there is no room is not
   made. Nobody waits for room: it is made in the background.
4. A copy of an object that others read in place (`links`) is the object's bytes alone, and a link to the file of who
   has them: it takes the disk once, and as long as either name is there. Who links it verifies it.
5. No failure of the cache is a failure of the storage: it is logged, counted, and the storage is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

import pyarrow as pa

from lamina.components import SystemClock
from lamina.storage.cache_eviction import NAME_LENGTH, Evictor, remove_if_dead
from lamina.storage.cache_file import CacheFile, CacheFileWriter, Damaged, file_size
from lamina.storage.cache_total import UNKNOWN, Busy, SharedTotal, subtract
from lamina.storage.temporary import is_temporary, random_numbers, temporary_name

log = logging.getLogger(__name__)

_AUTO_BYTES = 4 << 30
_AUTO_SHARE = 10

STEP_BYTES = 4 << 20
_STEP_SHARE = 128
"""Room is reserved in steps of so many bytes, at most one of so many parts of the bound."""


def default_directory() -> str:
    """Where the cache lies unless a setting says otherwise: it outlives this process, and belongs to this user."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"lamina_cache_{os.getuid()}")


class LocalCache:
    """The directory of local copies.

    Args:
        directory: made where it is not there; None: `default_directory()`.
        max_bytes: bound of all copies; 0 keeps none; None: 4 GiB, at most a tenth of the disk.
        holds: whether an object of this path never changes once it was written.
        links: whether it is a file for others, whose copy is linked and neither written nor read here.
    """

    def __init__(
        self,
        directory: str | None,
        max_bytes: int | None,
        holds: Callable[[str], bool],
        links: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.directory = directory or default_directory()
        self._holds = holds
        self.links = links
        self._numbers = random_numbers()
        self._lock = threading.Lock()
        names = ("hits", "hit_bytes", "misses", "kept", "evicted", "damaged", "no_room", "busy", "failed")
        self._figures = dict.fromkeys(names, 0)
        self._wanted = max_bytes
        self._bound: int | None = None
        self._opening = threading.Lock()
        self._total = SharedTotal(self.directory)
        self._evictor: Evictor | None = None

    def holds(self, path: str) -> bool:
        """Whether an object is kept as it is written and read here."""
        return self._holds(path) and not self.links(path)

    @property
    def max_bytes(self) -> int:
        """The bound of all copies; 0 where none are kept. The directory is made when this is first asked."""
        with self._opening:
            if self._bound is None:
                self._bound = 0 if self._wanted == 0 else self._open()
            return self._bound

    def _open(self) -> int:
        try:
            self._make_directory()
            disk = os.statvfs(self.directory)
            auto = min(_AUTO_BYTES, disk.f_frsize * disk.f_blocks // _AUTO_SHARE)
            bound = auto if self._wanted is None else self._wanted
            self._evictor = Evictor(self.directory, bound, self._total, lambda copies: self.count("evicted", copies))
            self._look_around(self._evictor)
            return bound
        except OSError as error:
            log.warning("no local copies are kept: %s", error)
            self.count("failed")
            return 0

    def _make_directory(self) -> None:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        found = os.stat(self.directory)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self.directory} is not this user's alone; set storage.cache.directory")

    def _look_around(self, evictor: Evictor) -> None:
        """Removes what dead processes left, and finds out whether the total is known and within the bound."""
        names, begun = os.listdir(self.directory), self._total.read()
        dead = [name for name in names if is_temporary(name) and remove_if_dead(os.path.join(self.directory, name))]
        if begun.total >= UNKNOWN and not any(len(name) == NAME_LENGTH or is_temporary(name) for name in names):
            self._total.settle_empty()
        if dead or self._total.read().total > evictor.high_water:
            evictor.wake(scan=bool(dead))

    @property
    def held_bytes(self) -> int:
        """What all copies take, of whatever process, when this one last added or removed any."""
        return self._total.last

    def stats(self) -> dict[str, Any]:
        """Directory, bound, bytes, and figures of this process since its start.

        `hit_bytes` were read from copies. `no_room` and `busy` copies were not made: the bound was reached, or another
        process held the lock for too long.
        """
        with self._lock:
            return {"directory": self.directory, "max_bytes": self._bound, "bytes": self.held_bytes, **self._figures}

    def wait_for_eviction(self, timeout_s: float) -> bool:
        """Waits until this process makes no room any more; whether that was so in time."""
        return self._evictor is None or self._evictor.wait(timeout_s)

    def use(self, url: str, read: Callable[[CacheFile], pa.Buffer]) -> tuple[pa.Buffer, int] | None:
        """What `read` gives of the copy of `url`, and the object's size; None where there is none, or a damaged one."""
        if not self.max_bytes:
            return None
        path = self._path(url)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.count("misses")
            return None
        try:
            file = CacheFile(descriptor, url)
            data = read(file)
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        except (Damaged, OSError) as error:
            log.warning("the local copy %s of %s is damaged (%s); it is read from the storage", path, url, error)
            self.count("damaged")
            self.drop([url])
            return None
        finally:
            os.close(descriptor)
        self.count("hits")
        self.count("hit_bytes", data.size)
        return data, file.size

    def writing(self, url: str) -> Writing:
        """A copy in the making."""
        return Writing(self, url)

    def keep(self, url: str, data: Any) -> None:
        """Keeps a copy of a whole object."""
        writing = self.writing(url)
        writing.write(data)
        writing.keep()

    def link(self, url: str, target: str, room: Callable[[int], None]) -> bool:
        """Gives the copy of `url` the name `target`, too, on its disk or as a copy of it; False where there is none.

        Nothing of it is verified.

        Args:
            room: called with its size before it is copied; what it raises goes on.
        """
        if not self.max_bytes:
            return False
        path = self._path(url)
        try:
            try:
                os.link(path, target)
            except FileNotFoundError:
                self.count("misses")
                return False
            except OSError:
                room(os.stat(path).st_size)
                shutil.copyfile(path, target)
            note_use(path)
            self.count("hit_bytes", os.stat(target).st_size)
        except OSError as error:
            log.warning("the local copy %s of %s could not be used: %s", path, url, error)
            self.count("failed")
            return False
        self.count("hits")
        return True

    def keep_file(self, url: str, source: str) -> None:
        """Keeps a local file, which never changes, as the copy of `url`."""
        if not self.max_bytes:
            return
        path = self._path(url)
        try:
            size, epoch = os.stat(source).st_size, self._total.read().epoch
            if os.path.exists(path):
                note_use(path)
            elif size > self.largest or self._total.reserve(size, self.max_bytes) is None:
                self.count("no_room")
                self.want_room(size)
            else:
                self._name_file(source, path, size, epoch)
        except Busy:
            self.count("busy")
        except OSError as error:
            log.warning("no local copy of %s is kept: %s", url, error)
            self.count("failed")

    def _name_file(self, source: str, path: str, size: int, epoch: int) -> None:
        """Makes a file the copy at `path`, for which room was reserved since `epoch`."""
        named = source
        try:
            if not _may_be_linked(source, self.directory):
                named = self._copied(source, path, size)
            with self._total.changed() as figures:
                os.link(named, path)
                # a scan that is under way may have met the file under no name of the cache
                figures.added += size
        except FileExistsError:
            self._total.give_back(size, epoch)
        except BaseException:
            self._total.give_back(size, epoch)
            raise
        else:
            self.count("kept")
            if self._evictor is not None and figures.total > self._evictor.high_water:
                self._evictor.wake()
        finally:
            if named != source:
                with contextlib.suppress(OSError):
                    os.unlink(named)

    def _copied(self, source: str, path: str, size: int) -> str:
        """A file of the cache with the bytes of one on another disk, as large from its beginning as it gets."""
        with self.temporary(os.path.basename(path)) as file, open(source, "rb") as read:
            try:
                os.ftruncate(file.fileno(), size)
                shutil.copyfileobj(read, file, STEP_BYTES)
                file.flush()
            except BaseException:
                os.unlink(file.name)
                raise
        return str(file.name)

    def drop(self, urls: Iterable[str]) -> int:
        """Removes copies, where there are any; how many."""
        if not self.max_bytes or self._evictor is None:
            return 0
        try:
            return self._evictor.remove([self._path(url) for url in urls])
        except OSError as error:
            log.warning("local copies in %s were not removed: %s", self.directory, error)
            return 0

    def temporary(self, url: str) -> IO[bytes]:
        """A new file that its writer has locked, so that it counts as that of a living process."""
        name = os.path.basename(self._path(url))
        while True:
            path = os.path.join(self.directory, temporary_name(name, os.getpid(), next(self._numbers)))
            try:
                file = open(path, "xb", buffering=1 << 16)  # noqa: SIM115 - the caller closes it
            except FileNotFoundError:
                # somebody deleted the directory
                self._make_directory()
                self._look_around_anew()
                continue
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink:
                    return file
            # who looks for what dead processes left was here between the two calls
            file.close()

    def _look_around_anew(self) -> None:
        if self._evictor is not None:
            self._look_around(self._evictor)

    def reserve(self, file: IO[bytes], reserved: int, more: int) -> bool:
        """Makes `file`, for which `reserved` bytes are counted, larger by `more`; whether there is room.

        The file is made larger before that is counted: a scan meets the one or the other.
        """
        os.ftruncate(file.fileno(), reserved + more)
        figures = self._total.reserve(more, self.max_bytes)
        return figures is not None

    def name(self, file: IO[bytes], url: str, size: int, reserved: int) -> None:
        """Gives a whole copy of `size` bytes its name, and back what was `reserved` beyond it."""
        evictor = self._evictor
        assert evictor is not None
        epoch = self._total.read().epoch
        os.ftruncate(file.fileno(), size)
        path = self._path(url)
        with self._total.changed() as figures:
            replaced = evictor.set_aside(path)
            os.replace(file.name, path)
            # a scan that is under way may have met the file under neither name
            figures.added += size
            subtract(figures, reserved - size, epoch)
        freed = None if replaced is None else evictor.free(replaced)
        if freed is not None:
            self._total.give_back(freed, epoch)
        self.count("kept")
        if figures.total > evictor.high_water:
            evictor.wake()

    def discard(self, file: IO[bytes], reserved: int) -> None:
        """Removes what was written of a copy."""
        with contextlib.suppress(OSError):
            epoch = self._total.read().epoch
            os.unlink(file.name)
            if reserved:
                self._total.give_back(reserved, epoch)

    def want_room(self, size: int) -> None:
        """Says that there was no room for a copy of `size` bytes: there will be for the next one."""
        if self._evictor is not None:
            self._evictor.want_room(size)

    @property
    def largest(self) -> int:
        """The size of the largest copy that is made, with its checksums."""
        return self._evictor.largest if self.max_bytes and self._evictor is not None else 0

    def count(self, figure: str, by: int = 1) -> None:
        """Adds to one of `stats`."""
        with self._lock:
            self._figures[figure] += by

    def _path(self, url: str) -> str:
        return os.path.join(self.directory, hashlib.sha256(url.encode()).hexdigest())


class Writing:
    """A copy that is being written; a failure, or a lack of room, only means that there will be none."""

    def __init__(self, cache: LocalCache, url: str) -> None:
        self._cache = cache
        self._url = url
        self._file: IO[bytes] | None = None
        self._writer: CacheFileWriter | None = None
        self._reserved = 0
        self._size = 0
        self._no_room = False
        if cache.max_bytes > 0:
            try:
                self._file = cache.temporary(url)
                self._writer = CacheFileWriter(self._file, url)
            except OSError as error:
                self._failed(error)

    @property
    def open(self) -> bool:
        """Whether it goes on: it neither ended nor failed."""
        return self._writer is not None

    def write(self, data: Any) -> None:
        """Adds a piece of the object."""
        self._size += len(data)
        if self._writer is None or self._file is None:
            return
        try:
            if self._reserve(self._file, file_size(self._size)):
                self._writer.write(data)
            else:
                self._no_room = True
                self._cache.count("no_room")
                self.discard()
        except OSError as error:
            self._failed(error)

    def _reserve(self, file: IO[bytes], needed: int) -> bool:
        bound = self._cache.max_bytes
        if needed <= self._reserved:
            return True
        if needed > self._cache.largest:
            return False
        step = min(STEP_BYTES, bound // _STEP_SHARE)
        for wanted in (needed + step, needed):
            if self._cache.reserve(file, self._reserved, wanted - self._reserved):
                self._reserved = wanted
                return True
        return False

    def keep(self, size: int | None = None) -> None:
        """Makes it a copy, where the object is whole: of `size` bytes, if that is known."""
        writer, file = self._writer, self._file
        whole = size is None or size == self._size
        if writer is None or file is None or not whole:
            if self._no_room and (size is not None or whole):
                self._cache.want_room(file_size(self._size if size is None else size))
            self.discard()
            return
        try:
            # the room for what follows the last piece; without any piece there is none yet
            if not self._reserve(file, file_size(self._size)):
                self._cache.count("no_room")
                self.discard()
                return
            self._cache.name(file, self._url, writer.finish(), self._reserved)
        except OSError as error:
            self._failed(error)
        else:
            self._close()

    def discard(self) -> None:
        """Removes what was written."""
        if self._file is not None:
            self._cache.discard(self._file, self._reserved)
            self._close()

    def _close(self) -> None:
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _failed(self, error: OSError) -> None:
        if isinstance(error, Busy):
            # not worth a line each: while the holder of the lock is stopped, every copy ends like this
            self._cache.count("busy")
        else:
            log.warning("no local copy of %s is kept: %s", self._url, error)
            self._cache.count("failed")
        self.discard()


def note_use(path: str) -> None:
    """Notes the use of a copy that is linked, by any of its names; its time of change says that nobody changed it."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(SystemClock().now_ms() * 1_000_000, os.stat(path).st_mtime_ns))


def _may_be_linked(source: str, directory: str) -> bool:
    """Whether a file is on the disk of a directory, or seems to be."""
    return os.stat(source).st_dev == os.stat(directory).st_dev
