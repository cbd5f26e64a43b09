"""The course of the demo: feed, stream, kill, restart, kill, restart, batch, compare.

A kill counts only if it hit: the JVM is stopped (SIGSTOP), the checkpoint is read, and only a JVM that stands at the
wanted point is killed; otherwise it goes on and the next batch is tried.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from lamina.components import Clock
from lamina.demo.child import Child, DriverFailed
from lamina.demo.compare import Comparison, compare
from lamina.demo.feed import make_feed
from lamina.demo.figures import Collected, Figures
from lamina.demo.orders import STATE_COMMITTED, TASKS_RUNNING, Point
from lamina.demo.places import Places
from lamina.demo.position import Position, partitions_with_state, position
from lamina.demo.report import Report

_PARTITIONS = 2
"""Shuffle partitions that the job sets: partitions of each stateful operator."""

_DURABLE_WITHIN_S = 60

_MEANING = {
    TASKS_RUNNING: "in the middle of a batch",
    STATE_COMMITTED: "between the state commit and the batch commit",
}


class PointMissed(Exception):
    """The queries ended before the JVM could be killed where it should be."""


@dataclass(frozen=True)
class Kill:
    """One kill that hit: at that point, in that batch, with that many partitions' state published."""

    point: str
    query: str
    batch: int
    partitions_with_state: int
    positions: dict[str, Position] = field(repr=False)


@dataclass
class Outcome:
    """What the demo found."""

    provider: str
    mode: str
    kills: list[Kill]
    comparisons: dict[str, Comparison]
    figures: dict[str, Figures]
    late_rows: int
    seconds: float

    @property
    def identical(self) -> bool:
        return self.late_rows == 0 and all(comparison.identical for comparison in self.comparisons.values())

    def to_dict(self) -> dict[str, Any]:
        """For `--json`; sizes in bytes, times in milliseconds."""
        queries = {}
        for name, comparison in self.comparisons.items():
            of = self.figures[name]
            queries[name] = {
                "rows_compared": comparison.rows,
                "identical": comparison.identical,
                "differences": list(comparison.differences),
                **{key: value for key, value in asdict(of).items() if key != "commit_ms"},
                "commit_p50_ms": of.commit_percentile(50),
                "commit_p99_ms": of.commit_percentile(99),
            }
        return {
            "provider": self.provider,
            "mode": self.mode,
            "identical": self.identical,
            "seconds": round(self.seconds, 1),
            "late_rows": self.late_rows,
            "kills": [asdict(kill) for kill in self.kills],
            "queries": queries,
        }


