"""The conformance suite of storages on those that need no server."""

from __future__ import annotations

import tempfile
import uuid

import fsspec

from lamina.storage import Storage
from lamina.storage.remote import FsspecBackend
from lamina.testing.faults import FaultyBackend
from lamina.testing.storage_conformance import StorageConformance


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


class TestRenamingFileSystem(StorageConformance):
    """Local files through fsspec stand for file systems that show a file while it is written (hdfs)."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        filesystem = fsspec.filesystem("file", auto_mkdir=True)
        return Storage(self.directory.name, backend=FsspecBackend(filesystem, self.directory.name))

    def teardown_method(self) -> None:
        self.directory.cleanup()

    def test_of_concurrent_publications_if_absent_exactly_one_wins(self) -> None:
        """Without a conditional write only callers one after the other are kept apart."""
        assert self.storage.publish_if_absent("d/f", b"1")
        assert not self.storage.publish_if_absent("d/f", b"2")


class TestFaultyBackendWithoutFaults(StorageConformance):
    def new_storage(self) -> Storage:
        inner = Storage(f"memory://conformance/{uuid.uuid4()}")
        return Storage(inner.url, backend=FaultyBackend(inner._backend))
