"""Log objects in places of their own (`changelog.path`), which the checkpoint names."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import sealed_bytes
from lamina.components import RandomIds
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.settings import NONE
from lamina.storage import Storage
from lamina.storage.temporary import temporary_name
from lamina.store import Version
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlaces
from lamina.store.files.shared_looks import HOLDS_S
from lamina.store.versioned_store import VersionedStore
from lamina.testing import FaultyBackend, ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped, collected, materialized
from tests.unit.store.writing import Query, rows_of


class World:
    """A checkpoint on this disk, and directories beside it."""

    def __init__(self, directory: Path, name: str = "checkpoint", **settings: object) -> None:
        self.directory = directory
        self.state = directory / name / "state"
        self.fast, self.other = f"{directory}/fast", f"{directory}/other"
        self.clock = ManualClock(time.time_ns() // 1_000_000)
        self.query = Query(self.storage(), clock=self.clock, **{"min_versions": 2, **settings})  # type: ignore[arg-type]
        self.runs = itertools.count()

    def storage(self, *roots: str) -> Storage:
        """Without the settings of the run that wrote, but for what may be read."""
        inner = Storage(str(self.state))
        return Storage(str(self.state), backend=FaultyBackend(inner._backend), roots=roots or (self.fast, self.other))

    def run(self, path: str) -> Grouped:
        """A new run of the query, with another process."""
        query = Query(self.storage(), run=f"run-{next(self.runs)}", min_versions=2, clock=self.clock)
        query.states = self.query.states
        return Grouped(query, path)

    def restored(self, version: Version, partition: int = 0, *roots: str) -> dict[bytes, bytes]:
        """As a process restores it that has never heard of the setting."""
        query = Query(self.storage(*roots), run="reader", clock=self.clock)
        return rows_of(query.open(partition, read_only=True).load(version, have=None, read_only=True))

    def objects(self, *paths: str) -> list[str]:
        return sorted(path.stem for root in paths for path in Path(root).rglob("*.log"))

    def check(self, versions: Iterable[Version], partition: int = 0) -> None:
        for version in versions:
            assert self.restored(version, partition) == self.query.states[version.attempt]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def some(grouped: Grouped, store: VersionedStore, version: Version, count: int) -> list[Version]:
    found = [version]
    for number in range(count):
        found += grouped.batch([store], [found[-1]], number)
    return found[1:]


def test_objects_lie_where_the_setting_says_and_every_reader_finds_them(world: World) -> None:
    run = world.run(NONE)
    (store,), (version,) = run.begun()
    versions = [version, *some(run, store, version, 3)]
    where: list[int] = [len(world.objects(str(world.state)))]
    for path in (world.fast, world.other, NONE, world.fast, NONE, world.other):
        run = world.run(path)
        versions += some(run, run.open(), versions[-1], 3)
        world.check(versions)
        where.append(len(world.objects(world.fast)))
    assert where == [3, 3, 3, 3, 6, 6, 6]
    assert len(world.objects(world.other)) == 6
    assert len(world.objects(str(world.state))) == 9
    # one file for each place, however often it is taken
    assert len(list((world.state / paths.LOG).glob("*.at"))) == 2


def test_who_writes_knows_where_and_asks_nowhere_else(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    versions = some(run, store, version, 2)
    run.query.faults.calls.clear()
    versions += some(run, store, versions[-1], 2)
    assert rows_of(store.load(versions[-1], have=None, read_only=True)) == world.query.states[versions[-1].attempt]
    assert [path for _, path in run.query.faults.calls if path.startswith("_lamina")] == []


def test_without_places_nothing_is_listed_to_read_an_object() -> None:
    grouped = Grouped(Query())
    (store,), (version,) = grouped.begun()
    version = some(grouped, store, version, 2)[-1]
    other = Grouped(grouped.query)
    store = other.open()
    grouped.query.faults.calls.clear()
    store.load(version, have=None, read_only=True)
    assert not [path for operation, path in grouped.query.faults.calls if operation == "list"]
    reads = [path for operation, path in grouped.query.faults.calls if path.startswith(paths.LOG)]
    assert reads


def test_the_first_look_for_an_object_keeps_its_local_copy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.run(NONE)
    (store,), (version,) = run.begun()
    some(run, store, version, 2)
    forgotten: list[str] = []
    monkeypatch.setattr(Storage, "forget", lambda _, path: bool(forgotten.append(path)))
    (log, *_) = world.objects(str(world.state))
    clock = ManualClock(0)
    objects = LogObjects(world.storage(), clock)
    assert objects.exists(log)
    assert forgotten == []
    # one that is known and gone has no copy that counts
    objects.find(log)
    (gone,) = (path for path in world.state.rglob(f"{log}.log"))
    gone.unlink()
    clock.advance(round(1000 * HOLDS_S))
    assert not objects.exists(log)
    assert forgotten == [paths.log_path(log)]


def test_a_collection_deletes_in_all_places_and_leaves_what_is_needed(world: World) -> None:
    run = world.run(NONE)
    (store,), (version,) = run.begun()
    versions = [version]
    for path in (NONE, world.fast, world.other):
        run = world.run(path)
        store = run.open()
        versions += some(run, store, versions[-1], 3)
    old = world.objects(str(world.directory))
    assert len(old) == 9
    run = world.run(world.fast)
    store = run.open()
    materialized(store, versions[-1])
    versions += some(run, store, versions[-1], 4)
    collected(run, store, versions[-1])
    world.clock.advance(MIN_AGE_MS + 60_000)
    found = store.collect(versions[-1], dry_run=True)
    assert {one.path for one in found.deleted if one.kind == "log" and "://" not in one.path}
    collected(run, store, versions[-1])
    left = world.objects(str(world.directory))
    # the version before the merge is retained no more
    assert not set(old) & set(left)
    world.check(versions[-3:])


def test_temporary_files_of_a_place_go_and_what_is_not_of_lamina_stays(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 1)[-1]
    (directory,) = {path.parent for path in Path(world.fast).rglob("*.log")}
    cut_off, foreign = directory / temporary_name("x.log", 1, 2), directory / "notes.txt"
    cut_off.write_bytes(b"half")
    foreign.write_bytes(b"mine")
    collected(run, store, version)
    assert cut_off.exists()
    world.clock.advance(MIN_AGE_MS + 60_000)
    collected(run, store, version)
    assert (cut_off.exists(), foreign.exists()) == (False, True)


def gone_and_back(world: World) -> tuple[Grouped, VersionedStore, list[Version], Path]:
    """A store with parts in a place that is not there any more, and newer ones in the checkpoint."""
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    versions = some(run, store, version, 3)
    run = world.run(NONE)
    store = run.open()
    versions += some(run, store, versions[-1], 3)
    away = Path(f"{world.fast}-away")
    Path(world.fast).rename(away)
    return run, store, versions, away


def test_a_place_that_is_not_there_is_named_and_stops_collections(world: World) -> None:
    run, _, versions, away = gone_and_back(world)
    (file,) = (world.state / paths.LOG).glob("*.at")
    with fails_with("storage.failed") as caught:
        world.restored(versions[-1])
    assert str(file) in caught.error.message
    assert world.fast in caught.error.message
    before = world.objects(str(world.state))
    for again in (False, True):
        run = world.run(NONE) if again else run
        for _ in range(2):
            found = run.open().collect(versions[-1], dry_run=False)
            assert found.stopped is not None
            assert str(file) in found.stopped
            assert world.fast in found.stopped
            world.clock.advance(MIN_AGE_MS + 60_000)
    assert world.objects(str(world.state)) == before
    away.rename(world.fast)
    world.check(versions)
    run = world.run(NONE)
    collected(run, run.open(), versions[-1])


def test_a_place_that_could_not_be_listed_is_not_asked_again_at_once_by_who_asks_very_often(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    some(run, store, version, 1)
    for remembers, expected in ((False, [1, 2, 3]), (True, [1, 1, 2])):
        places = LogPlaces(world.storage(), clock=world.clock)
        if remembers:
            places.remember_silence()
        places.list()
        (place,) = places.elsewhere()
        asked: list[str] = []

        def list_(directory: str, asked: list[str] = asked) -> Any:
            asked.append(directory)
            world.clock.advance(1_000)
            raise OSError("no answer")

        place.storage._backend.list = list_  # type: ignore[method-assign]
        world.clock.advance(600_000)
        counts = []
        for wait_ms in (30_000, 30_000, 0):
            _, unreached = places.list()
            assert [one.error.kind for one in unreached] == ["storage.failed"]
            counts.append(len(asked))
            world.clock.advance(wait_ms)
        assert counts == expected


def test_a_store_that_needs_nothing_of_a_lost_place_is_read(world: World) -> None:
    run = world.run(world.fast)
    stores, versions = run.begun(2)
    in_place = run.batch(stores[:1], versions[:1], 0)
    Path(world.fast).rename(f"{world.fast}-away")
    assert world.restored(versions[1], 1) == world.query.states[versions[1].attempt]
    with fails_with("storage.failed"):
        world.restored(in_place[0])


@pytest.mark.parametrize("collects", [False, True])
def test_a_place_that_may_not_be_read_is_not_asked(world: World, collects: bool) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    versions = some(run, store, version, 2)
    query = Query(world.storage(f"{world.directory}/elsewhere"), run="again", min_versions=2, clock=world.clock)
    if collects:
        store = query.open()
        query.states = world.query.states
        with fails_with("storage.denied") as caught:
            store.collect(versions[-1], dry_run=False)
    else:
        with fails_with("storage.denied") as caught:
            query.open(read_only=True).load(versions[-1], have=None, read_only=True)
    assert "storage.roots" in caught.error.message
    assert world.fast in caught.error.message
    assert ".at says" in caught.error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        sealed_bytes({"format": 1, "url": "/elsewhere", "checkpoint": "/x"}),
        sealed_bytes({"format": 1, "checkpoint": "/x"}),
        sealed_bytes({"format": 2, "url": f"/x/{'a' * 32}", "checkpoint": "/x"}),
        sealed_bytes({"format": 1, "url": f"/x/{'a' * 32}", "checkpoint": "/x"}).replace(b"/x/", b"/y/"),
    ],
)
def test_a_file_that_names_no_place_stops_collections(world: World, data: bytes) -> None:
    run = world.run(NONE)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 2)[-1]
    (world.state / paths.LOG / f"{'a' * 32}.at").write_bytes(data)
    world.check([version])
    found = world.run(NONE).open().collect(version, dry_run=False)
    assert found.stopped is not None
    assert "a" * 32 in found.stopped


def test_a_file_of_another_place_names_none(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 1)[-1]
    (file,) = (world.state / paths.LOG).glob("*.at")
    shutil.copy(file, file.with_name(f"{'a' * 32}.at"))
    world.check([version])
    found = world.run(NONE).open().collect(version, dry_run=False)
    assert found.stopped is not None
    assert f"the place of log objects that {file.with_name('a' * 32 + '.at')} names" in found.stopped


def test_checkpoints_that_share_a_path_do_not_touch_each_others_objects(tmp_path: Path) -> None:
    worlds = [World(tmp_path, name) for name in ("one", "two")]
    versions: list[list[Version]] = []
    for world in worlds:
        run = world.run(world.fast)
        (store,), (version,) = run.begun()
        versions.append(some(run, store, version, 3))
    first, second = worlds
    kept = len(second.objects(second.fast))
    run = first.run(first.fast)
    store = run.open()
    materialized(store, versions[0][-1])
    versions[0] += some(run, store, versions[0][-1], 4)
    for _ in range(3):
        collected(run, store, versions[0][-1])
        first.clock.advance(MIN_AGE_MS + 60_000)
    assert len(first.objects(first.fast)) < kept + 4
    second.check(versions[1])


def test_a_copy_of_a_checkpoint_reads_its_objects_and_deletes_none(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    versions = some(run, store, version, 4)
    shutil.copytree(world.state.parent, world.directory / "copy")
    copy = World(world.directory, "copy")
    copy.query.states = dict(world.query.states)
    run = copy.run(copy.fast)
    store = run.open()
    later = some(run, store, versions[-1], 1)
    materialized(store, later[-1])
    later += some(run, store, later[-1], 4)
    for _ in range(3):
        collected(run, store, later[-1])
        copy.clock.advance(MIN_AGE_MS + 60_000)
    world.check(versions)
    copy.check(later[-2:])
    # what the copy writes is its own
    assert len({path.parent for path in Path(world.fast).rglob("*.log")}) == 2


@pytest.mark.parametrize("path", ["{state}", "{checkpoint}", "{checkpoint}/fast", "file:{checkpoint}/./fast"])
def test_a_path_in_the_checkpoint_is_refused(world: World, path: str) -> None:
    path = path.format(state=world.state, checkpoint=world.state.parent)
    with fails_with("settings.invalid") as caught:
        world.run(path)
    assert "in the checkpoint" in caught.error.message


def test_a_path_that_cannot_be_written_is_refused(world: World) -> None:
    Path(world.fast).write_bytes(b"a file")
    with fails_with("settings.invalid") as caught:
        world.run(world.fast)
    assert "changelog.path" in caught.error.message
    assert not list((world.state / paths.LOG).glob("*.at"))


def test_a_directory_that_was_put_in_the_place_of_another_is_not_written_to(world: World) -> None:
    """A disk that is not mounted leaves an empty one."""
    run, _, versions, away = gone_and_back(world)
    Path(world.fast).mkdir()
    with fails_with("settings.invalid") as caught:
        world.run(world.fast)
    assert "is not there: bring it back" in caught.error.message
    assert not list(Path(world.fast).rglob("*.at"))
    Path(world.fast).rmdir()
    away.rename(world.fast)
    run = world.run(world.fast)
    versions += some(run, run.open(), versions[-1], 1)
    world.check(versions)


def test_a_directory_that_is_another_one_on_each_machine_is_refused(world: World, tmp_path: Path) -> None:
    """Both take it at the same time."""
    run = world.run(NONE)
    run.begun()
    machines = [tmp_path / "machine-0", tmp_path / "machine-1"]
    taking = threading.Barrier(2)
    outcomes: list[str] = []

    def take(machine: Path) -> None:
        class Late(Storage):
            def publish_if_absent(self, path: str, data: bytes) -> bool:
                written = super().publish_if_absent(path, data)
                taking.wait(30)
                return written

        places = LogPlaces(world.storage(), lambda url: Late(f"{machine}{url}"))
        try:
            places.take(world.fast, run.state.uuid or "", RandomIds())
            outcomes.append("taken")
        except LaminaError as error:
            outcomes.append(error.kind)

    threads = [threading.Thread(target=take, args=[machine]) for machine in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["settings.invalid", "taken"]
    assert sorted(len(list(machine.rglob("*.at"))) for machine in machines) == [0, 1]


def test_a_place_whose_file_was_deleted_is_given_up(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 2)[-1]
    run = world.run(NONE)
    store = run.open()
    materialized(store, version)
    versions = some(run, store, version, 4)
    for _ in range(2):
        collected(run, store, versions[-1])
        world.clock.advance(MIN_AGE_MS + 60_000)
    Path(world.fast).rename(f"{world.fast}-away")
    assert store.collect(versions[-1], dry_run=False).stopped is not None
    (file,) = (world.state / paths.LOG).glob("*.at")
    file.unlink()
    world.clock.advance(60_000)
    collected(run, store, versions[-1])
    world.check(versions[-2:])


def test_a_crash_between_the_two_files_of_a_place_leaves_nothing_that_stops_others(world: World) -> None:
    run = world.run(NONE)
    (store,), (version,) = run.begun()
    storage = world.storage()
    published = []

    places = LogPlaces(storage)
    original = storage.publish_if_absent

    def crash(path: str, data: bytes) -> bool:
        published.append(path)
        raise LaminaError.from_kind("storage.failed", "crash")

    storage.publish_if_absent = crash  # type: ignore[method-assign]
    with fails_with("storage.failed"):
        places.take(world.fast, run.state.uuid or "", RandomIds())
    storage.publish_if_absent = original  # type: ignore[method-assign]
    assert [paths.log_place_of(path) is not None for path in published] == [True]
    collected(run, store, version)
    run = world.run(world.fast)
    world.check(some(run, run.open(), version, 1))


def test_an_object_is_looked_for_where_it_may_be_by_now(world: World) -> None:
    """A process that has listed the places before another run took a new one."""
    run = world.run(NONE)
    _, (version,) = run.begun()
    reader = LogObjects(world.storage(), world.clock)
    assert not reader.exists("a" * 32)
    run = world.run(world.fast)
    some(run, run.open(), version, 1)
    (log,) = world.objects(world.fast)
    assert reader.exists(log)
    assert reader.find(log).place.storage.url.startswith(world.fast)


def test_an_object_that_is_damaged_in_its_place_is_named(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 1)[-1]
    (path,) = Path(world.fast).rglob("*.log")
    path.write_bytes(b"no object")
    with fails_with("file.damaged") as caught:
        world.restored(version)
    assert str(path) in caught.error.message
    with fails_with("file.missing") as caught:
        world.run(NONE).open().collect(version, dry_run=False)
    assert str(path) in caught.error.message


def test_an_object_that_is_nowhere_is_missed_in_all_places(world: World) -> None:
    run = world.run(world.fast)
    (store,), (version,) = run.begun()
    version = some(run, store, version, 1)[-1]
    (path,) = Path(world.fast).rglob("*.log")
    path.unlink()
    own = str(world.state / paths.LOG / path.name)
    with fails_with("file.missing", f"nor is it in {path.parent}", own):
        LogObjects(world.storage(), world.clock).find(path.stem)
    with fails_with("file.missing", f"{own} or {path}, part 0", "is not there"):
        world.restored(version)
