"""Local copies: what is read from them, what damages them, what bounds them, and who shares them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import lamina
from lamina.format.paths import is_immutable
from lamina.storage import LocalCache, Storage, cache
from lamina.storage.cache import CachingBackend
from lamina.testing import Fault, FaultyBackend
from lamina.testing.damage import mutants
from lamina.testing.expect import fails_with
from tests.s3_server import S3Server

BLOCK = 256 << 10


class Counted:
    """A storage in memory that counts its calls, behind a cache of its own directory."""

    def __init__(self, directory: Path, max_bytes: int = 64 << 20, url: str | None = None) -> None:
        self.url = url or f"memory://cache/{uuid.uuid4()}"
        self.inner = FaultyBackend(Storage(self.url)._backend)
        self.cache = LocalCache(str(directory), max_bytes, lambda path: not path.startswith("mutable"))
        self.storage = Storage(self.url, backend=CachingBackend(self.inner, self.cache, self.url))

    def reads(self) -> int:
        """Reads of the storage behind the cache."""
        return sum(operation.startswith("read") for operation, _ in self.inner.calls)

    def copies(self) -> list[Path]:
        """Files of the cache that are copies."""
        return [path for path in Path(self.cache.directory).iterdir() if len(path.name) == 64]

    def copied_bytes(self) -> int:
        with self.cache._locked():
            return sum(path.stat().st_size for path in self.copies())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((seed + number * 7) % 251 for number in range(min(size, 1000))) * (size // 1000 + 1)


def test_what_was_published_is_read_without_the_storage(directory: Path) -> None:
    counted = Counted(directory)
    data = pattern(3 * BLOCK + 100)
    counted.storage.publish("d/f", iter([data[:10], data[10:BLOCK], data[BLOCK:]]))
    restarted = Counted(directory, url=counted.url)
    assert bytes(restarted.storage.read("d/f")) == data
    for offset, length in ((0, 5), (BLOCK - 3, 6), (BLOCK, BLOCK), (len(data) - 1, 9), (len(data), 1), (7, 0)):
        assert bytes(restarted.storage.read_range("d/f", offset, length)) == data[offset : offset + length]
    tail, size = restarted.storage.read_tail("d/f", 300)
    assert (bytes(tail), size) == (data[-300:], len(data))
    assert restarted.reads() == 0
    assert restarted.cache.stats()["hits"] == 8


def test_what_was_read_whole_is_read_once(directory: Path) -> None:
    counted = Counted(directory)
    Storage(counted.url).publish("f", b"0123456789")
    Storage(counted.url).publish("g", b"0123456789")
    for _ in range(3):
        assert bytes(counted.storage.read("f")) == b"0123456789"
        assert bytes(counted.storage.read_tail("g", 64 << 10)[0]) == b"0123456789"
    assert counted.reads() == 2


def test_a_part_of_an_object_is_no_copy(directory: Path) -> None:
    counted = Counted(directory)
    Storage(counted.url).publish("f", b"0123456789")
    counted.storage.read_range("f", 0, 5)
    counted.storage.read_tail("f", 5)
    assert counted.copies() == []


MIB = 1 << 20


def part(storage: Storage, path: str, offset: int, length: int, size: int) -> bytes:
    return b"".join(storage.read_pieces(path, offset, length, size))


@pytest.mark.parametrize(("offset", "length"), [(0, 1000), (5 * MIB, MIB), (8 * MIB - 7, 7), (0, 8 * MIB)])
def test_an_object_of_which_a_part_was_asked_for_stays_whole(directory: Path, offset: int, length: int) -> None:
    counted = Counted(directory)
    data = pattern(8 * MIB)[: 8 * MIB]
    Storage(counted.url).publish("f", data)
    assert part(counted.storage, "f", offset, length, len(data)) == data[offset : offset + length]
    restarted = Counted(directory, url=counted.url)
    assert part(restarted.storage, "f", 3 * MIB, 11, len(data)) == data[3 * MIB : 3 * MIB + 11]
    assert bytes(restarted.storage.read("f")) == data
    assert restarted.reads() == 0


def test_what_only_the_copy_needs_is_read_in_pieces(directory: Path) -> None:
    """The part, three pieces before it and one behind it: no more than one of them is in memory beside the part."""
    counted = Counted(directory)
    Storage(counted.url).publish("f", bytes(15 * MIB))
    part(counted.storage, "f", 11 * MIB, 2 * MIB, 15 * MIB)
    assert counted.reads() == 1 + 3 + 1


def test_an_increment_does_not_wait_for_the_much_larger_state_beside_it(directory: Path) -> None:
    counted = Counted(directory)
    data = pattern(40 * MIB)[: 40 * MIB]
    Storage(counted.url).publish("f", data)
    assert part(counted.storage, "f", 16, MIB, len(data)) == data[16 : 16 + MIB]
    assert counted.reads() == 1
    assert counted.copies() == []
    assert part(counted.storage, "f", MIB, 39 * MIB, len(data)) == data[MIB:]
    counted.inner.calls.clear()
    assert part(counted.storage, "f", 16, MIB, len(data)) == data[16 : 16 + MIB]
    assert counted.reads() == 0


@pytest.mark.parametrize("size", [11 * MIB, 9 * MIB])
def test_a_part_is_read_alone_where_the_object_is_larger_than_the_bound_or_of_another_size(
    directory: Path, size: int
) -> None:
    counted = Counted(directory, max_bytes=10 * MIB)
    Storage(counted.url).publish("f", bytes(8 * MIB))
    assert part(counted.storage, "f", MIB, MIB, size) == bytes(MIB)
    assert counted.copies() == []
    assert size < 10 * MIB or counted.reads() == 1


def test_a_part_that_was_read_counts_though_the_rest_cannot_be_read(directory: Path) -> None:
    counted = Counted(directory)
    Storage(counted.url).publish("f", pattern(11 * MIB))
    # two reads go before the part, and two come after it
    for skip in (0, 1, 3, 4):
        counted.inner.inject(Fault("read_range", skip=skip))
        assert part(counted.storage, "f", 5 * MIB, MIB, 11 * MIB) == pattern(11 * MIB)[5 * MIB : 6 * MIB]
        assert counted.copies() == []
    assert [path for path in directory.iterdir() if path.name.endswith(".tmp")] == []
    counted.inner.inject(Fault("read_range", skip=2))
    with fails_with("storage.failed"):
        part(counted.storage, "f", 5 * MIB, MIB, 11 * MIB)


def test_a_large_part_comes_in_pieces_and_stays_whole_unless_its_reader_leaves(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PIECE_BYTES", MIB)
    counted = Counted(directory)
    data = pattern(6 * MIB)
    Storage(counted.url).publish("f", data)
    pieces = counted.storage.read_pieces("f", MIB, 4 * MIB, len(data))
    assert bytes(next(pieces)) == data[MIB : 2 * MIB]
    pieces.close()
    assert list(directory.glob(".*")) == counted.copies() == []
    assert [len(piece) for piece in counted.storage.read_pieces("f", MIB, 4 * MIB, len(data))] == [MIB] * 4
    counted.inner.calls.clear()
    assert part(counted.storage, "f", 0, len(data), len(data)) == data
    assert counted.reads() == 0


def test_of_those_that_read_parts_of_one_object_at_once_one_copies_it(directory: Path) -> None:
    counted = Counted(directory)
    Storage(counted.url).publish("f", bytes(8 * MIB))
    barrier = threading.Barrier(8)

    def read(number: int) -> None:
        barrier.wait()
        part(counted.storage, "f", number, 1, 8 * MIB)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.reads() <= 8 + 3
    counted.inner.calls.clear()
    part(counted.storage, "f", 99, 1, 8 * MIB)
    assert counted.reads() == 0


def test_objects_that_change_are_never_copied(directory: Path) -> None:
    counted = Counted(directory)
    counted.storage.publish("mutable/f", b"old")
    assert bytes(counted.storage.read("mutable/f")) == b"old"
    assert part(counted.storage, "mutable/f", 1, 1, 3) == b"l"
    Storage(counted.url).publish("mutable/f", b"new")
    assert bytes(counted.storage.read("mutable/f")) == b"new"
    assert not directory.exists()
    assert is_immutable("0/1/7_L1.7.1.o.-.00000000000000000000000000000001.lam")
    assert is_immutable("0/1/left/0-4_00000000000000000000000000000001.seg")
    assert not is_immutable("_lamina/checkpoint")
    assert not is_immutable("_lamina/runs/1_x")


def test_whether_an_object_is_there_is_asked_of_the_storage(directory: Path) -> None:
    counted = Counted(directory)
    counted.storage.publish("f", b"x")
    Storage(counted.url).delete_many(["f"])
    assert not counted.storage.exists("f")
    assert list(counted.storage.list("")) == []


def test_a_deleted_object_has_no_copy(directory: Path) -> None:
    counted = Counted(directory)
    counted.storage.publish("f", b"x")
    counted.storage.delete_many(["f"])
    with fails_with("file.missing"):
        counted.storage.read("f")
    assert counted.copies() == []


def test_a_publication_that_fails_has_no_copy_even_of_what_was_there(directory: Path) -> None:
    counted = Counted(directory)
    counted.storage.publish("f", b"old")
    counted.inner.inject(Fault("publish", after=True))
    with fails_with("storage.failed"):
        counted.storage.publish("f", b"new")
    assert bytes(counted.storage.read("f")) == b"new"
    assert counted.reads() == 1


def damages(size: int) -> Iterator[tuple[str, int]]:
    """Flips in each part of a copy of `size` bytes, and truncations."""
    end = size + 4 * (-(-size // BLOCK)) + 52
    for position in (0, BLOCK - 1, BLOCK, size - 1, size, size + 4, size + 12, size + 30, end - 13, end - 9, end - 1):
        yield "flip", position
    for length in (0, 10, BLOCK, size, end - 1):
        yield "cut", length


@pytest.mark.parametrize(("damage", "position"), list(damages(2 * BLOCK + 500)))
def test_a_damaged_copy_is_noticed_dropped_and_read_from_the_storage(
    directory: Path, damage: str, position: int
) -> None:
    counted = Counted(directory)
    data = pattern(2 * BLOCK + 500)[: 2 * BLOCK + 500]
    counted.storage.publish("f", data)
    (copy,) = counted.copies()
    content = bytearray(copy.read_bytes())
    if damage == "flip":
        content[position] ^= 1
    else:
        del content[position:]
    copy.write_bytes(content)
    assert bytes(counted.storage.read("f")) == data
    assert counted.reads() == 1
    assert counted.cache.stats()["damaged"] == 1
    # what was read anew is a copy again
    assert bytes(counted.storage.read("f")) == data
    assert counted.reads() == 1


def test_every_change_of_a_small_copy_is_noticed(directory: Path) -> None:
    """In whichever way the copy is read."""
    counted = Counted(directory)
    data = b"ten bytes."
    counted.storage.publish("f", data)
    (copy,) = counted.copies()
    whole = copy.read_bytes()
    reads = (
        lambda: counted.storage.read("f"),
        lambda: counted.storage.read_range("f", 0, len(data)),
        lambda: counted.storage.read_tail("f", len(data))[0],
    )
    seen = 0
    for what, changed in mutants(whole):
        for read in reads:
            copy.write_bytes(changed)
            assert bytes(read()) == data, what
            seen += 1
            assert counted.reads() == counted.cache.stats()["damaged"] == seen, what
            assert not copy.exists() or copy.read_bytes() == whole, what
    assert seen == 3 * (3 * len(whole) + 1)
    assert len(whole) == len(data) + 4 + 52


def test_the_copy_of_another_object_is_noticed(directory: Path) -> None:
    counted = Counted(directory)
    counted.storage.publish("f", b"of f")
    (first,) = counted.copies()
    counted.storage.publish("g", b"of g")
    (second,) = [path for path in counted.copies() if path != first]
    first.write_bytes(second.read_bytes())
    assert bytes(counted.storage.read("f")) == b"of f"
    assert counted.cache.stats()["damaged"] == 1


def test_copies_used_longest_ago_make_room(directory: Path) -> None:
    counted = Counted(directory, max_bytes=10 * 1100)
    for number in range(9):
        counted.storage.publish(f"f{number}", bytes(1000))
        # the order of use is that of these times, however coarse the file system's clock
        newest = max(counted.copies(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(number, number))
    counted.storage.read("f0")
    for number in range(9, 15):
        counted.storage.publish(f"f{number}", bytes(1000))
        assert counted.copied_bytes() <= 10 * 1100
    counted.inner.calls.clear()
    counted.storage.read("f0")
    counted.storage.read("f14")
    assert counted.reads() == 0
    counted.storage.read("f1")
    assert counted.reads() == 1
    assert counted.cache.stats()["evicted"] >= 5


def test_an_object_larger_than_the_bound_is_no_copy_and_evicts_nothing(directory: Path) -> None:
    counted = Counted(directory, max_bytes=10_000)
    counted.storage.publish("small", bytes(1000))
    counted.storage.publish("large", iter([bytes(6000)] * 4))
    assert len(counted.copies()) == 1
    assert len(counted.storage.read("large")) == 24_000
    assert len(counted.copies()) == 1
    assert not [path for path in directory.iterdir() if path.name.endswith(".tmp")]


def test_a_smaller_bound_holds_from_the_start(directory: Path) -> None:
    counted = Counted(directory)
    for number in range(20):
        counted.storage.publish(f"f{number}", bytes(1000))
    smaller = Counted(directory, max_bytes=5000, url=counted.url)
    smaller.storage.read("f0")
    assert smaller.copied_bytes() <= 5000


def test_no_copies_are_kept_with_a_bound_of_0(directory: Path) -> None:
    counted = Counted(directory, max_bytes=0)
    counted.storage.publish("f", b"x")
    assert bytes(counted.storage.read("f")) == b"x"
    assert not directory.exists()


def test_a_directory_that_others_may_write_to_is_not_used(directory: Path) -> None:
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    counted = Counted(directory)
    counted.storage.publish("f", b"x")
    assert bytes(counted.storage.read("f")) == b"x"
    assert list(directory.iterdir()) == []
    assert counted.cache.stats()["failed"] == 1


def test_a_full_disk_costs_the_copy_and_not_the_publication(directory: Path) -> None:
    """The limit of a file's size stands for the disk's end: writing fails half-way, with an error of the system."""
    program = f"""
