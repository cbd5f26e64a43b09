"""Every class of file: each byte flipped, each truncation, each swap with another file is detected, and named.

Sections, manifests and containers are flipped in tests/unit/format/test_container.py, file by file; here it is done to
whole checkpoints, as the code that opens a store reads them. Local copies of files, which are of no format, are in
tests/unit/storage/test_cache.py.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, get_args, get_type_hints

import pytest

from lamina.checkpoint import read_identity, read_runs
from lamina.errors import LaminaError
from lamina.format import blocks, manifest, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.container import FORMAT_VERSION, verify
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CHECKPOINT, LOG, PINS, RUNS, CommitName, TableName, parse_name
from lamina.storage import Storage
from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore
from lamina.store.model import Version
from lamina.testing import Effect, Fault, FaultyBackend, ManualClock, MemoryBackend, SequenceIds
from lamina.testing.damage import mutants
from lamina.testing.expect import fails_with

START_MS = 1_790_000_000_000
MODES = ["run", "snapshot", "rewrite", "tables"]
"""What the newest version of an example stands on."""

METADATA = {CHECKPOINT, LOG, PINS, RUNS}
"""Each of these has tests of its own: below, tests/unit/checkpoint/test_pins.py and, for log objects,
tests/unit/store/test_log_parts.py."""

DETECTED = ("file.damaged", "file.identity", "file.version", "file.missing")

State = dict[bytes, Any]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of several blocks, however small they are."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 200)


class Checkpoint:
    """A checkpoint with one store or more, of which each newest version needs what `mode` says, and an increment."""

    def __init__(self, seed: int = 1, mode: str = "run") -> None:
        self.mode = mode
        self.clock, self.ids = ManualClock(START_MS), SequenceIds(seed)
        self.objects = MemoryBackend(self.clock)
        self.backend = FaultyBackend(self.objects)
        self.storage = Storage("files:/state", backend=self.backend)

    def open(self, operator: int = 0, partition: int = 0, name: str = "default") -> DirectStore:
        settings: dict[str, Any] = {
            "rewrite": {"compaction_mode": "rolling", "compaction_rolling_parts": 2},
            "tables": {"backend": "rocksdb", "rocksdb_materialize_every": 2},
        }.get(self.mode, {})
        return open_store(
            "files:/",
            operator,
            partition,
            name,
            storage=self.storage,
            clock=self.clock,
            ids=self.ids,
            writable=True,
            min_versions=2,
            **settings,
        )

    def open_once(self) -> DirectStore:
        """Opens the store and forgets that it was opened, so that a thousand opens leave no thousand runs."""
        before = dict(self.objects.objects)
        try:
            return self.open()
        finally:
            self.objects.objects = before

    def written(self, *where: Any) -> DirectStore:
        """A store with four versions; all but the newest are in a segment, in tables, behind a snapshot or rewrites."""
        store = self.open(*where)
        for number in range(3):
            store.put(b"key %d" % number, b"value %d" % number)
            store.commit(snapshot=number == 2 and self.mode == "snapshot")
        if self.mode in ("run", "tables"):
            store.compact()
        store.put(b"last", b"one")
        store.commit()
        return store

    def newest(self, directory: str = "0/0") -> CommitManifest:
        """The manifest of the newest version."""
        name = max(self.names(directory, ".lam"), key=lambda name: int(name.split("_")[0]))
        manifest = verify(self.objects.read(f"{directory}/{name}"), name)
        assert isinstance(manifest, CommitManifest)
        return manifest

    def needed(self, directory: str = "0/0") -> list[str]:
        """The files without which the newest version cannot be built: other ways to it are deleted."""
        newest = self.newest(directory)
        own = str(CommitName(AttemptId.parse(newest.attempt)))
        names = {reference.path or own for reference in newest.references}
        for name in self.names(directory, ""):
            if name not in names:
                self.objects.delete_many([f"{directory}/{name}"])
        return sorted(names)

    def names(self, directory: str, ending: str) -> list[str]:
        return [entry.name for entry in self.objects.list(directory) if entry.name.endswith(ending)]


def state_of(store: DirectStore) -> State:
    return dict(store.scan())


def test_every_class_of_file_is_among_the_examples() -> None:
    """A new name, or a new kind of section, needs an example here; the tests below are then done to it."""
    names, kinds, others = set(), set(), set()
    for mode in MODES:
        checkpoint = Checkpoint(mode=mode)
        checkpoint.written()
        assert all(section.blocks for section in checkpoint.newest().sections)
        kinds.update(reference.kind for reference in checkpoint.newest().references)
        names.update(type(parse_name(name)) for name in checkpoint.needed())
        others.update(path for path in checkpoint.objects.objects if not path.startswith("0/0/"))
    assert names | {type(None)} == set(get_args(get_type_hints(parse_name)["return"]))
    known = {value for name, value in vars(manifest).items() if name.isupper() and isinstance(value, str)}
    assert kinds == known
    places = {value for value in vars(paths).values() if isinstance(value, str) and value.startswith("_lamina/")}
    assert places == METADATA
    # a pin is made by whoever refers to the checkpoint from elsewhere, a log object by several stores
    assert {place for place in places for path in others if path.startswith(place)} == METADATA - {LOG, PINS}
    assert all(path.startswith(tuple(METADATA)) for path in others)


@pytest.mark.parametrize("mode", MODES)
def test_every_change_of_a_file_that_a_version_needs_is_detected_when_it_is_opened(mode: str) -> None:
    """The increment beside a snapshot, or beside the oldest rewrite, is no part of the versions above it: opening one
    does not read it."""
    checkpoint = Checkpoint(mode=mode)
    expected = state_of(checkpoint.written())
    unread = set()
    for name in checkpoint.needed():
        path = f"0/0/{name}"
        data, published = checkpoint.objects.objects[path]
        for what, changed in mutants(data, (0x01,)):
            checkpoint.objects.objects[path] = (changed, published)
            if not isinstance(parse_name(name), TableName):
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
    assert len(unread) == (0 if mode in ("run", "tables") else 1)


def test_every_change_of_the_checkpoints_identity_is_detected() -> None:
    checkpoint = Checkpoint()
    checkpoint.written()
    data, published = checkpoint.objects.objects[CHECKPOINT]
    unsealed = manifest.to_bytes({name: value for name, value in json.loads(data).items() if name != "crc32"})
    for what, changed in [*mutants(data), ("without its checksum", unsealed)]:
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
    other = Checkpoint(2)
    other.written()
    foreign = [(name, changed) for name, (changed, _) in other.objects.objects.items()]
    assert any(name.startswith(RUNS) and changed != data for name, changed in foreign)
    for what, changed in [*mutants(data), *foreign]:
        checkpoint.objects.objects[path] = (changed, published)
        assert read_runs(checkpoint.storage) == runs, what
    store.put(b"further", b"1")
    store.commit()
    assert state_of(checkpoint.open())[b"further"] == b"1"


PLACES = [(0, 0, "default"), (0, 1, "default"), (1, 0, "default"), (0, 0, "left-keyToNumValues")]


def directory_of(operator: int, partition: int, name: str) -> str:
    return f"{operator}/{partition}" + ("" if name == "default" else f"/{name}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("other", PLACES[1:], ids=str)
def test_a_file_of_another_store_under_a_stores_name_is_detected(mode: str, other: tuple[int, int, str]) -> None:
    checkpoint = Checkpoint(mode=mode)
    checkpoint.written(*PLACES[0])
    checkpoint.written(*other)
    swap_each(checkpoint, checkpoint, directory_of(*other))


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_the_same_store_of_another_checkpoint_is_detected(mode: str) -> None:
    checkpoint, other = Checkpoint(1, mode), Checkpoint(2, mode)
    checkpoint.written()
    other.written()
    swap_each(checkpoint, other, "0/0")


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_the_same_checkpoint_made_again_is_detected(mode: str) -> None:
    """The same ids and rows, but another uuid of the checkpoint."""
    checkpoint, other = Checkpoint(1, mode), Checkpoint(1, mode)
    checkpoint.written()
    other.ids.uuid()
    other.written()
    swap_each(checkpoint, other, "0/0")


@pytest.mark.parametrize("mode", MODES)
def test_two_files_of_one_store_that_were_swapped_are_detected(mode: str) -> None:
    checkpoint = Checkpoint(mode=mode)
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


def swap_each(checkpoint: Checkpoint, other: Checkpoint, directory: str) -> None:
    """Puts each file of a store of `other` in the place of each file that the store 0/0 of `checkpoint` needs."""
    taken = [other.objects.objects[f"{directory}/{name}"] for name in other.names(directory, "")]
    needed = checkpoint.needed()
    assert len(taken) >= len(needed) > 1
    for name, foreign in itertools.product(needed, taken):
        path = f"0/0/{name}"
        own = checkpoint.objects.objects[path]
        checkpoint.objects.objects[path] = foreign
        with fails_with("file.damaged", "file.identity") as caught:
            checkpoint.open()
        assert name in caught.error.message
        checkpoint.objects.objects[path] = own


def test_a_file_of_another_checkpoint_in_the_place_of_the_identity_is_detected() -> None:
    """Its identity belongs to none of the files here; all its other files are no identity."""
    checkpoint, other = Checkpoint(1), Checkpoint(2)
    checkpoint.written()
    other.written()
    for path, foreign in other.objects.objects.items():
        checkpoint.objects.objects[CHECKPOINT] = foreign
        with fails_with("file.identity" if path == CHECKPOINT else "file.damaged") as caught:
            checkpoint.open()
        assert ("0/0/" if path == CHECKPOINT else CHECKPOINT) in caught.error.message, path


@pytest.mark.parametrize(
    ("mode", "path"),
    [
        ("run", ".lam"),
        ("run", ".seg"),
        ("run", CHECKPOINT),
        ("snapshot", "/3_"),
        ("rewrite", "/3_"),
        ("tables", ".sst"),
        ("tables", ".rdb"),
    ],
)
def test_a_torn_write_that_a_storage_called_whole_is_detected(mode: str, path: str) -> None:
    """No storage that keeps the contract does this; a file that is cut off is noticed all the same."""
    checkpoint = Checkpoint(mode=mode)
    operation = "publish_if_absent" if path == CHECKPOINT else "publish"
    checkpoint.backend.inject(Fault(operation, path, effect=Effect.TRUNCATE))
    with fails_with("file.damaged") as caught:
        checkpoint.written()
        checkpoint.needed()
        checkpoint.open()
    assert path in caught.error.message


@pytest.mark.parametrize("mode", MODES)
def test_a_read_that_gives_less_than_there_is_is_detected(mode: str) -> None:
    checkpoint = Checkpoint(mode=mode)
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
