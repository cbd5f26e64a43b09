"""Errors of storages, local publication with and without fsync, and file systems that are not installed."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import threading
import types
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lamina
from lamina.components import SystemClock
from lamina.storage import Storage, is_temporary
from lamina.storage.remote import FsspecBackend, _modified_ms
from lamina.storage.renaming import RenamingBackend
from lamina.storage.temporary import random_numbers, temporary_name
from lamina.testing import Fault, FaultyBackend
from lamina.testing.expect import fails_with
from lamina.testing.memory import MemoryBackend
from tests.conformance.test_storages import HdfsLike
from tests.unit.storage.recorder import Recorder


def test_a_scheme_without_file_system_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(protocol: str, **_: object) -> None:
        raise ImportError(f"Install something to access {protocol}")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    for url, package in (("s3a://b/a", "s3fs"), ("gs://b/a", "gcsfs"), ("abfss://c@a.dfs.core.windows.net/", "adlfs")):
        with fails_with("storage.scheme") as caught:
            Storage(url)
        assert f"pip install {package}" in caught.error.message
        assert url.rstrip("/") in caught.error.message


def test_a_scheme_that_nobody_knows_is_named() -> None:
    with fails_with("storage.scheme") as caught:
        Storage("nosuchscheme://a/b")
    assert "nosuchscheme" in caught.error.message


CREATE_MODE = [("s3a://b/a", "s3fs"), ("gs://b/a", "gcsfs"), ("abfss://c@a.dfs.core.windows.net/a", "adlfs")]


def release_of(package: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets fsspec give file systems of a package in this release."""
    module = types.ModuleType(package)
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)
    system = type("System", (MemoryFileSystem,), {"__module__": f"{package}.core"})
    monkeypatch.setattr(fsspec, "filesystem", lambda protocol, **_: system())


