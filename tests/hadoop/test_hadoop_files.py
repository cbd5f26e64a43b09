"""Hadoop's files through a JVM without Spark: the conformance suites, and what is refused."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.registry import _registry

from lamina.storage import Jvm, Storage
from lamina.storage.jvm import JvmBackend
from lamina.testing.expect import fails_with
from lamina.testing.storage_conformance import StorageConformance
from lamina.testing.store_conformance import StoreConformance
from tests.spark.hadoop_jars import ODD

ODD_HDFS = "org.apache.spark.sql.lamina.wire.OddHdfs"
ODD_GOOGLE = "org.apache.spark.sql.lamina.wire.OddGoogle"


class TestHadoopFiles(StorageConformance):
    """The conformance suite through the JVM's Hadoop."""

    file_system = ODD

    @pytest.fixture(autouse=True)
    def _storage(self, jvm: Jvm) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory:
            self.storage = Storage(f"odd:{directory}/{uuid.uuid4()}", {"fs.odd.impl": self.file_system}, jvm=jvm)
            yield

    def setup_method(self) -> None:
        """The storage is made by the fixture, which has the JVM."""


class TestHadoopFilesWithHdfssRename(TestHadoopFiles):
    """Where the target is there the rename itself refuses."""

    file_system = ODD_HDFS


def test_an_object_that_another_jvm_publishes_after_the_look_is_not_replaced(jvm: Jvm, tmp_path: Path) -> None:
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD_HDFS, "fs.odd.rival": "theirs"}, jvm=jvm)
    assert not storage.publish_if_absent("d/f", b"mine")
    assert bytes(storage.read("d/f")) == b"theirs"
    assert [entry.name for entry in storage.list("d")] == ["f"]


def test_an_object_that_another_machine_publishes_on_google_at_the_last_moment_is_not_replaced(
    jvm: Jvm, tmp_path: Path
) -> None:
    keys = {"fs.gs.impl": ODD_GOOGLE}
    storage = Storage(f"gs://bucket{tmp_path}", {**keys, "fs.odd.rival": "theirs"}, jvm=jvm)
    assert not storage.publish_if_absent("d/f", b"mine")
    assert bytes(storage.read("d/f")) == b"theirs"
    # as where the answer to a write of these bytes was lost
    assert storage.publish_if_absent("d/f", b"theirs")
    assert Storage(f"gs://bucket{tmp_path}", keys, jvm=jvm).publish_if_absent("d/g", b"mine")
    assert (tmp_path / "d" / "g").read_bytes() == b"mine"
    assert sorted(entry.name for entry in storage.list("d")) == ["f", "g"]


def test_many_files_are_deleted_side_by_side_and_one_that_is_refused_is_named(jvm: Jvm, tmp_path: Path) -> None:
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD, "fs.odd.deletions": "8"}, jvm=jvm)
    for number in range(80):
        (tmp_path / f"{number}").write_bytes(b"x")
    # a directory that holds something
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "f").write_bytes(b"x")
    with fails_with("storage.failed", f"{tmp_path}/refused"):
        storage.delete_many(["refused", *(f"{number}" for number in range(80))])
    # what follows it in its part of the list is left
    assert len(storage.list("")) < 20
    storage.delete_many([f"{number}" for number in range(80)])
    assert list(storage.list("")) == []


def test_a_rename_that_fails_is_told_and_leaves_nothing(jvm: Jvm, tmp_path: Path) -> None:
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD_HDFS, "fs.odd.fails": "true"}, jvm=jvm)
    for publish in (storage.publish, storage.publish_if_absent):
        with fails_with("storage.failed") as caught:
            publish("d/f", b"x")
        assert "was not renamed to" in caught.error.message
        assert "d/f" in caught.error.message
    assert list(storage.list("d")) == []


def test_a_read_that_is_denied_although_the_file_could_be_opened_says_so(jvm: Jvm, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD, "fs.odd.reads": "0"}, jvm=jvm)
    for read in (lambda: storage.read("f"), lambda: storage.read_range("f", 1, 2), lambda: storage.read_tail("f", 2)):
        with fails_with("storage.denied", "from 0 on it is denied", "/f"):
            read()
    # nothing is read of it
    assert bytes(storage.read_range("f", 5, 3)) == b""


def test_a_read_that_breaks_off_is_told_and_the_next_one_goes_on(jvm: Jvm, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD, "fs.odd.reads": str(2 << 20)}, jvm=jvm)
    with fails_with("storage.failed", "the JVM, whose log says why", "/f"):
        storage.read("f")
    assert len(storage.read_range("f", 0, 2 << 20)) == 2 << 20


