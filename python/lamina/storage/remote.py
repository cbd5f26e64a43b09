"""Object stores through fsspec: publish = one PUT.

An object becomes visible when its upload is complete, so no temporary name is needed. Large objects are uploaded in
parts; an upload that fails is discarded. File systems that show an object while it is written are in `renaming`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from lamina.storage.backend import Backend, Listed, ranges

_PART_BYTES = 32 << 20
"""Objects up to this size are sent in one request; larger ones in parts of this size, 10,000 of them at most."""

RANGE_BYTES = 4 << 20
"""Longer reads are split into requests of this size, which run side by side and are retried one by one."""


class FsspecBackend(Backend):
    """Objects below `root` (as fsspec writes paths, without scheme) of one fsspec file system."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        protocol = filesystem.protocol
        self._in_process = protocol == "memory" or "memory" in protocol
        self.remote = not self._in_process

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        return self._upload(self._path(path), chunks)

    def _upload(self, target: str, chunks: Iterable[Any]) -> int:
        gathered: deque[Any] = deque()
        size = 0
        remaining = iter(chunks)
        for chunk in remaining:
            gathered.append(chunk)
            size += len(chunk)
            if size > _PART_BYTES:
                break
        else:
            data = b"".join(gathered)
            gathered.clear()
            self._pipe(target, data)
            return size
        # each is let go of when it was taken
        taken = (gathered.popleft() for _ in range(len(gathered)))
        return self._upload_parts(target, itertools.chain(taken, remaining))

    def _pipe(self, target: str, data: bytes) -> None:
        if self._in_process:
            # fsspec's memory files appear when they are opened; a file put in place whole does not
            with _MEMORY_LOCK:
                self._filesystem.pipe_file(target, data)
        else:
            self._filesystem.pipe_file(target, data)

    def _upload_parts(self, target: str, chunks: Iterable[Any]) -> int:
        size = 0
        file = self._filesystem.open(target, "wb", autocommit=False, block_size=_PART_BYTES)
        try:
            for chunk in chunks:
                size += len(chunk)
                file.write(bytes(chunk) if self._in_process else memoryview(chunk))
            file.close()
            file.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            # fsspec would close, thus upload, an open file when it is collected
            file.closed = True
            raise
        return size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        if self._in_process:
            with _MEMORY_LOCK:
                if self._filesystem.exists(target):
                    return False
                self._filesystem.pipe_file(target, data)
                return True
        try:
            self._filesystem.pipe_file(target, data, mode="create")
        except FileExistsError:
            return self._holds(path, data)
        except (NotImplementedError, TypeError):
            # without a conditional write a look before it is the best there is; who loses reads the other's object
            if self._filesystem.exists(target):
                return self._holds(path, data)
            self.publish(path, [data])
        return True

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether the object that is in the way of `data` is `data`: then it was written, and its answer was lost."""
        try:
            return bytes(self.read(path)) == data
        except FileNotFoundError:
            return False

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        if size is not None:
            try:
                return self.read_range(path, 0, size)
            except (FileNotFoundError, PermissionError):
                raise
            except Exception:
                # an object that is shorter than it should be is for the reader to find; some refuse such a range
                if self.size(path) >= size:
                    raise
        return self.read_range(path, 0, self.size(path))

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        target = self._path(path)
        pieces = list(ranges(offset, length, RANGE_BYTES))
        if len(pieces) <= 1:
            return pa.py_buffer(self._part(target, offset, offset + length))
        starts, ends = [start for start, _ in pieces], [start + wanted for start, wanted in pieces]
        parts = self._filesystem.cat_ranges([target] * len(pieces), starts, ends, on_error="return")
        for number, part in enumerate(parts):
            if isinstance(part, BaseException):
                # raises what it means, or says that the object ends before
                parts[number] = self._ended(target, part)
        return pa.py_buffer(b"".join(parts))

    def _part(self, target: str, start: int, end: int) -> bytes:
        if end <= start:
            # an empty range cannot be asked for; whether there is an object can
            self._filesystem.info(target)
            return b""
        try:
            return bytes(self._filesystem.cat_file(target, start=start, end=end))
        except OSError as error:
            return self._ended(target, error)

    @staticmethod
    def _ended(target: str, error: BaseException) -> bytes:
        """Nothing, where `error` says that a range begins behind the end of the object; otherwise raises it."""
        code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        if code in ("InvalidRange", "416"):
            return b""
        raise error

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        size = self.size(path)
        return self.read_range(path, max(0, size - length), min(length, size)), size

    def list(self, directory: str) -> Sequence[Listed]:
        target = self._path(directory)
        try:
            found = self._filesystem.ls(target, detail=True, refresh=True)
        except TypeError:
            found = self._filesystem.ls(target, detail=True)
        except FileNotFoundError:
            return []
        return [
            Listed(posixpath.basename(entry["name"].rstrip("/")), int(entry["size"] or 0), _modified_ms(entry))
            for entry in found
            # an object of the directory's own name stands for the directory itself
            if entry["type"] == "file" and entry["name"].strip("/") != target.strip("/")
        ]

    def delete_many(self, paths: Sequence[str]) -> None:
        targets = [self._path(path) for path in paths]
        if not targets:
            return
        try:
            self._filesystem.rm(targets)
        except FileNotFoundError:
            for target in targets:
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.rm_file(target)

    def size(self, path: str) -> int:
        target = self._path(path)
        self._filesystem.invalidate_cache(posixpath.dirname(target))
        found = self._filesystem.info(target)
        if found["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "a directory, not an object", target)
        return int(found["size"])

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


_MEMORY_LOCK = threading.Lock()
"""fsspec's memory file system is one per process and has no lock of its own."""


def _modified_ms(entry: dict[str, Any]) -> int:
    """When an entry of a listing was written; the names differ between file systems."""
    for key in ("LastModified", "last_modified", "mtime", "modified", "updated", "modificationTime", "created"):
        value = entry.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            return int(aware.timestamp() * 1000)
        if isinstance(value, (int, float)):
            # Hadoop's web interface counts milliseconds, the others seconds
            return int(value if key == "modificationTime" else value * 1000)
    return 0
