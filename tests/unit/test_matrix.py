"""The README's table of operators names only what passed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests import matrix
from tests.matrix import Cell

A = Cell("aggregation", "Python", "4.3", "v1")
B = Cell("aggregation", "Python", "4.3", "v2")
C = Cell("limit", "Scala", "4.2", "v2")


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(matrix, "PYSPARK_REPORTS", tmp_path)
    monkeypatch.setattr(matrix, "SUITE_REPORTS", tmp_path / "suites")
    (tmp_path / "suites").mkdir()
    return tmp_path


def case(name: str, cells: list[Cell], outcome: str = "") -> str:
    properties = "".join(f'<property name="covers" value={quoteattr(json.dumps(cell))}/>' for cell in cells)
    return f'<testcase classname="c" name="{name}"><properties>{properties}</properties>{outcome}</testcase>'


def write(path: Path, *cases: str, age: int = 0) -> None:
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
    os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))


def test_a_table_names_its_cells() -> None:
    assert matrix.cells_of_table(matrix.table([A, B, C])) == {A, B, C}


def test_a_table_replaces_the_one_between_the_markers() -> None:
    readme = f"before\n{matrix.BEGIN}\n{matrix.END}\nafter\n"
    once = matrix.with_table(readme, matrix.table([A, C]))
    assert once == f"before\n{matrix.BEGIN}\n{matrix.table([A, C])}{matrix.END}\nafter\n"
    assert matrix.with_table(once, matrix.table([B])) == matrix.with_table(readme, matrix.table([B]))


def test_an_operator_that_did_not_run_has_no_row() -> None:
    assert "limit" not in matrix.table([A, B])


def test_a_cell_needs_that_all_its_tests_passed(reports: Path) -> None:
    write(reports / "pyspark.xml", case("one", [A, B]), case("two", [B], "<failure/>"), case("other", [], "<error/>"))
    assert matrix.results() == {A: [True], B: [True, False]}


def test_a_test_that_was_skipped_shows_nothing(reports: Path) -> None:
    write(reports / "pyspark.xml", case("one", [A]), case("two", [B], "<skipped/>"))
    assert matrix.results() == {A: [True]}


def test_a_test_that_passed_and_failed_as_it_was_taken_down_did_not_pass(reports: Path) -> None:
    write(reports / "pyspark.xml", case("one", [A]), case("one", [A], "<error/>"), case("one", [A]))
    assert matrix.results() == {A: [False]}


@pytest.mark.parametrize(("first", "again"), [("<failure/>", ""), ("", "<failure/>")])
def test_the_last_run_of_a_test_counts(reports: Path, first: str, again: str) -> None:
    write(reports / "b.xml", case("one", [A], first), case("two", [A]), age=9)
    write(reports / "a.xml", case("one", [A], again))
    assert matrix.results() == {A: [again == "", True]}


def test_a_suite_of_which_each_test_is_excluded_shows_nothing(reports: Path) -> None:
    suite = (
        '<testsuite name="org.LaminaStreamingDeduplicationV2Suite" tests="{}" skipped="2" failures="{}" errors="0"/>'
    )
    path = reports / "suites" / "TEST-one.xml"
    path.write_text(suite.format(2, 0), encoding="utf-8")
    assert matrix.results() == {}
    cell = Cell("dropDuplicates", "Scala", "4.2", "v2")
    path.write_text(suite.format(3, 0), encoding="utf-8")
    assert matrix.results() == {cell: [True]}
    path.write_text(suite.format(3, 1), encoding="utf-8")
    assert matrix.results() == {cell: [False]}


def test_what_a_table_names_has_to_have_passed_where_there_are_results(reports: Path) -> None:
    assert matrix.unproven({A, B, C}, {A: [True], B: [True, False]}) == [B]
    assert matrix.unproven({A, B}, {A: [True]}) == [B]


def test_each_row_of_a_suite_is_an_operator_and_each_such_suite_is_there() -> None:
    assert {row for rows in matrix.SUITE_ROWS.values() for row in rows} <= set(matrix.OPERATORS)
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(matrix.SUITES.rglob("*.scala")))
    declared = set(re.findall(r"^class (\w+?)(?:V2)?Suite\b", text, re.MULTILINE))
    assert set(matrix.SUITE_ROWS) <= declared


def test_the_readme_has_a_table_of_known_operators_and_languages() -> None:
    named = matrix.cells_of_table(matrix.in_readme())
    assert named
    assert {cell.operator for cell in named} <= set(matrix.OPERATORS)
    assert {cell.language for cell in named} <= set(matrix.LANGUAGES)
