"""The questions about many stores, and the answers of the last run as a section of the page of results."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.many_stores import collection, commit_cost, compaction, growth, joins, small_commits
from benchmarks.many_stores.bars import Question
from benchmarks.markdown import BARS, table, verdict
from benchmarks.rounds import RESULTS

RESULT = "many_stores"
QUESTIONS: tuple[Question, ...] = (
    small_commits.QUESTION,
    commit_cost.QUESTION,
    joins.BATCHES,
    joins.OPENS_COLD,
    collection.QUESTION,
    compaction.QUESTION,
    growth.QUESTION,
)

HOW = """`python -m benchmarks.many_stores` asks these questions and holds each answer against its bar. `--only NAME`
asks one of them, `--quick` asks with few stores, to see whether it runs, and `--json` prints the answers as JSON. An
answer is kept with its commit, date and parameters. One of other parameters, or of a shim or engine that has changed
since, is not shown here.
"""

WORDS = """The floor of `small-commits` is the stateless query of the same rows; the bare map is a peer that keeps
nothing. Each store runs in a fresh JVM, in turns. Given are `addBatch` and the whole trigger, which a user waits
for, and the processor time of all processes. RocksDB runs with Spark's defaults, and as its tuning guide has it;
what is set is printed with the table. Rounds are few: given are medians and the range of all rounds.

A storage is far away where the engine waits before each request (`benchmarks/many_stores/latency.py`). That takes no
processor time, and requests are counted there. S3 is moto's server in another process; the processor time is that of
the client. Local files lie where `TMPDIR` says; what creating one costs the kernel is said beside the commit's.
"""


def read(name: str) -> dict[str, Any]:
    """The answers of the last run by the name of their question; none where there was none."""
    try:
        found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
    except FileNotFoundError:
        return {}
    return found


def section(result: dict[str, Any]) -> str:
    """What is asked, and the answers that count."""
    questions = [[f"`{question.name}`", question.asks, question.goal] for question in QUESTIONS]
    parts = ["## Many stores\n", HOW, table(["question", "what is asked", "bar"], questions), WORDS]
    details = []
    for question in QUESTIONS:
        cell = result.get("cells", {}).get(question.name)
        if cell is None:
            continue
        refused = question.refused(cell)
        if refused is not None:
            parts.append(f"Not shown: `{question.name}`, {refused}.\n")
            continue
        heads, rows = question.table(cell["figures"])
        told = question.setup(cell["parameters"], cell["figures"])
        told += f" {cell['rounds']} rounds, local files on {cell['files']}."
        details.append(f"### {question.name}\n\n{told}\n\n{table(heads, rows)}")
    if found := bars(result):
        parts.append(table([*BARS, "commit", "date"], found))
    return "\n".join([*parts, *details])


def bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar of an answer that counts, with commit and date."""
    return [
        [bar.what, bar.bar, bar.measured, verdict(bar.met), cell["commit"], cell["date"]]
        for question in QUESTIONS
        if (cell := result.get("cells", {}).get(question.name)) is not None and question.refused(cell) is None
        for bar in question.bars(cell["parameters"], cell["figures"])
    ]
