"""One run of `benchmarks.compaction` in a process of its own: a store's life in one mode, or one large merge."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.machine import peak_resident_bytes
from benchmarks.rounds import print_result
from benchmarks.variants import NO_COMPACTION
from lamina.components import RandomIds, SystemClock
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.engine.reports import known_to_json, segment_from_json
from lamina.engine.store_opener import OpenArgument, StoreOpener
from lamina.format import PUT, SCHEMA, ColumnFamily, Count
from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import Reference
from lamina.format.paths import CommitName, parse_name
from lamina.settings import PREFIX, Settings
from lamina.store import (
    CommitRequest,
    Store,
    StoreId,
    Version,
)
from lamina.store.direct.rows import part_of
from lamina.store.model import KEEP, Verdict
from lamina.store.versions.chain import files as files_of

KEY, VALUE = 40, 56
FAMILY = ColumnFamily(0, "default", {"multi_value": False})
PARTS = 16
SETTINGS = {
    "background": {},
    "full": {"compaction.mode": "full", "compaction.fullInterval": "10"},
    "rolling": {"compaction.mode": "rolling", "compaction.rollingParts": str(PARTS)},
    "none": {key.removeprefix(PREFIX): value for key, value in NO_COMPACTION.items()},
}
INTERVAL_S = 0.1
"""Between two versions: sooner than any batch of Spark follows another."""

WARM_UP = 10
"""Versions whose commits are not timed: the first ones load and compile what the later ones use."""

EARLY = 110
"""Up to here the manifest of a chain that nothing shortens is small still."""

START_S = 3.0
"""The maintenance process is there before a query's first batch, as it is in an engine."""


class Life:
    """A store, the rows that a query would have in its table, and the maintenance process beside it."""

    def __init__(self, directory: str, mode: str, retained: int) -> None:
        settings = {PREFIX + key: value for key, value in SETTINGS[mode].items()}
        self.argument = OpenArgument(
            StoreId(directory, 0, 0, "default"), settings, {}, "benchmark", False, 2, "none", retained
        )
        opened = StoreOpener(Settings.parse, SystemClock(), RandomIds()).open(self.argument)
        self.store, self.broken = opened.store, opened.known.broken
        self.background = mode == "background"
        self.rows: dict[bytes, bytes] = {}
        self.parts: list[dict[bytes, bytes]] = [{} for _ in range(PARTS)] if mode == "rolling" else []
        self.version = Version(0)
        self.segments: list[Any] = []
        self.queue = MaintenanceQueue(SystemClock(), directory, silence_s=600, workers=1)
        self.idle = threading.Event()
        self.idle.set()
        if self.background:
            self.queue.start()
            time.sleep(START_S)

    def commit(self, changes: Mapping[bytes, bytes]) -> tuple[float, bool]:
        """One version; milliseconds from its begin to its end, and whether a compaction is due."""
        self.rows.update(changes)
        if self.parts:
            # kept apart, as the shim finds the rows of a part by its index and reads no others
            for name, value in changes.items():
                self.parts[zlib.crc32(name) % PARTS][name] = value
        started = time.perf_counter()
        begun = self.store.begin(self.version, task_attempt=0, load_empty=False, force_snapshot=False, have=True)
        sections = {"increment": batches(changes)}
        if begun.snapshot:
            sections["snapshot"] = batches(self.rows)
        part = part_of(begun)
        if part is not None:
            sections["rewrite"] = batches(self.parts[part.part])
        counts = {0: Count(len(self.rows), len(self.rows) * (KEY + VALUE))}
        request = CommitRequest(
            begun.attempt, self.version.version + 1, self.version, counts, (FAMILY,), 1, 0, {}, part
        )
        self.store.commit(request, sections)
        took = (time.perf_counter() - started) * 1000
        self.version = Version(self.version.version + 1, begun.attempt)
        return took, begun.compaction_due

    def maintain(self) -> None:
        """Asks the maintenance process to look at the store, as the engine does."""
        self.idle.clear()
        confirmed = {"version": self.version.version, "attempt": self.version.attempt}
        job = {"open": self.argument.to_json(), "confirmed": confirmed, "collect": False, "compact": True}
        job |= {"at_once": False, "awaited": False, "closed": False}
        self.queue.submit(1, Job(job, self._report, partial(known_to_json, self.store, self.broken)))

    def _report(self, report: dict[str, Any]) -> None:
        if not report["ok"]:
            print(report, file=sys.stderr)
        if report.get("segment") is not None:
            segment = segment_from_json(report["segment"])
            self.segments.append(segment)
            self.store.adopt(segment)
        self.idle.set()


def batches(rows: Mapping[bytes, bytes]) -> Iterator[pa.RecordBatch]:
    """Rows as the shim sends them."""
    items = list(rows.items())
    for start in range(0, len(items), 32_768):
        part = items[start : start + 32_768]
        columns = (
            pa.array([0] * len(part), pa.uint16()),
            pa.array([PUT] * len(part), pa.uint8()),
            pa.array([key for key, _ in part], pa.binary()),
            pa.array([value for _, value in part], pa.binary()),
        )
        yield pa.RecordBatch.from_arrays(list(columns), schema=SCHEMA)


def key(number: int) -> bytes:
    """A key of 40 bytes."""
    return b"%040d" % number


