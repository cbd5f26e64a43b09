"""`lamina fsck`, `gc` and `inspect`, the change feed and `open_store`, where commits are parts of log objects."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import CheckpointLogs, CommitEntry, StoreSelection, logged_stores
from lamina.format import log_object, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.container import FOOTER, HEADER, Footer
from lamina.format.log_object import LogIndex, Whole
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.storage.temporary import temporary_name
from lamina.store.admin import side_by_side, store_survey
from lamina.store.admin.check import check_log, check_stores
from lamina.store.admin.collect import collect_stores
from lamina.store.check.report import UNREAD, LogCheck, StoreCheck
from lamina.store.collection.classes import LOG
from lamina.store.direct.open import open_store
from lamina.store.files import log_parts
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.store_files import StoreFiles
from lamina.testing import Fault, FaultyBackend
from lamina.testing.expect import fails_with
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import PARTITIONS, QueryOnDisk

HOUR_S = 3600
EMPTY_LOG = {"objects": 0, "bytes": 0, "not_needed": {}, "problems": [], "warnings": []}


@pytest.fixture
def query(tmp_path: Path) -> QueryOnDisk:
    """Four versions of two stores: the first ones are files, and each of the others is a part of the batch's object."""
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True)
    query.run(4)
    return query


def objects(query: QueryOnDisk) -> list[Path]:
    return sorted((query.directory / "state" / paths.LOG).glob("*.log"))


def of_version(query: QueryOnDisk, version: int) -> Path:
    return query.log_object(query.attempts[version - 1][0])


def index(path: Path) -> LogIndex:
    return log_object.verify(path.read_bytes(), path.stem, str(path))


def checked(lamina: Lamina, query: QueryOnDisk, *options: str, code: int = 0) -> dict[str, Any]:
    outcome = lamina("fsck", query.directory, "--json", *options)
    assert outcome.code == code, outcome.err + outcome.out
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def check(query: QueryOnDisk, *, contents: bool = True) -> tuple[Sequence[StoreCheck], LogCheck]:
    """The same without the command."""
    found = logged_stores(Storage(str(query.directory)), StoreSelection())
    stores = check_stores(found, contents=contents, progress=lambda done, total: None)
    return stores, check_log(found, stores, contents=contents)


def test_a_whole_checkpoint_is_whole_and_its_bytes_are_counted_once(lamina: Lamina, query: QueryOnDisk) -> None:
    found = checked(lamina, query)
    assert not found["damaged"]
    files = 0
    for partition, store in enumerate(found["stores"]):
        assert (store["whole"], store["problems"], store["rows"]) == ([1, 2, 3, 4], [], 40)
        assert (store["files"], store["not_needed"]) == (4, {})
        parts = [part.length for path in objects(query) for part in index(path).parts if part.number == partition]
        files += query.file(query.attempts[0][partition], partition).stat().st_size
        assert store["bytes"] == sum(parts) + query.file(query.attempts[0][partition], partition).stat().st_size
    assert found["log"] == {**EMPTY_LOG, "objects": 3, "bytes": sum(path.stat().st_size for path in objects(query))}
    outcome = lamina("fsck", query.directory)
    assert outcome.code == 0
    assert "log: 3 objects" in outcome.out
    assert "every retained version is whole" in outcome.out
    assert checked(lamina, query, "--quick")["log"] == found["log"]


def test_a_checkpoint_without_log_objects_has_none(lamina: Lamina, tmp_path: Path) -> None:
    plain = QueryOnDisk(tmp_path / "plain")
    plain.run(2)
    assert checked(lamina, plain)["log"] == EMPTY_LOG
    assert "log:" not in lamina("fsck", plain.directory).out
    found = json.loads(lamina("inspect", plain.directory, "--json").out)
    assert found["log"] == {"objects": 0, "bytes": 0, "needs": 0, "oldest_ms": None, "places": [], "writers": []}


