"""What the soak makes of its samples, and what the page of results says of the long proofs."""

from __future__ import annotations

import random
import re
import sys
from typing import Any

import pytest

from benchmarks import proofs_report, soak
from tests.kill.points import AT_RANDOM, BETWEEN, NO_LINEAGE_CHECK, PUBLICATION_BEFORE_DATA
from tests.kill.processes import DRIVER, EXECUTOR

RAN: dict[str, Any] = {
    "date": "2026-01-02",
    "machine": {"cpu": "a processor", "cores": 2, "memory_gib": 16.0, "system": "Linux 6", "jdk": "17",
                "python": "3.11", "spark": "4.3.0", "pyarrow": "26"},
}  # fmt: skip


def samples(an_hour: float, every_s: int = 1, noise: float = 10) -> list[tuple[float, float]]:
    """One of 100 each so many seconds of 50 minutes, with noise and so much more an hour."""
    drawn = random.Random(1)
    moments = range(600, 3600, every_s)
    return [(float(second), 100 + an_hour * second / 3600 + drawn.gauss(0, noise)) for second in moments]


def test_a_series_that_grows_is_told_from_one_that_is_noisy() -> None:
    assert soak.trend(samples(0))["flat"]
    assert soak.trend(samples(-5))["flat"]
    assert not soak.trend(samples(5))["flat"]
    assert soak.trend(samples(5))["slope_an_hour"] == pytest.approx(5, abs=1.5)


def test_a_series_with_a_sample_a_restart_tells_growth_from_noise() -> None:
    assert len(samples(0, soak.RESTART_EVERY_S)) == 40
    assert soak.trend(samples(0, soak.RESTART_EVERY_S, noise=2))["flat"]
    assert soak.trend(samples(-10, soak.RESTART_EVERY_S, noise=2))["flat"]
    grows = soak.trend(samples(10, soak.RESTART_EVERY_S, noise=2))
    assert not grows["flat"]
    assert grows["low"] < 10 < grows["high"]


def test_one_sample_has_no_slope() -> None:
    found = soak.trend([(75.0, 100.0)])
    assert (found["median"], found["slope_an_hour"], found["flat"]) == (100.0, 0.0, True)


def test_a_batch_is_judged_at_the_usual_pace_of_the_machine() -> None:
    """A machine that becomes slower makes batches slower, and so does a query that grows, on any machine."""
    slower = [(moment, 5 * (1 + moment / 3600)) for moment in range(600, 3600)]
    batches = [(moment, 60 * pace) for moment, pace in slower]
    assert not soak.trend(batches)["flat"]
    adjusted = soak.at_pace(batches, slower)
    assert soak.trend(adjusted)["flat"]
    assert [value for _, value in adjusted] == pytest.approx([60 * 5 * (1 + 2100 / 3600)] * 3000, rel=0.02)
    steady = [(moment, 5.0) for moment, _ in slower]
    assert [value for _, value in soak.at_pace(batches, steady)] == pytest.approx([value for _, value in batches])
    assert soak.at_pace([(60.0, 1.0)], steady) == []


def soaked(minutes: float = 60, growing: str | None = None) -> dict[str, Any]:
    """The result of a soak in which nothing grows, or that."""
    series = {name: {"samples": [], **soak.trend(samples(99 * (name == growing), 75))} for name in soak.SERIES}
    return {
        **RAN, "minutes": minutes, "live_keys": 2_000_000, "batches": 900, "restarts": 48, "from_minute": 10.0,
        "series": series,
    }  # fmt: skip


def test_the_page_of_the_soak_says_of_each_series_whether_it_is_flat() -> None:
    page = proofs_report.soak_section(soaked(growing="heap"))
    assert re.search(r"^\| Java heap in use, MB \| .* \| NO \|$", page, re.MULTILINE)
    assert re.search(r"^\| JVM resident, MB \| .* \| yes \|$", page, re.MULTILINE)


