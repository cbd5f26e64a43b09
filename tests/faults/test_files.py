"""Every class of file: each byte flipped, each truncation, each swap with another file is detected, and named.

Sections, manifests and containers are flipped in tests/unit/format/test_container.py, file by file; here it is done to
whole checkpoints, as the code that opens a store reads them.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import read_identity, read_runs
from lamina.errors import LaminaError
from lamina.format.container import FORMAT_VERSION, verify
from lamina.format.paths import CHECKPOINT, RUNS, parse_name
from lamina.storage import Storage
from lamina.store.model import Version
from lamina.store.plain import PlainStore, open_store
from lamina.testing import Effect, Fault, FaultyBackend, ManualClock, MemoryBackend, SequenceIds
from lamina.testing.expect import fails_with

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"
START_MS = 1_790_000_000_000
DETECTED = ("file.damaged", "file.identity", "file.version", "file.missing")

State = dict[bytes, Any]


class Checkpoint:
    """A checkpoint with one store or more, of which each newest version needs a snapshot or run, and an increment."""

    def __init__(self, seed: int = 1) -> None:
        self.clock, self.ids = ManualClock(START_MS), SequenceIds(seed)
        self.objects = MemoryBackend(self.clock)
        self.backend = FaultyBackend(self.objects)
        self.storage = Storage("files:/state", backend=self.backend)

    def open(self, operator: int = 0, partition: int = 0, name: str = "default") -> PlainStore:
        return open_store(
            "files:/", operator, partition, name, storage=self.storage, clock=self.clock, ids=self.ids, min_versions=2
        )

    def open_once(self) -> PlainStore:
        """Opens the store and forgets that it was opened, so that a thousand opens leave no thousand runs."""
        before = dict(self.objects.objects)
        try:
            return self.open()
        finally:
            self.objects.objects = before

    def written(self, *where: Any, compacted: bool = True) -> PlainStore:
        """A store with four versions; all but the newest are in one segment, or behind a snapshot."""
        store = self.open(*where)
        for number in range(3):
            store.put(b"key %d" % number, b"value %d" % number)
            store.commit(snapshot=number == 2 and not compacted)
        if compacted:
            store.compact()
        store.put(b"last", b"one")
        store.commit()
        return store

    def needed(self, directory: str = "0/0") -> list[str]:
        """The files without which the newest version cannot be built: other ways to it are deleted."""
        newest = max(self.names(directory, ".lam"), key=lambda name: int(name.split("_")[0]))
        manifest = verify(self.objects.read(f"{directory}/{newest}"), newest)
        names = {reference.path or newest for reference in manifest.references}  # type: ignore[union-attr]
        for name in self.names(directory, ""):
            if name not in names:
                self.objects.delete_many([f"{directory}/{name}"])
        return sorted(names)

    def names(self, directory: str, ending: str) -> list[str]:
        return [entry.name for entry in self.objects.list(directory) if entry.name.endswith(ending)]


def state_of(store: PlainStore) -> State:
    return dict(store.scan())


def mutants(data: bytes, flips: tuple[int, ...] = (0x01, 0xFF)) -> Iterator[tuple[str, bytes]]:
    """Each byte flipped in these ways, each truncation, and bytes added."""
    for position in range(len(data)):
        for flip in flips:
            yield f"byte {position}", data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]
        yield f"first {position} bytes", data[:position]
    yield "one byte more", data + b"\0"


@pytest.mark.parametrize("compacted", [True, False], ids=["run", "snapshot"])
def test_every_change_of_a_file_that_a_version_needs_is_detected_when_it_is_opened(compacted: bool) -> None:
    """The increment beside a snapshot is no part of the versions above it: opening one does not read it."""
    checkpoint = Checkpoint()
    expected = state_of(checkpoint.written(compacted=compacted))
    unread = set()
    for name in checkpoint.needed():
        path = f"0/0/{name}"
        data, published = checkpoint.objects.objects[path]
        for what, changed in mutants(data, (0x01,)):
            checkpoint.objects.objects[path] = (changed, published)
            with fails_with("file.damaged", "file.version"):
                verify(changed, name)
            try:
                opened = checkpoint.open_once()
            except LaminaError as error:
                if error.kind not in DETECTED or name not in error.message:
                    raise AssertionError(what) from error
            else:
                assert state_of(opened) == expected, what
                unread.add(name)
        checkpoint.objects.objects[path] = (data, published)
    assert state_of(checkpoint.open()) == expected
    assert len(unread) == (0 if compacted else 1)


def test_every_change_of_the_checkpoints_identity_is_detected() -> None:
    checkpoint = Checkpoint()
    checkpoint.written()
    data, published = checkpoint.objects.objects[CHECKPOINT]
    for what, changed in mutants(data):
        checkpoint.objects.objects[CHECKPOINT] = (changed, published)
        with fails_with("file.damaged", "file.version") as caught:
            checkpoint.open_once()
        assert CHECKPOINT in caught.error.message, what
        with fails_with("file.damaged", "file.version"):
            read_identity(checkpoint.storage)


def test_whatever_is_in_the_file_of_a_run_its_name_counts() -> None:
    """Nobody reads the content: what orders runs is in the name, and a name that is not one is no run."""
    checkpoint = Checkpoint()
    store = checkpoint.written()
    runs = read_runs(checkpoint.storage)
    path, (data, published) = next(item for item in checkpoint.objects.objects.items() if item[0].startswith(RUNS))
    for _, changed in mutants(data):
        checkpoint.objects.objects[path] = (changed, published)
        assert read_runs(checkpoint.storage) == runs
    store.put(b"further", b"1")
    store.commit()
    assert state_of(checkpoint.open())[b"further"] == b"1"


PLACES = [(0, 0, "default"), (0, 1, "default"), (1, 0, "default"), (0, 0, "left-keyToNumValues")]


def directory_of(operator: int, partition: int, name: str) -> str:
    return f"{operator}/{partition}" + ("" if name == "default" else f"/{name}")


@pytest.mark.parametrize("ending", [".lam", ".seg"])
@pytest.mark.parametrize("other", PLACES[1:], ids=str)
def test_a_file_of_another_store_under_a_stores_name_is_detected(ending: str, other: tuple[int, int, str]) -> None:
    checkpoint = Checkpoint()
    checkpoint.written(*PLACES[0])
    checkpoint.written(*other)
    swap_each(checkpoint, "0/0", ending, checkpoint, directory_of(*other))


@pytest.mark.parametrize("ending", [".lam", ".seg"])
def test_a_file_of_the_same_store_of_another_checkpoint_is_detected(ending: str) -> None:
    checkpoint, other = Checkpoint(1), Checkpoint(2)
    checkpoint.written()
    other.written()
    swap_each(checkpoint, "0/0", ending, other, "0/0")


def test_a_file_of_the_same_checkpoint_made_again_is_detected() -> None:
    """The same ids and rows, but another uuid of the checkpoint."""
    checkpoint, other = Checkpoint(1), Checkpoint(1)
    checkpoint.written()
    other.ids.uuid()
    other.written()
    swap_each(checkpoint, "0/0", ".lam", other, "0/0")


def test_two_files_of_one_store_that_were_swapped_are_detected() -> None:
    checkpoint = Checkpoint()
    checkpoint.written()
    before = dict(checkpoint.objects.objects)
    names = checkpoint.needed()
    for mine, theirs in itertools.permutations([name for name in before if name.startswith("0/0/")], 2):
        name = mine.removeprefix("0/0/")
        if name not in names:
            continue
        checkpoint.objects.objects[mine] = before[theirs]
        with fails_with("file.damaged", "file.identity") as caught:
            checkpoint.open()
        assert name in caught.error.message
        checkpoint.objects.objects[mine] = before[mine]


def swap_each(checkpoint: Checkpoint, directory: str, ending: str, other: Checkpoint, other_directory: str) -> None:
    """Puts each file of `other` in the place of each needed file of `checkpoint`."""
    taken = [other.objects.objects[f"{other_directory}/{name}"] for name in other.names(other_directory, ending)]
    needed = [name for name in checkpoint.needed(directory) if name.endswith(ending)]
    assert taken
    assert needed
    for name, foreign in itertools.product(needed, taken):
        path = f"{directory}/{name}"
        own = checkpoint.objects.objects[path]
        checkpoint.objects.objects[path] = foreign
        with fails_with("file.damaged", "file.identity") as caught:
            checkpoint.open()
        assert name in caught.error.message
        checkpoint.objects.objects[path] = own


def test_the_identity_of_another_checkpoint_refuses_every_file() -> None:
    checkpoint, other = Checkpoint(1), Checkpoint(2)
    checkpoint.written()
    other.written()
    checkpoint.objects.objects[CHECKPOINT] = other.objects.objects[CHECKPOINT]
    with fails_with("file.identity"):
        checkpoint.open()


@pytest.mark.parametrize("path", [".lam", ".seg", CHECKPOINT])
def test_a_torn_write_that_a_storage_called_whole_is_detected(path: str) -> None:
    """No storage that keeps the contract does this; a file that is cut off is noticed all the same."""
    checkpoint = Checkpoint()
    operation = "publish_if_absent" if path == CHECKPOINT else "publish"
    checkpoint.backend.inject(Fault(operation, path, effect=Effect.TRUNCATE))
    with fails_with("file.damaged") as caught:
        checkpoint.written()
        checkpoint.needed()
        checkpoint.open()
    assert path in caught.error.message


def test_a_read_that_gives_less_than_there_is_is_detected() -> None:
    checkpoint = Checkpoint()
    expected = state_of(checkpoint.written())
    checkpoint.needed()
    calls = 0
    for call in range(100):
        checkpoint.backend.heal()
        before = len(checkpoint.backend.calls)
        fault = Fault("*", effect=Effect.TRUNCATE, skip=call)
        checkpoint.backend.inject(fault)
        try:
            assert state_of(checkpoint.open()) == expected
        except LaminaError as error:
            assert error.kind in ("file.damaged", "file.version"), error  # noqa: PT017
        calls += len(checkpoint.backend.calls) - before
        if fault.times == 1:
            break
    assert calls > 10
    assert fault.times == 1


def test_golden_files_of_the_oldest_format_are_read_without_a_checksum_of_the_identity(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "state", tmp_path / "state")
    assert "crc32" not in json.loads((tmp_path / "state" / CHECKPOINT).read_text())
    store = open_store(str(tmp_path))
    assert [known.version for known in store.versions()] == list(range(1, 10))
    assert {path.name for path in (tmp_path / "state" / "0" / "0").iterdir() if parse_name(path.name)}


@pytest.mark.parametrize("position", [-12, 8], ids=["footer", "header"])
def test_a_store_whose_newest_file_is_of_a_newer_format_is_refused_by_name(position: int) -> None:
    checkpoint = Checkpoint()
    store = checkpoint.written()
    name = f"{store.version.version}_{store.version.attempt}.lam"
    data = bytearray(checkpoint.objects.objects[f"0/0/{name}"][0])
    data[position] = FORMAT_VERSION + 1
    checkpoint.objects.objects[f"0/0/{name}"] = (bytes(data), START_MS)
    with fails_with("file.version") as caught:
        checkpoint.open()
    assert name in caught.error.message


def test_a_checkpoint_of_a_newer_format_is_refused_by_name() -> None:
    checkpoint = Checkpoint()
    checkpoint.written()
    checkpoint.objects.objects[CHECKPOINT] = (b'{"format":2}', START_MS)
    with fails_with("file.version") as caught:
        checkpoint.open()
    assert CHECKPOINT in caught.error.message


def test_an_attempt_id_of_a_newer_grammar_is_refused_by_name() -> None:
    checkpoint = Checkpoint()
    store = checkpoint.written()
    with fails_with("attempt-id.unknown") as caught:
        store.restore(Version(4, "L2.4.1.x"))
    assert "L2.4.1.x" in caught.error.message