import resource, signal
from pathlib import Path
from tests.unit.storage.test_cache import Counted
counted = Counted(Path({str(directory)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
counted.storage.publish("f", iter([bytes(300_000)] * 10))
assert len(counted.storage.read("f")) == 3_000_000
assert counted.cache.stats()["failed"] == 2, counted.cache.stats()
print(sorted(path.name for path in Path(counted.cache.directory).iterdir()))
"""
    assert run(program) == "['lock']\n"


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stdout


WRITER = """
import sys
from pathlib import Path
from tests.unit.storage.test_cache import Counted
counted = Counted(Path(sys.argv[1]), max_bytes=200_000)
print("ready", flush=True)
number = 0
while True:
    number += 1
    counted.storage.publish(f"f{number}", iter([bytes(1000)] * 10))
    print(counted.copied_bytes(), flush=True)
"""


def test_processes_that_share_a_directory_keep_one_bound_and_outlive_kills(directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            for _ in range(60):
                assert int(writer.stdout.readline()) <= 200_000
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    counted = Counted(directory, max_bytes=200_000)
    counted.storage.publish("f", bytes(1000))
    assert counted.copied_bytes() <= 200_000
    assert [path.name for path in directory.iterdir() if path.name.endswith(".tmp")] == []
    assert bytes(counted.storage.read("f")) == bytes(1000)
    assert counted.reads() == 0


def test_a_copy_that_is_being_written_is_not_swept_away(directory: Path) -> None:
    counted = Counted(directory)
    entered, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"first "
        entered.set()
        assert go_on.wait(30)
        yield b"second"

    thread = threading.Thread(target=lambda: counted.storage.publish("f", source()))
    thread.start()
    assert entered.wait(30)
    Counted(directory).storage.publish("g", b"x")
    go_on.set()
    thread.join()
    assert bytes(counted.storage.read("f")) == b"first second"
    assert counted.reads() == 0


def test_readers_and_evictions_side_by_side_read_what_was_written(directory: Path) -> None:
    counted = Counted(directory, max_bytes=30_000)
    contents = {f"f{number}": pattern(9000, number)[:9000] for number in range(10)}
    wrong: list[str] = []

    def work(seed: int) -> None:
        for step in range(150):
            name = f"f{(step * 7 + seed) % 10}"
            if step % 3 == 0:
                counted.storage.publish(name, contents[name])
            elif step > 30 and bytes(counted.storage.read(name)) != contents[name]:
                wrong.append(name)

    for name, content in contents.items():
        counted.storage.publish(name, content)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counted.cache.stats()["damaged"] == 0
    assert counted.copied_bytes() <= 30_000


def test_a_restart_on_the_same_machine_reads_no_byte_of_the_state_from_s3(directory: Path) -> None:
    settings = {"storage_cache_directory": str(directory), "storage_cache_max_bytes": "1g"}
    with S3Server() as server:
        path = f"s3a://{server.bucket}/query"
        store = lamina.open_store(path, hadoop=server.hadoop, **settings)
        for version in range(6):
            for number in range(50):
                store.put(b"key %d" % number, b"value %d of %d" % (number, version))
            store.commit()
        server.proxy.forget()
        restarted = lamina.open_store(path, hadoop=server.hadoop, **settings)
        assert restarted.get(b"key 7") == b"value 7 of 5"
        state = [
            request
            for request in server.proxy.requests
            if request.method == "GET" and request.path.endswith((".lam", ".seg"))
        ]
        assert state == []
        server.proxy.forget()
        elsewhere = lamina.open_store(
            path, hadoop=server.hadoop, storage_cache_directory=str(directory / "other"), storage_cache_max_bytes="1g"
        )
        assert elsewhere.get(b"key 7") == b"value 7 of 5"
        assert sum(request.sent for request in server.proxy.requests if request.path.endswith(".lam")) > 0


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"compaction_mode": "full", "compaction_full_interval": 3}, {".lam"}),
        ({"compaction_mode": "rolling", "compaction_rolling_parts": 2}, {".lam"}),
        ({"compaction_mode": "background"}, {".lam", ".seg"}),
    ],
    ids=["full", "rolling", "background"],
)
def test_a_restart_reads_no_byte_of_what_an_earlier_start_on_this_machine_read(
    directory: Path, settings: dict[str, object], files: set[str]
) -> None:
    """Increments of a mebibyte beside snapshots and rewrites of several, and segments: none is too large to stay."""
    here = {"storage_cache_directory": str(directory), "storage_cache_max_bytes": "1g", "read_only": True}
    with S3Server() as server:
        path = f"s3a://{server.bucket}/query"
        elsewhere = lamina.open_store(path, hadoop=server.hadoop, storage_cache_max_bytes="0", **settings)
        for version in range(6):
            for number in range(version % 2, 12, 2):
                elsewhere.put(b"%d" % number, os.urandom(200_000))
            elsewhere.commit()
            elsewhere.compact()
        server.proxy.forget()
        started = lamina.open_store(path, hadoop=server.hadoop, **here)
        assert dict(started.scan()) == dict(elsewhere.scan())
        assert state_read(server) == files
        server.proxy.forget()
        restarted = lamina.open_store(path, hadoop=server.hadoop, **here)
        assert dict(restarted.scan()) == dict(elsewhere.scan())
        assert state_read(server) == set()


def state_read(server: S3Server) -> set[str]:
    """The kinds of files of the state that were read."""
    kinds = {Path(request.path).suffix for request in server.proxy.requests if request.method == "GET"}
    return kinds & {".lam", ".seg"}
