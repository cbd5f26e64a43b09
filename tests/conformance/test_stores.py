"""The conformance suite of stores, per storage and compaction mode."""

from __future__ import annotations

import tempfile
import uuid
from typing import Any, ClassVar

import pytest

from lamina.format.paths import is_immutable
from lamina.storage import LocalCache, Storage
from lamina.storage.cache import CachingBackend
from lamina.testing.store_conformance import StoreConformance
from tests.conformance.format_2 import InFormat2
from tests.conformance.in_log import InLog
from tests.s3_server import EVERYDAY, OnS3Server


class OnLocalFiles(StoreConformance):
    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(self.directory.name)

    def teardown_method(self) -> None:
        self.directory.cleanup()


class OnMemory(StoreConformance):
    def new_storage(self) -> Storage:
        return Storage(f"memory://conformance/{uuid.uuid4()}")


class TestHeapOnLocalFiles(OnLocalFiles):
    pass


class TestHeapOnLocalFilesWithFsync(OnLocalFiles):
    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        return Storage(self.directory.name, fsync=True)


@pytest.mark.long
class TestHeapOnS3(OnS3Server, StoreConformance):
    pass


@pytest.mark.long
class TestHeapOnTroubledS3(TestHeapOnS3):
    """Each operation of a store meets errors, slow and lost answers somewhere, and none of them shows."""

    @classmethod
    def setup_class(cls) -> None:
        super().setup_class()
        cls.server.proxy.every = 10

    def test_every_kept_version_is_restored(self) -> None:
        before = self.server.proxy.met
        super().test_every_kept_version_is_restored()
        assert self.server.proxy.met - before >= len(EVERYDAY)


class TestHeapOnMemory(OnMemory):
    pass


class TestHeapWithLocalCopies(OnMemory):
    """What is read of the files comes from their local copies."""

    def new_storage(self) -> Storage:
        self.directory = tempfile.TemporaryDirectory()
        inner = super().new_storage()
        cache = LocalCache(f"{self.directory.name}/cache", 1 << 30, is_immutable)
        return Storage(inner.url, backend=CachingBackend(inner._backend, cache, inner.url))

    def teardown_method(self) -> None:
        self.directory.cleanup()


class TestHeapWithFullCompaction(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compaction_mode": "full", "compaction_full_interval": 3}


class TestHeapWritingEachVersionInFull(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compaction_mode": "full", "compaction_full_interval": 1}


class TestHeapWithShortChains(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compaction_max_chain": 2}


class TestHeapRolling(OnLocalFiles):
    settings: ClassVar[dict[str, Any]] = {"compaction_mode": "rolling", "compaction_rolling_parts": 4}


class TestHeapRollingInOnePart(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compaction_mode": "rolling", "compaction_rolling_parts": 1}


class TestHeapUncompressed(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compression_codec": "uncompressed"}


class TestHeapWithLz4(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"compression_codec": "lz4"}


class TestHeapInFormat2(InFormat2, OnLocalFiles):
    pass


@pytest.mark.long
class TestHeapOnS3InFormat2(OnS3Server, InFormat2):
    pass


class TestHeapOnMemoryInFormat2(InFormat2, OnMemory):
    pass


class TestHeapWithFullCompactionInFormat2(InFormat2, OnMemory):
    settings: ClassVar[dict[str, Any]] = TestHeapWithFullCompaction.settings


class TestHeapRollingInFormat2(InFormat2, OnMemory):
    settings: ClassVar[dict[str, Any]] = TestHeapRolling.settings


class TestHeapWithShortChainsInFormat2(InFormat2, OnMemory):
    settings: ClassVar[dict[str, Any]] = TestHeapWithShortChains.settings


class TestHeapInLogOnLocalFiles(InLog, OnLocalFiles):
    pass


class TestHeapInLogOnMemory(InLog, OnMemory):
    pass


@pytest.mark.long
class TestHeapInLogOnS3(OnS3Server, InLog):
    pass


class TestRocksdbOnLocalFiles(OnLocalFiles):
    settings: ClassVar[dict[str, Any]] = {"backend": "rocksdb", "rocksdb_materialize_every": 2}


class TestRocksdbOfEachVersion(OnMemory):
    settings: ClassVar[dict[str, Any]] = {"backend": "rocksdb", "rocksdb_materialize_every": 1}


class TestRocksdbOnMemoryInFormat2(InFormat2, OnMemory):
    settings: ClassVar[dict[str, Any]] = TestRocksdbOnLocalFiles.settings


class TestRocksdbInLog(InLog, OnMemory):
    settings: ClassVar[dict[str, Any]] = {**InLog.settings, **TestRocksdbOnLocalFiles.settings}


@pytest.mark.long
class TestRocksdbOnS3(OnS3Server, StoreConformance):
    settings: ClassVar[dict[str, Any]] = TestRocksdbOnLocalFiles.settings
