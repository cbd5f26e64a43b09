"""docs/design/promises.md names tests that exist, for each promise, and that ran."""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests.conftest import SKIPPED_FOR
from tests.promises import NAMED, REPORTS, cases, command_of, named, not_run, reports


def missing(text: str, repository: Path) -> list[str]:
    """The tests named in `text` that are not in the file that is named with them."""
    found = []
    for path, name in named(text):
        file = repository / path
        definition = f'test("{name}")' if path.endswith(".scala") else f"def {name}("
        if not file.exists() or definition not in file.read_text(encoding="utf-8"):
            found.append(f"{path}::{name}")
    return found


@pytest.fixture
def promises(repository: Path) -> str:
    return (repository / "docs" / "design" / "promises.md").read_text(encoding="utf-8")


def test_every_test_that_holds_a_promise_exists(promises: str, repository: Path) -> None:
    assert missing(promises, repository) == []


def test_each_of_the_ten_promises_is_held_by_a_test_or_says_that_it_is_not_kept_yet(promises: str) -> None:
    sections = re.split(r"^## (?=\d+\.)", promises, flags=re.MULTILINE)[1:]
    assert [int(section.split(".")[0]) for section in sections] == list(range(1, 11))
    held = [number for number, section in enumerate(sections, 1) if "not kept yet" not in section.lower()]
    assert held == list(range(1, 10))
    assert all(NAMED.search(sections[number - 1]) for number in held)


def test_a_test_that_was_renamed_is_noticed(repository: Path) -> None:
    text = "`tests/unit/test_promises.py::test_of_another_name` and `tests/nowhere.py::test_x`"
    assert len(missing(text, repository)) == 2


TEXT = """
`tests/unit/test_a.py::test_x` `tests/spark/test_b.py::test_y` `tests/nightly/test_c.py::test_z`
`jvm-shim/src/test/scala/org/apache/spark/sql/lamina/ASuite.scala::a table, "restored"`
`python/lamina/testing/store_conformance.py::test_s` `python/lamina/testing/state_machine.py::check_it`
"""

RAN = [
    ("tests.unit.test_a", "test_x[1-2]"),
    ("org.apache.spark.sql.lamina.ASuite", 'a table, "restored"'),
    ("tests.conformance.test_stores.TestHeapStore", "test_s"),
    ("tests.unit.store.test_state_machine.TestStoreMachine", "runTest"),
    ("tests.unit.store.test_state_machine", "test_every_rule_and_every_check_of_the_machine_is_called"),
]
"""What `make test` has to run for that text."""


def judged(tmp_path: Path, ran: list[tuple[str, str]], **skipped: str) -> tuple[list[str], list[str]]:
    """What is said of a report in which some tests, named by the last word of their suite, were skipped."""
    lines = []
    for suite, name in ran:
        reason = skipped.get(suite.rpartition(".")[2])
        inner = "" if reason is None else f"<skipped message={quoteattr(reason)}/>"
        lines.append(f"<testcase classname={quoteattr(suite)} name={quoteattr(name)}>{inner}</testcase>")
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>", encoding="utf-8")
    return not_run(TEXT, "test", cases([report]))


def test_nothing_is_said_where_all_tests_that_hold_promises_ran(tmp_path: Path) -> None:
    assert judged(tmp_path, RAN) == ([], [])


@pytest.mark.parametrize("missed", range(len(RAN)))
def test_a_test_that_holds_a_promise_and_did_not_run_is_named(missed: int, tmp_path: Path) -> None:
    wrong, skipped = judged(tmp_path, [case for number, case in enumerate(RAN) if number != missed])
    path, name = [one for one in named(TEXT) if command_of(one[0]) == "test"][min(missed, 3)]
    assert (wrong, skipped) == ([f"{path}::{name}"], [])


@pytest.mark.parametrize("suite", ["test_a", "ASuite", "TestHeapStore", "TestStoreMachine", "test_state_machine"])
def test_a_test_that_was_skipped_did_not_run(suite: str, tmp_path: Path) -> None:
    wrong, skipped = judged(tmp_path, RAN, **{suite: "not today"})
    assert len(wrong) == 1 and wrong[0].endswith(" (skipped)") and skipped == []


def test_a_skip_with_a_known_reason_is_told_and_is_no_failure(tmp_path: Path) -> None:
    wrong, skipped = judged(tmp_path, RAN, test_a=f"{next(iter(SKIPPED_FOR))}, so it does not run")
    assert wrong == [] and skipped == ["tests/unit/test_a.py::test_x (skipped)"]


def test_a_test_of_the_same_name_in_another_file_does_not_stand_in(tmp_path: Path) -> None:
    others = [("tests.unit.test_a_b", "test_x"), ("org.apache.spark.sql.lamina.BSuite", 'a table, "restored"')]
    assert len(judged(tmp_path, [*others, *RAN[2:]])[0]) == 2


def test_each_command_looks_at_its_own_tests_only(tmp_path: Path) -> None:
    assert not_run(TEXT, "test-spark", []) == (["tests/spark/test_b.py::test_y"], [])
    assert not_run(TEXT, "test-nightly", []) == (["tests/nightly/test_c.py::test_z"], [])


def test_every_command_writes_the_reports_that_are_looked_for_and_removes_older_ones(
    repository: Path, tmp_path: Path
) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    for command, patterns in REPORTS.items():
        recipe = re.search(rf"^{command}:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)
        assert recipe is not None
        lines = recipe[1].splitlines()
        assert lines[0].endswith(f"-m tests.promises --begin {command}")
        assert any(line.endswith(f"-m tests.promises {command}") for line in lines[1:])
        for pattern in patterns:
            if pattern.startswith("build/test-reports/"):
                report = re.sub(r"^pyspark-.*?(-long)?$", "pyspark-$(PYSPARK)$(2)", Path(pattern).stem)
                assert f"$(call REPORT,{report})" in makefile
    for kept in ("build/test-reports/unit.xml", "build/sbt/4.3/target/test-reports/TEST-a.xml"):
        (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / kept).touch()
    assert len(reports("test", tmp_path)) == 2 and reports("test-spark", tmp_path) == []
