"""Runs Spark's own suites on lamina (`make test-suites`), and judges what failed in them.

`python -m tests.suites -- <sbt command line>` runs `suites42/test`.

* A test that fails fails the run, unless it stands in `RACES`: tests of Spark that race the query which they watch.
* If nothing else failed, those run once more, and that decides. Each second run is printed at the end, and appended to
  `build/second-runs.txt`, which `make test-nightly` prints.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "sbt" / "suites-4.2" / "target" / "test-reports"
SECOND_RUNS = ROOT / "build" / "second-runs.txt"

RACES: Mapping[str, str] = {
    "introducing TTL after restart": "StreamTest refuses data for a query that has failed already, as this one is to",
}
"""How the names of tests of Spark begin that may run a second time, and why."""


class Failed(NamedTuple):
    """A test that failed, or a suite that did not come to its tests."""

    suite: str
    test: str


def failed(reports: Iterable[Path]) -> list[Failed]:
    """What failed, by the reports that ScalaTest wrote."""
    found = []
    for report in sorted(reports):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                found.append(Failed(case.get("classname", ""), case.get("name", "")))
    return found


def may_run_again(failures: Iterable[Failed]) -> bool:
    """Whether all that failed are tests of Spark that are known to race."""
    failures = list(failures)
    return bool(failures) and all(any(test.startswith(known) for known in RACES) for _, test in failures)


def _run(command: list[str]) -> tuple[int, str]:
    """Runs a command whose output is shown as it comes; its exit code and its last lines."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last: deque[str] = deque(maxlen=200)
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line)
    return process.returncode, "".join(last)


def main(sbt: list[str]) -> int:
    """Runs the suites; 0 where all tests passed, those that race in their second run at the latest."""
    for old in REPORTS.glob("TEST-*.xml"):
        old.unlink()
    code, output = _run([*sbt, "suites42/test"])
    if code == 0:
        return 0
    failures = failed(REPORTS.glob("TEST-*.xml"))
    for suite, test in failures:
        print(f"failed: {suite}: {test}", flush=True)
    # a suite that was aborted, or a JVM that ended, is an error that no report has
    if not may_run_again(failures) or f"Failed {len(failures)}, Errors 0" not in output:
        return code
    again = [f'suites42/testOnly {suite} -- -z "{test}"' for suite, test in failures]
    code, _ = _run([*sbt, *again])
    lines = [f"second run, {'passed' if code == 0 else 'failed'}: {suite}: {test}\n" for suite, test in failures]
    with SECOND_RUNS.open("a") as file:
        file.writelines(lines)
    print("".join(lines), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
