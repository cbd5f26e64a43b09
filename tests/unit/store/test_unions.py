"""Versions that stand on a union of chains: restored, checked, resolved by whatever writes the state anew."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.format.container import BASES, COMMIT, Footer, header, verify
from lamina.format.entries import PUT
from lamina.format.manifest import INCREMENT, REWRITE, RUN, CommitManifest, Filter, Reference, UnionMember
from lamina.store import Version
from lamina.store.materialization.tiers import pick
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions.chain import adopt, since
from lamina.testing.expect import fails_with
from tests.sealed import sealed
from tests.unit.store import writing
from tests.unit.store.rescaled import FAMILY, NEW, VERSION, Rescaled, key
from tests.unit.store.writing import Query, file_name, names, rows_of

ALL = range(NEW)


@pytest.fixture(scope="module", autouse=True)
def family() -> Iterator[None]:
    """The column family that all stores have, whose keys are those of Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "FAMILY", FAMILY)
        yield


@pytest.fixture(scope="module")
def built(family: None, tmp_path_factory: pytest.TempPathFactory) -> Rescaled:
    return Rescaled(tmp_path_factory.mktemp("rescaled"))


@pytest.fixture
def rescaled(built: Rescaled, tmp_path: Path) -> Rescaled:
    return built.copied(tmp_path)


def further(query: Query, store: VersionedStore, base: Version, count: int) -> list[Version]:
    """Versions that change keys of a store, of which some are in the union."""
    known = sorted(query.states[base.attempt])
    versions = []
    for number in range(count):
        changed = {known[number]: (PUT, b"changed"), key(10_000 + number): (PUT, b"new")}
        base = query.commit(store, base, changed)
        versions.append(base)
    return versions


def manifest_of(store: VersionedStore, version: Version) -> CommitManifest:
    found = store.manifest(version)
    assert found is not None
    return found


def test_the_chains_of_the_examples_have_segments_and_rewrites(rescaled: Rescaled) -> None:
    kinds = [{reference.kind for reference in chain} for chain in rescaled.chains]
    assert RUN in kinds[0]
    assert REWRITE in kinds[1]
    # all of what is read has keys that do not belong
    assert min(len(rescaled.expected(partition)) for partition in ALL) > 0


@pytest.mark.parametrize("partition", ALL)
def test_each_new_partition_has_the_keys_that_spark_puts_there(rescaled: Rescaled, partition: int) -> None:
    version = rescaled.rescaled(partition)
    store = rescaled.new.open(partition)
    rescaled.new.assert_restores(store, version)
    # so many that a caller of the first one does not get them one by one
    versions = further(rescaled.new, store, version, 12)
    rescaled.new.assert_restores(store, versions[-1])
    load = store.load(versions[-1], have=version, read_only=True)
    assert load.start == "have"
    assert rows_of(load, rescaled.new.states[version.attempt]) == rescaled.new.states[versions[-1].attempt]


def test_a_union_without_filters_has_all_keys(rescaled: Rescaled) -> None:
    version = rescaled.stand(0, rescaled.union(None), rescaled.rows)
    rescaled.new.assert_restores(rescaled.new.open(), version)
    one = rescaled.stand(1, rescaled.union(None, of=[1]), rescaled.old[1].states[last(rescaled.old[1])])
    rescaled.new.assert_restores(rescaled.new.open(1), one)


def last(query: Query) -> str:
    return [attempt for attempt in query.states if attempt is not None][-1]


@pytest.mark.parametrize("partition", [None, 1])
def test_column_families_get_the_ids_of_the_new_store(rescaled: Rescaled, partition: int | None) -> None:
    rows = rescaled.rows if partition is None else rescaled.expected(partition)
    family = replace(FAMILY, id=7)
    version = rescaled.stand(1, rescaled.union(partition, {0: 7, 3: 1}), rows, family)
    store = rescaled.new.open(1)
    load = store.load(version, have=None, read_only=True)
    batches = list(load.batches)
    assert {number for batch in batches for number in batch.column(0).to_pylist()} == {7}
    rescaled.new.assert_restores(store, version)
    assert rescaled.check(store, version).problems == ()


@pytest.mark.parametrize("partition", [None, 1])
def test_entries_of_a_column_family_that_is_not_taken_are_left_out(rescaled: Rescaled, partition: int | None) -> None:
    version = rescaled.stand(1, rescaled.union(partition, {3: 0}), {})
    rescaled.new.assert_restores(rescaled.new.open(1), version)
    assert rescaled.check(rescaled.new.open(1), version).problems == ()


