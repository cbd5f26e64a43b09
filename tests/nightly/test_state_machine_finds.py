"""The state machine finds what it is for: each rule of the store that is taken away makes an example fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from lamina.errors import LaminaError
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.collection import classes
from lamina.store.collection.collector import Collector
from lamina.store.collection.footprints import Footprint, Footprints
from lamina.store.collection.retention import Retention
from lamina.store.commit.commits import Commits
from lamina.store.materialization import merging as merge
from lamina.store.versions import arbitration, chain
from lamina.store.versions.chain import Replacement
from lamina.store.versions.resolution import Versions
from lamina.testing.state_machine import StoreMachine, run

Break = Callable[[pytest.MonkeyPatch], None]

MACHINE = ("state_machine.py", "query_machine.py")

# two times two thousand examples take longer than a test may
pytestmark = pytest.mark.timeout(3600)


def a_failed_publication_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "_is_there", lambda *_: True)


def a_lost_answer_counts_as_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "_is_there", lambda *_: False)


def any_segment_is_adopted(patch: pytest.MonkeyPatch) -> None:
    def adopt(references: Any, made: Replacement) -> Any:
        adopted = made.references()
        start, end = min(one.start for one in adopted), max(one.end for one in adopted)
        newer = tuple(one for one in references if one.start >= end)
        older = tuple(one for one in references if one.end <= start)
        return (*newer, *adopted, *older)

    patch.setattr(chain, "adopt", adopt)


def a_segment_that_waited_is_named_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("lamina.store.versioned_store.is_young", lambda made, min_age_ms, now_ms: True)


def a_slow_commit_does_not_look_at_its_segments_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "_verify_adopted", lambda *_: None)


def a_run_in_the_middle_of_a_chain_drops_its_deletes(patch: pytest.MonkeyPatch) -> None:
    original = merge.Merger.merged

    def merged(self: Any, inputs: Any, *, whole: bool, **rest: Any) -> Any:
        return original(self, inputs, whole=True, **rest)

    patch.setattr(merge.Merger, "merged", merged)


def collection_counts_the_largest_number_as_newest(patch: pytest.MonkeyPatch) -> None:
    original = Collector._verdicts

    def verdicts(self: Any, lineage: Any, confirmed: int, *rest: Any) -> Any:
        return original(self, lineage, 1 << 40, *rest)

    patch.setattr(Collector, "_verdicts", verdicts)


def _collecting_with(patch: pytest.MonkeyPatch, change: Callable[[Retention], Retention]) -> None:
    original = Collector.__init__

    def init(self: Any, files: Any, versions: Any, kept: Retention, clock: Any) -> None:
        original(self, files, versions, change(kept), clock)

    patch.setattr(Collector, "__init__", init)


def collection_keeps_one_version_less(patch: pytest.MonkeyPatch) -> None:
    _collecting_with(patch, lambda kept: replace(kept, min_versions=kept.min_versions - 1))


def collection_looks_at_no_age(patch: pytest.MonkeyPatch) -> None:
    _collecting_with(patch, lambda kept: replace(kept, min_age_ms=0))


def a_collection_tells_the_time_when_it_has_looked(patch: pytest.MonkeyPatch) -> None:
    original = Collector._verdicts

    def verdicts(self: Any, lineage: Any, confirmed: int, listing: Any, now: int, *rest: Any) -> Any:
        return original(self, lineage, confirmed, listing, self._clock.now_ms(), *rest)

    patch.setattr(Collector, "_verdicts", verdicts)


def collection_forgets_what_versions_refer_to(patch: pytest.MonkeyPatch) -> None:
    original = Footprint.of
    patch.setattr(Footprint, "of", lambda opened: replace(original(opened), names=[opened.name]))


def collection_forgets_what_commits_above_stand_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Footprints, "learn", lambda *_: None)


def an_executor_of_an_older_run_collects(patch: pytest.MonkeyPatch) -> None:
    original = Collector.collect

    def collect(self: Any, confirmed: Any, standing: Any, **rest: Any) -> Any:
        def newest() -> Any:
            known = standing()
            return known and replace(known, run=replace(known.run, epoch=1 << 40), newer=None)

        return original(self, confirmed, newest, **rest)

    patch.setattr(Collector, "collect", collect)


def nothing_is_ever_collected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "delete_many", lambda *_: None)


def collection_leaves_what_was_cut_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classes, "is_temporary", lambda _: False)


def a_writer_of_an_older_run_publishes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "_refuse_if_superseded", lambda *_: None)


def the_attempt_in_the_log_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    original = Versions.locate

    def locate(self: Any, version: Any) -> Any:
        attempt = original(self, version)
        if attempt is None or ".e." in attempt:
            return attempt
        return str(self._files.attempts().get(version.version, [attempt])[0])

    patch.setattr(Versions, "locate", locate)


def the_smallest_task_counts_without_ids(patch: pytest.MonkeyPatch) -> None:
    def smallest(group: Any, manifest_of: Any) -> Any:
        found = [manifest_of(str(candidate)) for candidate in group]
        return min(found, key=lambda one: (one.run.epoch, one.run.task_attempt)).attempt

    patch.setattr(arbitration, "_greatest", smallest)


def a_zombie_that_published_last_counts(patch: pytest.MonkeyPatch) -> None:
    original = arbitration.arbitrate

    def arbitrate(by_version: Any, version: int, manifest_of: Any) -> Any:
        found = by_version.get(version)
        return str(found[-1]) if found else original(by_version, version, manifest_of)

    patch.setattr(arbitration, "arbitrate", arbitrate)


def a_chain_is_cut_one_rewrite_too_early(patch: pytest.MonkeyPatch) -> None:
    def covered(parts: Any) -> int | None:
        seen: dict[tuple[str, int], set[int]] = {}
        for count, part in enumerate(parts, start=1):
            if part is not None:
                group = seen.setdefault((part.hash, part.parts), set())
                group.add(part.part)
                if len(group) == part.parts - 1:
                    return count
        return None

    patch.setattr(chain, "_covered", covered)


def an_increment_is_newer_than_the_rewrite_beside_it(patch: pytest.MonkeyPatch) -> None:
    original = chain.own_references

    def own_references(*arguments: Any) -> Any:
        found = original(*arguments)
        beside = len(found) > 1 and found[0].part is not None and found[0].path == found[1].path
        return (found[1], found[0], *found[2:]) if beside else found

    patch.setattr(chain, "own_references", own_references)


def what_a_caller_has_is_taken_for_an_ancestor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain, "since", lambda references, version: tuple(one for one in references if one.end > version))


def the_last_executor_to_open_a_new_checkpoint_says_whose_it_is(patch: pytest.MonkeyPatch) -> None:
    def publish_if_absent(self: Storage, path: str, data: bytes) -> bool:
        self.publish(path, data)
        return True

    patch.setattr(Storage, "publish_if_absent", publish_if_absent)


RESTORES = "check_every_retained_version_restores"
REFERENCES = "check_references_of_retained_versions_are_there"
ATTEMPT = "_run_attempt"
"""A task: it opens its version, which has to be there, and commits, which has to count where it was said to."""

FOUND_BY: dict[Break, tuple[str, ...]] = {
    a_failed_publication_counts_as_done: (RESTORES,),
    a_lost_answer_counts_as_a_failure: ("attempt_on_a_failing_storage",),
    any_segment_is_adopted: (ATTEMPT,),
    a_segment_that_waited_is_named_as_it_is: (REFERENCES,),
    a_slow_commit_does_not_look_at_its_segments_again: (REFERENCES,),
    a_run_in_the_middle_of_a_chain_drops_its_deletes: (RESTORES,),
    collection_counts_the_largest_number_as_newest: (RESTORES,),
    collection_keeps_one_version_less: (RESTORES,),
    collection_forgets_what_versions_refer_to: (RESTORES,),
    collection_looks_at_no_age: ("collect_slowly", REFERENCES),
    a_collection_tells_the_time_when_it_has_looked: (REFERENCES,),
    collection_forgets_what_commits_above_stand_on: (REFERENCES,),
    an_executor_of_an_older_run_collects: ("collect_by_a_zombie",),
    nothing_is_ever_collected: ("collect",),
    collection_leaves_what_was_cut_off: ("collect_until_nothing_is_left_to_collect",),
    a_writer_of_an_older_run_publishes: ("wake_up_and_commit",),
    the_attempt_in_the_log_is_not_looked_at: (RESTORES,),
    the_smallest_task_counts_without_ids: (RESTORES,),
    a_chain_is_cut_one_rewrite_too_early: (RESTORES,),
    an_increment_is_newer_than_the_rewrite_beside_it: (ATTEMPT,),
    a_zombie_that_published_last_counts: (RESTORES,),
    what_a_caller_has_is_taken_for_an_ancestor: ("_bring",),
    the_last_executor_to_open_a_new_checkpoint_says_whose_it_is: ("_new_run",),
}
"""Each rule that is taken away, and which of the machine's checks and steps must fail."""


