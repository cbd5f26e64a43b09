"""Tables of RocksDB that a query cannot have: by a function of the user's, memory, open files, or the engine's Python.

Each time the message says what is wrong and what to do, and the query goes on with right answers when that is done.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from lamina.settings import PREFIX
from tests.spark.tables_program import Program, right

FACTORY = PREFIX + "rocksdb.optionsFactory"
MEMORY = PREFIX + "rocksdb.memory.fixedPerExecutorBytes"

FIT = {MEMORY: "16m"}


def function(name: str) -> dict[str, str]:
    return {**FIT, FACTORY: name}


REFUSED = {
    "memory is no size": ({MEMORY: "plenty"}, ["[settings.invalid]", MEMORY, "'plenty'; expected"]),
    "memory is small": ({MEMORY: "512k"}, ["[settings.invalid]", MEMORY, "at least 8m"]),
    "memory is large": ({MEMORY: "100t"}, ["[memory.cap]", MEMORY, "beside the Java heap", f"lower {MEMORY}"]),
    "no rocksdict": (
        FIT,
        ["[engine.dependency]", "pip install 'rocksdict>=0.3.29,<0.4'", "engine.python on each executor"],
    ),
    "another python": (
        {MEMORY: "24m", FACTORY: "tuning:missing", PREFIX + "engine.python": sys.executable},
        # which lacks the module, and has rocksdict
        ["'tuning:missing'", "ModuleNotFoundError"],
    ),
    "function fails": (function("tuning:fails"), ["'tuning:fails'", "fails: RuntimeError: no such disk"]),
    "function gives nothing": (function("tuning:nothing"), ["'tuning:nothing'", "gives a NoneType back"]),
    "function loses rows": (function("tuning:forgets"), ["'tuning:forgets'", "sets kCompactionStyleFIFO"]),
    "no function": (function("tuning:missing"), ["'tuning:missing'", "cannot be imported by the Python of", "Attribu"]),
    "no module": (function("absent.tuning:deeper"), ["'absent.tuning:deeper'", "ModuleNotFoundError"]),
    "no name": (function("tuning"), ["'tuning'", "package.module:function"]),
}
"""What is set, and what the message of the failure has. None of these opens a store, so memory may be corrected."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def ends(program: Program) -> dict[str, dict[str, Any]]:
    """The end of each run in one JVM: what is refused, what is right then, other memory, and what it was before."""
    program.take_rocksdict_away()
    runs: dict[str, dict[str, Any]] = {name: {"settings": settings} for name, (settings, _) in REFUSED.items()}
    runs["function fails"]["unlink"] = [str(program.absent)]
    runs["right"] = {"settings": FIT, "batches": 2}
    runs["memory is another"] = {"settings": {MEMORY: "24m"}}
    runs["right again"] = {"settings": function("tuning:many_tables")}
    return dict(zip(runs, program.run(list(runs.values())), strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_before_a_batch_with_what_to_do(ends: dict[str, dict[str, Any]], case: str) -> None:
    end = ends[case]
    assert end["right"] == end["wrong"] == []
    settings, says = REFUSED[case]
    if FACTORY in settings:
        says = ["[settings.invalid]", FACTORY, *says]
    for words in says:
        assert words in end["failure"], end["failure"]


def test_the_query_goes_on_when_it_is_right(ends: dict[str, dict[str, Any]]) -> None:
    batches = len(REFUSED) + 2
    assert right(ends["right"], *range(batches))
    conflict = ends["memory is another"]
    assert conflict["right"] == conflict["wrong"] == []
    for words in ("[settings.conflict]", MEMORY, "'24m'", "'16m'"):
        assert words in conflict["failure"], conflict["failure"]
    assert right(ends["right again"], batches, batches + 1)


@pytest.mark.long
def test_a_checkpoint_on_tables_outlives_processes_without_rocksdict_and_without_files(
    program: Program, ends: dict[str, dict[str, Any]]
) -> None:
    """The JVM has each table open that its stores stand on. What the maintenance process cannot make fails no batch."""
    first = ends["right again"]["right"][-1] + 1
    program.take_rocksdict_away()
    many = {FACTORY: "tuning:many_tables"}
    bare, grown, few, enough, unmerged, last = program.run(
        [
            {},
            {"settings": many, "unlink": [str(program.absent)], "batches": 23},
            {"settings": many, "spare": {"jvm": 30}},
            {"settings": many},
            {"settings": many, "spare": {"maintenance": 3}, "batches": 2},
            {"settings": many, "batches": 2},
        ]
    )
    assert "[engine.dependency]" in bare["failure"] and "pip install 'rocksdict>=0.3.29,<0.4'" in bare["failure"]
    assert right(grown, *range(first, first + 24))
    assert few["right"] == few["wrong"] == []
    assert re.search(r"\[storage\.failed\] the tables in \S+ cannot be read: .*Too many open files", few["failure"])
    assert "ulimit -n" in few["failure"]
    assert right(enough, first + 24, first + 25)
    assert right(unmerged, first + 26, first + 27)
    assert unmerged["laminaFailedMerges"] > 0
    assert right(last, first + 28, first + 29)
    assert last["laminaFailedMerges"] == 0
