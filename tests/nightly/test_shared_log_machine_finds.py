"""The machine with several stores finds what it is for: each rule of log objects that is taken away makes an example
fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lamina.checkpoint import QueryRun, smallest_claims
from lamina.errors import LaminaError
from lamina.store.collection import collector
from lamina.store.files import log_needs
from lamina.store.files.log_needs import Kept, Needs
from lamina.store.files.log_parts import LogObjects, Needless
from lamina.store.files.log_places import LogPlaces
from lamina.store.versions.checkpoint_state import Standing
from lamina.testing.shared_log_machine import SharedLogMachine

Break = Callable[[pytest.MonkeyPatch], None]

MACHINE = ("shared_log_machine.py", "shared_log_query.py")


def what_an_older_run_has_found_counts(patch: pytest.MonkeyPatch) -> None:
    def hear_all(self: Any, said: Any) -> None:
        for store, needs in () if said is None else said[1].items():
            self._hear(store, needs)

    patch.setattr(LogObjects, "_hear_all", hear_all)


def a_store_that_has_said_nothing_needs_nothing(patch: pytest.MonkeyPatch) -> None:
    original = Kept.mark

    def mark(self: Any, *arguments: Any) -> bool:
        original(self, *arguments)
        return len(self.needless) >= 1

    patch.setattr(Kept, "mark", mark)


def versions_above_the_confirmed_one_are_not_needed(patch: pytest.MonkeyPatch) -> None:
    def includes(self: Needs, version: int) -> bool:
        return any(first <= version <= last for first, last in self.ranges)

    patch.setattr(Needs, "includes", includes)


def a_newer_run_stops_nobody(patch: pytest.MonkeyPatch) -> None:
    def of(cls: Any, run_id: str, claims: Any) -> Standing:
        claims = list(claims)
        return Standing(smallest_claims(claims)[run_id], frozenset(claim.epoch for claim in claims), None)

    patch.setattr(Standing, "of", classmethod(of))


def only_what_is_retained_is_needed(patch: pytest.MonkeyPatch) -> None:
    """Not what is young, pinned, or referred to by a commit that is kept."""
    original = Needs.of.__func__  # type: ignore[attr-defined]
    patch.setattr(
        Needs, "of", classmethod(lambda cls, confirmed, versions: original(cls, confirmed, sorted(versions)[-3:]))
    )


def pins_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collector, "read_pins", lambda storage: [])


def nobody_tells_what_stores_need(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogObjects, "_tell", lambda self, now: None)


def nobody_hears_what_others_tell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_needs, "read", lambda storage, path: None)


def everything_is_needed_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Needs, "includes", lambda self, version: True)


def files_of_older_runs_stay(patch: pytest.MonkeyPatch) -> None:
    original = LogObjects.needless

    def needless(self: Any, run: QueryRun, **options: bool) -> list[Needless]:
        return [entry for entry in original(self, run, **options) if entry.name.endswith(".log")]

    patch.setattr(LogObjects, "needless", needless)


def places_besides_the_checkpoint_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogPlaces, "list", lambda self: ([(self.own, entry) for entry in self.own.list()], []))


def objects_are_looked_for_in_one_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogPlaces, "_to_ask", lambda self: self._order[:1])


DELETED = {
    "check_what_is_needed_is_there",
    "_check_restores",
    "collect_by_a_zombie",
    # a collection that finds no retained version, and an attempt that finds no base
    "_collect",
    "_accept",
    "_footprint",
}
LEFT = {"settle"}
FOUND_BY: dict[Break, set[str]] = {
    what_an_older_run_has_found_counts: DELETED,
    a_store_that_has_said_nothing_needs_nothing: DELETED,
    versions_above_the_confirmed_one_are_not_needed: DELETED,
    a_newer_run_stops_nobody: DELETED,
    only_what_is_retained_is_needed: DELETED,
    pins_are_not_looked_at: DELETED,
    nobody_tells_what_stores_need: LEFT,
    nobody_hears_what_others_tell: LEFT,
    everything_is_needed_for_ever: LEFT,
    files_of_older_runs_stay: LEFT,
    places_besides_the_checkpoint_are_not_listed: DELETED,
    objects_are_looked_for_in_one_place: DELETED,
}

PROFILE = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def run_examples() -> None:
    class Seeded(SharedLogMachine):
        pass

    run_state_machine_as_test(seed(1)(Seeded), settings=PROFILE)


@pytest.mark.parametrize("broken", FOUND_BY, ids=lambda broken: broken.__name__)
def test_a_rule_that_is_taken_away_is_found(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is neither a check's nor the store's is a crash of the machine, and finds nothing."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, LaminaError)) as raised:
        run_examples()
    machine = {entry.name for entry in raised.traceback if Path(str(entry.path)).name in MACHINE}
    assert machine & FOUND_BY[broken], f"found by {sorted(machine)}: {raised.value}"


def test_the_same_examples_pass_where_nothing_is_taken_away() -> None:
    run_examples()
