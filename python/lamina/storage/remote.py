"""Object stores and every other file system that fsspec has: publish = one PUT.

An object becomes visible when its upload is complete, so no temporary name is needed. Large objects are uploaded in
parts; an upload that fails is discarded. File systems with directories (hdfs) write a temporary name and move it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from lamina.storage.backend import Backend, Listed
from lamina.storage.temporary import temporary_name

_ONE_PUT_BYTES = 64 << 20
"""Objects up to this size are sent in one request; larger ones in parts."""

_RENAMING = frozenset({"hdfs", "webhdfs", "arrow_hdfs", "file", "local", "sftp", "smb"})
"""Protocols whose objects are visible while they are written."""


class FsspecBackend(Backend):
    """Objects below `root` (as fsspec writes paths, without scheme) of one fsspec file system."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._counter = itertools.count()
        protocol = filesystem.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._renames = bool(protocols & _RENAMING)
        self._in_process = "memory" in protocols

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        target = self._path(path)
        if not self._renames:
            return self._upload(target, chunks)
        directory, name = posixpath.split(target)
        temporary = posixpath.join(directory, temporary_name(name, os.getpid(), next(self._counter)))
        self._filesystem.makedirs(directory, exist_ok=True)
        try:
            size = self._upload(temporary, chunks)
            self._filesystem.mv(temporary, target)
        except BaseException:
            with contextlib.suppress(Exception):
                self._filesystem.rm_file(temporary)
            raise
        return size

    def _upload(self, target: str, chunks: Iterable[Any]) -> int:
        gathered: list[Any] = []
        size = 0
        remaining = iter(chunks)
        for chunk in remaining:
            gathered.append(chunk)
            size += len(chunk)
            if size > _ONE_PUT_BYTES:
                break
        else:
            data = b"".join(gathered)
            gathered.clear()
            self._pipe(target, data)
            return size
        return self._upload_parts(target, itertools.chain(gathered, remaining))

    def _pipe(self, target: str, data: bytes) -> None:
        if self._in_process:
            # fsspec's memory files appear when they are opened; a file put in place whole does not
            with _MEMORY_LOCK:
                self._filesystem.pipe_file(target, data)
        else:
            self._filesystem.pipe_file(target, data)

    def _upload_parts(self, target: str, chunks: Iterable[Any]) -> int:
        size = 0
        file = self._filesystem.open(target, "wb", autocommit=False)
        try:
            for chunk in chunks:
                size += len(chunk)
                file.write(bytes(chunk) if self._in_process else memoryview(chunk))
            file.close()
            file.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
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
            return False
        except (NotImplementedError, TypeError):
            # without a conditional write a look before it is the best there is; who loses reads the other's object
            if self._filesystem.exists(target):
                return False
            self.publish(path, [data])
        return True

    def read(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self._filesystem.cat_file(self._path(path)))

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._filesystem.cat_file(self._path(path), start=offset, end=offset + length))

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        size = self.size(path)
        return self.read_range(path, max(0, size - length), length), size

    def list(self, directory: str) -> Sequence[Listed]:
        try:
            found = self._filesystem.ls(self._path(directory), detail=True, refresh=True)
        except TypeError:
            found = self._filesystem.ls(self._path(directory), detail=True)
        except FileNotFoundError:
            return []
        return [
            Listed(posixpath.basename(entry["name"].rstrip("/")), int(entry["size"] or 0), _modified_ms(entry))
            for entry in found
            if entry["type"] == "file"
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
        self._filesystem.invalidate_cache(posixpath.dirname(self._path(path)))
        return int(self._filesystem.info(self._path(path))["size"])

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