class Demo:
    """One run in one directory."""

    def __init__(
        self, job: ModuleType, root: Path, provider: str, mode: str, batches: int, report: Report, clock: Clock
    ) -> None:
        self._job = job
        self._places = Places(root)
        self._provider = provider
        self._mode = mode
        self._batches = batches
        self._report = report
        self._clock = clock
        self._queries: list[str] = [query.name for query in job.QUERIES]
        self._collected = Collected(provider)
        self._child: Child | None = None
        self._starts = 0

    def run(self, kills: bool) -> Outcome:
        """Runs to the end.

        Raises:
            DriverFailed: the Spark driver failed.
            PointMissed: the queries were over before a kill hit.
        """
        began = self._clock.monotonic()
        feed = make_feed(self._places.feed, self._batches)
        self._report.say(
            f"The feed: {feed.flights:,} flights, {feed.weather:,} hours of weather, and the flights once more with "
            f"{feed.redelivered - feed.flights:,} of them delivered twice, in {feed.files} files each."
        )
        self._report.start_bars(feed.files + 1)  # a last batch without a file lets the watermark take effect
        points = [
            Point(self._queries[0], feed.files // 3, TASKS_RUNNING),
            Point(self._queries[2], 2 * feed.files // 3, STATE_COMMITTED),
        ]
        done = [self._until_killed(point, number) for number, point in enumerate(points if kills else [], start=1)]
        self._to_the_end()
        self._report.stop_bars()
        comparisons = self._compare()
        return Outcome(
            provider=self._provider,
            mode=self._mode,
            kills=done,
            comparisons=comparisons,
            figures={name: self._collected.figures(name, self._places.checkpoint(name)) for name in self._queries},
            late_rows=self._collected.late_rows,
            seconds=self._clock.monotonic() - began,
        )

    def close(self) -> None:
        """Ends the child process; safe at any time."""
        self._report.stop_bars()
        if self._child is not None:
            self._child.close()

    def _start(self, point: Point | None) -> tuple[Child, dict[str, Position]]:
        before = self._positions()
        self._starts += 1
        if self._starts > 1:
            self._collected.restarted(self._queries)
        self._child = Child(self._places, self._provider, self._mode, self._starts, point, expected=point is None)
        return self._child, before

    def _until_killed(self, point: Point, number: int) -> Kill:
        child, before = self._start(point)
        unseen = set(self._queries)
        for event in child.events():
            self._follow(event, before, unseen)
            if event["kind"] == "reached":
                child.freeze()
                batch = event["batch"]
                ready = self._comes_to(point, batch)
                if ready is None:
                    child.thaw()
                    continue
                positions = self._positions()
                child.kill_jvm()
                kill = Kill(point.at, point.query, batch, ready, positions)
                self._tell(kill, number)
                return kill
        raise PointMissed(f"The queries ended before Spark could be killed {_MEANING[point.at]} of {point.query}.")

    def _to_the_end(self) -> None:
        child, before = self._start(None)
        unseen = set(self._queries)
        for event in child.events():
            self._follow(event, before, unseen)
        child.close()

    def _follow(self, event: dict[str, Any], before: dict[str, Position], unseen: set[str]) -> None:
        if event["kind"] == "started":
            which = "continues from the checkpoints" if self._starts > 1 else "begins"
            self._report.say(f"Spark {event['spark']} is up, its JVM is process {event['jvm']}; the stream {which}.")
        elif event["kind"] == "batch" and event["query"] in unseen:
            query, batch = event["query"], event["batch"]
            unseen.discard(query)
            due = before[query].committed + 1
            if batch != due:
                raise DriverFailed(f"{query} continued with batch {batch}, but its checkpoint ends before batch {due}.")
            if self._starts > 1:
                again = "repeats" if before[query].planned == batch else "goes on with"
                self._report.say(f"  {query} {again} batch {batch}.")
        elif event["kind"] == "progress":
            progress = event["progress"]
            self._collected.add(progress)
            self._report.advance(progress["name"], progress["batchId"] + 1)
        elif event["kind"] == "expected" and event["query"] == self._queries[0]:
            self._report.say("All streams are at their end. The same queries now run as batch.")

    def _stands_at(self, point: Point, batch: int) -> int | None:
        """The number of partitions with published state if the frozen JVM is at `point`, else None."""
        checkpoint = self._places.checkpoint(point.query)
        if position(checkpoint) != Position(planned=batch, committed=batch - 1):
            return None
        ready = partitions_with_state(checkpoint, batch)
        whole = ready == _PARTITIONS
        return ready if whole == (point.at == STATE_COMMITTED) else None

    def _comes_to(self, point: Point, batch: int) -> int | None:
        """As `_stands_at`. Tasks may have ended before the log object was there that their stores wait for: the engine,
        which is not frozen, publishes it within moments."""
        deadline = self._clock.monotonic() + _DURABLE_WITHIN_S
        while (ready := self._stands_at(point, batch)) is None and point.at == STATE_COMMITTED:
            if self._clock.monotonic() > deadline:
                raise DriverFailed(
                    f"all tasks of batch {batch} of {point.query} have ended, and after {_DURABLE_WITHIN_S} s not all "
                    "of its state is in the checkpoint"
                )
            threading.Event().wait(0.02)
        return ready

    def _tell(self, kill: Kill, number: int) -> None:
        self._report.say(
            f"[bold]Kill {number}[/bold], {_MEANING[kill.point]}: batch {kill.batch} of {kill.query} was running, "
            f"{kill.partitions_with_state} of {_PARTITIONS} partitions had published their state, offsets/{kill.batch} "
            f"was there and commits/{kill.batch} was not. The JVM got SIGKILL."
        )
        for query, where in kill.positions.items():
            if query != kill.query:
                self._report.say(f"  {query}: {where}.")

    def _compare(self) -> dict[str, Comparison]:
        compared = {}
        for query in self._job.QUERIES:
            outcome = compare(self._places.results(query.name), self._places.expected(query.name), query.marker)
            compared[query.name] = outcome
            verdict = "[green]identical[/green]" if outcome.identical else "[red]DIFFERENT[/red]"
            self._report.say(f"{query.name}: {outcome.rows:,} rows compared with batch: {verdict}")
            for difference in outcome.differences:
                self._report.say(f"  {difference}")
        return compared

    def _positions(self) -> dict[str, Position]:
        return {query: position(self._places.checkpoint(query)) for query in self._queries}
