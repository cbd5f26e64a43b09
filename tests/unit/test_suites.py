"""What may fail in Spark's own suites: only tests of Spark that are known to race, and these run once more."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests import suites
from tests.suites import Failed

RACE = next(iter(suites.RACES))
SBT = """
import sys
from pathlib import Path
target = Path(sys.argv[1])
tests = dict(line.split("=") for line in (target / "plan").read_text().splitlines())
again = sys.argv[2] != "suites42/test"
failed = {name for name, outcome in tests.items() if outcome == "fails" or not again and outcome == "races"}
cases = "".join(
    f'<testcase classname="S" name="{name}">' + "<failure/>" * (name in failed) + "</testcase>" for name in tests
)
(target / "test-reports").mkdir(exist_ok=True)
(target / "test-reports" / "TEST-S.xml").write_text(f"<testsuite>{cases}</testsuite>")
print(f"Failed: Total {len(tests)}, Failed {len(failed)}, Errors {int((target / 'aborted').exists())}, Passed 0")
sys.exit(bool(failed))
"""


@pytest.fixture
def sbt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program in the place of sbt: the tests of `plan` pass, fail, or fail in the first run only."""
    monkeypatch.setattr(suites, "REPORTS", tmp_path / "test-reports")
    monkeypatch.setattr(suites, "SECOND_RUNS", tmp_path / "second-runs.txt")
    program = tmp_path / "sbt.py"
    program.write_text(SBT)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return [sys.executable, str(program), str(tmp_path)]


def plan(folder: Path, **tests: str) -> None:
    (folder / "plan").write_text("".join(f"{name.replace('_', ' ')}={what}\n" for name, what in tests.items()))


def test_a_run_in_which_all_tests_pass_passes(sbt: list[str], tmp_path: Path) -> None:
    plan(tmp_path, one="passes", two="passes")
    assert suites.main(sbt) == 0
    assert not suites.SECOND_RUNS.exists()


def test_an_assertion_that_fails_once_fails_the_run(sbt: list[str], tmp_path: Path) -> None:
    plan(tmp_path, one="races")
    assert suites.main(sbt) == 1
    assert not suites.SECOND_RUNS.exists()


def test_a_known_race_of_spark_runs_once_more_and_that_is_said(sbt: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(f"{RACE} fails query=races\n")
    assert suites.main(sbt) == 0
    assert suites.SECOND_RUNS.read_text() == f"second run, passed: S: {RACE} fails query\n"


def test_a_known_race_that_fails_twice_fails_the_run(sbt: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(f"{RACE} fails query=fails\n")
    assert suites.main(sbt) == 1


def test_a_race_beside_a_failure_of_another_test_is_no_excuse(sbt: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(f"{RACE} fails query=races\nother=races\n")
    assert suites.main(sbt) == 1
    assert not suites.may_run_again([Failed("S", RACE), Failed("S", "other")])


def test_a_run_without_reports_is_not_excused(sbt: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("broken")
    assert suites.main(sbt) == 1


def test_a_race_beside_a_suite_that_was_aborted_is_no_excuse(sbt: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(f"{RACE} fails query=races\n")
    (tmp_path / "aborted").touch()
    assert suites.main(sbt) == 1
