"""Local copies of objects of which a part is read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lamina.storage import Storage, cache
from lamina.testing import Fault
from lamina.testing.expect import fails_with
from tests.unit.storage.counted import Counted, part, pattern

MIB = 1 << 20


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