def test_entries_of_a_column_family_that_was_dropped_are_left_out_by_a_filter(rescaled: Rescaled) -> None:
    version = rescaled.stand(1, rescaled.union(1), {}, replace(FAMILY, id=1))
    rescaled.new.assert_restores(rescaled.new.open(1), version)


def test_a_filter_on_keys_whose_partition_is_not_known_is_refused(rescaled: Rescaled) -> None:
    family = replace(FAMILY, description={**FAMILY.description, "partition_key": {"kind": "unknown"}})
    version = rescaled.stand(1, rescaled.union(1), {}, family)
    with fails_with("store.unsupported") as caught:
        rows_of(rescaled.new.open(1).load(version, have=None, read_only=True))
    assert "'default'" in caught.error.message
    assert f"{rescaled.directory}/old/state/0/0/" in caught.error.message
    (problem,) = rescaled.check(rescaled.new.open(1), version).problems
    assert (problem.kind, problem.versions) == ("file.unread", (VERSION,))
    assert caught.error.message in problem.message


def test_a_check_reads_the_files_of_all_chains_and_counts_what_belongs(rescaled: Rescaled) -> None:
    version = rescaled.rescaled(2)
    store = rescaled.new.open(2)
    versions = [version, *further(rescaled.new, store, version, 3)]
    found = rescaled.check(store, *versions)
    assert found.problems == ()
    assert found.rows == len(rescaled.new.states[versions[-1].attempt])
    assert found.files == 4 + len({(one.root, one.path) for chain in rescaled.chains for one in chain})
    for chain in rescaled.chains:
        for reference in chain:
            path = rescaled.directory / "old" / "state" / "0" / str(reference.root)[-1] / str(reference.path)
            whole = path.read_bytes()
            path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
            found = rescaled.check(store, *versions)
            assert found.damaged == tuple(one.version for one in versions)
            assert all(str(path) in problem.message for problem in found.problems)
            path.write_bytes(whole)
    wrong = rescaled.stand(1, rescaled.union(2), rescaled.expected(1))
    assert [one.kind for one in rescaled.check(rescaled.new.open(1), wrong).problems] == ["state.counts"]


