"""`lamina fsck` finds what was broken, names it and says which versions are whole; a running query is no damage."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.components import SystemClock
from lamina.format.manifest import StoreIdentity
from lamina.storage import Backend, Storage
from lamina.store.check.checker import StoreChecker
from lamina.store.check.report import StoreCheck
from lamina.testing import Fault, FaultyBackend
from tests.sealed import flippable
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import GOLDEN, QueryOnDisk


def checked(lamina: Lamina, query: QueryOnDisk, *options: str, code: int = 0) -> dict[str, Any]:
    outcome = lamina("fsck", query.directory, "--json", *options)
    assert outcome.code == code, outcome.err
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def test_a_whole_checkpoint_is_whole(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(4)
    found = checked(lamina, query)
    assert not found["damaged"]
    for store in found["stores"]:
        assert store["whole"] == [1, 2, 3, 4]
        assert (store["damaged"], store["problems"]) == ([], [])
        assert (store["files"], store["rows"]) == (4, 40)
        assert store["bytes"] == sum(
            query.file(one[store["partition"]], store["partition"]).stat().st_size for one in query.attempts
        )
    outcome = lamina("fsck", query.directory)
    assert outcome.code == 0
    assert "every retained version is whole" in outcome.out


def test_a_flipped_byte_anywhere_in_a_file_is_found_and_the_file_is_named(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    query.run(2)
    path = query.file(query.attempts[0][0])
    whole = path.read_bytes()
    state = Storage(f"{query.directory}/state")
    for position in flippable(len(whole), 7):
        path.write_bytes(whole)
        flip(path, position)
        found = check(state, query)
        assert (found.damaged, found.files) == ((1, 2), 1)
        assert all(str(path) in problem.message for problem in found.problems)
    path.write_bytes(whole)
    assert check(state, query).problems == ()


def check(state: Storage, query: QueryOnDisk, still: set[int] | None = None) -> StoreCheck:
    uuid = json.loads((query.directory / "state/_lamina/checkpoint").read_text())["uuid"]
    named = {number: attempts[0] for number, attempts in enumerate(query.attempts, start=1)}
    still_named = None if still is None else lambda: still
    identity = StoreIdentity(uuid, 0, 0, "default")
    return StoreChecker(state, identity, named, clock=SystemClock(), still_named=still_named).check()


def test_fsck_changes_nothing_whatever_it_finds(lamina: Lamina, query: QueryOnDisk) -> None:
    def everything() -> dict[Path, tuple[int, bytes]]:
        paths = query.directory.rglob("*")
        return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}

    query.run(4)
    for code in (0, 1):
        before = everything()
        checked(lamina, query, code=code)
        lamina("fsck", query.directory)
        lamina("fsck", query.directory, "--quick")
        assert everything() == before
        flip(query.file(query.attempts[1][0]), 40)


@pytest.mark.parametrize("quick", [False, True])
def test_a_missing_file_damages_the_versions_that_need_it(
    lamina: Lamina, query: QueryOnDisk, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(4)
    missing = query.file(query.attempts[2][1], 1)
    missing.unlink()
    found = checked(lamina, query, *(["--quick"] if quick else []), code=1)
    first, second = found["stores"]
    assert first["problems"] == []
    assert (second["whole"], second["damaged"]) == ([1, 2], [3, 4])
    assert str(missing) in second["problems"][0]["message"]
    assert second["problems"][0]["kind"] == "file.missing"
    monkeypatch.setenv("COLUMNS", "40")
    outcome = lamina("fsck", query.directory)
    assert outcome.code == 1
    assert str(missing) in outcome.out
    assert "versions 3-4" in outcome.out


def test_a_file_that_the_system_cannot_read_is_reported_and_the_others_are_checked(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    query.run(4)
    state = Storage(f"{query.directory}/state")
    unreadable = query.file(query.attempts[2][0])
    backend = FaultyBackend(state._backend)
    for operation in ("read", "read_range", "read_tail"):
        backend.inject(Fault(operation, unreadable.name, times=1_000, errno=errno.EIO))
    found = check(Storage(state.url, backend=backend), query)
    assert (found.whole, found.damaged, found.files) == ((1, 2), (3, 4), 3)
    assert {problem.kind for problem in found.problems} == {"file.damaged"}
    assert str(unreadable) in found.problems[0].message


def test_a_longer_file_a_foreign_one_and_a_wrong_count_are_found(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    longer = query.file(query.attempts[0][0])
    longer.write_bytes(longer.read_bytes() + b"x")
    other = query.file(query.attempts[1][1], 1)
    swapped = query.file(query.attempts[0][1], 1)
    swapped.write_bytes(other.read_bytes())
    found = checked(lamina, query, code=1)
    assert {problem["kind"] for problem in found["stores"][0]["problems"]} == {"file.damaged"}
    assert "file.identity" in {problem["kind"] for problem in found["stores"][1]["problems"]}


def test_a_version_with_other_rows_than_it_says_is_found(lamina: Lamina, tmp_path: Path) -> None:
    class Forgetful(QueryOnDisk):
        """Says of its second batch that it has the rows of its first."""

        @property
        def version(self) -> int:
            return len(self.attempts)

    query = Forgetful(tmp_path / "checkpoint")
    query.run(1, rows=10)
    # the writer takes it that every batch before had as many rows
    query.run(1, rows=20)
    found = checked(lamina, query, code=1)
    problem = found["stores"][0]["problems"][0]
    assert problem["kind"] == "state.counts"
    assert "40 rows" in problem["message"]
    assert "30 rows" in problem["message"]


@pytest.mark.parametrize("format_version", [1, 2])
@pytest.mark.parametrize("oldest", [1, 2])
def test_a_version_in_the_middle_with_other_rows_than_it_says_is_found(
    lamina: Lamina, tmp_path: Path, format_version: int, oldest: int
) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version, min_versions=3 - oldest)
    # the writer takes it that every batch before had as many rows: 10, 40 where there are 30, 45
    for rows in (10, 20, 15):
        query.run(1, rows)
    query.forget(4 - oldest)
    found = checked(lamina, query, code=1)
    for store in found["stores"]:
        assert [(problem["kind"], problem["versions"]) for problem in store["problems"]] == [("state.counts", [2])]
        assert "40 rows" in store["problems"][0]["message"]
        assert "30 rows" in store["problems"][0]["message"]
        assert (store["whole"], store["rows"]) == ([1, 3][oldest - 1 :], 45)
    assert not checked(lamina, query, "--quick")["damaged"]


def test_a_version_that_does_not_stand_on_the_one_that_spark_committed_is_found(lamina: Lamina, tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    query.run(1)
    query.plan()
    lost = query.execute()
    query.finish(query.execute(task_attempt=1))
    query.run(1)
    entry = query.directory / "commits" / "1"
    text = entry.read_text()
    for won, other in zip(query.attempts[1], lost, strict=True):
        text = text.replace(won, other)
    entry.write_text(text)
    found = checked(lamina, query, code=1)
    assert {problem["kind"] for store in found["stores"] for problem in store["problems"]} == {"state.lineage"}
    assert found["stores"][0]["damaged"] == [3]


def test_files_that_no_version_needs_are_counted_and_are_no_damage(lamina: Lamina, query: QueryOnDisk) -> None:
    query.run(2)
    query.plan()
    lost = query.execute(task_attempt=1)
    # whether it counts nobody knows before the batch is committed
    assert checked(lamina, query)["stores"][0]["not_needed"] == {}
    query.finish(query.execute())
    flip(query.directory / f"state/0/0/3_{lost[0]}.lam", 40)
    (query.directory / "state/0/0/.1_x.lam.12-3.tmp").write_bytes(b"half")
    found = checked(lamina, query)
    not_needed = found["stores"][0]["not_needed"]
    assert not_needed["commit"]["files"] == 1
    assert not_needed["temporary"] == {"files": 1, "bytes": 4}


def test_a_file_that_is_collected_between_listing_and_reading_is_no_damage(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", min_versions=1)
    query.run(4)
    state = Storage(f"{query.directory}/state")
    first = query.file(query.attempts[0][0])

    class Collecting(FaultyBackend):
        """The query goes on as soon as the store was listed: version 1 leaves retention and is collected."""

        def list(self, directory: str) -> Any:
            found = super().list(directory)
            first.unlink(missing_ok=True)
            return found

    backend: Backend = Collecting(state._backend)
    found = check(Storage(state.url, backend=backend), query, still={5, 6})
    # nothing is left of which one could say that it is whole
    assert [(problem.kind, problem.versions) for problem in found.problems] == [("file.unread", ())]
    assert (found.whole, found.collected) == ((), (1, 2, 3, 4))
    # while Spark's log still names the versions, the same is damage
    assert check(Storage(state.url, backend=backend), query).damaged == (1, 2, 3, 4)


@pytest.mark.parametrize("command", ["fsck", "gc"])
@pytest.mark.parametrize("format_version", [1, 2])
def test_state_of_an_operator_whose_metadata_is_gone_is_not_passed_over(
    lamina: Lamina, tmp_path: Path, format_version: int, command: str
) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version)
    query.run(2)
    shutil.rmtree(query.directory / "state" / "0" / "_metadata")
    outcome = lamina(command, query.directory)
    assert outcome.code == 1
    assert "state/0/_metadata tells nothing of operator 0" in outcome.err
    if format_version == 1:
        # the stores of a join lie in directories of their own
        for partition in ("0", "1"):
            found = query.directory / "state" / "0" / partition
            found.rename(found.with_name("moved"))
            found.mkdir()
            found.with_name("moved").rename(found / "left-keyToNumValues")
        assert lamina(command, query.directory).err == outcome.err


def test_a_checkpoint_without_lamina_is_refused(lamina: Lamina, tmp_path: Path) -> None:
    for command in ("fsck", "gc"):
        outcome = lamina(command, GOLDEN)
        assert outcome.code == 1
        assert outcome.err.rstrip().endswith("keeps no state in lamina")


@pytest.mark.parametrize("format_version", [1, 2])
@pytest.mark.parametrize("lost", ["state", "state/_lamina", "state/_lamina/checkpoint"])
def test_a_state_that_was_lost_is_not_one_that_never_was(
    lamina: Lamina, tmp_path: Path, lost: str, format_version: int
) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", format_version)
    query.plan()
    shutil.rmtree(query.directory / "state" / "_lamina")
    for command in ("fsck", "gc"):
        assert "keeps no state in lamina yet: no batch" in lamina(command, query.directory).err
    query = QueryOnDisk(tmp_path / "another", format_version)
    query.run(2)
    path = query.directory / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    # without ids the log of a query with a state is that of one without
    said = "keeps no state in lamina" if format_version == 1 and lost == "state" else "from a copy"
    for command in ("fsck", "gc", "inspect"):
        outcome = lamina(command, query.directory)
        if said == "from a copy":
            assert outcome.code == 1
            assert said in outcome.err + outcome.out
        elif command != "inspect":
            assert said in outcome.err


def test_a_program_that_reads_json_hears_why_there_is_nothing_else(lamina: Lamina) -> None:
    outcome = lamina("fsck", GOLDEN, "--json")
    assert outcome.code == 1
    error = json.loads(outcome.out)["error"]
    assert (error["kind"], error["message"]) == ("store.unsupported", outcome.err.rstrip("\n"))


@pytest.mark.parametrize("lost", ["a commit", "Spark's log"])
def test_what_is_not_needed_is_unknown_where_versions_were_not_followed(
    lamina: Lamina, query: QueryOnDisk, lost: str
) -> None:
    """Whoever needs room might delete it."""
    query.run(4)
    json_before = json.loads(lamina("fsck", query.directory, "--json").out)
    assert all(store["not_needed"] is not None for store in json_before["stores"])
    if lost == "a commit":
        for path in Path(query.directory, "state", "0", "0").glob("*.lam"):
            path.write_bytes(path.read_bytes()[:-1])
    else:
        shutil.rmtree(Path(query.directory, "commits"))
    outcome = lamina("fsck", query.directory, "--json")
    assert json.loads(outcome.out)["stores"][0]["not_needed"] is None
    shown = lamina("fsck", query.directory).out
    row = next(line for line in shown.splitlines() if "0/0/default" in line)
    assert "?" in row.split()
    assert "every retained version is whole" not in shown