def test_a_damaged_part_is_named_and_damages_its_store_alone(lamina: Lamina, query: QueryOnDisk) -> None:
    path = of_version(query, 3)
    part = index(path).parts[1]
    flip(path, part.offset + part.length // 2)
    found = checked(lamina, query, code=1)
    first, second = found["stores"]
    assert (first["problems"], first["damaged"]) == ([], [])
    assert (second["whole"], second["damaged"]) == ([1, 2], [3, 4])
    (problem,) = second["problems"]
    assert problem["kind"] == "file.damaged"
    assert f"{path}, part 1 " in problem["message"]
    assert found["log"]["problems"] == []


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def newer(path: Path) -> None:
    """The footer says a format version that this release does not know."""
    data = bytearray(path.read_bytes())
    data[-FOOTER.size + 52] = 99
    path.write_bytes(bytes(data))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "header": (lambda path: flip(path, 3), "file.damaged"),
    "index": (lambda path: flip(path, path.stat().st_size - FOOTER.size - 8), "file.damaged"),
    "footer": (lambda path: flip(path, path.stat().st_size - 1), "file.damaged"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-50]), "file.damaged"),
    "empty": (lambda path: path.write_bytes(b""), "file.damaged"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "file.damaged"),
    "newer": (newer, "file.version"),
    "another object": (
        lambda path: path.write_bytes(next(one for one in path.parent.glob("*.log") if one != path).read_bytes()),
        "file.identity",
    ),
    "missing": (Path.unlink, "file.missing"),
}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_broken_object_damages_each_store_that_has_a_part_in_it(
    lamina: Lamina, query: QueryOnDisk, what: str, quick: bool
) -> None:
    path = of_version(query, 3)
    damage, kind = DAMAGE[what]
    damage(path)
    found = checked(lamina, query, *(["--quick"] if quick else []), code=1)
    # of what a newer release wrote nobody here says that it is damaged
    is_newer = kind == "file.version"
    assert found["damaged"] is not is_newer
    for store in found["stores"]:
        assert (store["whole"], store["damaged"]) == ([1, 2], [] if is_newer else [3, 4])
        (problem,) = store["problems"]
        assert (problem["kind"], problem["versions"]) == (kind, [3, 4])
        assert str(path) in problem["message"]
    # each store says it, and the log does not say it again
    assert found["log"]["objects"] == 2
    assert (found["log"]["problems"], found["log"]["warnings"]) == ([], [])


def test_a_broken_object_of_the_newest_version_is_no_object_that_nobody_needs(
    lamina: Lamina, query: QueryOnDisk
) -> None:
    DAMAGE["index"][0](of_version(query, 4))
    found = checked(lamina, query, code=1)
    assert [store["damaged"] for store in found["stores"]] == [[4], [4]]
    assert (found["log"]["problems"], found["log"]["warnings"]) == ([], [])


def test_padding_that_is_not_zero_is_found(lamina: Lamina, query: QueryOnDisk) -> None:
    path = next(path for path in objects(query) if padding(path))
    flip(path, padding(path)[0])
    found = checked(lamina, query, code=1)
    assert found["damaged"]
    assert all(store["problems"] == [] for store in found["stores"])
    (problem,) = found["log"]["problems"]
    assert (problem["kind"], problem["versions"]) == ("file.damaged", [])
    assert f"{path} is damaged: its padding" in problem["message"]
    outcome = lamina("fsck", query.directory)
    assert outcome.code == 1
    assert str(path) in outcome.out
    assert "1 log object of theirs is damaged" in outcome.out
    assert checked(lamina, query, "--quick")["log"]["problems"] == []


def padding(path: Path) -> list[int]:
    """The positions of bytes between parts, and between the last one and the index."""
    data = path.read_bytes()
    end = Footer.parse(data, len(data), str(path)).manifest_offset
    inside = {HEADER.size + one for one in range(end - HEADER.size)}
    for part in index(path).parts:
        inside -= set(range(part.offset, part.offset + part.length))
    return sorted(inside)


def test_the_header_of_an_object_is_verified_that_no_restore_reads_whole(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True)
    query.run(2, rows=30_000)
    (path,) = objects(query)
    assert path.stat().st_size > 100_000
    flip(path, 9)
    found = checked(lamina, query, code=1)
    assert [store["problems"] for store in found["stores"]] == [[]] * PARTITIONS
    (problem,) = found["log"]["problems"]
    assert problem["kind"] in ("file.damaged", "file.version")
    assert str(path) in problem["message"]