@pytest.mark.parametrize("times", ["kept", "ignored", "refused"])
def test_a_file_is_stamped_or_it_is_told_that_it_is_not(jvm: Jvm, tmp_path: Path, times: str) -> None:
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD, "fs.odd.times": times}, jvm=jvm)
    storage.publish("d/f", b"x")
    os.utime(tmp_path / "d" / "f", (1000, 1000))
    assert storage.stamp("d/f") == (times == "kept")
    (listed,) = storage.list("d")
    assert (listed.modified_ms > 1_000_000) == (times == "kept")
    assert bytes(storage.read("d/f")) == b"x"
    if times != "refused":
        with fails_with("file.missing", "d/absent"):
            storage.stamp("d/absent")


def test_a_file_whose_time_is_ahead_of_this_machines_is_young_and_keeps_it(jvm: Jvm, tmp_path: Path) -> None:
    storage = Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD}, jvm=jvm)
    storage.publish("d/f", b"x")
    ahead = time.time() + 1000
    os.utime(tmp_path / "d" / "f", (ahead, ahead))
    assert storage.stamp("d/f")
    assert (tmp_path / "d" / "f").stat().st_mtime == pytest.approx(ahead, abs=0.01)


def test_files_go_through_hadoop_where_pythons_package_is_missing(
    jvm: Jvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    storage = Storage(f"s3a://bucket{tmp_path}", {"fs.s3a.impl": ODD}, jvm=jvm)
    storage.publish("d/f", b"x")
    assert (tmp_path / "d" / "f").read_bytes() == b"x"
    assert bytes(storage.read("d/f")) == b"x"
    with fails_with("storage.scheme") as caught:
        Storage(f"s3a://bucket{tmp_path}")
    assert "pip install s3fs" in caught.error.message


def test_files_go_through_hadoop_where_a_key_of_identity_needs_it_although_python_has_a_client(
    jvm: Jvm, tmp_path: Path
) -> None:
    keys = {"fs.s3a.impl": ODD, "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/writer"}
    Storage(f"s3a://bucket{tmp_path}", keys, jvm=jvm).publish("d/f", b"x")
    assert (tmp_path / "d" / "f").read_bytes() == b"x"
    with fails_with("storage.failed", "storage.scheme") as caught:
        Storage(f"s3a://bucket{tmp_path}", {**keys, "fs.s3a.impl": "no.such.Class"}, jvm=jvm)
    assert "fs.s3a.assumed.role.arn" in caught.error.message


class TestStoresOnHadoopFiles(StoreConformance):
    """The conformance suite of stores, whose files go through the JVM's Hadoop."""

    @pytest.fixture(autouse=True)
    def _checkpoint(self, jvm: Jvm, tmp_path: Path) -> None:
        self.jvm, self.directory = jvm, tmp_path
        super().setup_method()

    def setup_method(self) -> None:
        """Left to the fixture, which has the JVM."""

    def new_storage(self) -> Storage:
        return Storage(f"odd:{self.directory}/{uuid.uuid4()}", {"fs.odd.impl": ODD}, jvm=self.jvm)


def test_a_scheme_that_neither_python_nor_hadoop_knows_is_named(jvm: Jvm) -> None:
    with fails_with("storage.scheme") as caught:
        Storage("unheardof://a/b", jvm=jvm)
    assert "neither Python nor Hadoop" in caught.error.message
    assert "unheardof" in caught.error.message


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_hdfs_is_left_to_hadoop_where_there_is_a_jvm(jvm: Jvm, scheme: str) -> None:
    """Nobody listens there; but it is Hadoop that says so, not a library that Python lacks."""
    storage = Storage(f"{scheme}://127.0.0.1:1/a", {"ipc.client.connect.max.retries": "0"}, jvm=jvm)
    with fails_with("storage.failed") as caught:
        storage.read("f")
    assert "java.net.ConnectException" in caught.error.message


def test_a_caller_without_the_token_is_turned_away(jvm: Jvm) -> None:
    with pytest.raises(ConnectionError):
        JvmBackend(Jvm(jvm.socket, "0" * 64), "odd:/tmp", {"fs.odd.impl": ODD})


def test_queries_with_other_keys_get_other_file_systems(jvm: Jvm, tmp_path: Path) -> None:
    Storage(f"odd:{tmp_path}", {"fs.odd.impl": ODD}, jvm=jvm).publish("f", b"x")
    with fails_with("storage.failed", "storage.scheme"):
        Storage(f"odd:{tmp_path}", {"fs.odd.impl": "no.such.Class"}, jvm=jvm).read("f")
