"""The README's table of operators: each cell names the checkpoint formats in which every test of that operator passed.

`python -m tests.matrix` writes the table from the reports that the last `make test-spark` left: those of `tests/spark`
in `build/test-reports/*.xml`, those of Spark's own suites in `build/sbt/suites-4.2/target/test-reports/TEST-*.xml`.
`--check` only says what the table in the README names although it did not pass in those.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.markdown import fill

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PYSPARK_REPORTS = ROOT / "build" / "test-reports"
SUITE_REPORTS = ROOT / "build" / "sbt" / "suites-4.2" / "target" / "test-reports"
SUITES = ROOT / "jvm-shim" / "src" / "suites" / "scala"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"


class Cell(NamedTuple):
    """One combination: `form` is a checkpoint format (`v1`, `v2`), or what Spark does instead."""

    operator: str
    language: str
    minor: str
    form: str


# The rows in their order. Tests name them in their marker `covers`.
OPERATORS = [
    "aggregation",
    "windows",
    "session windows",
    "dropDuplicates",
    "dropDuplicatesWithinWatermark",
    "limit",
    "inner join",
    "outer join",
    "left semi join",
    "chained operators",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    "transformWithState",
    "transformWithState: TTL",
    "transformWithState: timers",
    "transformWithState: initial state",
    "transformWithState: chained time modes",
    "transformWithState: Avro",
    "transformWithState: batch query",
    "transformWithStateInPandas",
    "real-time mode",
]
LANGUAGES = ["Scala", "Python", "Python, Spark Connect"]

# Which of Spark's suites in our `suites42` cover which rows; a class name that ends in V2Suite runs on format v2.
SUITE_ROWS = {
    "LaminaStreamingAggregation": ["aggregation", "windows"],
    "LaminaStreamingDeduplication": ["dropDuplicates"],
    "LaminaStreamingDeduplicationWithinWatermark": ["dropDuplicatesWithinWatermark"],
    "LaminaStreamingInnerJoinFourStores": ["inner join"],
    "LaminaStreamingInnerJoinOneStore": ["inner join"],
    "LaminaStreamingInnerJoinByTime": ["inner join"],
    "LaminaStreamingOuterJoinFourStores": ["outer join"],
    "LaminaStreamingOuterJoinByTime": ["outer join"],
    "LaminaStreamingFullOuterJoinFourStores": ["outer join"],
    "LaminaStreamingFullOuterJoinByTime": ["outer join"],
    "LaminaStreamingLeftSemiJoinFourStores": ["left semi join"],
    "LaminaStreamingLeftSemiJoinByTime": ["left semi join"],
    "LaminaStreamingSessionWindow": ["session windows"],
    "LaminaMultiStatefulOperators": ["chained operators"],
    "LaminaFlatMapGroupsWithState": ["flatMapGroupsWithState"],
    "LaminaTransformWithState": ["transformWithState", "transformWithState: timers"],
    "LaminaTransformWithMapState": ["transformWithState"],
    "LaminaTransformWithListState": ["transformWithState"],
    "LaminaTransformWithListStateTTL": ["transformWithState: TTL"],
    "LaminaTransformWithMapStateTTL": ["transformWithState: TTL"],
    "LaminaTransformWithValueStateTTL": ["transformWithState: TTL"],
    "LaminaTransformWithStateInitialState": ["transformWithState: initial state"],
    "LaminaTransformWithStateChaining": ["transformWithState: chained time modes"],
    "LaminaTransformWithStateAvro": ["transformWithState", "transformWithState: Avro", "transformWithState: timers"],
}


def cells_of_suite(name: str) -> list[Cell]:
    """What a suite of Scala covers; nothing, where it is about something else than an operator."""
    form = "v2" if name.endswith("V2Suite") else "v1"
    return [Cell(operator, "Scala", "4.2", form) for operator in SUITE_ROWS.get(re.sub("(V2)?Suite$", "", name), [])]


def results() -> dict[Cell, list[bool]]:
    """For each combination whether each of its tests, or suites, passed when it last ran."""
    latest: dict[tuple[str, ...], tuple[list[Cell], bool]] = {}
    for path in sorted(PYSPARK_REPORTS.glob("*.xml"), key=lambda path: path.stat().st_mtime):
        latest.update(of_pytest(path))
    for path in sorted(SUITE_REPORTS.glob("TEST-*.xml")):
        latest.update(of_sbt(path))
    found: dict[Cell, list[bool]] = defaultdict(list)
    for cells, passed in latest.values():
        for cell in cells:
            found[cell].append(passed)
    return found


def of_pytest(path: Path) -> dict[tuple[str, ...], tuple[list[Cell], bool]]:
    """Cells and outcome of each test in a report of pytest; a test that failed as it was taken down is in it twice."""
    found: dict[tuple[str, ...], tuple[list[Cell], bool]] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        cells = [
            Cell(*json.loads(entry.get("value", "")))
            for entry in case.iter("property")
            if entry.get("name") == "covers"
        ]
        if not cells or case.find("skipped") is not None:
            continue
        key = (cells[0].minor, case.get("classname", ""), case.get("name", ""))
        passed = case.find("failure") is None and case.find("error") is None
        found[key] = cells, passed and found.get(key, (cells, True))[1]
    return found


def of_sbt(path: Path) -> dict[tuple[str, ...], tuple[list[Cell], bool]]:
    """Cells and outcome of a suite in a report of sbt; excluded tests count as skipped."""
    suite = ElementTree.parse(path).getroot()
    name = suite.get("name", "").rsplit(".", 1)[-1]
    counts = {key: int(suite.get(key, "0")) for key in ("tests", "skipped", "failures", "errors")}
    cells = cells_of_suite(name)
    if not cells or counts["tests"] == counts["skipped"]:
        return {}
    return {(name,): (cells, not counts["failures"] and not counts["errors"])}


def table(passed: Iterable[Cell]) -> str:
    """A Markdown table; a combination that did not run leaves its cell empty."""
    forms: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for cell in passed:
        forms[cell.operator, cell.language, cell.minor].add(cell.form)
    columns = sorted({(language, minor) for _, language, minor in forms}, key=lambda c: (LANGUAGES.index(c[0]), c[1]))
    rows = [
        [operator, *(", ".join(sorted(forms[(operator, *column)])) for column in columns)] for operator in OPERATORS
    ]
    lines = [["operator", *(f"{language}, {minor}" for language, minor in columns)], ["---"] * (len(columns) + 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*lines, *(row for row in rows if any(row[1:]))])


def cells_of_table(markdown: str) -> set[Cell]:
    """The combinations that a table of `table` names."""
    lines = [[part.strip() for part in line.split("|")[1:-1]] for line in markdown.strip().splitlines()]
    if not lines:
        return set()
    columns = [title.rsplit(", ", 1) for title in lines[0][1:]]
    return {
        Cell(line[0], language, minor, form)
        for line in lines[2:]
        for (language, minor), forms in zip(columns, line[1:], strict=True)
        for form in forms.split(", ")
        if form
    }


def in_readme() -> str:
    return README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def with_table(readme: str, markdown: str) -> str:
    return fill(readme, "matrix", markdown)


def unproven(named: set[Cell], found: dict[Cell, list[bool]]) -> list[Cell]:
    """What a table names that did not pass, among the languages and Spark minors that there are results of."""
    ran = {(cell.language, cell.minor) for cell in found}
    return sorted(
        cell for cell in named if (cell.language, cell.minor) in ran and not (cell in found and all(found[cell]))
    )


def main(arguments: list[str]) -> None:
    found = results()
    passed = [cell for cell, outcomes in found.items() if all(outcomes)]
    if not passed:
        raise SystemExit("Nothing passed, or nothing ran: run `make test-spark` first.")
    if arguments == ["--check"]:
        wrong = unproven(cells_of_table(in_readme()), found)
        if wrong:
            lines = "\n".join(f"  {', '.join(cell)}" for cell in wrong)
            raise SystemExit(
                f"The README's table of operators names what did not pass; `make matrix` writes it:\n{lines}"
            )
        return
    README.write_text(with_table(README.read_text(encoding="utf-8"), table(passed)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
