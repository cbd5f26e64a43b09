"""`lamina demo` as a new user runs it: both kills hit, all results are identical, and nothing stays, also of Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import NO_NETWORK, PASSED_ON, Environment, still_running

FLIGHTS = 336_776
QUERIES = {"delays", "sessions", "weather", "once"}
NIGHTLY_MODES = ["rocksdb", "heap-changelog"] if os.environ.get("LAMINA_REPEATS") else []


@dataclass
class Person:
    """A person at a command line with a temporary directory of their own; what they start has a mark."""

    environment: Environment
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def demo(self, *options: str) -> subprocess.Popen[str]:
        """The least number of batches, so that it is quick; the data is all there."""
        self.temporary.mkdir()
        variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        variables |= {"TMPDIR": str(self.temporary), "LAMINA_TEST_MARK": self.mark, **NO_NETWORK}
        return subprocess.Popen(
            [str(self.environment.folder / "bin" / "lamina"), "demo", "--batches", "6", *options],
            cwd=self.folder,
            env=variables,
            # a run in the background ignores Ctrl-C, and so would what it starts
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def has_state(self) -> bool:
        """Whether a store has written a file; directories come and go meanwhile."""
        return any(name.endswith(".lam") for _, _, names in os.walk(self.temporary) for name in names)

    def assert_nothing_left(self) -> None:
        assert still_running(self.mark, seconds=0) == []
        assert list(self.folder.rglob("*")) == [self.temporary]


@pytest.fixture
def person(user: Environment, tmp_path: Path) -> Iterator[Person]:
    person = Person(user, tmp_path)
    yield person
    assert still_running(person.mark, seconds=30) == []


def assert_both_kills_hit_and_every_result_is_identical(outcome: dict[str, Any], said: str) -> None:
    assert outcome["identical"] and outcome["late_rows"] == 0
    assert [(kill["point"], kill["query"]) for kill in outcome["kills"]] == [
        ("tasks-running", "delays"),
        ("state-committed", "weather"),
    ]
    assert [kill["partitions_with_state"] == 2 for kill in outcome["kills"]] == [False, True]
    assert outcome["queries"].keys() == QUERIES
    for name, query in outcome["queries"].items():
        assert query["identical"] and query["rows_compared"] > 0, name
        assert query["batches"] >= 7 and query["state_rows"] > 0 and query["written_bytes"] > 0, name
        # the second kill waits for a batch of one query; another may not have ended any since the first
        assert len(query["restore_ms"]) <= 2 and query["commit_p99_ms"] > 0, name
    # the query that was killed last has batches left, so it restores
    assert outcome["queries"]["weather"]["restore_ms"]
    assert outcome["queries"]["weather"]["rows_compared"] == outcome["queries"]["once"]["rows_compared"] == FLIGHTS
    assert said.count("SIGKILL") == 2
    assert said.count(" rows compared with batch: identical") == len(QUERIES)


if os.environ.get("LAMINA_REPEATS"):

    def test_both_kills_hit_every_result_is_identical_and_nothing_is_left(person: Person) -> None:
        """Without options; the tests below and that of Ctrl-C have the most of it."""
        out, said = person.demo("--json").communicate(timeout=900)
        assert_both_kills_hit_and_every_result_is_identical(json.loads(out), said)
        assert "State in lamina" in said
        person.assert_nothing_left()


@pytest.mark.parametrize("mode", ["rocksdb-changelog", *NIGHTLY_MODES])
def test_both_kills_hit_and_every_result_is_identical_in_each_mode(person: Person, mode: str) -> None:
    """With log objects in the checkpoint of each query, tables where there were batches enough, or neither."""
    person.environment.install("rocksdict")
    demo = person.demo("--json", "--keep", "--mode", mode)
    out, said = demo.communicate(timeout=900)
    assert demo.returncode == 0, said
    outcome = json.loads(out)
    assert outcome["mode"] == mode
    assert_both_kills_hit_and_every_result_is_identical(outcome, said)
    (root,) = person.temporary.glob("lamina-demo-*")
    states = {query: root / "checkpoint" / query / "state" for query in QUERIES}
    with_log = {query for query, state in states.items() if any(state.rglob("*.log"))}
    assert with_log == (QUERIES if mode.endswith("-changelog") else set())
    assert any(any(state.rglob("*.sst")) for state in states.values()) == mode.startswith("rocksdb")


def test_ctrl_c_leaves_nothing_behind(person: Person) -> None:
    demo = person.demo()
    deadline = time.monotonic() + 300
    while not person.has_state() and demo.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)  # until Spark and the engine work
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, said
    assert "is up, its JVM is process" in said
    assert said.endswith("Interrupted; every process and file of the run is gone.\n")
    person.assert_nothing_left()