def test_a_flipped_byte_anywhere_in_an_object_is_found(query: QueryOnDisk) -> None:
    path = of_version(query, 2)
    whole = path.read_bytes()
    for position in {*range(0, len(whole), 97), *padding(path)}:
        flip(path, position)
        stores, log = check(query)
        problems = [*log.problems, *(problem for store in stores for problem in store.problems)]
        assert problems, position
        assert all(str(path) in problem.message for problem in problems)
        path.write_bytes(whole)
    stores, log = check(query)
    assert not any([log.problems, *(store.problems for store in stores)])


def rewritten(path: Path, change: Callable[[Whole], Whole] = lambda one: one, checkpoint: str | None = None) -> None:
    """The object with another index over the same parts."""
    data, known = path.read_bytes(), index(path)
    wholes = [
        change(
            Whole(part.number, [data[part.offset : part.offset + part.length]], part.store, part.attempt, part.after,
                  part.to)
        )
        for part in known.parts
    ]  # fmt: skip
    chunks = log_object.chunks(known.log, checkpoint or known.checkpoint, known.created_ms, known.writer, wholes)
    path.write_bytes(b"".join(map(bytes, chunks)))


def test_an_object_of_another_checkpoint_is_found(lamina: Lamina, query: QueryOnDisk) -> None:
    """Its parts are whole; a collection would not know that they are needed."""
    path = of_version(query, 3)
    rewritten(path, checkpoint="another")
    (problem,) = checked(lamina, query, code=1)["log"]["problems"]
    assert problem["kind"] == "file.identity"
    assert f"{path} is of checkpoint another" in problem["message"]


@pytest.mark.parametrize(
    "change",
    [lambda one: replace(one, to=one.to - 1), lambda one: replace(one, store=replace(one.store, partition=7))],
    ids=["version", "store"],
)
def test_an_index_that_says_something_else_of_a_part_is_found(
    lamina: Lamina, query: QueryOnDisk, change: Callable[[Whole], Whole]
) -> None:
    """By what the index says an object is collected."""
    path = of_version(query, 3)
    rewritten(path, change)
    found = checked(lamina, query, code=1)
    problems = [problem for found in (*found["stores"], found["log"]) for problem in found["problems"]]
    assert {problem["kind"] for problem in problems} == {"file.damaged"}
    assert all(str(path) in problem["message"] for problem in problems)


