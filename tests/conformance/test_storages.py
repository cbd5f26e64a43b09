"""The conformance suite on every kind of storage; S3 is moto's server, started here."""

from __future__ import annotations

import os
import tempfile
import uuid
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from lamina.storage import LocalCache, Storage
from lamina.storage.renaming import RenamingBackend
from lamina.testing.faults import FaultyBackend
from lamina.testing.storage_conformance import StorageConformance
from tests.s3_server import OnS3Server


class HdfsLike(LocalFileSystem):
    """A rename that fails where the target exists."""

    protocol = "hdfs"

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        os.link(path1, path2)
        os.unlink(path1)


class WebHdfsLike(HdfsLike):
    """A rename that does nothing where the target exists."""

    protocol = "webhdfs"

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        try:
            super().mv(path1, path2)
        except FileExistsError:
            pass


class TestLocalFiles(StorageConformance):
    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(self.directory.name)

    def teardown_method(self) -> None:
        self.directory.cleanup()


class TestLocalFilesWithFsync(TestLocalFiles):
    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(f"file://{self.directory.name}", fsync=True)


class TestMemory(StorageConformance):
    def new_storage(self) -> Storage:
        return Storage(f"memory://conformance/{uuid.uuid4()}")


class TestLikeHdfs(StorageConformance):
    """Local files with HDFS's rename, which fails where the target exists."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(self.directory.name, backend=RenamingBackend(HdfsLike(auto_mkdir=True), self.directory.name))

    def teardown_method(self) -> None:
        self.directory.cleanup()


class TestLikeWebHdfs(TestLikeHdfs):
    """Local files with WebHDFS's rename as fsspec calls it: where the target exists nothing happens, without a word."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(self.directory.name, backend=RenamingBackend(WebHdfsLike(auto_mkdir=True), self.directory.name))


class TestS3(OnS3Server, StorageConformance):
    pass


class TestS3ThroughS3fs(TestS3):
    native = False


class TestS3WithLocalCopies(TestS3):
    """Every object is kept and read from its local copy where that may be."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        cache = LocalCache(f"{self.directory.name}/cache", 1 << 30, lambda path: True)
        return Storage(f"s3a://{self.server.bucket}/{uuid.uuid4()}", self.server.hadoop, cache=cache)

    def teardown_method(self) -> None:
        self.directory.cleanup()


class TestFaultyBackendWithoutFaults(StorageConformance):
    def new_storage(self) -> Storage:
        inner = Storage(f"memory://conformance/{uuid.uuid4()}")
        return Storage(inner.url, backend=FaultyBackend(inner._backend))