@pytest.mark.parametrize(("url", "package"), CREATE_MODE)
@pytest.mark.parametrize("version", ["2023.12.2", "2024.10.0", "2024.1", "UNKNOWN", "0+unknown"])
def test_a_release_that_drops_the_condition_of_a_write_is_refused(
    url: str, package: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_of(package, version, monkeypatch)
    with fails_with("storage.scheme") as caught:
        Storage(url)
    assert f"{package} {version}" in caught.error.message
    assert f"pip install '{package}>=2024.12.0'" in caught.error.message


@pytest.mark.parametrize(("url", "package"), CREATE_MODE[1:])
@pytest.mark.parametrize("version", ["2024.12.0", "2024.12.0.post1", "2025.8.0", "2026.11.0"])
def test_a_release_that_writes_conditionally_is_taken(
    url: str, package: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_of(package, version, monkeypatch)
    assert Storage(url).remote is False


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with fails_with("storage.failed") as caught:
        Storage(str(tmp_path / "file")).publish("d/f", b"x")
    assert str(tmp_path / "file") in caught.error.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_denied(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with fails_with("storage.denied"):
            Storage(str(tmp_path)).publish("f", b"x")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_permission_errors_of_any_file_system_are_denials() -> None:
    class Denying(FaultyBackend):
        def read(self, path: str, size: int | None = None) -> object:  # type: ignore[override]
            raise PermissionError("403 Forbidden")

    with fails_with("storage.denied") as caught:
        Storage("memory://x", backend=Denying(Storage("memory://x")._backend)).read("f")
    assert "memory://x/f" in caught.error.message


def test_a_shorter_object_than_expected_is_read_where_the_storage_refuses_ranges_behind_its_end() -> None:
    class Refusing(MemoryFileSystem):  # type: ignore[misc]
        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
            if end is not None and end > self.size(path):
                raise RuntimeError("416")
            return bytes(super().cat_file(path, start, end, **options))

    storage = Storage("memory://refusing", backend=FsspecBackend(Refusing(skip_instance_cache=True), "/refusing"))
    storage.publish("f", b"hello")
    assert bytes(storage.read("f", 9)) == b"hello"


def test_a_failing_storage_is_named_with_path_and_reason() -> None:
    faulty = FaultyBackend(Storage("memory://failing")._backend)
    storage = Storage("memory://failing", backend=faulty)
    faulty.inject(Fault("publish", after=True))
    with fails_with("storage.failed") as caught:
        storage.publish("d/f", b"x")
    assert "memory://failing/d/f" in caught.error.message
    assert storage.exists("d/f")


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_file_that_the_system_cannot_read_is_damaged_and_named(tmp_path: Path, code: int) -> None:
    faulty = FaultyBackend(Storage(str(tmp_path))._backend)
    storage = Storage(str(tmp_path), backend=faulty)
    storage.publish("d/f", b"x")
    for operation in ("read", "read_range", "read_tail", "publish", "list", "size"):
        faulty.inject(Fault(operation, errno=code))
    for call in (
        lambda: storage.read("d/f"),
        lambda: storage.read_range("d/f", 0, 1),
        lambda: storage.read_tail("d/f", 1),
    ):
        with fails_with("file.damaged") as caught:
            call()
        assert f"{tmp_path}/d/f" in caught.error.message
    for other in (lambda: storage.publish("d/f", b"x"), lambda: storage.list("d"), lambda: storage.size("d/f")):
        with fails_with("storage.failed"):
            other()


def test_a_remote_storage_that_fails_says_nothing_about_the_file() -> None:
    """s3fs says EIO for every answer that it does not know."""

    class Remote(FaultyBackend):
        remote = True

    faulty = Remote(Storage("memory://remote")._backend)
    faulty.inject(Fault("read", errno=errno.EIO))
    with fails_with("storage.failed"):
        Storage("memory://remote", backend=faulty).read("f")


def test_fsync_flushes_the_file_before_its_name_appears_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path), fsync=True)
    storage.publish("d/e", b"x")
    recorder = Recorder(monkeypatch)
    storage.publish("d/f", b"x")
    assert recorder.events == ["file", "rename", str(tmp_path / "d")]
    recorder.events.clear()
    storage.publish_if_absent("d/g", b"x")
    assert recorder.events == ["file", "link", str(tmp_path / "d")]
    recorder.events.clear()
    # who loses goes on with the winner's object, which must be as durable then
    assert not storage.publish_if_absent("d/g", b"y")
    assert recorder.events == ["file", "link", str(tmp_path / "d")]
    recorder.events.clear()
    Storage(str(tmp_path)).publish("d/h", b"x")
    assert recorder.events == ["rename"]


@pytest.mark.parametrize("fsync", [False, True])
def test_a_file_that_fails_when_it_is_closed_is_not_given_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """Network file systems say only then that there was no room."""
    storage = Storage(str(tmp_path), fsync=fsync)
    storage.publish("f", b"old")
    opened = open

    class Full(io.BufferedWriter):
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def full(path: str, mode: str, **_: object) -> io.BufferedIOBase:
        return Full(opened(path, mode, buffering=0))

    monkeypatch.setattr("lamina.storage.local.open", full, raising=False)
    with fails_with("storage.failed"):
        storage.publish("f", b"new")
    with fails_with("storage.failed"):
        storage.publish_if_absent("g", b"new")
    monkeypatch.undo()
    assert bytes(storage.read("f")) == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("made_by_us", [True, False])
def test_fsync_flushes_every_directory_on_the_way_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by_us: bool
) -> None:
    """A name in a directory is lost in a power failure where the directory's own name, one level up, is."""
    root = tmp_path / "checkpoint" / "state"
    if not made_by_us:
        (root / "0" / "1").mkdir(parents=True)
    recorder = Recorder(monkeypatch)
    Storage(str(root), fsync=True).publish("0/1/f", b"x")
    above = [str(directory) for directory in (root / "0" / "1", root / "0", root, tmp_path / "checkpoint", tmp_path)]
    assert recorder.events[: 2 + len(above)] == ["file", "rename", *above]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_commit_of_a_plain_store_is_on_the_disk_when_it_returns_where_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    store = lamina.open_store(str(tmp_path), writable=True, storage_fsync_enabled=enabled)
    store.put(b"k", b"1")
    store.commit()
    store.put(b"k", b"2")
    recorder = Recorder(monkeypatch)
    store.commit()
    assert recorder.events == (["file", "rename", str(tmp_path / "state" / "0" / "0")] if enabled else ["rename"])


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_a_name_is_still_given_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(error, os.strerror(error), source, None, target)

    monkeypatch.setattr(os, "link", refused)
    won: list[int] = []
    barrier = threading.Barrier(16)
    content = [bytes([65 + number]) * 100_000 for number in range(16)]

    def publish(number: int) -> None:
        barrier.wait()
        if Storage(str(tmp_path)).publish_if_absent("d/f", content[number]):
            won.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "d" / "f").read_bytes() == content[won[0]]
    assert os.listdir(tmp_path / "d") == ["f"]


def test_other_failures_of_a_link_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", refused)
    with fails_with("storage.failed"):
        Storage(str(tmp_path)).publish_if_absent("d/f", b"x")
    assert os.listdir(tmp_path / "d") == []


def test_a_publication_that_was_cut_off_leaves_a_name_that_is_known_as_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: str, target: str) -> None:
        raise SystemExit

    # a kill runs no clean-up: neither does this unlink
    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(os, "unlink", lambda path: None)
    with pytest.raises(SystemExit):
        Storage(str(tmp_path)).publish("f", b"x")
    (left,) = os.listdir(tmp_path)
    assert is_temporary(left)
    assert not is_temporary("f")