def test_what_nobody_needs_is_counted_once_and_apart_from_files_of_stores(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    lost = query.execute()
    query.finish(query.execute(task_attempt=1))
    # of this batch each object has one part that counts
    query.plan()
    one, other = query.execute(), query.execute(task_attempt=1)
    query.finish([one[0], other[1]])
    log = query.directory / "state" / paths.LOG
    (log / f"{'a' * 32}.needs").write_bytes(b"1234")
    (log / temporary_name("x.log", 7, 1)).write_bytes(b"12")
    (log / "somebody's").write_bytes(b"1")
    found = checked(lamina, query)
    assert all(store["not_needed"] == {} for store in found["stores"])
    parts = [index(query.log_object(attempt)).parts for attempt in (one[1], other[0])]
    assert found["log"]["objects"] == 6
    assert found["log"]["not_needed"] == {
        "object": {"number": 1, "bytes": query.log_object(lost[0]).stat().st_size},
        "part": {"number": 2, "bytes": parts[0][1].length + parts[1][0].length},
        "needs": {"number": 1, "bytes": 4},
        "temporary": {"number": 1, "bytes": 2},
    }
    assert "not needed: 1 needs file (4 B), 1 object" in lamina("fsck", query.directory).out


def test_of_stores_that_were_not_checked_nobody_says_what_they_need(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    query.execute()
    query.finish(query.execute(task_attempt=1))
    assert "object" in checked(lamina, query)["log"]["not_needed"]
    log = checked(lamina, query, "--partition", "0")["log"]
    assert (log["objects"], log["not_needed"]) == (4, {})


def test_a_broken_object_that_no_store_needs_is_no_damage(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    lost = query.execute()
    query.finish(query.execute(task_attempt=1))
    path = query.log_object(lost[0])
    path.write_bytes(b"no log object")
    found = checked(lamina, query)
    assert not found["damaged"]
    (warning,) = found["log"]["warnings"]
    assert str(path) in warning
    assert "no store that was checked needs it" in warning
    assert str(path) in lamina("fsck", query.directory).out


def test_fsck_gc_dry_run_and_inspect_change_nothing(lamina: Lamina, query: QueryOnDisk) -> None:
    query.plan()
    query.execute()
    query.finish(query.execute(task_attempt=1))
    query.age(HOUR_S)

    def everything() -> dict[Path, tuple[int, bytes]]:
        found = query.directory.rglob("*")
        return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in found}

    for _ in range(2):
        before = everything()
        for command in (["fsck"], ["fsck", "--quick"], ["gc", "--dry-run"], ["inspect"], ["inspect", "--details"]):
            lamina(command[0], query.directory, *command[1:])
        assert everything() == before
        flip(of_version(query, 3), 40)


def test_gc_deletes_objects_that_no_store_needs_and_only_where_it_looks_at_all_of_them(
    lamina: Lamina, tmp_path: Path
) -> None:
    query = QueryOnDisk(
        tmp_path / "checkpoint", grouped=True, min_versions=1, compaction__mode="full", compaction__fullInterval=1
    )
    query.run(6)
    query.forget(2)
    query.age(HOUR_S)
    before, kept = objects(query), sorted(of_version(query, version) for version in (5, 6))
    assert lamina("gc", query.directory, "--dry-run").code == 0
    assert lamina("gc", query.directory, "--partition", "0").code == 0
    assert objects(query) == before
    assert lamina("gc", query.directory).code == 0
    assert objects(query) == kept
    assert checked(lamina, query)["log"] == {
        **EMPTY_LOG, "objects": 2, "bytes": sum(path.stat().st_size for path in kept)
    }  # fmt: skip


def test_gc_says_an_object_once_however_often_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_parts, "_LOOK_S", -1.0)
    query = QueryOnDisk(
        tmp_path / "checkpoint", grouped=True, min_versions=1, compaction__mode="full", compaction__fullInterval=1
    )
    query.run(6)
    query.forget(2)
    query.age(HOUR_S)
    # what no store needs is known when the first one was looked at for the second time
    found = logged_stores(Storage(str(query.directory)), StoreSelection())
    twice = replace(found, identities=[*found.identities] * 3)
    monkeypatch.setattr(side_by_side, "_CONCURRENT", 1)
    outcomes = collect_stores(twice, dry_run=True, progress=lambda done, total: None)
    collected = [outcome.collected for outcome in outcomes if outcome.collected is not None]
    assert len(collected) == 3 * PARTITIONS
    of_log = [verdict.path for one in collected for verdict in one.verdicts if verdict.kind == LOG]
    assert len(of_log) == len(objects(query)) - 2
    assert len(set(of_log)) == len(of_log)


def test_an_object_that_may_not_be_read_ends_no_check_and_no_survey_and_lets_nothing_be_deleted(
    query: QueryOnDisk,
) -> None:
    query.finish(query.execute(task_attempt=1))
    query.age(HOUR_S)
    url, object_ = str(query.directory), of_version(query, 3)
    backend = FaultyBackend(Storage(f"{url}/state")._backend)
    for operation in ("read", "read_range", "read_tail"):
        backend.inject(Fault(operation, object_.name, times=10_000, errno=errno.EACCES))
    found = replace(logged_stores(Storage(url), StoreSelection()), state=Storage(f"{url}/state", backend=backend))
    for check in check_stores(found, contents=True, progress=lambda done, total: None):
        assert (check.whole, check.damaged) == ((1, 2), ())
        (problem,) = check.problems
        assert problem.kind == UNREAD
        assert str(object_) in problem.message
    before = objects(query)
    for outcome in collect_stores(found, dry_run=False, progress=lambda done, total: None):
        assert str(object_) in str(outcome.problem)
    assert objects(query) == before


def test_who_needs_the_newest_object_hears_that_it_may_not_be_read(query: QueryOnDisk) -> None:
    url, object_ = str(query.directory), of_version(query, 4)
    backend = FaultyBackend(Storage(f"{url}/state")._backend)
    backend.inject(Fault("read_tail", object_.name, times=10_000, errno=errno.EACCES))
    storage = Storage(f"{url}/state", backend=backend)
    attempt = AttemptId.parse(query.attempts[3][0])
    uuid = json.loads((query.directory / "state/_lamina/checkpoint").read_text())["uuid"]
    store = StoreIdentity(uuid, 0, 0, "default")
    with fails_with("storage.denied") as caught:
        LogObjects.of(storage).parts_of(store, attempt)
    assert str(object_) in caught.error.message
    assert len(LogObjects.of(storage).parts_of(store)) == 2


def test_inspect_shows_parts_and_the_log(lamina: Lamina, query: QueryOnDisk) -> None:
    (query.directory / "state" / paths.LOG / f"{'a' * 32}.needs").write_bytes(b"1234")
    found = json.loads(lamina("inspect", query.directory, "--details", "--json").out)
    assert found["log"] == {
        "objects": 3,
        "bytes": sum(path.stat().st_size for path in objects(query)),
        "needs": 1,
        "oldest_ms": min(int(path.stat().st_mtime * 1000) for path in objects(query)),
        "places": [],
        "writers": [],
    }
    for partition, store in enumerate(found["stores"]):
        assert [file["kind"] for file in store["files"]] == ["commit", "part", "part", "part"]
        assert all(file["used"] for file in store["files"])
        assert [version["attempt"] for version in store["versions"]] == [one[partition] for one in query.attempts]
        chain = store["versions"][-1]["manifest"]["chain"]
        length = sum(reference["length"] for reference in chain)
        assert len(chain) == 4 and length > 0
        assert store["unmerged"] == {"increments": 4, "bytes": length, "in_log": 3}
    out = lamina("inspect", query.directory, "--details").out
    assert "3 objects" in out
    assert re.search(r"not merged +8 commits, [0-9.]+ KiB to replay at a restart; 6 of them in the log; 4 of", out)
    assert f"{of_version(query, 3).stem[:8]}…-0." in out


def test_a_part_that_came_after_the_listing_is_not_lost(query: QueryOnDisk) -> None:
    """A query goes on while its stores are looked at."""
    storage = Storage(f"{query.directory}/state")
    identity = logged_stores(Storage(str(query.directory)), StoreSelection()).identities[0]
    files = StoreFiles(storage, identity)
    opened = files.open_commit(query.attempts[-1][0])
    listing = files.list()
    newest = files.locator.of(query.attempts[-1][0]).name
    before = [entry for entry in listing if entry.name != newest]
    assert len(before) == len(listing) - 1
    assert store_survey._lost(files, opened, before) == []
    of_version(query, 4).unlink()
    (problem,) = store_survey._lost(StoreFiles(Storage(storage.url), identity), opened, before)
    assert of_version(query, 4).name in problem


def test_inspect_shows_what_the_newest_object_of_each_process_says_of_it(lamina: Lamina, query: QueryOnDisk) -> None:
    uploads = {"uploads": 40, "bytes": 8 << 20, "early_bytes": 2 << 20, "again": 3, "failed": 1, "queued": 0}
    uploads |= {"hedges": 2, "hedges_won": 1, "p50_ms": 80, "p99_ms": 700}
    merges, loads = {"merges": 3, "failed": 1, "merge_ms": 1500}, {"loads": 2, "replayed_bytes": 2048, "load_ms": 250}
    older = {"id": "a" * 32, "uploads": {"uploads": 39}, "merges": {}, "loads": {}}
    newer = {"id": "a" * 32, "uploads": uploads, "merges": merges, "loads": loads}
    other = {
        "id": "b" * 32, "uploads": {"uploads": 0, "failed": 2, "again": 1 << 70},
        "told by a later release": [1], "commits": {"merges": "many"},
    }  # fmt: skip
    for number, query.process in enumerate((older, newer, other)):
        query.run(1)
        os.utime(of_version(query, query.version), (2_000_000_000 + number,) * 2)
    found = json.loads(lamina("inspect", query.directory, "--json").out)["log"]["writers"]
    at = {"published_ms": 2_000_000_002_000, "commits": 2}
    assert found == [
        {"process": "b" * 32, **at, "figures": {"uploads": {"uploads": 0, "failed": 2}, "commits": {}}},
        {"process": "a" * 32, **at, "published_ms": 2_000_000_001_000}
        | {"figures": {"uploads": uploads, "merges": merges, "loads": loads}},
    ]
    out = " ".join(lamina("inspect", query.directory).out.split())
    assert "40 uploads before it, 8.0 MiB (2.0 MiB of it before a batch was over), half of late in 80 ms, 99 %" in out
    assert "99 % in 700 ms; 3 tried again; 1 failed; 2 hedged, 1 of" in out
    assert re.search(r"process 2 commits in its object of 2033-05-18 [^;]*; 2 failed process 2 commits", out)
    assert "3 merges in 1.5 s, 1 failed; 2 loads in 0.2 s, 2.0 KiB replayed" in out
    query.process = "of a later release"
    query.run(1)
    os.utime(of_version(query, query.version), (2_000_000_003,) * 2)
    found = json.loads(lamina("inspect", query.directory, "--json").out)["log"]["writers"]
    assert [writer["process"] for writer in found] == ["b" * 32, "a" * 32]
    assert not checked(lamina, query)["damaged"]
    damage = of_version(query, query.version - 1)
    damage.write_bytes(damage.read_bytes()[:-1])
    found = json.loads(lamina("inspect", query.directory, "--json").out)
    assert [writer["process"] for writer in found["log"]["writers"]] == ["a" * 32]
    assert found["problems"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, ""),
        ({"bytes": 3 << 20, "early_bytes": 0}, ", 3.0 MiB"),
        ({"bytes": 3 << 20}, ", 3.0 MiB"),
        ({"bytes": 3 << 20, "early_bytes": 700}, ", 3.0 MiB (700 B of it before a batch was over)"),
    ],
    ids=["nothing", "none early", "not which", "some early"],
)
def test_inspect_shows_the_bytes_of_uploads_where_an_object_says_them(
    lamina: Lamina, query: QueryOnDisk, said: dict[str, int], shown: str
) -> None:
    """Objects of earlier releases do not."""
    query.process = {"id": "a" * 32, "uploads": {"uploads": 40, **said, "p50_ms": 80, "p99_ms": 700}}
    query.run(1)
    os.utime(of_version(query, query.version), (2_000_000_000,) * 2)
    (writer,) = json.loads(lamina("inspect", query.directory, "--json").out)["log"]["writers"]
    assert writer["figures"] == {"uploads": query.process["uploads"]}
    out = " ".join(lamina("inspect", query.directory).out.split())
    assert f"; 40 uploads before it{shown}, half of late in 80 ms, 99 % in 700 ms" in out


