"""The kill campaign counts what it says it counts."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lamina.storage import Backend, storage
from lamina.storage.temporary import temporary_name
from lamina.store.direct.open import open_store
from tests.kill import __main__ as kill
from tests.kill import files as kill_files
from tests.kill import processes as kill_processes
from tests.kill import storage as kill_storage
from tests.kill.campaign import HOOK, SPILLING, Campaign
from tests.kill.points import (
    AT_RANDOM,
    BETWEEN,
    COLLECTION,
    COMPACTION,
    NO_LINEAGE_CHECK,
    PUBLICATION,
    PUBLICATION_BEFORE_DATA,
    RESTORE,
)
from tests.kill.processes import DRIVER, ENGINE, EXECUTOR, MAINTENANCE
from tests.kill.records import Feed, Judge
from tests.kill.report import caught_by, faults, is_caught, merged, targets
from tests.kill.storage import DISK, S3
from tests.unit.cli.query_on_disk import QueryOnDisk

BATCHES = 25

Outputs = dict[int, dict[tuple[int, str], list[str]]]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    feed = Feed(tmp_path / "in", seed=1)
    feed.up_to(BATCHES)
    (tmp_path / "out").mkdir()
    return Judge(feed, tmp_path / "out")


def right(feed: Feed) -> Outputs:
    """What the query puts out when nothing goes wrong."""
    state: dict[tuple[int, str], list[str]] = {}
    outputs: Outputs = {}
    for batch, places in enumerate(feed.files):
        outputs[batch] = {}
        for place, numbers in places.items():
            state[place] = [*state.get(place, []), *(f"{number}:{batch}" for number in numbers)]
            outputs[batch][place] = state[place]
    return outputs


def judged(judge: Judge, outputs: Outputs) -> dict[str, int]:
    for batch, places in outputs.items():
        rows = [[start, key, items] for (start, key), items in places.items()]
        (judge.outputs / f"{batch}.json").write_text(json.dumps({"read": batch + 1, "rows": rows}))
    judge.check(BATCHES)
    return {
        "lost": judge.lost,
        "duplicated": judge.duplicated,
        "reordered": judge.reordered,
        "foreign": judge.foreign,
    }


NONE = {"lost": 0, "duplicated": 0, "reordered": 0, "foreign": 0}


def test_nothing_is_counted_where_nothing_is_wrong(judge: Judge) -> None:
    assert judged(judge, right(judge.feed)) == NONE
    assert judge.records == BATCHES * 60
    assert judge.examples == []


def lose(items: list[str]) -> list[str]:
    return items[1:]


def repeat(items: list[str]) -> list[str]:
    return [*items, items[-1]]


def swap(items: list[str]) -> list[str]:
    return [items[1], items[0], *items[2:]]


def by_another_execution(items: list[str]) -> list[str]:
    return [items[0] + "0", *items[1:]]


@pytest.mark.parametrize(
    ("wrong", "name"), [(lose, "lost"), (repeat, "duplicated"), (swap, "reordered"), (by_another_execution, "foreign")]
)
def test_a_record_that_is_wrong_is_counted(judge: Judge, wrong: Callable[[list[str]], list[str]], name: str) -> None:
    outputs = right(judge.feed)
    # the last batch of a window, so that the mistake shows once
    place = next(place for place, items in outputs[BATCHES - 1].items() if len(items) > 2)
    outputs[BATCHES - 1][place] = wrong(outputs[BATCHES - 1][place])
    assert judged(judge, outputs) == {**NONE, name: 1}


def both_in_one_batch(judge: Judge, wrong: Callable[[list[str]], list[str]]) -> dict[str, int]:
    """What is counted where the last batch reads two files, the second one first, and a list of it is `wrong`."""
    outputs = right(judge.feed)
    last, before = outputs.pop(BATCHES - 1), outputs[BATCHES - 2]
    older = outputs[BATCHES - 3]
    for place, items in last.items():
        known = [item for item in items if int(item.split(":")[1]) < BATCHES - 2]
        new = [item for item in items if item not in known]
        before[place] = [*known, *reversed(new)]
    assert any(place in older and len(items) > len(older[place]) + 1 for place, items in before.items())
    place = next(place for place, items in before.items() if len(items) > 2)
    before[place] = wrong(before[place])
    for batch, places in outputs.items():
        read = batch + 1 if batch < BATCHES - 2 else BATCHES
        rows = [[start, key, items] for (start, key), items in places.items()]
        (judge.outputs / f"{batch}.json").write_text(json.dumps({"read": read, "rows": rows}))
    judge.check(BATCHES - 1)
    assert judge.joined == 1
    return {name: getattr(judge, name) for name in NONE}


def test_a_batch_may_read_two_files_in_any_order(judge: Judge) -> None:
    assert both_in_one_batch(judge, list) == NONE


@pytest.mark.parametrize(("wrong", "name"), [(lose, "lost"), (repeat, "duplicated"), (by_another_execution, "foreign")])
def test_what_is_wrong_in_a_batch_of_two_files_is_counted(
    judge: Judge, wrong: Callable[[list[str]], list[str]], name: str
) -> None:
    assert both_in_one_batch(judge, wrong) == {**NONE, name: 1}


def test_a_place_without_any_output_is_lost(judge: Judge) -> None:
    outputs = right(judge.feed)
    place, items = outputs[BATCHES - 1].popitem()
    found = judged(judge, outputs)
    assert found == {**NONE, "lost": len(items)}, place


def test_a_record_lost_from_a_place_that_nothing_was_added_to_shows_when_all_are_touched(judge: Judge) -> None:
    judge.feed.touch_all()
    outputs = right(judge.feed)
    touched = outputs[BATCHES]
    # windows of 200 s end 100 s after their last batch: these two are in the state, and no other
    assert {start for start, _ in touched} == {1_700_000_000, 1_700_000_200}
    assert {place for place in touched if place[0] == 1_700_000_200} == {
        place for batch in range(20, BATCHES) for place in outputs[batch] if place[0] == 1_700_000_200
    }
    place = next(place for place in touched if place not in outputs[BATCHES - 1])
    del touched[place][0]
    assert judged(judge, outputs) == NONE
    judge.check(BATCHES + 1)
    assert judge.lost == 1


def result(**changed: Any) -> dict[str, Any]:
    nothing = {**NONE, "damaged_files": [], "failures_of_the_query": [], "stuck": "", "broken": NO_LINEAGE_CHECK}
    return {**nothing, **changed}


def test_a_promise_that_was_taken_away_is_noticed_by_what_it_breaks_and_not_by_a_query_that_is_slow() -> None:
    assert is_caught(result(foreign=1))
    assert not is_caught(result(stuck="batch 9 was not committed within 150 s"))
    assert not is_caught(result(stuck="[file.missing] 0/0/1.lam"))
    early = result(broken=PUBLICATION_BEFORE_DATA)
    assert is_caught({**early, "stuck": "LaminaError: [file.missing] 0/0/1.lam"})
    assert is_caught({**early, "failures_of_the_query": ["LaminaError: [file.missing] 0/0/1.lam"]})
    assert not is_caught({**early, "stuck": "batch 9 was not committed within 150 s"})


def test_it_is_said_by_what_a_promise_that_was_taken_away_was_noticed() -> None:
    assert caught_by(result(foreign=42, lost=1)) == "lost 1, of an attempt that does not count 42"
    early = result(broken=PUBLICATION_BEFORE_DATA, stuck="LaminaError: [file.missing] 0/0/1.lam")
    assert caught_by(early) == "file.missing"
    assert caught_by(result()) == ""


def test_kills_of_a_long_campaign_are_counted_in_all_by_victim_and_by_point() -> None:
    kills = [[AT_RANDOM, DRIVER, 3], [AT_RANDOM, ENGINE, 200], [BETWEEN, EXECUTOR, 9], [BETWEEN, ENGINE, 2]]
    kills += [[RESTORE, EXECUTOR, 9]]
    assert [(bar, count) for _, bar, count in targets({"kills": kills})] == [(300, 223), (60, 21), (10, 9)]


def exit_of(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> object:
    """What `python -m tests.kill` ends with after a campaign with such a result; None for a success."""
    monkeypatch.setattr(kill, "run", lambda *_: found)
    monkeypatch.setattr(kill, "write_result", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["kill", "--minutes", str(found["minutes"])])
    try:
        kill.main()
    except SystemExit as error:
        return error.code
    return None


def clean(minutes: float, kills: list[list[Any]], missed: list[list[Any]] | None = None) -> dict[str, Any]:
    """The result of a campaign that found nothing wrong."""
    return {
        **result(broken=None), "minutes": minutes, "kills": kills, "missed": missed or [], "batches": 30,
        "records": 1800, "orphans": [], "leaked_processes": [], "open_files_left": [], "examples": [],
        "tasks": 400, "spilled_bytes": 0, "task_errors": {}, "unexplained_task_errors": [],
    }  # fmt: skip


POINTS = (*PUBLICATION, BETWEEN, *COMPACTION, COLLECTION, RESTORE)


def long(**changed: int) -> list[list[Any]]:
    """The kills of an hour that just reach the targets, but for the points that are named."""
    outer = [[point, EXECUTOR, changed.get(point, 10)] for point in POINTS]
    return [*outer, [AT_RANDOM, ENGINE, 300 - 10 * len(POINTS)]]


def test_a_short_campaign_that_killed_here_and_there_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = [[AT_RANDOM, EXECUTOR, 1], [PUBLICATION[0], ENGINE, 1], [COMPACTION[1], MAINTENANCE, 1]]
    assert exit_of(monkeypatch, clean(5, kills)) is None
    # a machine that is so slow that compactions are rare
    assert exit_of(monkeypatch, clean(5, [*kills[:2], kills[0]], [[COMPACTION[0], ENGINE, 3]])) is None


@pytest.mark.parametrize(
    ("kills", "missed", "told"),
    [
        ([], [], "kills: 0 of 3"),
        ([[PUBLICATION[0], ENGINE, 2]], [], "kills: 2 of 3"),
        ([[AT_RANDOM, EXECUTOR, 4], [BETWEEN, DRIVER, 2]], [], "no kill at any point of the hook"),
        ([[RESTORE, ENGINE, 9]], [[COLLECTION, ENGINE, 1], [COMPACTION[0], ENGINE, 3]], "of the maintenance process"),
        ([[COMPACTION[0], ENGINE, 9]], [[PUBLICATION[2], ENGINE, 4]], "no kill at a point of the engine process"),
    ],
)  # fmt: skip
def test_a_short_campaign_that_killed_hardly_anybody_or_nobody_by_the_hook_fails(
    monkeypatch: pytest.MonkeyPatch, kills: list[list[Any]], missed: list[list[Any]], told: str
) -> None:
    assert told in str(exit_of(monkeypatch, clean(5, kills, missed)))


def test_a_long_campaign_that_misses_a_target_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_of(monkeypatch, clean(60, long())) is None
    few_in_all = [*long()[:-1], [AT_RANDOM, ENGINE, 209]]
    assert "kills: 299 of 300" in str(exit_of(monkeypatch, clean(60, few_in_all)))
    few_outer = [[point, ENGINE, count] for point, _, count in long()]
    assert "of a driver or an executor: 0 of 60" in str(exit_of(monkeypatch, clean(60, few_outer)))
    few_at_a_point = [*long(**{COLLECTION: 9}), [AT_RANDOM, ENGINE, 1]]
    assert f"fewest {COLLECTION}: 9 of 10" in str(exit_of(monkeypatch, clean(60, few_at_a_point)))


@pytest.mark.parametrize(
    ("asked", "passed", "kills", "more"),
    [
        (5, 4.9, [], True),
        (5, 5, [], False),
        (60, 60, long(), False),
        (60, 89, long()[1:], True),
        (60, 90, long()[1:], False),
    ],
)
def test_a_long_campaign_that_has_not_reached_its_targets_takes_half_as_long_again(
    asked: float, passed: float, kills: list[list[Any]], more: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Campaign, "minutes", passed)
    plan = tuple((point, victim) for point, victim, _ in kills)
    campaign = Campaign(tmp_path, kill_storage.on_disk(tmp_path), 1, None, plan)
    campaign.kills.update({(point, victim): count for point, victim, count in kills})
    assert kill.goes_on(campaign, asked) == more


def test_a_campaign_with_something_wrong_fails_however_many_it_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_of(monkeypatch, {**clean(60, long()), "lost": 1}) == 1
    assert exit_of(monkeypatch, {**clean(60, long()), "orphans": ["0/0/1.lam"]}) == 1


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("LaminaError: [file.missing] 0/0/1.lam", 1),
        ("LaminaError: [state.base] version 9", 1),
        ("LaminaError: [internal] KeyError", 1),
        ("LaminaError: [engine.lost] the engine ended", None),
        ("LaminaError: [storage.failed] batch 7 is not committed: 1.log was not written: [engine.lost] gone", None),
        ("LaminaError: [storage.failed] batch 7 is not committed: 1.log was not written: [storage.failed] 503", 1),
        ("Exception: Job aborted due to stage failure: A shuffle map stage with indeterminate output", None),
    ],
)
def test_a_query_that_failed_with_an_error_that_no_kill_explains_fails_the_campaign(
    monkeypatch: pytest.MonkeyPatch, told: str, code: int | None
) -> None:
    assert exit_of(monkeypatch, {**clean(60, long()), "failures_of_the_query": [told]}) == code


def test_each_fault_of_a_campaign_is_told() -> None:
    wrong = {
        "lost": 3, "foreign": 2, "orphans": ["7.lam"], "leaked_processes": ["engine (9)"], "stuck": "no batch",
        "failures_of_the_query": ["LaminaError: [file.damaged] 8.lam", "Exception: Job aborted"],
        "unexplained_task_errors": ["NullPointerException"],
    }  # fmt: skip
    assert faults(clean(5, long())) == []
    assert faults({**clean(5, long()), **wrong}) == [
        "lost: 3",
        "of an attempt that does not count: 2",
        "orphans: 7.lam",
        "leaked processes: engine (9)",
        "cannot go on: no batch",
        "the query failed, and no kill explains it: LaminaError: [file.damaged] 8.lam",
        "a task failed, and no kill explains it: NullPointerException",
    ]


def test_an_error_of_a_task_that_no_kill_explains_fails_the_campaign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = {**clean(60, long()), "task_errors": {"engine.lost, engine killed": 7}}
    assert exit_of(monkeypatch, explained) is None
    assert exit_of(monkeypatch, {**explained, "unexplained_task_errors": ["LaminaError: [file.missing] 1.lam"]}) == 1
    assert "LaminaError: [file.missing] 1.lam" in capsys.readouterr().out


def test_a_campaign_that_saw_no_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for minutes in (5, 60):
        assert "no task in Spark's event logs" in str(exit_of(monkeypatch, {**clean(minutes, long()), "tasks": 0}))


def test_a_campaign_for_little_memory_that_kept_nothing_on_the_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**clean(60, long()), "backend": SPILLING}
    assert "no batch kept changes" in str(exit_of(monkeypatch, short))
    assert exit_of(monkeypatch, {**short, "spilled_bytes": 1}) is None


def test_what_was_killed_and_missed_in_several_campaigns_adds_up() -> None:
    one = {**clean(5, [[AT_RANDOM, ENGINE, 2]], [[RESTORE, DRIVER, 1]]), "starts": 2, "task_errors": {"a": 1, "b": 2}}
    other = {**one, "kills": [[AT_RANDOM, ENGINE, 1], [BETWEEN, DRIVER, 1]], "task_errors": {"b": 1}}
    both = merged([one, {**other, "unexplained_task_errors": ["x"]}])
    assert both["kills"] == [[AT_RANDOM, ENGINE, 3], [BETWEEN, DRIVER, 1]]
    assert both["missed"] == [[RESTORE, DRIVER, 2]]
    assert (both["tasks"], both["task_errors"], both["unexplained_task_errors"]) == (800, {"a": 1, "b": 3}, ["x"])
    assert (both["minutes"], both["campaigns"]) == (10, 2)


def test_files_are_the_same_for_a_seed(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        Feed(tmp_path / name, seed=3).up_to(5)
        contents.append([path.read_bytes() for path in sorted((tmp_path / name).glob("*.json"))])
    assert contents[0] == contents[1]
    assert len(contents[0]) == 5


def checkpoint_with(tmp_path: Path, **settings: Any) -> Path:
    store = open_store(str(tmp_path), writable=True, **settings)
    (tmp_path / "commits").mkdir()
    for batch in range(4):
        store.put(b"k", b"%d" % batch)
        version = store.commit()
        ids = json.dumps({"stateUniqueIds": {"0": [[version.attempt]]}})
        (tmp_path / "commits" / str(batch)).write_text(f"v2\n{ids}")
    return tmp_path


@pytest.fixture(params=[DISK, S3])
def looked_at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Path], kill_files.Checkpoint]]:
    """A directory as the campaign looks at it, where it is or copied to S3."""
    if request.param == DISK:
        yield kill_files.Checkpoint.on_disk
        return
    with kill_storage.place(S3, tmp_path) as there:

        def copied(directory: Path) -> kill_files.Checkpoint:
            system, root = there.checkpoint.system, there.checkpoint.root
            if system.exists(root):
                system.rm(root, recursive=True)
            system.put(f"{directory}/", f"{root}/", recursive=True)
            return there.checkpoint

        yield copied


LookedAt = Callable[[Path], kill_files.Checkpoint]


def test_orphans_are_files_that_no_retained_version_needs(tmp_path: Path, looked_at: LookedAt) -> None:
    directory = checkpoint_with(tmp_path)
    checkpoint = looked_at(directory)
    footprints = kill_files.Footprints(checkpoint, 1)
    footprints.look()
    assert kill_files.orphans(checkpoint, footprints, 4e9, 12) == []
    for name in ("0/0/9-9_x.seg", "0/0/.1.lam.7-7.tmp", f"_lamina/runs/{temporary_name('1_run', 7, 7)}"):
        (directory / "state" / name).write_bytes(b"")
    checkpoint = looked_at(directory)
    assert len(kill_files.orphans(checkpoint, footprints, 4e9, 12)) == 3
    assert kill_files.orphans(checkpoint, footprints, 0, 12) == []
    # who publishes a cut off one may go on for a minute
    (young,) = kill_files.orphans(checkpoint, footprints, time.time() + 30, 12)
    assert young.endswith("9-9_x.seg")


def test_a_batch_that_leaves_retention_is_passed_over_and_a_lost_one_is_not(
    tmp_path: Path, looked_at: LookedAt
) -> None:
    commits = checkpoint_with(tmp_path) / "commits"
    (commits / "2").unlink()  # as Spark does when it begins batch 4
    footprints = kill_files.Footprints(looked_at(tmp_path), 1)
    footprints.look()
    assert footprints.looked == {3}
    (commits / "5").write_text("")
    with pytest.raises(FileNotFoundError):
        kill_files.Footprints(looked_at(tmp_path), 2).look()


def test_a_torn_file_is_damaged_and_a_temporary_one_is_not(tmp_path: Path, looked_at: LookedAt) -> None:
    store = checkpoint_with(tmp_path) / "state" / "0" / "0"
    assert kill_files.damaged(looked_at(tmp_path)) == []
    (store / ".1.lam.7-7.tmp").write_bytes(b"")
    assert kill_files.damaged(looked_at(tmp_path)) == []
    newest = max(store.glob("*.lam"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert len(kill_files.damaged(looked_at(tmp_path))) == 1


def test_a_file_that_a_version_needs_and_that_is_gone_is_damage_too(tmp_path: Path, looked_at: LookedAt) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint")
    query.run(3)
    assert kill_files.checked(looked_at(query.directory)) == []
    lost = query.file(query.attempts[0][1], partition=1)
    lost.unlink()
    checkpoint = looked_at(query.directory)
    # what is there is whole: that a file is gone only those see that follow the references
    assert kill_files.damaged(checkpoint) == []
    assert any(lost.name in one for one in kill_files.checked(checkpoint))


def test_log_objects_that_lie_apart_are_looked_at_like_others(tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True, changelog__path=fast)
    query.run(3)
    checkpoint = kill_files.Checkpoint.on_disk(query.directory, fast)
    footprints = kill_files.Footprints(checkpoint, 1)
    footprints.look()

    def found() -> tuple[list[str], list[str], list[str], list[str]]:
        return (
            kill_files.orphans(checkpoint, footprints, 4e9, 12),
            kill_files.damaged(checkpoint),
            kill_files.checked(checkpoint),
            kill_files.misplaced(checkpoint, footprints.needed),
        )

    assert found() == ([], [], [], [])
    first, *_, newest = sorted(fast.rglob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    left = newest.with_name(temporary_name(newest.name, 7, 7))
    left.write_bytes(b"")
    assert found() == ([f"state/_lamina/log/{left.name}"], [], [], [])
    left.unlink()
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    orphans, damaged, checked, misplaced = found()
    assert (len(damaged), orphans, misplaced) == (1, [], [])
    assert any(newest.stem in one for one in checked)
    newest.write_bytes(whole)
    here = query.directory / "state" / "_lamina" / "log" / first.name
    here.write_bytes(first.read_bytes())
    assert kill_files.misplaced(checkpoint, footprints.needed) == [f"{here} is not below {fast}"]
    here.unlink()
    assert kill_files.misplaced(checkpoint, []) == [f"nothing that is needed is below {fast}"]


def test_what_is_wrong_with_the_log_alone_is_damage(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", grouped=True)
    query.run(2)
    (query.directory / "state" / "_lamina" / "log" / f"{'a' * 32}.at").write_bytes(b"1234")
    (problem,) = kill_files.checked(kill_files.Checkpoint.on_disk(query.directory))
    assert f"{'a' * 32}.at" in problem


def test_a_storage_below_the_hook_is_what_it_is_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("kill_hook", HOOK / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    # what the hook replaces is put back after the test
    monkeypatch.setattr(storage, "open_backend", storage.open_backend)
    hook.install(hook.Orders(str(tmp_path), "engine"), None)
    found = storage.open_backend(str(tmp_path), {}, False, None)
    passed_on = {*vars(type(found)), *vars(found)}
    # whatever it does not pass on would be the default, which is right for local files only
    assert {name for name in vars(Backend) if not name.startswith("_")} - passed_on == set()


def test_a_driver_is_no_engine_because_its_command_has_settings_of_the_engine() -> None:
    campaign = str(uuid.uuid4())
    spark = ["--conf", "spark.sql.streaming.stateStore.lamina.engine.python=python"]
    commands = {
        kill_processes.DRIVER: ["org.apache.spark.deploy.SparkSubmit", *spark],
        kill_processes.EXECUTOR: ["org.apache.spark.executor.CoarseGrainedExecutorBackend", *spark],
        kill_processes.ENGINE: ["-m", "lamina.engine", "--port", "0"],
        kill_processes.MAINTENANCE: ["-m", "lamina.engine.maintenance"],
    }
    children = {
        role: subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()", *command],
            stdin=subprocess.PIPE,
            env={**os.environ, kill_processes.MARK: campaign},
        )
        for role, command in commands.items()
    }
    try:
        assert kill_processes.of(campaign) == {child.pid: role for role, child in children.items()}
        for role, child in children.items():
            assert kill_processes.with_role(campaign, role) == [child.pid]
    finally:
        for child in children.values():
            child.communicate()


def test_processes_of_a_campaign_are_found_and_gone(tmp_path: Path) -> None:
    wait = "import sys; open(sys.argv[1]).close(); f = open(sys.argv[2]); print('up', flush=True); sys.stdin.read()"
    held = tmp_path / "held"
    held.write_text("")
    campaign = str(uuid.uuid4())
    environment = {**os.environ, kill_processes.MARK: campaign}
    child = subprocess.Popen(
        [sys.executable, "-c", wait, str(held), str(held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    assert list(kill_processes.of(campaign)) == [child.pid]
    assert kill_processes.of("another") == {}
    assert kill_processes.open_files(child.pid, tmp_path) == [str(held)]
    assert kill_processes.kill(child.pid)
    child.wait()
    assert kill_processes.gone_within(campaign, 30) == {}
    child.stdin.close()
    child.stdout.close()


def test_an_interrupt_ends_a_campaign_after_its_kill_and_what_was_counted_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Endless:
        """A campaign that somebody interrupts during its second kill."""

        broken, minutes, child, drawn = None, 0.0, None, random.Random(1)
        judge = SimpleNamespace(wrong=0)

        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(*_: object, **__: object) -> Any:
                calls.append(name)
                if calls.count("kill") == 2 and name == "kill":
                    os.kill(os.getpid(), signal.SIGINT)
                return ("at random", ENGINE) if name == "next_kill" else {}

            return call

    monkeypatch.setattr(kill, "show_progress", lambda *_: None)
    monkeypatch.setattr(kill, "result_of", lambda campaign, verdict, end_state: {"stuck": verdict})
    before = signal.getsignal(signal.SIGINT)
    assert kill.ran(cast(Campaign, Endless()), 59) == {"stuck": ""}
    assert [name for name in calls if name in ("kill", "settle", "stop")] == ["kill", "kill", "settle", "stop"]
    assert signal.getsignal(signal.SIGINT) is before