def life(request: Mapping[str, Any]) -> dict[str, Any]:
    """All versions of a store, then what is on storage and a restore."""
    source = random.Random(1)
    found = Life(request["directory"], request["mode"], request["retained"])
    times: list[float] = []
    files: list[int] = []
    increments: list[int] = []
    commit_bytes = 0
    began = time.perf_counter()
    for number in range(request["versions"]):
        # versions come at the pace of a query's batches, whatever the maintenance process does meanwhile
        time.sleep(max(0.0, began + number * INTERVAL_S - time.perf_counter()))
        changes = {key(source.randrange(request["keys"])): source.randbytes(VALUE) for _ in range(request["rows"])}
        took, due = found.commit(changes)
        manifest = found.store.manifest(found.version)
        assert manifest is not None
        files.append(files_of(manifest.references))
        section = manifest.section("increment")
        assert section is not None
        increments.append(section.length)
        commit_bytes += _size(found)
        times.append(took)
        if found.background and due:
            found.maintain()
    manifest = found.store.manifest(found.version)
    assert manifest is not None
    found.idle.wait(60)
    # what is retained, without what only waits for readers
    collected = found.store.collect(found.version, dry_run=True)
    kept = collected.metrics()
    started = time.perf_counter()
    load = _opened(found).load(found.version, have=None, read_only=True)
    seen = sum(batch.num_rows for batch in load.batches)
    restore_s = time.perf_counter() - started
    ordered, early = sorted(times[WARM_UP:]), sorted(times[WARM_UP:EARLY])
    restored = contents(_opened(found).load(found.version, have=None, read_only=True).batches)
    if restored != found.rows:
        raise SystemExit(f"{request['mode']}: what was restored is not what was committed")
    result = {
        "commit_bytes": commit_bytes,
        "increment_bytes": sum(increments),
        "segment_bytes": sum(segment.size for segment in found.segments),
        "segment_rows": sum(segment.manifest.sections[0].rows for segment in found.segments),
        "segments": len(found.segments),
        "files_per_version": files,
        "chain_bytes": sum(reference.length for reference in manifest.references),
        "stored_bytes": kept["keep_bytes"],
        "stored_files": kept["keep_files"],
        "stored_files_beside": beside(
            collected.verdicts, manifest.references, found.version.version - request["retained"]
        ),
        "retained_increment_bytes": sum(increments[-request["retained"] - 1 :]),
        "live_bytes": _live_bytes(found),
        "commit_ms_median": statistics.median(ordered),
        "commit_ms_p99": ordered[int(len(ordered) * 0.99)],
        "commit_ms_p95_early": early[int(len(early) * 0.95)],
        "commit_ms_p95": ordered[int(len(ordered) * 0.95)],
        "restore_s": restore_s,
        "rows_restored": seen,
        "digest": hashlib.sha256(b"".join(sorted(k + v for k, v in restored.items()))).hexdigest(),
    }
    found.queue.close()
    return result


def beside(verdicts: Iterable[Verdict], newest: Sequence[Reference], oldest_retained: int) -> int:
    """How many files are kept that are neither of the newest version nor the own file of a retained one."""
    of_newest = {reference.path for reference in newest}
    count = 0
    for verdict in verdicts:
        name = parse_name(verdict.path)
        own = isinstance(name, CommitName) and name.version >= oldest_retained
        count += verdict.action == KEEP and not own and verdict.path not in of_newest
    return count


def contents(newest_first: Iterator[pa.RecordBatch]) -> dict[bytes, bytes]:
    """The rows of a version, of which each was put at least once and none removed."""
    rows: dict[bytes, bytes] = {}
    for batch in newest_first:
        for name, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            rows.setdefault(name, value)
    return rows


def _size(found: Life) -> int:
    assert found.version.attempt is not None
    name = str(CommitName(AttemptId.parse(found.version.attempt)))
    return os.path.getsize(Path(found.argument.store.checkpoint_url) / "0" / "0" / name)


def _opened(found: Life) -> Store:
    return StoreOpener(Settings.parse, SystemClock(), RandomIds()).open(found.argument).store


def _live_bytes(found: Life) -> int:
    """The live state as one snapshot stores it."""
    from lamina.format.container import SEGMENT, ContainerWriter
    from lamina.format.entries import Compression

    writer = ContainerWriter(SEGMENT, Compression())
    ordered = dict(sorted(found.rows.items()))
    for _ in writer.chunks([("run", batches(ordered))], lambda sections, crc: b"{}"):
        pass
    return writer.size


def memory(request: Mapping[str, Any]) -> dict[str, Any]:
    """The maintenance process's greatest resident memory while it merges many keys that were written thrice."""
    directory, keys = request["directory"], request["keys"]
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(directory, keys))
    writer.start()
    writer.join()
    if writer.exitcode:
        raise SystemExit(f"the writer ended with {writer.exitcode}")
    confirmed = json.loads((Path(directory) / "confirmed").read_text())
    found = Life(directory, "background", 100)
    found.version = Version(confirmed["version"], confirmed["attempt"])
    started = time.perf_counter()
    found.maintain()
    found.idle.wait(1200)
    took = time.perf_counter() - started
    assert found.queue.pid is not None
    peak = peak_resident_bytes(found.queue.pid)
    rows = sum(segment.manifest.sections[0].rows for segment in found.segments)
    size = sum(segment.size for segment in found.segments)
    found.queue.close()
    assert rows == keys, f"{rows} rows were merged of {keys}"
    return {"peak_bytes": peak, "merge_s": took, "rows_read": 3 * keys, "segment_bytes": size}


def _write(directory: str, keys: int) -> None:
    """Three rounds of all keys in 12 versions: two of three entries are dead."""
    found = Life(directory, "none", 100)
    source = random.Random(2)
    part = keys // 4
    for number in range(12):
        first = number % 4 * part
        found.commit({key(one): source.randbytes(VALUE) for one in range(first, first + part)})
    confirmed = {"version": found.version.version, "attempt": found.version.attempt}
    (Path(directory) / "confirmed").write_text(json.dumps(confirmed))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print_result(life(asked) if asked["action"] == "life" else memory(asked))
