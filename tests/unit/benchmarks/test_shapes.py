"""What the benchmark of other clusters, storages and rows makes of its runs, and what the page says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import report
from benchmarks.aggregation_child import rates
from benchmarks.processes import EXECUTOR, ROLES, held
from benchmarks.questions import Question
from benchmarks.shapes import HELD, SHAPES, summary
from benchmarks.variants import CAPPED, LAMINA, STATELESS
from tests.unit.benchmarks.answers import answer

QUESTIONS = {question.name: question for question in SHAPES.questions}


def figures(question: Question, digest: str = "d", batch_ms: float = 100.0) -> dict[str, Any]:
    """Of one round in which lamina takes `batch_ms` and gives `digest`, and all others take 100 ms."""

    def run(variant: str) -> dict[str, Any]:
        took = batch_ms if variant == LAMINA else 100.0
        return {
            "add_batch_ms": [took] * 3, "trigger_ms": [took + 50] * 3, "processor_ms": dict.fromkeys(ROLES, 7.0),
            "digest": digest if variant == LAMINA else "d", "load": 1.0, "state_rows": 5_000,
            "rows_per_s": {"all": 900.0, "first third": 1000.0, "last third": 800.0},
            "last_metrics": dict.fromkeys(HELD, question.full.get("cap_bytes", 0) * 0.22),
        }  # fmt: skip

    return summary(question.full, {variant: [run(variant)] for variant in question.full["variants"]})


def cell(question: Question, found: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    return answer(question, found or figures(question), **changed)


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_that_is_read_back_counts_and_shows_every_store(name: str) -> None:
    question = QUESTIONS[name]
    page = SHAPES.section({"cells": {name: cell(question)}})
    assert (
        "Not shown" not in page
        and "All stores gave the same results. 1 rounds, local files on ext4. 2026-01-02; " in page
    )
    assert "Commit 0123456789." in page
    assert sum(line.startswith("| lamina") for line in page.splitlines()) == 1 + (CAPPED in question.full["variants"])


def test_stores_that_give_different_results_show_on_the_page_and_the_floor_is_none_of_them() -> None:
    question = QUESTIONS["s3"]
    assert STATELESS in question.full["variants"]
    page = SHAPES.section({"cells": {"s3": cell(question, figures(question, digest="e"))}})
    assert "THE STORES GAVE DIFFERENT RESULTS." in page


def test_answers_of_another_code_or_of_fewer_minutes_are_not_shown() -> None:
    question = QUESTIONS["sustained"]
    page = SHAPES.section({"cells": {"sustained": cell(question, code="other")}})
    assert "Not shown: `sustained`, measured at 0123456789, and shim or engine have changed since." in page
    page = SHAPES.section({"cells": {"sustained": cell(question, parameters={**question.full, "minutes": 1})}})
    assert "Not shown: `sustained`, measured with other parameters." in page


def test_what_is_asked_is_on_the_page_without_any_answer() -> None:
    page = report.SECTIONS["shapes"].evidence({})
    assert all(f"| `{name}` |" in page for name in QUESTIONS)
    assert "| bar |" not in page


def test_lamina_without_a_narrow_cap_is_held_against_lamina_with_one() -> None:
    question = QUESTIONS["near-cap"]
    found = figures(question, batch_ms=80.0)
    assert found["add_batch_ms_to"][CAPPED]["median"] == pytest.approx(0.8)
    assert "has its tables in 88 % of the memory" in question.setup(question.full, found)


def test_rows_a_second_are_told_for_the_whole_time_and_for_its_first_and_last_third() -> None:
    def batch(second: float, took_s: float) -> dict[str, Any]:
        moment = f"2026-01-02T03:04:{second:06.3f}Z"
        return {"timestamp": moment, "durationMs": {"triggerExecution": took_s * 1000}}

    # 4 batches in the first 4 seconds, 2 in each 4 seconds after them; one ends at the border of a third
    timed = [batch(n, 1) for n in range(4)] + [batch(second, 2) for second in (4, 6, 8, 10)]
    assert rates(timed, rows=100) == pytest.approx({"all": 800 / 12, "first third": 100, "last third": 50})
    heads, rows = QUESTIONS["sustained"].table(figures(QUESTIONS["sustained"]))
    assert heads[:4] == ["store", "rows/s", "first third", "last third"]
    assert rows[0][:4] == ["lamina", "900", "1000", "800"]


def test_executors_of_a_local_cluster_count_as_the_jvm() -> None:
    before = held(os.getpid())["jvm"]
    ready = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", ready, EXECUTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as executor:
        assert executor.stdout is not None
        executor.stdout.readline()
        assert held(os.getpid())["jvm"].threads > before.threads
        executor.communicate("\n")
