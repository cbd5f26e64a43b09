"""Children of benchmarks that run at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.rounds import run_child, run_children

CHILD = "tests.unit.benchmarks.child"


def request_for(gives: int, rest_s: float = 0.0, *, fails: bool = False) -> dict[str, Any]:
    return {"gives": gives, "rest_s": rest_s, "fails": fails}


def test_results_are_in_the_order_of_their_requests() -> None:
    found = run_children(CHILD, [request_for(1, 0.5), request_for(2)], timeout=60)
    assert [one["gives"] for one in found] == [1, 2]
    assert run_child(CHILD, request_for(3))["gives"] == 3


def test_what_one_fails_with_is_said_and_the_others_are_ended() -> None:
    # a timeout would be said of the first one
    with pytest.raises(SystemExit, match=r"this child fails(.|\n)*ended with 1"):
        run_children(CHILD, [request_for(1, 600.0), request_for(2, fails=True)], timeout=300)


def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(SystemExit, match="no result"):
        run_children(CHILD, [request_for(1, 600.0), request_for(2)], timeout=3)
