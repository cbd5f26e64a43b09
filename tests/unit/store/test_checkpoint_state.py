"""The uuid of a checkpoint and the epochs of runs: races end in one answer for all."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence

import pytest

from lamina.checkpoint import QueryRun
from lamina.components import RandomIds, SystemClock
from lamina.storage import Listed, Storage
from lamina.store import CheckpointState
from lamina.testing import Fault, FaultyBackend
from lamina.testing.expect import fails_with


@pytest.fixture
def storage() -> Storage:
    inner = Storage(f"memory://checkpoint-state/{uuid.uuid4()}")
    return Storage(inner.url, backend=FaultyBackend(inner._backend))


def opened(storage: Storage, run: str, *, read_only: bool = False) -> CheckpointState:
    return CheckpointState.open(storage, run_id=run, read_only=read_only, clock=SystemClock(), ids=RandomIds())


def named(storage: Storage) -> None:
    """The checkpoint has its name, and no run has claimed it yet."""
    opened(storage, "first")
    storage.delete_many(["_lamina/runs/1_first"])


def test_the_first_writer_names_the_checkpoint_and_all_others_read_it(storage: Storage) -> None:
    first = opened(storage, "a")
    assert first.uuid
    assert opened(storage, "b").uuid == first.uuid
    assert opened(storage, "c", read_only=True).uuid == first.uuid
    stored = json.loads(bytes(storage.read("_lamina/checkpoint")))
    assert stored["uuid"] == first.uuid
    assert set(stored) == {"uuid", "format", "created_ms", "created_by", "crc32"}


def test_a_reader_writes_nothing_and_has_no_epoch(storage: Storage) -> None:
    reader = opened(storage, "a", read_only=True)
    assert (reader.uuid, reader.epoch) == (None, None)
    assert storage.list("_lamina") == []
    assert reader.newer_run() is None


def test_writers_that_race_agree_on_one_uuid_and_a_run_on_one_epoch(storage: Storage) -> None:
    barrier = threading.Barrier(8)
    found: list[tuple[str, str | None, int | None]] = []

    def open_at_once(run: str) -> None:
        barrier.wait()
        state = opened(storage, run)
        found.append((run, state.uuid, state.epoch))

    threads = [threading.Thread(target=open_at_once, args=(f"run-{number % 2}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for _, one, _ in found}) == 1
    # stores of one run may settle on a smaller claim only before the run has written; all that open later agree
    for run in ("run-0", "run-1"):
        settled = opened(storage, run).epoch
        assert settled == opened(storage, run).epoch
        assert settled in {epoch for name, _, epoch in found if name == run}


def test_each_new_run_has_a_greater_epoch(storage: Storage) -> None:
    assert [opened(storage, run).epoch for run in ("c", "a", "b")] == [1, 2, 3]


def test_all_stores_of_a_run_have_its_epoch(storage: Storage) -> None:
    assert opened(storage, "a").epoch == 1
    assert opened(storage, "b").epoch == 2
    assert opened(storage, "a").epoch == 1


def test_the_smallest_claim_of_a_run_counts(storage: Storage) -> None:
    named(storage)
    for epoch in (4, 2):
        storage.publish(f"_lamina/runs/{epoch}_a", b"{}")
    assert opened(storage, "a").epoch == 2


def test_a_newer_run_is_seen_by_the_older_one_only(storage: Storage) -> None:
    older = opened(storage, "a")
    assert older.newer_run() is None
    newer = opened(storage, "b")
    assert older.newer_run() == QueryRun(2, "b")
    assert newer.newer_run() is None


def test_runs_of_one_epoch_are_ordered_by_their_ids(storage: Storage) -> None:
    named(storage)
    for run in ("a", "b"):
        storage.publish(f"_lamina/runs/1_{run}", b"{}")
    assert opened(storage, "a").newer_run() == QueryRun(1, "b")
    assert opened(storage, "b").newer_run() is None


def claimed_twice(storage: Storage) -> tuple[CheckpointState, CheckpointState, CheckpointState]:
    """Run a with the epochs 1 and 2, of two executors that claimed at the same time, and run b with 1 between them."""
    named(storage)
    storage.publish("_lamina/runs/1_b", b"{}")
    second = opened(storage, "a")
    storage.publish("_lamina/runs/1_a", b"{}")
    first, between = opened(storage, "a"), opened(storage, "b")
    assert (first.epoch, second.epoch, between.epoch) == (1, 2, 1)
    return first, second, between


def test_a_run_that_claimed_two_epochs_is_in_the_place_of_the_smaller_one_for_all(storage: Storage) -> None:
    first, second, between = claimed_twice(storage)
    assert first.newer_run() == second.newer_run() == QueryRun(1, "b")
    assert between.newer_run() is None


def test_a_run_that_claimed_two_epochs_does_not_supersede_itself(storage: Storage) -> None:
    first = opened(storage, "a")
    storage.publish("_lamina/runs/2_a", b"{}")
    assert first.newer_run() is None
    newer = opened(storage, "b")
    assert (newer.epoch, newer.newer_run()) == (3, None)
    assert first.newer_run() == QueryRun(3, "b")


def test_a_claim_or_a_name_whose_answer_was_lost_is_read_back(storage: Storage) -> None:
    backend = storage._backend
    assert isinstance(backend, FaultyBackend)
    backend.inject(Fault("publish_if_absent", "checkpoint", after=True))
    with fails_with("storage.failed"):
        opened(storage, "a")
    uuid_written = json.loads(bytes(storage.read("_lamina/checkpoint")))["uuid"]
    backend.inject(Fault("publish_if_absent", "runs", after=True))
    with fails_with("storage.failed"):
        opened(storage, "a")
    state = opened(storage, "a")
    assert (state.uuid, state.epoch) == (uuid_written, 1)


def test_a_checkpoint_whose_name_was_lost_gets_no_other_one(storage: Storage) -> None:
    opened(storage, "a")
    storage.delete_many(["_lamina/checkpoint"])
    for read_only in (True, False):
        with fails_with("file.missing", "_lamina/checkpoint is not there"):
            opened(storage, "b", read_only=read_only)
    assert [entry.name for entry in storage.list("_lamina")] == []
    assert len(storage.list("_lamina/runs")) == 1


def test_a_run_that_begins_while_another_one_looks_is_no_lost_name(storage: Storage) -> None:
    inner = storage._backend

    class Beginning(FaultyBackend):
        def list(self, directory: str) -> Sequence[Listed]:
            if not storage.exists("_lamina/checkpoint"):
                opened(storage, "first")
            return super().list(directory)

    second = opened(Storage(storage.url, backend=Beginning(inner)), "second")
    assert second.uuid == opened(storage, "third").uuid


def test_a_checkpoint_of_a_newer_format_is_refused_by_name(storage: Storage) -> None:
    storage.publish("_lamina/checkpoint", b'{"uuid": "x", "format": 2}')
    with fails_with("file.version") as caught:
        opened(storage, "a")
    assert "_lamina/checkpoint" in caught.error.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"uuid": "x"}', b"\xff"])
def test_a_damaged_checkpoint_file_is_named(storage: Storage, content: bytes) -> None:
    storage.publish("_lamina/checkpoint", content)
    with fails_with("file.damaged") as caught:
        opened(storage, "a")
    assert "_lamina/checkpoint" in caught.error.message


@pytest.mark.parametrize(
    ("uuid", "run", "epoch", "newer"),
    [
        ("here", "other", 1, True),
        ("here", "other", 3, False),
        # runs of one epoch are ordered by their ids
        ("here", "a", 2, True),
        ("here", "z", 2, False),
        # it may have claimed another epoch
        ("here", "run", 1, False),
        ("there", "other", 1, False),
        ("here", "other", None, False),
    ],
)
def test_a_run_outlives_older_ones_of_its_checkpoint_and_nobody_else(
    storage: Storage, uuid: str, run: str, epoch: int | None, newer: bool
) -> None:
    state = CheckpointState(storage, "here", "run", 2)
    assert state.outlives(CheckpointState(storage, uuid, run, epoch)) == newer
    assert not CheckpointState(storage, "here", "run", None).outlives(CheckpointState(storage, uuid, run, epoch))
