"""Rolling compaction: each commit rewrites a part of the rows, and what is older than a cycle falls off."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.format.entries import DELETE, PUT
from lamina.format.manifest import CommitManifest, Part, Reference
from lamina.settings import Settings
from lamina.storage import Storage
from lamina.store import CommitRequest, Version
from lamina.store.check.checker import StoreChecker
from lamina.store.check.report import COUNTS, StoreCheck
from lamina.store.direct import store as plain
from lamina.store.direct.open import open_store
from lamina.store.direct.rows import in_part
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions import chain
from lamina.testing import ManualClock
from lamina.testing.expect import fails_with
from tests.unit.store import writing
from tests.unit.store.test_compaction import reference
from tests.unit.store.writing import FAMILY, Query, damage, entries, names, rows_of, triples

EMPTY = Version(0)
PARTS = 3


def rolling(storage: Storage | None = None, *, parts: int = PARTS, **settings: Any) -> Query:
    return Query(storage, compaction__mode="rolling", compaction__rollingParts=parts, **settings)


def again(query: Query, **settings: Any) -> tuple[Query, VersionedStore]:
    """The query restarted with other settings."""
    restarted = Query(query.storage, clock=query.clock, ids=query.ids, min_versions=query.min_versions, **settings)
    restarted.states = query.states
    return restarted, restarted.open()


def manifest(store: VersionedStore, version: Version) -> CommitManifest:
    found = store.manifest(version)
    assert found is not None
    return found


def kinds(store: VersionedStore, version: Version) -> list[tuple[str, int]]:
    return [(one.kind, one.end) for one in manifest(store, version).references]


def parts(store: VersionedStore, version: Version) -> list[int]:
    return [one.part.part for one in manifest(store, version).references if one.part is not None]


def rewrite(version: int, part: int, number: int = 2, hashed: str = "h") -> Reference:
    return replace(reference(0, version, 1), kind="rewrite", part=Part(part, number, hashed))


def test_a_version_consists_of_no_more_than_a_cycle() -> None:
    query = rolling()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 12)
    assert kinds(store, versions[0]) == [("increment", 1)]
    assert kinds(store, versions[2]) == [
        ("rewrite", 3),
        ("increment", 3),
        ("rewrite", 2),
        ("increment", 2),
        ("increment", 1),
    ]
    for version in versions[3:]:
        newest = version.version
        assert kinds(store, version) == [
            ("rewrite", newest),
            ("increment", newest),
            ("rewrite", newest - 1),
            ("increment", newest - 1),
            ("rewrite", newest - 2),
        ]
        assert sorted(parts(store, version)) == [0, 1, 2]
    for version in versions:
        query.assert_restores(query.open(), version)


def test_random_batches_restore_whatever_was_deleted_came_back_or_was_appended_to() -> None:
    query = rolling(parts=4)
    store = query.open()
    numbers = random.Random(11)
    version = EMPTY
    for number in range(60):
        changes: dict[bytes, Any] = {}
        for _ in range(numbers.randrange(6)):
            key = b"%d" % numbers.randrange(12)
            changes[key] = (numbers.choice([PUT, DELETE, 3]), b"<%d>" % number)
        version = query.commit(store, version, {k: (op, b"" if op == DELETE else v) for k, (op, v) in changes.items()})
        query.assert_restores(query.open(), version)


def test_what_fell_off_is_collected_and_the_rest_restores() -> None:
    query = rolling(min_versions=2)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 12)
    assert isinstance(query.clock, ManualClock)
    query.clock.advance(query.settings.retention_min_age_ms + 1)
    store.confirm(versions[-1])
    store.collect(versions[-1], dry_run=False)
    query.clock.advance(query.settings.retention_min_age_ms + 1)
    store.collect(versions[-1], dry_run=False)
    # versions 10 to 12 are retained, and the oldest of them needs the rewrite of 8
    assert sorted(int(name.split("_")[0]) for name in names(query.storage)) == [8, 9, 10, 11, 12]
    for version in versions[-3:]:
        query.assert_restores(query.open(), version)


def test_attempts_of_one_version_rewrite_the_same_part_and_a_failed_one_does_not_advance_the_cycle() -> None:
    query = rolling()
    store = query.open()
    base = query.run_batches(store, EMPTY, 4)[-1]
    first = query.begin(store, base)
    second = query.begin(store, base)
    third = query.begin(query.open(), base)
    assert first.rewrite == second.rewrite == third.rewrite
    query.commit(store, base, {b"k1": (PUT, b"never confirmed")}, begun=first)
    version = query.commit(store, base, {b"k1": (PUT, b"counts")}, begun=second)
    after = query.run_batches(store, version, 5)[-1]
    assert sorted(parts(store, after)) == [0, 1, 2]
    query.assert_restores(query.open(), version)
    query.assert_restores(query.open(), after)


def test_without_ids_in_the_log_a_cycle_goes_on_from_the_attempt_that_counts() -> None:
    query = rolling(format_version=1)
    store = query.open()
    query.run_batches(store, EMPTY, 4)
    for number in range(5, 13):
        base = Version(number - 1)
        zombie = query.begin(store, base, task_attempt=2 * number)
        query.commit(store, base, {b"k1": (PUT, b"%d" % number)}, task_attempt=2 * number + 1)
        # published last, by an attempt that the one before has not seen; the greatest task counts
        query.commit(store, base, {b"k1": (PUT, b"zombie")}, begun=zombie, task_attempt=2 * number)
        version = Version(number)
        assert query.states[store.resolve(version)][b"k1"] == b"%d" % number
        assert sorted(parts(store, version)) == [0, 1, 2]
        query.assert_restores(query.open(), version)
        query.assert_restores(query.open(), base)


def test_a_rewind_goes_on_with_the_cycle_of_the_version_that_it_goes_back_to() -> None:
    query = rolling()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 9)
    turn = query.begin(store, versions[5]).rewrite
    assert turn is not None
    assert manifest(store, versions[6]).references[0].part == Part(*turn, "crc32")
    again_from = query.run_batches(query.open(), versions[5], 5)
    for version in (*versions, *again_from):
        query.assert_restores(query.open(), version)
    assert sorted(parts(store, again_from[-1])) == [0, 1, 2]


def test_versions_that_changed_nothing_are_skipped_without_a_turn() -> None:
    """However many batches change nothing between the others, each part gets its turn."""
    query = rolling()
    store = query.open()
    base = query.run_batches(store, EMPTY, 1)[-1]
    for number in range(1, 8):
        turn = query.begin(store, base).rewrite
        later = Version(base.version + PARTS - 1, base.attempt)
        assert query.begin(store, later).rewrite == turn
        base = query.commit(store, later, {b"k1": (PUT, b"%d" % number)})
        query.assert_restores(query.open(), base)
        assert len(set(parts(store, base))) == min(number, PARTS)
    assert len(kinds(store, base)) == 2 * PARTS - 1


def test_a_rewrite_that_leaves_a_row_out_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path), writable=True, compaction_mode="rolling", compaction_rolling_parts=2)
    for number in range(8):
        store.put(b"key %d" % number, b"x")
    store.commit()

    def in_part_but_one(rows: dict[tuple[int, bytes], bytes], part: Part) -> dict[tuple[int, bytes], bytes]:
        return {position: value for position, value in in_part(rows, part).items() if position[1] != b"key 3"}

    monkeypatch.setattr(plain, "in_part", in_part_but_one)
    for number in range(2):
        store.put(b"last", b"%d" % number)
        store.commit()
    with fails_with("file.damaged") as caught:
        open_store(str(tmp_path))
    assert "9 rows in column family 0, and restoring it gave 8" in caught.error.message


def test_a_load_on_top_of_what_the_caller_has_brings_changes_only() -> None:
    query = rolling()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 9)
    for have in (versions[7], versions[5], versions[1]):
        load = query.open().load(versions[8], have=have, read_only=True)
        assert load.start == "have"
        assert rows_of(load, query.states[have.attempt]) == query.states[versions[8].attempt]
        entries_of = query.open().load(versions[8], have=have, read_only=True).batches
        changes = store.feed(have.version + 1, versions[8], None).batches
        assert list(triples(entries_of)) == list(triples(changes))


def test_a_base_that_is_not_needed_any_more_is_left_out_of_a_load_on_top_of_it() -> None:
    """The references reach back a cycle only; from an older version on only increments one by one lead here."""
    query = rolling(parts=2)
    store = query.open()
    versions = query.run_batches(store, EMPTY, 14)
    load = query.open().load(versions[13], have=versions[0], read_only=True)
    assert load.start == "empty"
    assert rows_of(load) == query.states[versions[13].attempt]


@pytest.mark.parametrize("then", ["background", "full", "rolling"])
def test_the_mode_may_change_between_runs(then: str) -> None:
    """background, rolling, another one, rolling with more parts, background."""
    query = Query()
    version = query.run_batches(query.open(), EMPTY, 9)[-1]
    seen = [version]
    for settings in (
        {"compaction__mode": "rolling", "compaction__rollingParts": 3},
        {"compaction__mode": then, "compaction__fullInterval": 4},
        {"compaction__mode": "rolling", "compaction__rollingParts": 5},
        {},
    ):
        query, store = again(query, **settings)
        for _ in range(9):
            version = query.run_batches(store, version, 1)[-1]
            seen.append(version)
            store.confirm(version)
            compacted = store.compact()
            if compacted is not None:
                store.adopt(compacted.made)
    for one in seen:
        query.assert_restores(query.open(), one)
    # what rolling left behind was merged away
    assert "rewrite" not in {kind for kind, _ in kinds(store, version)}


def test_a_compaction_merges_all_rewrites_or_none() -> None:
    query = rolling(parts=4)
    version = query.run_batches(query.open(), EMPTY, 12)[-1]
    query, store = again(query)
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert (compacted.made.manifest.start, compacted.made.manifest.end) == (0, 12)
    store.adopt(compacted.made)
    version = query.run_batches(store, version, 1)[-1]
    assert kinds(store, version) == [("increment", 13), ("run", 12)]
    query.assert_restores(query.open(), version)


def test_a_compaction_of_a_chain_with_more_than_its_rewrites_need_is_the_whole_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader takes a chain that nobody trimmed. Its oldest reference begins anywhere, and the state at 0."""
    query = rolling(parts=4)
    trimmed = chain.trimmed
    with monkeypatch.context() as patched:
        patched.setattr(chain, "carried", lambda older, part: older)
        patched.setattr(chain, "trimmed", lambda references: tuple(references[: len(trimmed(references)) + 1]))
        version = query.run_batches(query.open(), EMPTY, 12)[-1]
    query, store = again(query)
    oldest = manifest(store, version).references[-1]
    assert (oldest.kind, oldest.start) == ("increment", 8)
    query.assert_restores(query.open(), version)
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert (compacted.made.manifest.start, compacted.made.manifest.end) == (0, 12)
    assert compacted.rows_written == len(query.states[str(version.attempt)])
    store.adopt(compacted.made)
    version = query.run_batches(store, version, 1)[-1]
    assert kinds(store, version) == [("increment", 13), ("run", 12)]
    query.assert_restores(query.open(), version)


