"""Open handles: what each `openStore` gave, and the control calls on it."""

from __future__ import annotations

import itertools
import logging
import math
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from lamina.components import Clock, Ids
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.maintenance_turns import Job
from lamina.engine.reports import known_to_json, places_from_json, segment_from_json
from lamina.engine.storage_calls import StorageCalls, storage_of
from lamina.engine.store_opener import OpenArgument, OpenedStore, StoreOpener
from lamina.engine.ticker import Ticker
from lamina.errors import EngineError, LaminaError, StateError
from lamina.format.paths import UNHEARD_STORES
from lamina.settings import KEYS, Settings, as_text, join_process, warnings_for
from lamina.storage import Jvm
from lamina.store import Accepted, CommitRequest, StoreId, Version
from lamina.store.memory.budget import Share
from lamina.store.tables.local_disk import LOCAL_DISK

log = logging.getLogger(__name__)

_SHORTEST_STAMP_S = 5.0
"""Segments that wait are not stamped more often than this, however short the minimum age is."""

_STAMPED_S = 3600.0
"""How long those of a store that was closed are stamped: it may be closed and opened for each batch."""

LEFT_S = 300.0
"""How long after its last writer was closed a store's tables lie ready for its next merge, and what its collector knows
is kept whatever others need."""


def field(value: Mapping[str, Any], name: str, *types: type) -> Any:
    """The field `name` of a JSON object, which must be of one of `types`.

    Raises:
        EngineError: `engine.protocol`.
    """
    found = value.get(name)
    if type(found) not in types:
        expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
        raise EngineError("engine.protocol", f"{name} is {found!r}, where {expected} is needed")
    return found


def version_of(value: Mapping[str, Any], version: str = "version", attempt: str = "attempt") -> Version:
    """The version that two fields of a JSON object name."""
    return Version(field(value, version, int), field(value, attempt, str, type(None)))


