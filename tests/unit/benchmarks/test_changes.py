"""Which figures outlive a change of the code."""

from __future__ import annotations

import pytest

from benchmarks import machine
from benchmarks.changelog import CHANGELOG
from benchmarks.changes import CHANGES, Change, later, listed, told_of
from benchmarks.rocksdb import ROCKSDB

FIRST = Change("a", "b", frozenset({"heap", "log"}), "one")
SECOND = Change("b", "c", frozenset({"heap"}), "two")
BUT_ONE = Change("b", "c", frozenset({"heap"}), "two but for one answer", but=frozenset({"heap/slow"}))
BACK = Change("c", "a", frozenset({"heap"}), "three")


@pytest.mark.parametrize(
    ("code", "result", "found"),
    [
        ("c", "anything", []),
        ("b", "heap", [SECOND]),
        ("a", "heap", [FIRST, SECOND]),
        ("a", "log", None),
        ("b", "log", None),
        ("another", "heap", None),
    ],
)
def test_a_figure_counts_where_each_change_since_spares_it(
    monkeypatch: pytest.MonkeyPatch, code: str, result: str, found: list[Change] | None
) -> None:
    monkeypatch.setattr(machine, "code", lambda: "c")
    assert later(code, result, [SECOND, FIRST]) == found


def test_a_change_may_spare_a_result_but_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "code", lambda: "c")
    changes = [FIRST, BUT_ONE]
    assert later("a", "heap/quick", changes) == [FIRST, BUT_ONE]
    assert later("a", "heap/slow", changes) is None
    assert later("a", "heap", changes) is None


def test_changes_that_lead_back_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "code", lambda: "now")
    assert later("a", "heap", [FIRST, SECOND, BACK]) is None


def test_a_figure_says_which_of_the_listed_changes_came_after_it() -> None:
    assert "from number 2 on" in told_of([SECOND, BACK], [FIRST, SECOND, BACK])
    assert told_of([]) == told_of(None) == ""
    assert listed([FIRST, SECOND]).splitlines()[2:] == ["1. One.", "2. Two."]


def test_each_change_has_a_reason_and_spares_results() -> None:
    assert all(change.why and change.spares and change.before != change.after for change in CHANGES)


def test_answers_that_a_change_does_not_spare_are_asked_for_and_of_results_that_it_spares() -> None:
    asked = {f"{one.result}/{question.name}" for one in (CHANGELOG, ROCKSDB) for question in one.questions}
    assert {name for change in CHANGES for name in change.but} <= asked
    assert all(name.split("/")[0] in change.spares for change in CHANGES for name in change.but)