def test_a_compaction_makes_one_segment_of_the_whole_union(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    store = rescaled.new.open()
    versions = further(rescaled.new, store, version, 2)
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    assert str(compacted.made.name).startswith(f"0-{versions[-1].version}_")
    assert compacted.rows_written == len(rescaled.new.states[versions[-1].attempt])
    store.adopt(compacted.made)
    (resolved,) = further(rescaled.new, store, versions[-1], 1)
    assert [reference.root for reference in manifest_of(store, resolved).references] == [None, None]
    (rescaled.directory / "old").rename(rescaled.directory / "gone")
    rescaled.new.assert_restores(rescaled.new.open(), resolved)
    found = rescaled.check(store, resolved)
    assert (found.whole, found.damaged) == ((resolved.version,), (VERSION, *(one.version for one in versions)))


def test_a_segment_of_a_union_does_not_stand_for_the_same_files_under_another_filter(rescaled: Rescaled) -> None:
    version = rescaled.rescaled(0)
    store = rescaled.new.open()
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert adopt(rescaled.union(0), compacted.made) == (compacted.made.reference(),)
    for other in (rescaled.union(1), rescaled.union(None), rescaled.union(0, {0: 7})):
        assert adopt(other, compacted.made) is None


def test_what_changed_within_a_union_goes_on_top_of_no_rows(rescaled: Rescaled) -> None:
    """Its versions are those of other stores, also where the numbers fit."""
    end = 20
    of_others = [replace(one, union=replace(member, end=end)) for one in rescaled.union(None) if (member := one.union)]
    assert min(one.start for one in rescaled.chains[1] if one.kind == INCREMENT) in range(1, end)
    assert all(since(of_others, version) is None for version in range(end))
    above = (replace(of_others[0], start=end, end=end + 1, kind=INCREMENT, union=None),)
    assert since([*above, *of_others], end) == above
    assert all(since([*above, *of_others], version) is None for version in range(end))


def test_a_merge_takes_the_whole_union_or_nothing_of_it(rescaled: Rescaled) -> None:
    """By their sizes, only the newest files would be worth it."""
    rows = rescaled.old[0].states[last(rescaled.old[0])]
    version = rescaled.stand(0, rescaled.union(None, of=[0]), rows)
    store = rescaled.new.open()
    versions = further(rescaled.new, store, version, 3)
    references = manifest_of(store, versions[-1]).references
    assert 0 < len(references) - len(pick(references, len(rows))) < len(rescaled.chains[0])
    store.confirm(versions[-1])
    compacted = store.compact()
    assert compacted is not None
    assert compacted.replaces == len(references)
    store.adopt(compacted.made)
    (resolved,) = further(rescaled.new, store, versions[-1], 1)
    rescaled.new.assert_restores(rescaled.new.open(), resolved)


@pytest.mark.parametrize("families", [{0: 5}, {0: 5, 1: 0}])
def test_a_compaction_renumbers_column_families(rescaled: Rescaled, families: dict[int, int]) -> None:
    version = rescaled.stand(0, rescaled.union(0, families), rescaled.expected(0), replace(FAMILY, id=5))
    store = rescaled.new.open()
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert compacted.rows_written == len(rescaled.expected(0))


def test_a_version_that_is_nothing_but_a_union_is_compacted_up_to_itself(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    store = rescaled.new.open()
    store.confirm(version)
    compacted = store.compact()
    assert compacted is not None
    assert str(compacted.made.name).startswith(f"0-{VERSION}_")


def test_increments_above_a_union_keep_it_until_something_takes_its_place(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    query = rescaled.query(compaction__mode="rolling", compaction__rollingParts=3)
    query.states.update(rescaled.new.states)
    store = query.open()
    first, second, third = further(query, store, version, 3)
    references = manifest_of(store, first).references
    assert references[2:] == tuple(rescaled.union(0))
    data = bytes(query.storage.read(f"0/0/{file_name(first.attempt or '')}"))
    assert Footer.parse(data, len(data), "").version == BASES
    # three rewrites of the three parts have everything; those in the union, of as many, count for nothing
    kinds = ["rewrite", "increment", "rewrite", "increment", "rewrite"]
    assert [one.kind for one in manifest_of(store, third).references] == kinds
    for one in (first, second, third):
        query.assert_restores(query.open(), one)
    query.assert_restores(query.open(), query.commit(store, first, {key(1): (PUT, b"x")}, force_snapshot=True))


def test_full_compaction_counts_from_the_version_of_the_union(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    # the union is of a version behind a multiple, its chains are not
    query = rescaled.query(compaction__mode="full", compaction__fullInterval=VERSION - 1)
    query.states.update(rescaled.new.states)
    store = query.open()
    versions = further(query, store, version, 2)
    assert [manifest_of(store, one).section("snapshot") is not None for one in versions] == [False, False]


def test_a_broken_file_of_a_union_is_named_and_a_segment_goes_around_it(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    store = rescaled.new.open()
    versions = further(rescaled.new, store, version, 2)
    broken = rescaled.chains[1][-1]
    path = rescaled.directory / "old" / "state" / "0" / "1" / str(broken.path)
    whole = path.read_bytes()
    path.write_bytes(whole[: broken.offset] + bytes(8) + whole[broken.offset + 8 :])
    for _ in range(2):
        with fails_with("file.damaged") as caught:
            rows_of(store.load(versions[-1], have=None, read_only=True))
        assert str(path) in caught.error.message
    path.write_bytes(whole)
    fresh = rescaled.new.open()
    fresh.confirm(versions[0])
    assert fresh.compact() is not None
    path.write_bytes(whole[: broken.offset] + bytes(8) + whole[broken.offset + 8 :])
    # the first restore has handed out rows that the segment has, too; the next one begins with it
    with fails_with("file.damaged"):
        rows_of(fresh.load(versions[-1], have=None, read_only=True))
    rescaled.new.assert_restores(fresh, versions[-1])


def test_what_changed_after_a_union_is_in_the_change_feed(rescaled: Rescaled) -> None:
    version = rescaled.rescaled()
    store = rescaled.new.open()
    versions = further(rescaled.new, store, version, 3)
    feed = store.feed(VERSION + 1, versions[-1], None)
    assert sorted({one for batch in feed.batches for one in batch.column(4).to_pylist()}) == [10, 11, 12]
    with fails_with("state.base"):
        store.feed(VERSION, versions[-1], None)


def test_own_files_in_a_union_are_needed_and_kept(rescaled: Rescaled) -> None:
    """A chain of the store itself, as after a rescale in one place."""
    query = rescaled.new
    store = query.open()
    base = query.commit(store, Version(0), {key(1): (PUT, b"1")})
    (reference,) = manifest_of(store, base).references
    name = file_name(base.attempt or "")
    member = UnionMember(0, 1, VERSION, None, None)
    size = len(bytes(query.storage.read(f"0/0/{name}")))
    version = rescaled.stand(0, [replace(reference.placed(name, size), union=member)], {key(1): b"1"})
    query.assert_restores(store, version)
    query.storage.publish("0/0/1_L1.1.1.o.-.00000000000000000000000000000001.lam", b"no version needs it")
    wait_ms = 10 * 600_000
    query.clock.advance(wait_ms)  # type: ignore[attr-defined]
    deleted = {one.path for one in store.collect(version, dry_run=False).deleted}
    assert "1_L1.1.1.o.-.00000000000000000000000000000001.lam" in deleted
    assert name in names(query.storage)


def member(reference: Reference, **changed: object) -> Reference:
    assert reference.union is not None
    return replace(reference, union=replace(reference.union, **changed))  # type: ignore[arg-type]


Wrong = Callable[[list[Reference]], list[Reference]]

WRONG: dict[str, Wrong] = {
    "a chain is missing": lambda union: [one for one in union if one.union and one.union.chain == 0],
    "the first chain is missing": lambda union: [one for one in union if one.union and one.union.chain == 1],
    "a chain lacks its oldest file": lambda union: union[:-1],
    "a file comes twice": lambda union: [union[0], *union],
    "chains are mixed": lambda union: [*union[1:], union[0]],
    "another number of chains": lambda union: [member(one, chains=3) for one in union],
    "chains of two numbers of chains": lambda union: [member(union[0], chains=1), *union[1:]],
    "another version": lambda union: [member(one, end=VERSION + 1) for one in union],
    "an older version": lambda union: [member(one, end=VERSION - 1) for one in union],
    "two filters in one chain": lambda union: [member(union[0], filter=None), *union[1:]],
    "two maps in one chain": lambda union: [member(union[0], families=((0, 0),)), *union[1:]],
    "a filter of no partition": lambda union: [member(one, filter=Filter(3, 3)) for one in union],
    "two families of one id": lambda union: [member(one, families=((0, 0), (1, 0))) for one in union],
    "an id that is too large": lambda union: [member(one, families=((0, 65_536),)) for one in union],
    "something else behind it": lambda union: [*union, replace(union[-1], union=None)],
    "something else before it": lambda union: [replace(union[-1], union=None), *union],
}


@pytest.mark.parametrize("what", WRONG)
def test_references_that_are_no_union_are_refused(rescaled: Rescaled, what: str) -> None:
    version = rescaled.stand(0, WRONG[what](rescaled.union(0)), rescaled.expected(0))
    with fails_with("file.damaged") as caught:
        rows_of(rescaled.new.open().load(version, have=None, read_only=True))
    assert file_name(version.attempt or "") in caught.error.message


class Twice(dict[str, int]):
    """An object of JSON that has a key twice."""

    def items(self) -> ItemsView[str, int]:
        return [*super().items()] * 2  # type: ignore[return-value]


@pytest.mark.parametrize("families", [{"0": 0, "00": 1}, Twice({"0": 0})], ids=["in two ways", "in one way"])
def test_a_column_family_of_a_chain_that_is_named_twice_is_refused(
    rescaled: Rescaled, families: dict[str, Any]
) -> None:
    version = rescaled.stand(0, rescaled.union(0), rescaled.expected(0))
    path = f"0/0/{file_name(version.attempt or '')}"
    value = manifest_of(rescaled.new.open(), version).to_json()
    value["references"] = [{**one, "families": families} for one in value["references"]]
    rescaled.new.storage.publish(path, sealed(header(COMMIT, BASES), value, BASES))
    with fails_with("file.damaged") as caught:
        rows_of(rescaled.new.open().load(version, have=None, read_only=True))
    assert path in caught.error.message


def test_a_manifest_with_a_union_survives_the_way_through_json(rescaled: Rescaled) -> None:
    version = rescaled.stand(0, rescaled.union(0, {0: 0, 4: 2}), rescaled.expected(0))
    data = bytes(rescaled.new.storage.read(f"0/0/{file_name(version.attempt or '')}"))
    found = verify(data, "")
    assert isinstance(found, CommitManifest)
    assert found.references == tuple(rescaled.union(0, {0: 0, 4: 2}))