class _Materialization:
    """Somebody who waits until all that a version has above its tables is in them."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self._ended = threading.Event()
        self._error: Mapping[str, Any] | None = None

    def is_over_with(self, made: Version) -> bool:
        """Whether nothing more is to come once what another version, or this one, had is in tables: those of another
        attempt of the same version are of no use, and this one's own job is still to come."""
        return self.version == made or self.version.version < made.version

    def is_replaced_by(self, other: _Materialization) -> bool:
        """Whether another attempt of the same version counts by now, and somebody waits for that one."""
        return self.version.version == other.version.version and self.version != other.version

    def end(self, error: Mapping[str, Any] | None) -> None:
        """The first one counts."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    def result(self, timeout_s: float) -> None:
        """Returns when it has ended well."""
        if not self._ended.wait(timeout_s):
            raise EngineError("engine.deadline", f"tables were not made within {timeout_s:.0f} s")
        if self._error is not None:
            raise LaminaError.from_kind(self._error["kind"], self._error["message"])


class StoreHandle:
    """One handle: a store as one provider of the JVM opened it."""

    def __init__(
        self,
        argument: OpenArgument,
        opened: OpenedStore,
        maintenance: MaintenanceQueue,
        stores: StoreOpener,
        calls: StorageCalls,
        now: Callable[[], float],
    ) -> None:
        settings = opened.settings
        self.argument = argument
        self.opened = opened
        self.store = opened.store
        self._maintenance = maintenance
        self._stores = stores
        self._calls = calls
        self._now = now
        self._confirmed: Version | None = None
        self._compaction_due = False
        self._closed_s: float | None = None
        self.reads_in_place = settings.backend == "rocksdb"
        self._lock = threading.Lock()
        self._in_place: dict[str, Any] | None = None
        self._named: list[str] = []
        """Databases that were named to the JVM, of which it may not have heard, and that are still there."""
        self._due = False
        self._waiting: list[_Materialization] = []
        self._failures = opened.known.failures
        # the JVM gives up its call after the whole time
        self._most_s = 0.9 * settings.engine_request_timeout_ms / 1000
        self._stamp_s = max(_SHORTEST_STAMP_S, settings.retention_min_age_ms / 4 / 1000)

    def in_storage(self, deadline: float | None = None) -> AbstractContextManager[None]:
        """To be held while the store's storage may be called.

        Raises:
            StorageError: `storage.failed` where the storage does not answer.
        """
        return self._calls.entered(self.argument.store.checkpoint_url, deadline)

    def begin(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        """Confirms a base and allots an attempt."""
        with self.in_storage():
            return self._begin(argument)

    def begin_commit(self, header: dict[str, Any]) -> dict[str, Any] | None:
        """Begins the attempt of a commit whose header says `begin`; what was begun, where it wants more sections."""
        begun = self._begin(field(header, "begin", dict))
        header["attempt"] = begun["attempt"]
        return begun if begun["snapshot"] or begun["rewrite"] is not None else None

    def _begin(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        if self.argument.read_only:
            raise StateError("store.state", f"{self.argument.store} is open for reading only; it begins no attempt")
        base = version_of(argument)
        begun = self.store.begin(
            base,
            task_attempt=field(argument, "task_attempt", int),
            load_empty=field(argument, "load_empty", bool),
            force_snapshot=field(argument, "force_snapshot", bool),
            have=field(argument, "have", bool),
        )
        self._confirmed = Version(base.version, base.attempt or begun.base_attempt)
        self._compaction_due = begun.compaction_due
        self._due = begun.materialization_due or (self.reads_in_place and argument.get("due") is True)
        if (begun.compaction_due or self._due) and self._failures.may_try():
            self._queue(collect=False)
        # where it begins empty, as in Spark's offline repartition, nobody has said which attempt of it stands
        if begun.base_attempt is not None and base.version > 0 and self.opened.known.begins_collections():
            # the run may end before Spark asks for maintenance, and so may each one after it
            self._queue(collect=True)
        self._failures.check(self.argument.store)
        return {
            "attempt": begun.attempt,
            "base_attempt": begun.base_attempt,
            "snapshot": begun.snapshot,
            "rewrite": None if begun.rewrite is None else {"part": begun.rewrite[0], "parts": begun.rewrite[1]},
            "lost": begun.lost,
            "apart": begun.apart,
        }

    @property
    def storage(self) -> str:
        """What stands still together with the store's files."""
        return storage_of(self.argument.store.checkpoint_url)

    def accept(
        self,
        header: Mapping[str, Any],
        sections: Mapping[str, Iterable[pa.RecordBatch]],
        share: Share,
        most_held: int,
    ) -> Accepted:
        """Receives a commit; a file of at most `most_held` bytes waits to be published."""
        try:
            request = CommitRequest.from_header(header)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError("engine.protocol", f"a commit without a field, or with a wrong one: {error!r}") from None
        return self.store.accept(request, sections, share, most_held=most_held)

    def durable(self, accepted: Accepted) -> dict[str, Any]:
        """Publishes what was accepted, if it was not while it arrived; what the JVM is told then."""
        committed = accepted.publish()
        return {
            "file": committed.file,
            "bytes": committed.bytes,
            "raw_bytes": committed.raw_bytes,
            "write_ms": committed.write_ms,
            "increments": committed.increments,
            "increment_bytes": committed.increment_bytes,
            "maintained": self._maintenance.pop_figures(self.argument.store),
            "log": self._log_figures(),
            "copied_bytes": self._stores.copied_bytes,
            "local_bytes": LOCAL_DISK.bytes,
            "in_place": self._exchanged(None),
        }

    def _log_figures(self) -> Mapping[str, int]:
        """What became of log objects since it was asked for, if anybody hears of what this store says of it."""
        changelog = self.opened.changelog
        return {} if changelog is None or self.argument.store.name in UNHEARD_STORES else changelog.pop_figures()

    def materialize(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        """Has all that a version holds above its tables put into them, and waits for it; says where newer tables are.

        Raises:
            LaminaError: why they were not made; `store.closed`, `engine.deadline`.
        """
        if not self.reads_in_place or self.argument.read_only:
            raise StateError("store.state", f"{self.argument.store} is not open for writing with backend rocksdb")
        with self.in_storage():
            confirmed = self._confirmed = self.store.confirm(version_of(argument))
        if confirmed.version > 0:
            waits = _Materialization(confirmed)
            with self._lock:
                # the job takes the place of theirs
                replaced = [one for one in self._waiting if one.is_replaced_by(waits)]
                self._waiting.append(waits)
            for one in replaced:
                one.end({"kind": "state.superseded", "message": f"another attempt than {confirmed} counts by now"})
            try:
                self._queue(collect=False, awaited=True)
                waits.result(self._most_s)
            finally:
                with self._lock:
                    self._waiting = [one for one in self._waiting if one is not waits]
        return {"in_place": self._exchanged(None)}

    def hand_out(self, directory: str) -> None:
        """Takes note of a database that the JVM is told of and removes; where it does not, it goes with the handle."""
        with self._lock:
            self._note(directory)
            is_late = self._closed_s is not None
        if is_late:
            shutil.rmtree(directory, ignore_errors=True)

    def _note(self, directory: str) -> None:
        self._named = [one for one in self._named if os.path.exists(one)] + [directory]

    def _exchanged(self, newer: dict[str, Any] | None) -> dict[str, Any] | None:
        """Keeps a database for who reads it in place; gives the one that waited, which is the caller's to remove."""
        with self._lock:
            older, self._in_place = self._in_place, newer
            if older is not None and newer is None:
                self._note(older["directory"])
        return older

    def resolve(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        """The attempt of a version that counts; confirms nothing."""
        with self.in_storage():
            return {"attempt": self.store.resolve(version_of(argument))}

    def maintain(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        """Queues compaction and collection."""
        return {"queued": self._queue(collect=True)}

    def _queue(self, collect: bool, *, awaited: bool = False) -> bool:
        confirmed = self._confirmed
        if self.argument.read_only or confirmed is None or confirmed.version == 0:
            return False
        argument = {
            "open": self.argument.to_json(),
            "confirmed": {"version": confirmed.version, "attempt": confirmed.attempt},
            "collect": collect,
            "compact": self._compaction_due,
            # whether all increments are to be merged, however few they are
            "at_once": awaited or self._due,
            "awaited": awaited,
            "in_place": self.reads_in_place,
            "closed": self._closed_s is not None,
        }
        broken = self.opened.known.broken
        job = Job(argument, self._maintained, lambda collects: known_to_json(self.store, broken, collects))
        return self._maintenance.submit(self.argument.store, job)

    def close(self) -> None:
        """Says that the handle is used no more."""
        self._closed_s = self._now()
        self._give_up_waiting({"kind": "store.closed", "message": f"{self.argument.store} was closed meanwhile"})
        self._exchanged(None)
        for directory in self._named:
            # one that is open has its files
            shutil.rmtree(directory, ignore_errors=True)
        if not self.argument.read_only:
            self._maintenance.leave(self.argument.store, self._maintained)

    def _maintained(self, report: dict[str, Any]) -> None:
        segment = report.get("segment")
        if segment is not None:
            self.store.adopt(segment_from_json(segment))
        if self.reads_in_place:
            LOCAL_DISK.look()
        newer, not_taken = None, None
        if report.get("in_place") is not None:
            try:
                newer = _taken(report["in_place"])
            except LaminaError as error:
                log.warning("%s", error.message)
                not_taken = {"kind": error.kind, "message": error.message}
        if newer is not None:
            _remove(self._exchanged(newer))
            if self._closed_s is not None:
                _remove(self._exchanged(None))
        self._materialized(report, not_taken)
        broken = self.opened.known.broken
        broken.note_tried(places_from_json(report.get("tried", ())))
        # a collection sees it while the rows are here, and the next load would see it when they are not
        broken.add(places_from_json(report.get("lost", ())))
        self._failures.note(report)
        for stamped in report.get("stamped", ()):
            found = stamped["segment"]
            self.store.replace_segment(stamped["name"], None if found is None else segment_from_json(found))
        # a store that is not opened here again must not keep its segments young for ever
        closed_for_s = 0.0 if self._closed_s is None else self._now() - self._closed_s
        if self._is_to_be_stamped() and closed_for_s < _STAMPED_S:
            # the query's next batch may be far off, and Spark may ask for no maintenance until then
            self._maintenance.call_later(self.argument.store, self._stamp_s, self._stamp)

    def _materialized(self, report: Mapping[str, Any], not_taken: Mapping[str, Any] | None) -> None:
        """Tells those who wait for what was made, or why it cannot be had; a job that was begun before they did knows
        nothing of them."""
        made = report.get("materialized")
        if made is not None:
            self._due = False
            version = version_of(made)
            with self._lock:
                ended = [one for one in self._waiting if one.is_over_with(version)]
            for one in ended:
                one.end(not_taken)
        if report.get("awaited") and not report["ok"]:
            # who has waited for a later version since has a job of his own
            self._give_up_waiting(report["error"], report["confirmed"]["version"])

    def _give_up_waiting(self, error: Mapping[str, Any], most: float = math.inf) -> None:
        with self._lock:
            waiting = [one for one in self._waiting if one.version.version <= most]
        for one in waiting:
            one.end(error)

    def _is_to_be_stamped(self) -> bool:
        """Whether there are segments that a commit of this run may still refer to."""
        return bool(self.store.waiting_segments()) and not self._stores.is_outlived(self.opened)

    def _stamp(self) -> None:
        if self._is_to_be_stamped():
            self._queue(collect=False)


def _taken(in_place: Mapping[str, Any]) -> dict[str, Any]:
    """A database that the maintenance process made, in the engine's own directory: that of the process goes with it.

    Raises:
        LaminaError: `engine.lost`.
    """
    directory = os.path.join(tempfile.gettempdir(), os.path.basename(in_place["directory"]))
    try:
        os.rename(in_place["directory"], directory)
    except OSError as error:
        message = f"newer tables in {in_place['directory']} cannot be had: {error}"
        raise LaminaError.from_kind("engine.lost", message) from error
    return {**in_place, "directory": directory}


def _remove(in_place: Mapping[str, Any] | None) -> None:
    """Removes a database that nobody reads."""
    if in_place is not None:
        shutil.rmtree(in_place["directory"], ignore_errors=True)


class Sessions:
    """All open handles of this engine."""

    def __init__(
        self, fixed: Settings, maintenance: MaintenanceQueue, clock: Clock, ids: Ids, jvm: Jvm | None = None
    ) -> None:
        # half of the places may hang in one storage before it gets no further requests
        most_late = max(1, fixed.engine_connections // 2)
        self._clock = clock
        self._calls = StorageCalls(clock.monotonic, most_late, fixed.engine_request_timeout_ms / 1000)
        self._stores = StoreOpener(lambda conf: join_process(fixed, conf), clock, ids, jvm, Ticker(), self._summary)
        self._maintenance = maintenance
        self._id = ids.hex128()
        self._loads = Counter(loads=0, replayed_bytes=0, load_ms=0)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, StoreHandle] = {}
        self._writers: Counter[StoreId] = Counter()

    def open(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Opens a store; the result of `openStore`."""
        argument = OpenArgument.from_json(value)
        with self._calls.entered(argument.store.checkpoint_url):
            opened = self._stores.open(argument)
        checkpoint, settings = opened.checkpoint, opened.settings
        # the maintenance process has not seen what fixed the process's settings, and is to claim nothing
        shared = {key.full_name: as_text(settings.value(key)) for key in KEYS if key.process_wide}
        claimed = None if checkpoint.uuid is None or checkpoint.epoch is None else (checkpoint.uuid, checkpoint.epoch)
        argument = replace(argument, settings={**argument.settings, **shared}, claimed=claimed)
        with self._lock:
            handle = next(self._numbers)
            self._open[handle] = StoreHandle(
                argument, opened, self._maintenance, self._stores, self._calls, self._clock.monotonic
            )
            if not argument.read_only:
                self._writers[argument.store] += 1
        return {
            "handle": handle,
            "checkpoint": checkpoint.uuid,
            "epoch": checkpoint.epoch,
            "remote": checkpoint.storage.remote,
            "settings": settings.resolved(),
            "warnings": warnings_for(argument.settings),
        }

    def get(self, handle: Any) -> StoreHandle:
        """The store that is open under `handle`.

        Raises:
            StateError: `store.closed`.
        """
        opened = self._open.get(handle)
        if opened is None:
            raise StateError("store.closed", f"no store is open in this engine under the handle {handle!r}")
        return opened

    def close(self, handle: Any) -> None:
        """Closes a handle; a request on it that is in progress ends as if it were open."""
        with self._lock:
            found = self._open.pop(handle, None)
            if found is not None and not found.argument.read_only:
                store = found.argument.store
                self._writers[store] -= 1
                if not self._writers[store]:
                    del self._writers[store]
        if found is not None:
            found.close()
            self._stores.close(found.opened)
            if not found.argument.read_only:
                self._maintenance.call_later(("left", store), LEFT_S, partial(self._leave, store))

    def finish(self, timeout_s: float) -> int:
        """Publishes commits that were accepted and wait for a log object, within that time; how many are left."""
        return self._stores.finish(timeout_s)

    def _leave(self, store: StoreId) -> None:
        """Has files given up of a store that was closed a while ago, and perhaps all that is known of it: its query may
        have ended, or its partition be on another executor now."""
        if store not in self._writers:
            self._maintenance.tell_left(store)

    def note_load(self, replayed_bytes: int, seconds: float) -> None:
        """Counts a load that has ended well."""
        with self._lock:
            self._loads.update(loads=1, replayed_bytes=replayed_bytes, load_ms=round(1000 * seconds))

    def _summary(self) -> dict[str, Any]:
        """What log objects say of this process besides their uploads."""
        with self._lock:
            loads = dict(self._loads)
        return {"id": self._id, "loads": loads, "merges": self._maintenance.merges()}

    def stats(self) -> dict[str, Any]:
        """How many handles are open, calls past their deadlines by storage, and figures of changelogs and of the local
        copies."""
        return {"open": len(self._open), "late_calls": self._calls.stats(), **self._stores.stats()}
