"""Local copies: what is read from them, what damages them, what bounds them, and who shares them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.format.paths import is_immutable
from lamina.storage import Storage
from lamina.testing import Fault
from lamina.testing.damage import mutants
from lamina.testing.expect import fails_with
from tests.unit.storage.counted import Counted, part, pattern

BLOCK = 256 << 10


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


def test_a_copy_is_named_for_its_url_whether_it_was_written_or_linked(tmp_path: Path) -> None:
    """The name is the same in each release, so that processes of several share the copies."""
    written = Counted(tmp_path / "written", url="memory://golden/names")
    written.storage.publish("0/0/a.lam", b"0123456789")
    linked = Counted(tmp_path / "linked", url=written.url)
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    linked.cache.keep_file("memory://golden/names/0/0/a.lam", str(source))
    for counted in (written, linked):
        names = [path.name for path in counted.copies()]
        assert names == ["cebf18b59ba2ab488dbf3d2dc37392fbcaaf207d401e3642d814dd3b77727d5f"]


def test_a_part_of_an_object_is_no_copy(directory: Path) -> None:
    counted = Counted(directory)
    Storage(counted.url).publish("f", b"0123456789")
    counted.storage.read_range("f", 0, 5)
    counted.storage.read_tail("f", 5)
    assert counted.copies() == []


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
        counted.settled()
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
    smaller.settled()
    assert 0 < smaller.copied_bytes() <= 5000


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
    assert run(program) == "['total']\n"


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


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stdout


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
    counted.storage.publish("makes room", bytes(1000))
    # what the dead ones had reserved is found by a scan, in the background
    counted.settled()
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
