"""Where a query stands is read off its checkpoint, whoever keeps its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.demo.position import Position, partitions_with_state, position, state_bytes
from lamina.format import log_object
from lamina.format.log_object import Whole
from lamina.format.manifest import StoreIdentity


def touch(path: Path, size: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_a_planned_batch_without_a_commit_is_running(tmp_path: Path) -> None:
    for entry in ("offsets/8", "offsets/9", "offsets/10", "offsets/.10.crc", "commits/8", "commits/9"):
        touch(tmp_path / entry)
    assert position(tmp_path) == Position(planned=10, committed=9)


def test_a_checkpoint_that_does_not_exist_yet_is_before_the_first_batch(tmp_path: Path) -> None:
    assert position(tmp_path / "none") == Position(-1, -1)


@pytest.mark.parametrize("name", ["8_1a2b.lam", "8.delta", "8_1a2b.changelog", "8.zip", "left-keyToNumValues/8.delta"])
def test_a_partition_has_its_state_when_a_file_of_the_next_version_is_there(tmp_path: Path, name: str) -> None:
    touch(tmp_path / "state/0/0" / name)
    touch(tmp_path / "state/0/1" / name.replace("8", "7"))
    assert partitions_with_state(tmp_path, 7) == 1


def test_a_partition_has_its_state_when_a_log_object_holds_the_next_version(tmp_path: Path) -> None:
    log, checkpoint = "1a" * 16, "00000000-0000-4000-8000-000000000001"
    commit = Whole(0, [b"x" * 64], StoreIdentity(checkpoint, 0, 0, "default"), f"L1.8.1.g.{log}-0.{'2b' * 16}", 7, 8)
    path = tmp_path / "state" / "_lamina" / "log" / f"{log}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(log_object.chunks(log, checkpoint, 0, "lamina", [commit])))
    assert [part.to for part in log_object.verify(path.read_bytes(), log, str(path)).parts] == [8]
    (tmp_path / "state" / "0" / "0").mkdir(parents=True)
    (tmp_path / "state" / "0" / "1").mkdir()
    path.with_name("2b.log").write_bytes(path.read_bytes()[:-1])
    assert [partitions_with_state(tmp_path, batch) for batch in (6, 7, 8)] == [0, 1, 0]
    touch(tmp_path / "state/0/0/8_1a2b.lam")
    touch(tmp_path / "state/0/1/8_1a2b.lam")
    assert partitions_with_state(tmp_path, 7) == 2


def test_checksum_and_temporary_files_are_no_state(tmp_path: Path) -> None:
    touch(tmp_path / "state/0/0/.8.delta.crc")
    touch(tmp_path / "state/0/1/.8.delta.1a2b.tmp")
    assert partitions_with_state(tmp_path, 7) == 0


def test_the_size_of_the_state_counts_every_file_but_checksums(tmp_path: Path) -> None:
    touch(tmp_path / "state/0/0/8_1a2b.lam", 5)
    touch(tmp_path / "state/_lamina/checkpoint", 3)
    touch(tmp_path / "state/0/0/.8_1a2b.lam.crc", 7)
    assert state_bytes(tmp_path) == 8
