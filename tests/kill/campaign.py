"""The campaign of `python -m tests.kill`: its query, whom it kills where, and what is looked at in the end."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.scala import ROOT, compile_jar, linked_spark
from lamina.settings import PREFIX
from lamina.spark.configure import FILE_MANAGER, FILE_MANAGER_KEY
from tests.kill import files as kill_files
from tests.kill import processes as kill_processes
from tests.kill.points import (
    ACCEPTED,
    AT_RANDOM,
    BARRIERS,
    BETWEEN,
    COLLECTION,
    COMPACTION,
    ENTRY,
    PUBLICATION,
    RESTORE,
    TABLES,
)
from tests.kill.processes import DRIVER, ENGINE, EXECUTOR, MAINTENANCE, PROGRAM
from tests.kill.records import Feed, Judge
from tests.kill.storage import APART, Place
from tests.kill.tasks import Kill

COMPILER = "" if os.environ.get("LAMINA_ALL_COMPILERS") else "-XX:TieredStopAtLevel=1"
"""A batch is short, and a JVM is started again and again; the nightly profile has the second compiler too."""

HOOK = ROOT / "tests" / "kill" / "hook"
MIN_BATCHES = 10
MIN_AGE_S = 12
LEAD = 10
"""Files of input that wait for the query; in the end it has to read them all."""
STEP_S = 150.0  # for a batch, with all restarts that it takes on a busy machine
ENDS_S = 40.0
"""By then all processes of a query that has ended are gone."""

PLAN: tuple[tuple[str, str], ...] = (
    *((AT_RANDOM, victim) for victim in (ENGINE, MAINTENANCE, EXECUTOR, DRIVER)),
    *((point, victim) for point in PUBLICATION for victim in (ENGINE, EXECUTOR, DRIVER)),
    *((BETWEEN, victim) for victim in (ENGINE, EXECUTOR, DRIVER)),
    *((point, victim) for point in COMPACTION for victim in (MAINTENANCE, ENGINE, EXECUTOR)),
    *((COLLECTION, victim) for victim in (MAINTENANCE, ENGINE, EXECUTOR)),
    *((RESTORE, victim) for victim in (ENGINE, EXECUTOR, DRIVER)),
)
"""Where and whom; a driver costs a start of Spark, so it comes up less often (`WEIGHTS`)."""


def plan_of(backend: str, storage: str) -> tuple[tuple[str, str], ...]:
    """Where and whom with a backend."""
    plan = PLAN
    if BACKENDS[backend].get(PREFIX + "backend") == "rocksdb":
        plan = tuple(one for one in plan if one[0] != COMPACTION[1])
        plan += tuple((point, victim) for point in TABLES for victim in (MAINTENANCE, ENGINE, EXECUTOR))
    if backend in LOGGED:
        # apart the barrier is around Spark's own file manager
        points = (ACCEPTED,) if storage == APART else (ACCEPTED, *ENTRY)
        plan += tuple((point, victim) for point in points for victim in (ENGINE, EXECUTOR, DRIVER))
    return plan


SPILLING = "rocksdb-spilling"
"""Tables of RocksDB with so little memory that batches keep their changes on the local disk."""

_ROCKSDB = {
    PREFIX + "backend": "rocksdb",
    PREFIX + "rocksdb.materializeEvery": "3",  # as often as segments are made
    PREFIX + "rocksdb.optionsFactory": "tests.kill.options:eager",
}

_CHANGELOG = {
    PREFIX + "changelog.enabled": "true",
    PREFIX + "durability.level": "executor",
    PREFIX + "changelog.barrierTimeoutMs": "8000",
    # within the minimum age of the campaign
    PREFIX + "changelog.batchDelayMs": "100",
    PREFIX + "changelog.upload.attempts": "2",
    PREFIX + "changelog.upload.timeoutMs": "1500",
    FILE_MANAGER_KEY: FILE_MANAGER,
}

CHANGELOG = "heap-changelog"
TABLES_CHANGELOG = "rocksdb-changelog"
BACKENDS: dict[str, dict[str, str]] = {
    "heap": {},
    CHANGELOG: _CHANGELOG,
    "rocksdb": _ROCKSDB,
    TABLES_CHANGELOG: {**_ROCKSDB, **_CHANGELOG},
    SPILLING: {**_ROCKSDB, PREFIX + "rocksdb.memory.fixedPerExecutorBytes": str(8 << 20)},
}
"""What is set for each backend."""

LOGGED = (CHANGELOG, TABLES_CHANGELOG)
"""Those with a shared log."""

SPILLED_KEYS, SPILLED_RECORDS, PADDING = 400, 240, 1 << 10
"""Where memory is to be short: more keys and records, and so many bytes more of each record in the state."""

WEIGHTS = {ENGINE: 1.0, MAINTENANCE: 1.0, EXECUTOR: 1.5, DRIVER: 4.0}


def broken_plan(broken: str) -> tuple[tuple[str, str], ...]:
    """Where and whom in a build with this promise taken away."""
    if broken in BARRIERS:
        return tuple((point, victim) for point in (ACCEPTED, PUBLICATION[0]) for victim in (ENGINE, EXECUTOR))
    return (BETWEEN, EXECUTOR), (BETWEEN, DRIVER), (AT_RANDOM, EXECUTOR)


def barrier_conf(broken: str | None, plan: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What Spark is told so that a barrier is broken, or somebody is killed behind it."""
    if broken in BARRIERS:
        name = BARRIERS[broken]
    elif any(point in ENTRY for point, _ in plan):
        name = "KilledAtTheEntry"
    else:
        return {}
    jar = compile_jar("kill-barrier", [Path(__file__).parent / "barrier"])
    manager = f"org.apache.spark.sql.lamina.kill.{name}"
    return {"spark.jars": str(jar), PREFIX + "changelog.checkpointFileManagerClass": manager}


