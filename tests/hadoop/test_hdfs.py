"""A real HDFS, whose servers run on this machine: the conformance suites, and what a commit asks of the name node."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from benchmarks.scala import java, pyspark_jars
from lamina.storage import Jvm, Storage
from lamina.testing.expect import fails_with
from lamina.testing.storage_conformance import StorageConformance
from lamina.testing.store_conformance import StoreConformance
from tests.conformance import test_stores
from tests.conformance.in_log import InLog
from tests.hadoop.conftest import line_of
from tests.spark.hadoop_jars import mini_hdfs_jar, minicluster_jars

PUBLISHERS = 8


class Hdfs:
    """The file system's URLs, the second one over HTTP, and what its name node has done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url, self.web_url = line_of(process).split()

    def operations(self) -> dict[str, int]:
        """Files created, renamed and deleted, and looks at one file, since the start."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        counts = map(int, line_of(self._process).split())
        return dict(zip(("created", "renamed", "deleted", "looked up"), counts, strict=True))


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    classes = os.pathsep.join([str(mini_hdfs_jar()), *map(str, minicluster_jars()), f"{pyspark_jars()}/*"])
    directory = tmp_path_factory.mktemp("hdfs")
    process = subprocess.Popen(
        [java(), "-Xmx512m", "-cp", classes, "org.apache.spark.sql.lamina.hdfs.MiniHdfs", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Hdfs(process)
        assert process.stdin is not None
        process.stdin.close()


class TestFilesOnHdfs(StorageConformance):
    """The conformance suite of storages."""

    @pytest.fixture(autouse=True)
    def _storage(self, jvm: Jvm, hdfs: Hdfs) -> None:
        self.storage = Storage(f"{hdfs.url}/{uuid.uuid4()}", jvm=jvm)

    def setup_method(self) -> None:
        """The storage is made by the fixture, which has the JVM."""


class OnHdfs:
    """What makes a conformance suite one of stores on this HDFS."""

    @pytest.fixture(autouse=True)
    def _checkpoint(self, jvm: Jvm, hdfs: Hdfs) -> None:
        self.jvm, self.hdfs = jvm, hdfs
        super().setup_method()  # type: ignore[misc]

    def setup_method(self) -> None:
        """Left to the fixture, which has the JVM."""

    def new_storage(self) -> Storage:
        return Storage(f"{self.hdfs.url}/{uuid.uuid4()}", jvm=self.jvm)


class TestStoresOnHdfs(OnHdfs, StoreConformance):
    """The conformance suite of stores."""


class TestStoresInLogOnHdfs(OnHdfs, InLog):
    """Where commits are parts of log objects."""


class TestTablesInLogOnHdfs(OnHdfs, InLog):
    """And versions stand on tables of RocksDB besides."""

    settings: ClassVar[dict[str, Any]] = test_stores.TestRocksdbInLog.settings


def test_a_file_is_published_by_one_creation_and_one_rename(jvm: Jvm, hdfs: Hdfs) -> None:
    storage = Storage(f"{hdfs.url}/{uuid.uuid4()}", jvm=jvm)
    storage.publish("d/first", b"opens the connection")
    before = hdfs.operations()
    storage.publish("d/f", b"x")
    assert storage.publish_if_absent("d/g", b"y")
    asked = {name: count - before[name] for name, count in hdfs.operations().items()}
    assert asked == {"created": 2, "renamed": 2, "deleted": 0, "looked up": 0}


def test_files_are_reached_over_http_where_there_is_no_jvm(hdfs: Hdfs) -> None:
    storage = Storage(f"{hdfs.web_url}/{uuid.uuid4()}")
    storage.publish("d/f", b"one")
    storage.publish("d/f", b"two")
    assert bytes(storage.read("d/f")) == b"two"
    assert storage.publish_if_absent("d/g", b"first")
    assert not storage.publish_if_absent("d/g", b"second")
    assert storage.read_tail("d/g", 2) == (b"st", 5)
    assert {entry.name: entry.size for entry in storage.list("d")} == {"f": 3, "g": 5}
    storage.delete_many(["d/f", "d/missing"])
    assert [entry.name for entry in storage.list("d")] == ["g"]
    with fails_with("file.missing", "d/f"):
        storage.read("d/f")


def test_a_stamp_makes_a_file_as_young_as_one_that_is_written_now(jvm: Jvm, hdfs: Hdfs) -> None:
    storage = Storage(f"{hdfs.url}/{uuid.uuid4()}", jvm=jvm)
    storage.publish("d/f", b"x")
    (written,) = storage.list("d")
    time.sleep(0.05)
    before_ms = time.time_ns() // 1_000_000
    assert storage.stamp("d/f")
    (stamped,) = storage.list("d")
    assert written.modified_ms < before_ms <= stamped.modified_ms
    assert bytes(storage.read("d/f")) == b"x"


def test_of_many_that_publish_one_name_at_once_one_does_and_its_bytes_are_there(jvm: Jvm, hdfs: Hdfs) -> None:
    url = f"{hdfs.url}/{uuid.uuid4()}"
    storages = [Storage(url, jvm=jvm) for _ in range(PUBLISHERS)]
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        for number in range(20):
            path = f"d/{number}"
            written = list(
                pool.map(lambda n, path=path: storages[n].publish_if_absent(path, b"%d" % n), range(PUBLISHERS))
            )
            assert written.count(True) == 1
            assert bytes(storages[0].read(path)) == b"%d" % written.index(True)
    assert {entry.name for entry in storages[0].list("d")} == {str(number) for number in range(20)}