@pytest.mark.parametrize("what", [name for name in DAMAGE if name != "missing"])
def test_inspect_says_what_is_wrong_with_an_object(lamina: Lamina, query: QueryOnDisk, what: str) -> None:
    path = of_version(query, 3)
    DAMAGE[what][0](path)
    outcome = lamina("inspect", query.directory)
    assert outcome.code == 1
    assert f"{path}" in outcome.out
    assert "is not there" not in outcome.out


def test_the_newest_version_is_found_by_its_own_entry_of_sparks_log(
    query: QueryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry has the ids of all stores."""
    asked: list[int] = []
    commit = CheckpointLogs.commit

    def counted(logs: CheckpointLogs, batch: int) -> CommitEntry:
        asked.append(batch)
        return commit(logs, batch)

    monkeypatch.setattr(CheckpointLogs, "commit", counted)
    store = open_store(str(query.directory), partition=1)
    assert set(asked) == {3}
    assert store.restore(4) is None and set(asked) == {0, 1, 2, 3}


def test_a_store_of_parts_is_read_and_its_changes_are_those_of_its_versions(query: QueryOnDisk) -> None:
    for partition in range(PARTITIONS):
        store = open_store(str(query.directory), partition=partition)
        assert store.version.attempt == query.attempts[-1][partition]
        assert len(list(store.scan())) == 40
        changes = [
            (version, key)
            for batch in store.changes(2, 4)
            for version, key in zip(*(batch.column(name).to_pylist() for name in ("version", "key")), strict=True)
        ]
        assert sorted(changes) == sorted(
            (batch + 1, f"{batch}-{row}".encode()) for batch in (1, 2, 3) for row in range(10)
        )
        store.restore(2)
        assert len(list(store.scan())) == 20