def test_a_temporary_name_that_is_taken_is_not_written_to(tmp_path: Path) -> None:
    left = tmp_path / f".f.{os.getpid()}-0.tmp"
    left.write_text("left by an earlier process of the same number")
    Storage(str(tmp_path)).publish("f", b"x")
    assert left.read_text() == "left by an earlier process of the same number"
    assert (tmp_path / "f").read_bytes() == b"x"


def test_writers_of_one_name_in_two_containers_do_not_write_into_each_others_temporary_file(tmp_path: Path) -> None:
    """Their processes have the same number."""
    filesystem = HdfsLike(auto_mkdir=True)
    mine, theirs = (RenamingBackend(filesystem, str(tmp_path)) for _ in range(2))

    def chunks() -> Iterator[bytes]:
        yield b"mine"
        theirs.publish("f", [b"theirs, longer"])
        yield b"mine"

    mine.publish("f", chunks())
    assert (tmp_path / "f").read_bytes() == b"minemine"
    assert os.listdir(tmp_path) == ["f"]


def test_what_another_try_has_published_stays_where_it_is(tmp_path: Path) -> None:
    backend = RenamingBackend(HdfsLike(auto_mkdir=True), str(tmp_path))
    backend.publish("f", [b"of 1", b"6 bytes."])
    before = (tmp_path / "f").stat()
    backend.publish("f", [b"of 16 bytes."])
    assert (tmp_path / "f").stat().st_ino == before.st_ino
    # as long, and something else
    backend.publish("f", [b"of 16 BYTES."])
    assert (tmp_path / "f").read_bytes() == b"of 16 BYTES."
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "smb"])
def test_files_that_are_visible_while_they_are_written_need_a_rename_that_is_known(scheme: str) -> None:
    with fails_with("storage.scheme") as caught:
        Storage(f"{scheme}://user@host/query")
    assert "open it in a Spark query, or use an object store or HDFS" in caught.error.message


def test_random_numbers_make_temporary_names() -> None:
    names = {temporary_name("f", 7, next(random_numbers())) for _ in range(100)}
    assert len(names) == 100
    assert all(is_temporary(name) for name in names)


def test_a_mapped_file_outlives_its_deletion(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.publish("f", b"x" * (8 << 20))
    data = storage.read("f")
    storage.delete_many(["f"])
    assert bytes(data) == b"x" * (8 << 20)


def test_a_range_beyond_a_truncated_large_file_ends_with_the_file(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.publish("f", b"x" * (6 << 20))
    assert storage.read_range("f", 1 << 20, 20 << 20).size == 5 << 20
    assert storage.read_range("f", 7 << 20, 20 << 20).size == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"LastModified": datetime(2026, 1, 1, tzinfo=timezone.utc)}, 1_767_225_600_000),
        ({"created": datetime(2026, 1, 1)}, 1_767_225_600_000),
        ({"updated": "2026-01-01T00:00:00.000Z"}, 1_767_225_600_000),
        ({"mtime": 1_767_225_600.5}, 1_767_225_600_500),
        ({"modificationTime": 1_767_225_600_000}, 1_767_225_600_000),
        ({}, 0),
    ],
)
def test_the_time_of_publication_is_found_under_each_file_systems_name(entry: dict[str, object], expected: int) -> None:
    assert _modified_ms(entry) == expected


def test_a_root_is_the_one_that_a_setting_names_however_it_is_written(tmp_path: Path) -> None:
    storage = Storage(f"file:{tmp_path}/own", roots=(f"file://{tmp_path}/lent", "s3a://bucket/lent"))
    assert storage.named(f"file:{tmp_path}/lent/0").url == f"file:{tmp_path}/lent/0"
    assert storage.named(f"{tmp_path}/lent").url == f"{tmp_path}/lent"
    for other in (f"file:{tmp_path}/lent/../own", f"file:{tmp_path}/lent-not", "s3://bucket/other"):
        with fails_with("file.identity"):
            storage.named(other)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
def test_no_range_of_a_stream_begins_at_the_end_of_its_object(size: int) -> None:
    """Who wants to see that an object is longer asks for one byte more; not all storages answer a range behind it."""
    backend = MemoryBackend(SystemClock())
    backend.publish("f", [bytes(size)])
    begins: list[int] = []

    def read_range(path: str, offset: int, length: int) -> pa.Buffer:
        begins.append(offset)
        return MemoryBackend.read_range(backend, path, offset, length)

    backend.read_range = read_range  # type: ignore[method-assign]
    assert sum(len(piece) for piece in backend.stream("f", size + 1, 10)) == size
    assert all(begin < max(size, 1) for begin in begins)