@pytest.mark.parametrize("growing", [*soak.SERIES, None])
def test_a_soak_fails_where_anything_grows_but_the_pace_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, growing: str | None
) -> None:
    monkeypatch.setattr(soak, "run", lambda *_: soaked(growing=growing))
    monkeypatch.setattr(soak, "write_result", lambda *_: None)
    monkeypatch.setattr(soak, "draw", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["soak"])
    if growing is None or growing in ("pace", "batch"):
        soak.main()
    else:
        with pytest.raises(SystemExit, match=re.escape(f"not flat: {soak.SERIES[growing]}")):
            soak.main()


@pytest.mark.parametrize(("minutes", "name"), [(60, "soak"), (59, "soak-quick")])
def test_a_short_soak_leaves_the_record_as_it_is(monkeypatch: pytest.MonkeyPatch, minutes: int, name: str) -> None:
    written: list[str] = []
    monkeypatch.setattr(soak, "run", lambda *_: soaked(minutes))
    monkeypatch.setattr(soak, "write_result", lambda name, _: written.append(name))
    monkeypatch.setattr(soak, "draw", lambda _, path: written.append(path.stem))
    monkeypatch.setattr(sys, "argv", ["soak", "--minutes", str(minutes)])
    soak.main()
    assert written == [name, name]


INDETERMINATE = "Exception: Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed"


def killed(**changed: Any) -> dict[str, Any]:
    """The result of a campaign that found nothing wrong."""
    return {
        **RAN, "minutes": 65.0, "batches": 400, "starts": 4, "records": 24_000, "lost": 0, "duplicated": 0,
        "reordered": 0, "foreign": 0, "orphans": [], "damaged_files": [], "leaked_processes": [], "open_files_left": [],
        "kills": [[AT_RANDOM, EXECUTOR, 7], [BETWEEN, DRIVER, 2]], "failures_of_the_query": [], "stuck": "",
        "broken": None, "backend": "heap",
        "tasks": 1200, "spilled_bytes": 0, "task_errors": {}, "unexplained_task_errors": [], **changed,
    }  # fmt: skip


def test_the_page_of_kills_says_how_often_the_query_failed_by_itself_and_why() -> None:
    page = proofs_report.kill_section(killed())
    assert "started once, again after each of 2 kills of the driver, and never failed by itself." in page
    failed = [INDETERMINATE, "LaminaError: [file.missing] 1.lam", INDETERMINATE, "LaminaError: [file.missing] 2.lam"]
    page = proofs_report.kill_section(killed(failures_of_the_query=[*failed, INDETERMINATE]))
    assert "2 kills of the driver, and after each failure of its own: A shuffle map stage with" in page
    assert "was failed (3); file.missing (2). The records have tags that are not deterministic" in page
    page = proofs_report.kill_section(killed(failures_of_the_query=failed[1:2]))
    assert "of its own: file.missing (1).\n" in page


def test_the_page_of_kills_says_what_explains_the_errors_of_tasks() -> None:
    errors = {"FetchFailed": 2, "engine.lost, engine killed": 5}
    page = proofs_report.kill_section(killed(tasks=1200, task_errors=errors, unexplained_task_errors=["x"]))
    assert "by what explains it: engine.lost, engine killed (5); FetchFailed (2)." in page
    assert "no kill explains: 1." in page
    assert "by what explains it: none." in proofs_report.kill_section(killed())


def test_the_page_of_builds_without_a_promise_says_by_what_each_was_noticed() -> None:
    builds = {
        PUBLICATION_BEFORE_DATA: killed(
            broken=PUBLICATION_BEFORE_DATA,
            commit="1a2b",
            minutes=1.5,
            failures_of_the_query=["LaminaError: [file.missing] 1.lam"],
        ),
        NO_LINEAGE_CHECK: killed(broken=NO_LINEAGE_CHECK, commit="3c4d", minutes=15.0),
    }
    page = proofs_report.broken_section({"builds": builds})
    assert "| publication before data | 1a2b | 2026-01-02 | 1.5 | 9 | file.missing |" in page
    assert "| no lineage check | 3c4d | 2026-01-02 | 15 | 9 | **nothing** |" in page
