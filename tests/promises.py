"""Whether the tests that docs/design/promises.md names ran, by the reports that they left.

`python -m tests.promises --begin test` removes the reports that `make test` is to write, so that none of an older run
counts; `python -m tests.promises test` fails where a test that `make test` should have run is in none of them, or was
skipped. The same for `test-spark` and `test-nightly`.

A skip whose reason stands in `tests/conftest.py` is printed and fails nothing.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.conftest import SKIPPED_FOR

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`([A-Za-z0-9_./-]+\.(?:py|scala))::([^`]+)`")

REPORTS = {
    "test": [
        *(f"build/test-reports/{stage}.xml" for stage in ("unit", "hadoop", "faults", "kill", "packaging")),
        "build/sbt/4.*/target/test-reports/TEST-*.xml",
    ],
    # of this Spark alone: `tests.matrix` reads those of other minors too
    "test-spark": [
        *(f"build/test-reports/pyspark-{pyspark.__version__}{tests}.xml" for tests in ("", "-long")),
        "build/sbt/suites-4.2/target/test-reports/TEST-*.xml",
    ],
    "test-nightly": ["build/test-reports/nightly.xml"],
}
"""Where each command's tests leave their reports."""

MACHINE = "python/lamina/testing/state_machine.py"
OF_THE_MACHINE = (
    ("tests/unit/store/test_state_machine.py", "runTest"),
    ("tests/unit/store/test_state_machine.py", "test_every_rule_and_every_check_of_the_machine_is_called"),
)
"""What has to run for the rules and checks of the state machine."""


class Case(NamedTuple):
    """A test in a report."""

    suite: str
    name: str
    skipped: str | None


def named(text: str) -> list[tuple[str, str]]:
    """The tests that `text` names: file and name."""
    return NAMED.findall(text)


def command_of(path: str) -> str:
    """The command that runs the tests of a file."""
    if path.startswith(("tests/spark/", "jvm-shim/src/suites/")):
        return "test-spark"
    return "test-nightly" if path.startswith("tests/nightly/") else "test"


def reports(command: str, root: Path = ROOT) -> list[Path]:
    """The reports that are there of a command's tests."""
    return sorted(path for pattern in REPORTS[command] for path in root.glob(pattern))


def cases(paths: Iterable[Path]) -> list[Case]:
    """The tests in reports of pytest and of ScalaTest."""
    found = []
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            skipped = case.find("skipped")
            reason = None if skipped is None else skipped.get("message", "")
            found.append(Case(case.get("classname", ""), case.get("name", ""), reason))
    return found


def _is(path: str, name: str) -> Callable[[Case], bool]:
    """Whether a case is the test of that file and name, with whatever parameters."""
    if path.endswith(".scala"):
        suite = "." + Path(path).stem
        return lambda case: case.suite.endswith(suite) and case.name == name
    module = path.removesuffix(".py").replace("/", ".")
    # tests of a suite to subclass are reported as those of its subclasses
    anywhere = not path.startswith("tests/")
    return lambda case: (anywhere or f"{case.suite}.".startswith(f"{module}.")) and case.name.partition("[")[0] == name


def not_run(text: str, command: str, found: list[Case]) -> tuple[list[str], list[str]]:
    """The tests named in `text` that `command` should have run and did not, and those that it may skip and did."""
    wrong: list[str] = []
    skipped: list[str] = []
    for path, name in named(text):
        if command_of(path) != command:
            continue
        for of in OF_THE_MACHINE if path == MACHINE else ((path, name),):
            ours = [case for case in found if _is(*of)(case)]
            if any(case.skipped is None for case in ours):
                continue
            known = ours and all(any(reason in (case.skipped or "") for reason in SKIPPED_FOR) for case in ours)
            (skipped if known else wrong).append(f"{path}::{name}{' (skipped)' if ours else ''}")
            break
    return list(dict.fromkeys(wrong)), list(dict.fromkeys(skipped))


def main(arguments: list[str]) -> int:
    *begin, command = arguments
    if begin == ["--begin"]:
        for report in reports(command):
            report.unlink()
        return 0
    text = (ROOT / "docs" / "design" / "promises.md").read_text(encoding="utf-8")
    wrong, skipped = not_run(text, command, cases(reports(command)))
    for one in skipped:
        print(f"holds a promise and cannot run here: {one}")
    for one in wrong:
        print(f"holds a promise and did not run: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