def test_a_compaction_leaves_no_rewrite_behind_that_stands_with_those_it_merges() -> None:
    """The newest files together are smaller than the oldest rewrite, which would be left alone as a large old file."""
    query = rolling(parts=4)
    store = query.open()
    numbers = random.Random(5)
    keys = [b"k%d" % number for number in range(60)]
    values = {key: numbers.randbytes(4_000 if zlib.crc32(key) % 4 == 0 else 8) for key in keys}
    version = query.commit(store, EMPTY, {key: (PUT, value) for key, value in values.items()})
    for number in range(8):
        version = query.commit(store, version, {b"k1": (PUT, b"%d" % number)})
    *newer, oldest = manifest(store, version).references
    assert oldest.kind == "rewrite"
    assert sum(one.length for one in newer) < oldest.length
    query, store = again(query)
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert (compacted.made.manifest.start, compacted.made.manifest.end) == (0, 9)
    store.adopt(compacted.made)
    query.assert_restores(query.open(), query.run_batches(store, version, 1)[-1])


def test_a_commit_whose_references_do_not_make_it_up_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    query = rolling()
    store = query.open()
    version = query.run_batches(store, EMPTY, 3)[-1]
    before = names(query.storage)
    monkeypatch.setattr(chain, "trimmed", lambda references: tuple(references[:2]))
    with fails_with("file.damaged"):
        query.run_batches(store, version, 1)
    assert names(query.storage) == before
    query.assert_restores(query.open(), version)


