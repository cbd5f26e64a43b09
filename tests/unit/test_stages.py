"""`tests.stages`: a target that fails, hangs, or in which a JVM crashes fails the run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import conftest, stages

HANGS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a Makefile of the test's choice."""
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "MINUTES", {"good": 5, "bad": 5, "crashes": 5, "hangs": 0.05})
    (tmp_path / "hang.py").write_text(HANGS)
    (tmp_path / "Makefile").write_text(
        "good:\n\t@echo fine >> ran\nbad:\n\t@exit 3\n"
        "crashes:\n\t@mkdir -p build/work && echo SIGSEGV > build/work/hs_err_pid7.log\n"
        f"hangs:\n\t@{sys.executable} hang.py\n"
    )
    return tmp_path


def test_each_target_runs_and_says_how_long_it_took(make: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["good", "good"]) == 0
    assert (make / "ran").read_text() == "fine\nfine\n"
    assert capfd.readouterr().out.count("good   ") == 2


def test_a_target_that_fails_ends_the_run(make: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["bad", "good"]) != 0
    assert not (make / "ran").exists()
    assert "failed (exit code" in capfd.readouterr().out


def test_a_jvm_that_crashed_fails_a_target_that_passed(make: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["crashes", "good"]) == 1
    assert not (make / "ran").exists()
    assert "SIGSEGV" in capfd.readouterr().out


def test_an_old_report_of_a_crash_does_not_fail_a_target(make: Path) -> None:
    (make / "hs_err_pid1.log").write_text("old")
    assert stages.main(["good"]) == 0


def test_a_target_that_hangs_ends_at_its_limit_with_all_that_it_started(
    make: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert stages.main(["hangs"]) == 1
    assert "not done after" in capfd.readouterr().out
    deadline = time.monotonic() + 60
    while any("time.sleep(600)" in " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)):
        assert time.monotonic() < deadline


class Report:
    """As much of pytest's as the rule reads."""

    def __init__(self, outcome: str, reason: str) -> None:
        self.outcome = outcome
        self.longrepr = ("file.py", 1, f"Skipped: {reason}")


def test_a_skip_is_an_error_where_ci_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert conftest.refused_skip(Report("skipped", "could not import 'x'")) is not None
    assert conftest.refused_skip(Report("skipped", next(iter(conftest.SKIPPED_FOR)))) is None
    assert conftest.refused_skip(Report("passed", "")) is None
    monkeypatch.delenv("CI")
    assert conftest.refused_skip(Report("skipped", "could not import 'x'")) is None