QUICK = settings(
    max_examples=2000,
    stateful_step_count=40,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def run_examples() -> None:
    """Those that hypothesis takes by itself, and those of one seed, which the rarest order of steps is among."""
    run_state_machine_as_test(StoreMachine, settings=QUICK)

    class Seeded(StoreMachine):
        pass

    run_state_machine_as_test(seed(1)(Seeded), settings=settings(QUICK, derandomize=False))


@pytest.mark.parametrize("broken", FOUND_BY, ids=lambda broken: broken.__name__)
def test_a_rule_that_is_taken_away_is_found_by_its_check(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is neither a check's nor the store's is a crash of the machine, and finds nothing."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, LaminaError)) as raised:
        run_examples()
    machine = {entry.name for entry in raised.traceback if Path(str(entry.path)).name in MACHINE}
    assert machine & set(FOUND_BY[broken]), f"found by {sorted(machine)}: {raised.value}"


def test_the_same_examples_pass_where_nothing_is_taken_away() -> None:
    run_examples()


def failures_at_three_versions(number: int) -> list[tuple[list[Version], list[str]]]:
    """Spark's log and the files in each example of a seed that came to three versions, which is made to fail."""
    found = []

    class FailsAtThreeVersions(StoreMachine):
        @invariant()
        def check_that_there_are_fewer_versions(self) -> None:
            if len(self.log) >= 3:
                found.append((list(self.log), sorted(self.objects.objects)))
                raise AssertionError("three versions")

    with pytest.raises(AssertionError, match="three versions"):
        run(number, 100, FailsAtThreeVersions)
    return found


def test_what_failed_fails_again_with_its_seed() -> None:
    found = failures_at_three_versions(7)
    assert failures_at_three_versions(7) == found
    assert failures_at_three_versions(8) != found