def test_a_broken_rewrite_is_worked_around_and_nothing_is_guessed() -> None:
    query = rolling()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 8)
    name = next(name for name in names(query.storage) if name.startswith("7_"))
    section = manifest(store, versions[6]).section("rewrite")
    assert section is not None
    damage(query.storage, f"0/0/{name}", section.offset + section.length // 2)
    # version 6 is whole, and the increment of 7 leads on from it
    query.assert_restores(query.open(), versions[7])
    query.assert_restores(query.open(), versions[6])
    query.storage.delete_many([f"0/0/{name}" for name in names(query.storage) if int(name.split("_")[0]) < 6])
    with fails_with("file.damaged") as caught:
        list(query.open().load(versions[7], have=None, read_only=True).batches)
    assert name in caught.error.message


def test_fsck_counts_the_rows_of_a_cycle_and_finds_what_a_rewrite_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    query = rolling()
    store = query.open()

    def checked(versions: list[Version]) -> StoreCheck:
        named = {version.version: version.attempt for version in versions}
        return StoreChecker(query.storage, store.identity, named, clock=query.clock).check()

    versions = query.run_batches(store, EMPTY, 9)
    found = checked(versions)
    assert (found.problems, found.whole) == ((), tuple(range(1, 10)))
    assert found.rows == len(query.states[versions[-1].attempt])
    lost = sorted(query.states[versions[-1].attempt])[0]

    def in_part_but_one(rows: dict[tuple[int, bytes], bytes], part: Part) -> dict[tuple[int, bytes], bytes]:
        return {position: value for position, value in in_part(rows, part).items() if position[1] != lost}

    monkeypatch.setattr(writing, "in_part", in_part_but_one)
    for number in range(PARTS):
        versions.append(query.commit(store, versions[-1], {b"other": (PUT, b"%d" % number)}))
    assert [(problem.kind, problem.versions) for problem in checked(versions).problems] == [(COUNTS, (12,))]


def test_the_change_feed_knows_no_rewrites() -> None:
    query = rolling()
    store = query.open()
    versions = query.run_batches(store, EMPTY, 8)
    plain = Query()
    other = plain.open()
    expected = plain.run_batches(other, EMPTY, 8)
    assert list(triples(store.feed(1, versions[-1], None).batches)) == list(
        triples(other.feed(1, expected[-1], None).batches)
    )


def test_a_snapshot_a_load_of_nothing_and_a_lost_base_begin_a_cycle() -> None:
    query = rolling()
    store = query.open()
    base = query.run_batches(store, EMPTY, 5)[-1]
    version = query.commit(store, base, {b"k1": (PUT, b"x")}, force_snapshot=True)
    assert kinds(store, version) == [("snapshot", 6)]
    for last in query.run_batches(store, version, 4):
        query.assert_restores(query.open(), last)
    assert len(parts(store, last)) == PARTS
    version = query.commit(store, last, {b"new": (PUT, b"x")}, load_empty=True)
    assert kinds(store, version) == [("increment", 11)]
    for last in query.run_batches(store, version, 4):
        query.assert_restores(query.open(), last)
    assert len(parts(store, last)) == PARTS


def test_a_cycle_longer_than_the_longest_chain_does_not_end_in_snapshots() -> None:
    query = rolling(parts=6, compaction__maxChain=2)
    store = query.open()
    for version in query.run_batches(store, EMPTY, 14):
        assert "snapshot" not in {kind for kind, _ in kinds(store, version)}


def test_a_commit_that_rewrites_another_part_than_asked_or_none_is_refused() -> None:
    query = rolling()
    store = query.open()
    base = query.run_batches(store, EMPTY, 2)[-1]
    for said in (None, Part(2, PARTS, "crc32"), Part(1, PARTS + 1, "crc32")):
        begun = query.begin(store, base)
        assert begun.rewrite == (1, PARTS)
        sections = {"increment": [entries([])], **({"rewrite": [entries([])]} if said else {})}
        request = CommitRequest(begun.attempt, 3, base, {}, (FAMILY,), 1, 1, {}, said)
        with fails_with("engine.protocol"):
            store.commit(request, sections)


def test_only_a_whole_cycle_of_one_hash_stands_for_what_is_older() -> None:
    whole = [rewrite(6, 0), reference(5, 6, 1), rewrite(5, 1)]
    chain.check(whole, 6, lambda: "f")
    assert chain.trimmed([*whole, reference(4, 5, 1), reference(0, 4, 1)]) == tuple(whole)
    for wrong in (
        [rewrite(6, 0), reference(5, 6, 1), rewrite(5, 0)],
        [rewrite(6, 0), reference(5, 6, 1), rewrite(5, 1, 3)],
        [rewrite(6, 0), reference(5, 6, 1), rewrite(5, 1, hashed="other")],
        whole[:2],
    ):
        with fails_with("file.damaged"):
            chain.check(wrong, 6, lambda: "f")
        older = [*wrong, reference(4, 5, 1)]
        assert chain.trimmed(older) == tuple(older)


def test_rewrites_of_all_parts_do_not_make_up_for_a_gap_in_the_changes() -> None:
    for wrong in (
        [rewrite(6, 0), rewrite(5, 1)],
        [rewrite(6, 0), reference(4, 6, 1), rewrite(5, 1)],
        [rewrite(6, 0), reference(5, 6, 1), rewrite(4, 1)],
        [rewrite(5, 0), reference(4, 5, 1), rewrite(4, 1)],
    ):
        with fails_with("file.damaged"):
            chain.check(wrong, 6, lambda: "f")


def test_the_part_that_was_rewritten_longest_ago_is_next() -> None:
    assert chain.next_part([], 3) == 0
    assert chain.next_part([reference(0, 1, 1)], 3) == 0
    for rewritten, expected in (([0], 1), ([1, 0], 2), ([2, 1, 0], 0), ([0, 2, 1, 0], 1)):
        newest_first = [rewrite(9 - age, part, 3) for age, part in enumerate(rewritten)]
        assert chain.next_part(newest_first, 3) == expected
    assert chain.next_part([rewrite(9, 1, 2), rewrite(8, 0, 2)], 3) == 0


def test_the_default_limits_let_a_cycle_through() -> None:
    assert chain.longest(Settings(compaction_mode="rolling"), ()) == 80
    assert chain.longest(Settings(), ()) == 64