class CannotGoOn(Exception):
    """The query fails again and again, or does not move."""


@dataclass
class Campaign:
    """One checkpoint, one query, many kills."""

    root: Path
    place: Place
    seed: int
    broken: str | None
    plan: tuple[tuple[str, str], ...] = PLAN
    backend: str = "heap"
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    killed: list[Kill] = field(default_factory=list)
    starts: int = 0
    own_failures: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drawn = random.Random(self.seed)
        many = (SPILLED_KEYS, SPILLED_RECORDS) if self.backend == SPILLING else ()
        self.feed = Feed(self.root / "in", self.seed, *many)
        for name in ("out", "orders", "tmp", "events"):
            (self.root / name).mkdir(parents=True)
        self.judge = Judge(self.feed, self.root / "out")
        self.checkpoint = self.place.checkpoint
        self.child: subprocess.Popen[str] | None = None
        self.failures_in_a_row = 0
        self.driver = 0
        self._orders = 0
        self._began = time.monotonic()
        self._ended_at: float | None = None

    def begin(self) -> None:
        """The query runs: the campaign's minutes count from now."""
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """Since the campaign began, or until its end began."""
        return ((self._ended_at or time.monotonic()) - self._began) / 60

    # The query

    def share_classes(self) -> None:
        """Has all JVMs from now on take Spark's classes out of a file, which a first run of the query writes as it
        ends: to load them is a third of what a start takes."""
        self.start({"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={self._classes} -Xlog:disable"})
        self.go_on(4, seconds=4 * STEP_S)
        if self.child is not None:
            self._let_end(10 * ENDS_S)

    @property
    def _classes(self) -> Path:
        return self.root / "classes.jsa"

    def start(self, conf: Mapping[str, str] = MappingProxyType({})) -> None:
        """Starts the query, with further settings of Spark; returns when it runs."""
        self._feed()
        request = {
            "root": str(self.root), "checkpoint": self.checkpoint.url,
            "conf": {**self.place.conf(), **BACKENDS[self.backend], **barrier_conf(self.broken, self.plan), **conf},
            "min_batches": str(MIN_BATCHES), "min_age_ms": MIN_AGE_S * 1000,
            "padding": PADDING if self.backend == SPILLING else 0,
        }  # fmt: skip
        self.starts += 1
        with (self.root / f"driver-{self.starts}.log").open("w") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "tests.kill.query", json.dumps(request)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                cwd=self.root, env=self._environment(), start_new_session=True,
            )  # fmt: skip
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "driver" in answer:
                    self.driver = answer["driver"]
                    return
                self._failed(answer["failed"])
                break
        else:
            log_end = (self.root / f"driver-{self.starts}.log").read_text().splitlines()[-1:]
            self._failed("".join(log_end) or "the query's program ended before the query ran")
        self._ended()

    def _environment(self) -> dict[str, str]:
        paths = [str(HOOK), str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        shared = f"-XX:SharedArchiveFile={self._classes} -Xlog:disable" if self._classes.exists() else ""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(linked_spark(self.root / "spark")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.root / "tmp"),
            "TMPDIR": str(self.root / "tmp"),
            "JAVA_TOOL_OPTIONS": f"-XX:-UsePerfData {COMPILER} {shared} -Djava.io.tmpdir={self.root / 'tmp'}",
            "LAMINA_KILL_ORDERS": str(self.root / "orders"),
            kill_processes.MARK: self.id,
        }
        if self.broken:
            environment["LAMINA_KILL_BROKEN"] = self.broken
        return environment

    @property
    def done(self) -> int:
        """Batches that Spark has committed."""
        return kill_files.committed(self.checkpoint)

    def _failed(self, message: str) -> None:
        told = re.findall(r"(?:LaminaError|SparkRuntimeException): .*", message) or re.findall(
            r"Exception: Job aborted due to stage failure: [^.]*", message
        )
        self.own_failures.append((told or message.strip().splitlines() or [""])[0][:1000])

    def _ended(self, seconds: float = ENDS_S) -> None:
        """The query's program is gone: everything that it started must be, too."""
        assert self.child is not None and self.child.stdin is not None and self.child.stdout is not None
        left = kill_processes.gone_within(self.id, seconds)
        for process, role in left.items():
            self.leaked.append(f"{role} ({process})")
            kill_processes.kill(process)
        self.child.wait()
        for line in self.child.stdout:
            if line.startswith("{") and "failed" in line:
                self._failed(json.loads(line)["failed"])
        self.child.stdin.close()
        self.child.stdout.close()
        self.child = None

    def stop(self) -> None:
        """Ends the query as a user would."""
        self._ended_at = self._ended_at or time.monotonic()
        if self.child is not None:
            self._let_end(ENDS_S)

    def _let_end(self, seconds: float) -> None:
        assert self.child is not None and self.child.stdin is not None
        self.child.stdin.close()
        try:
            self.child.wait(60)
        except subprocess.TimeoutExpired:
            kill_processes.kill(self.child.pid)
        self._ended(seconds)

    def go_on(self, batches: int = 1, seconds: float = STEP_S) -> None:
        """Returns when so many further batches are committed; starts the query again where it has ended.

        Raises:
            CannotGoOn: it does not get there.
        """
        target = self.done + batches
        end = time.monotonic() + seconds
        while self.done < target:
            if self.child is None or self.child.poll() is not None:
                self._start_again()
            self._feed()
            if time.monotonic() >= end:
                raise CannotGoOn(f"batch {target - 1} was not committed within {seconds:.0f} s")
            time.sleep(self.place.pause_s)
        self.failures_in_a_row = 0
        self.judge.check(self.done)

    def _feed(self) -> None:
        """There is input for some further batches."""
        self.feed.up_to(self.done + self.judge.joined + LEAD)

    def _start_again(self) -> None:
        known = len(self.own_failures)
        if self.child is not None:
            self._ended()
        self.failures_in_a_row += len(self.own_failures) > known
        if self.failures_in_a_row >= 3:
            raise CannotGoOn(self.own_failures[-1])
        self.start()

    # Kills

    def next_kill(self) -> tuple[str, str]:
        """Who was least often killed where, driver kills counting more."""
        least = min((self.kills[one] + self.missed[one]) * WEIGHTS[one[1]] for one in self.plan)
        return self.drawn.choice(
            [one for one in self.plan if (self.kills[one] + self.missed[one]) * WEIGHTS[one[1]] <= least + 1e-9]
        )

    def kill(self, point: str, victim: str) -> None:
        """One kill; counted where it happened."""
        done = self._at_random(victim) if point == AT_RANDOM else self._at(point, victim)
        (self.kills if done else self.missed)[point, victim] += 1
        if done and victim == DRIVER:
            self._await_end()

    def _at_random(self, victim: str) -> bool:
        time.sleep(self.drawn.uniform(0, 1.5))
        found = kill_processes.with_role(self.id, victim)
        if not found or not kill_processes.kill(self.drawn.choice(found)):
            return False
        self.killed.append(Kill(time.time(), victim))
        return True

    def _at(self, point: str, victim: str) -> bool:
        self._orders += 1
        processes = kill_processes.with_role(self.id, victim)
        order = {"id": self._orders, "point": point, "victim": victim, "driver": self.driver}
        order["process"] = self.drawn.choice(processes) if processes else None
        current = self.root / "orders" / "current.json"
        temporary = current.with_suffix(".tmp")
        temporary.write_text(json.dumps(order))
        temporary.rename(current)
        if point == RESTORE:
            # nothing is restored before somebody has lost the rows, and not from the storage while there are copies
            self.place.drop_copies()
            self.kills[AT_RANDOM, EXECUTOR] += self._at_random(EXECUTOR)
        taken = current.with_name(f"taken-{self._orders}.json")
        end = time.monotonic() + 30
        while not taken.exists() and time.monotonic() < end and self.child is not None and self.child.poll() is None:
            self._feed()
            time.sleep(self.place.pause_s)
        try:
            current.rename(current.with_name(f"withdrawn-{self._orders}.json"))
        except FileNotFoundError:
            # who kills has renamed it just before: later it is noticed here
            self.killed.append(Kill(taken.stat().st_ctime, victim))
            return True
        return False

    def _await_end(self) -> None:
        assert self.child is not None
        try:
            self.child.wait(120)
        except subprocess.TimeoutExpired:
            self.leaked.append("the program of a driver that was killed")
            kill_processes.kill(self.child.pid)
        # it reports that it lost its JVM: that is what was asked for
        known = list(self.own_failures)
        self._ended()
        self.own_failures = known

    # The end

    def settle(self) -> dict[str, Any]:
        """Lets the query go on in peace for longer than the minimum age, stops it, and looks at what is there."""
        self._ended_at = time.monotonic()
        began = time.time()
        footprints = kill_files.Footprints(self.checkpoint, MIN_BATCHES)
        footprints.look()
        # a maintenance process that was started anew just before counts from then
        while time.time() - began < MIN_AGE_S + 40:
            self.go_on()
            footprints.look()
        # a record that was lost from a place to which nothing is added any more would not show
        self.feed.touch_all()
        self._read_all()
        held = self._held()
        self.stop()
        footprints.look()
        self.judge.check(self.done)
        return {
            "orphans": kill_files.orphans(self.checkpoint, footprints, began, MIN_AGE_S),
            "damaged": [
                *kill_files.damaged(self.checkpoint),
                *kill_files.checked(self.checkpoint),
                *kill_files.misplaced(self.checkpoint, footprints.needed),
            ],
            "held": held,
        }

    def _read_all(self) -> None:
        """Waits until all input is read."""
        end = time.monotonic() + STEP_S
        while self.judge.read < len(self.feed.files):
            if self.child is None or self.child.poll() is not None:
                self._start_again()
            if (done := self.done) > self.judge.checked:
                self.judge.check(done)
                end = time.monotonic() + STEP_S
            time.sleep(self.place.pause_s)
            if time.monotonic() >= end:
                raise CannotGoOn("the query does not read what there is of its input")

    def _held(self) -> list[str]:
        """Files that stay open: maintenance, which goes on, has some open for a moment."""
        looks = []
        for _ in range(4):
            time.sleep(2.7)
            looks.append(
                {
                    f"{role} ({process}): {path}"
                    for process, role in kill_processes.of(self.id).items()
                    if role != PROGRAM
                    for directory in self.place.directories
                    for path in kill_processes.open_files(process, directory)
                }
            )
        return sorted(set.intersection(*looks))
