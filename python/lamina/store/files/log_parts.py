"""Log objects of a checkpoint: their indexes, the commits of a store in them, and which of them nobody needs.

An object goes when no store that has a part in it needs that (`log_needs`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lamina.checkpoint import QueryRun
from lamina.components import Clock, Ids, RandomIds, SystemClock
from lamina.errors import LaminaError
from lamina.format import log_object, paths
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.container import LOG, Footer, check_header
from lamina.format.log_object import LogIndex, Part, PartId
from lamina.format.manifest import StoreIdentity
from lamina.storage import Listed, Storage, all_of, is_temporary
from lamina.store.files import log_needs
from lamina.store.files.locator import attempt_of, name_of
from lamina.store.files.log_indexes import LOG_INDEXES, Found
from lamina.store.files.log_needs import Kept, Needs, Said
from lamina.store.files.log_places import LogPlace, LogPlaces, Unreached
from lamina.store.files.shared_looks import SharedLooks

_TAIL_BYTES = 64 << 10
"""What is read first of an object to see its index; that of 300 stores fits."""

_READ_AT_ONCE = 8

_LOOK_S = 5.0
"""A listing of all objects serves all stores of the checkpoint for so long."""

_READ_TOGETHER = 64
"""Indexes that are read between two signs of life, and are kept from then on."""

_WAIT_S = 1.0

TOLD_AFTER_S = 600.0
"""Most objects go within this time by what one process knows: until then it tells nobody."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unread:
    """An object that was listed, and why its index cannot be read."""

    place: LogPlace
    modified_ms: int
    error: LaminaError


@dataclass(frozen=True)
class Needless:
    """A file of the log that may be deleted.

    Args:
        storage, path: what it is deleted with.
        name: its path in the checkpoint, or elsewhere its location.
    """

    storage: Storage
    path: str
    name: str
    size: int = 0
    modified_ms: int = 0

    @classmethod
    def at(cls, place: LogPlace, name: str, size: int, modified_ms: int) -> Needless:
        """The file of that name in a place."""
        path = place.path_of(name)
        return cls(place.storage, path, path if place.id is None else place.storage.location(path), size, modified_ms)


class LogObjects:
    """The log objects of a checkpoint, whose indexes are kept. Thread-safe.

    Args:
        storage: rooted at the directory `state` of the checkpoint.
        tells: whether what stores need is written down for other processes, too.
        places: by default those that the checkpoint names.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock | None = None,
        ids: Ids | None = None,
        *,
        tells: bool = False,
        places: LogPlaces | None = None,
    ) -> None:
        self.storage = storage
        self.places = places or LogPlaces(storage)
        self._tells = tells
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._lock = threading.Lock()
        self._indexes = LOG_INDEXES.of(self)
        self._reading: dict[str, Future[Found]] = {}
        self._looks = SharedLooks(self._is_there, self._clock, self.is_remote)
        self._looking = threading.Lock()
        self._went_on = 0
        """Signs of life so far of those who look."""
        self._looked: float | None = None
        self._objects: dict[str, Kept] = {}
        self._needless: set[str] = set()
        """Of these, those of which nobody needs a part."""
        self._parts: dict[StoreIdentity, list[tuple[Kept, Part]]] = {}
        self._doubted: set[str] = set()
        """Objects of which something turned out wrong, so that they are read anew."""
        self._unread: dict[str, Unread] = {}
        self._unreached: Sequence[Unreached] = ()
        self._cut_off: Sequence[Needless] = ()
        self._run: QueryRun | None = None
        self._own: dict[StoreIdentity, Needs] = {}
        self._needs: dict[StoreIdentity, Needs] = {}
        self._read_from: dict[str, Said | None] = {}
        self._over_at: dict[tuple[str, bool], float | None] = {}
        """When a file of needs was last said to be over to those who delete (False), and to those who only ask."""
        self._told: str | None = None
        self._told_at: float | None = None

    @classmethod
    def of(cls, storage: Storage) -> LogObjects:
        """The ones that all users of a storage share."""
        return storage.shared(cls, cls)

    def find(self, log: str) -> Found:
        """An object, with its verified index; what that says of its writer may be left out.

        Raises:
            LaminaError: `file.missing`, `file.damaged`, `file.version`, `file.identity`, naming the object; those of
                places that could not be asked for it.
        """
        with self._lock:
            known = self._indexes.get(log)
            if known is not None:
                return known
            listed = self._objects.get(log) if log not in self._doubted else None
            if listed is not None:
                return Found(listed.index, listed.size, listed.place)
            reading, mine = self._reading.get(log), False
            if reading is None:
                reading, mine = Future(), True
                self._reading[log] = reading
        if not mine:
            try:
                return reading.result()
            except Exception:
                # one that failed says little of the next
                return self._read(log)
        try:
            reading.set_result(self._read(log))
        except BaseException as error:
            reading.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._reading[log]
        return reading.result()

    def _read(self, log: str) -> Found:
        with self._lock:
            place = self._place_of(log)
        if place is not None:
            return self._remembered(log, place.asked(lambda: self._read_at(place, log)))
        return self._remembered(log, self.places.find(lambda place: self._read_at(place, log))[0])

    def add_written(self, log: str, place: LogPlace, end: bytes, size: int) -> None:
        """Hears of an object that this process has written.

        Args:
            end: the last of its `size` bytes, with its index.
        """
        self._remembered(log, self._parsed(place, log, pa.py_buffer(end), size))

    def exists(self, log: str) -> bool:
        """Whether an object is there, or was within the last second: the storage is asked for it, whatever is known of
        its index."""
        return self._looks.is_there(log)

    def was_seen(self, log: str) -> bool:
        """Whether `exists` would be True, and ask nobody."""
        return self._looks.was_seen(log)

    def _is_there(self, log: str) -> bool:
        with self._lock:
            place = self._place_of(log)
        if place is not None:
            if place.asked(lambda: place.storage.exists(place.path(log))):
                return True
            self.forget(log)
        try:
            self.places.find(lambda place: place.storage.size(place.path(log)))
        except LaminaError as error:
            if error.kind == "file.missing":
                return False
            raise
        return True

    def location(self, log: str) -> str:
        """How an object is named to people: where it is, or may be."""
        with self._lock:
            place = self._place_of(log)
        places = [self.places.own, *self.places.elsewhere()] if place is None else [place]
        return " or ".join(one.location(log) for one in places)

    def is_remote(self, log: str) -> bool:
        """Whether reading an object costs a request to another machine, as far as is known of where it is."""
        with self._lock:
            place = self._place_of(log)
        return (place or self.places.own).storage.remote

    def _place_of(self, log: str) -> LogPlace | None:
        """Where an object was found or listed."""
        found = self._indexes.get(log) or self._objects.get(log)
        if found is None:
            unread = self._unread.get(log)
            return None if unread is None else unread.place
        return found.place

    def _remembered(self, log: str, found: Found) -> Found:
        self._indexes.add(log, found)
        return found

    def parts_of(
        self, store: StoreIdentity, newest: AttemptId | None = None, progressed: Callable[[], None] = lambda: None
    ) -> list[Listed]:
        """The commits of a store in log objects, by the names that files of them would have.

        What is known may be a few seconds old, but for `newest`, where that is in a log object.

        Args:
            progressed: called now and then where that takes long.
        """
        wanted = PartId.of(newest).log if newest is not None and newest.kind == GROUP else None
        self._look(wanted, progressed)
        with self._lock:
            if wanted is not None and wanted not in self._objects:
                unread = self._unread.get(wanted)
                if unread is not None and unread.error.kind.startswith("storage."):
                    raise unread.error
                if self._unreached:
                    raise self._unreached[0].error
            return [
                Listed(name_of(part.attempt), part.length, found.modified_ms)
                for found, part in self._parts.get(store, ())
            ]

    def tell_needs(self, run: QueryRun, store: StoreIdentity, confirmed: int, names: Iterable[str]) -> None:
        """Hears what a store needs, as whoever collects it in a run of the query has found.

        Args:
            confirmed: the newest confirmed version; all above it may be needed.
            names: of the commits in log objects up to that one which something needs, or which are too young to go.
        """
        versions = (attempt.version for attempt in map(attempt_of, names) if attempt is not None)
        with self._lock:
            if self._is_of(run):
                self._own[store] = Needs.of(confirmed, versions)
                self._hear(store, self._own[store])

    def needless(self, run: QueryRun, *, dry_run: bool = False) -> list[Needless]:
        """What nobody needs any more, as far as that is known; each is said once after a look to those who delete, and
        once, before that, to those who only ask.

        Who deletes it sees first to it that no newer run of the query has begun.
        """
        with self._lock:
            if not self._is_of(run):
                return []
            gone = []
            for log_id in sorted(self._needless):
                found = self._objects[log_id]
                # what was deleted since the look is no news to those who ask either
                said_at = (found.said_at.get(False), found.said_at.get(dry_run))
                if self._looked not in said_at and found.place.is_own:
                    found.said_at[dry_run] = self._looked
                    gone.append(Needless.at(found.place, f"{log_id}.log", found.size, found.modified_ms))
            over = [
                path
                for path, said in self._read_from.items()
                if said is not None
                and self._looked not in (self._over_at.get((path, False)), self._over_at.get((path, dry_run)))
                and self._is_over(path, said)
            ]
            self._over_at = {one: at for one, at in self._over_at.items() if one[0] in self._read_from}
            self._over_at.update(((path, dry_run), self._looked) for path in over)
            return [*gone, *(Needless(self.storage, path, path) for path in over)]

    def cut_off(self) -> Sequence[Needless]:
        """What cut-off publications have left in places of its own, by the last look."""
        with self._lock:
            return self._cut_off

    def _is_over(self, path: str, said: Said) -> bool:
        """Whether a file says nothing that counts: its run is over, or this process knows newer of all its stores, or
        other files say so."""
        if self._run is None or path == self._told:
            return False
        run, needs = said
        if run.id != self._run.id:
            return run < self._run
        others = [
            (other, told[1]) for other, told in self._read_from.items() if told is not None and told[0].id == run.id
        ]

        def is_known(store: StoreIdentity, confirmed: int) -> bool:
            own = self._own.get(store)
            if own is not None and own.confirmed >= confirmed:
                return True
            # of files that say as much of a store the last one stays
            return any((told[store].confirmed, other) > (confirmed, path) for other, told in others if store in told)

        return all(is_known(store, one.confirmed) for store, one in needs.items())

    @property
    def is_stale(self) -> bool:
        """Whether the last look was so long ago that others wait to hear, and to be heard."""
        with self._lock:
            then = self._looked
        return then is not None and bool(self._objects) and self._clock.monotonic() - then >= TOLD_AFTER_S

    def unread_since(self, modified_ms: int) -> str | None:
        """How an object is named to people that was published at that time or later, and whose index cannot be read, or
        a place that could not be listed: nobody knows whose commits are there."""
        with self._lock:
            if self._unreached:
                return self._unreached[0].where
            found = {log: one.place for log, one in self._unread.items() if one.modified_ms >= modified_ms}
        return found[min(found)].location(min(found)) if found else None

    def _is_of(self, run: QueryRun) -> bool:
        """Whether a run is the newest that was heard of; what was known of older ones is forgotten."""
        if self._run is not None and run.id == self._run.id:
            # it may have claimed two epochs, of which the smaller one counts
            self._run = min(run, self._run)
        elif self._run is None or run > self._run:
            self._run = run
            self._own, self._needs = {}, {}
            # like those of others it goes when it is found again
            self._told = None
            for found in self._objects.values():
                found.needless.clear()
            self._needless = {log for log, found in self._objects.items() if not found.index.parts}
            for said in self._read_from.values():
                self._hear_all(said)
        return run.id == self._run.id

    def _hear_all(self, said: Said | None) -> None:
        if said is not None and self._run is not None and said[0].id == self._run.id:
            for store, needs in said[1].items():
                self._hear(store, needs)

    def _hear(self, store: StoreIdentity, needs: Needs) -> None:
        """Of two who know of a store whoever has seen more counts."""
        known = self._needs.get(store)
        if known is None or known.confirmed <= needs.confirmed:
            self._needs[store] = needs
            for found, part in self._parts.get(store, ()):
                self._mark(found, part, needs)

    def _look(self, wanted: str | None, progressed: Callable[[], None]) -> None:
        """Lists the objects, and reads the indexes of new ones; at once where one is not known that is wanted.

        A look serves all who came up to some seconds after it began, however long it takes.
        """
        came, seen = self._clock.monotonic(), -1
        while not self._looking.acquire(timeout=_WAIT_S):
            # somebody else looks, and may hang in it: then all who wait do
            if seen != self._went_on:
                seen = self._went_on
                progressed()
        try:
            self._went_on += 1
            now = self._clock.monotonic()
            recent = self._looked is not None and came - self._looked < _LOOK_S
            if recent and (wanted is None or wanted in self._objects):
                return
            listed: dict[str, tuple[LogPlace, Listed]] = {}
            files: set[str] = set()
            cut_off: list[Needless] = []
            entries, unreached = self.places.list()
            for place, entry in entries:
                if (id := place.log_of(entry.name)) is not None:
                    listed[id] = place, entry
                elif place.id is None and paths.is_log_needs(place.path_of(entry.name)):
                    files.add(place.path_of(entry.name))
                elif place.id is not None and place.is_own and is_temporary(entry.name):
                    cut_off.append(Needless.at(place, entry.name, entry.size, entry.modified_ms))
            left = set(self.places.elsewhere()) - {place for place, _ in entries}
            with self._lock:
                # of a place that could not be listed stays what is known
                there = {id for id, found in self._objects.items() if found.place in left}
                self._forget_all(self._objects.keys() - listed.keys() - there)
                self._unread = {id: found for id, found in self._unread.items() if id in listed}
                self._warn_of(unreached)
                self._unreached, self._cut_off = unreached, cut_off
            unknown = [id for id in listed if id not in self._objects]
            for first in range(0, len(unknown), _READ_TOGETHER):
                some = [(id, *listed[id]) for id in unknown[first : first + _READ_TOGETHER]]
                indexes = all_of(self.storage, self._index_of_listed, some, _READ_AT_ONCE)
                with self._lock:
                    for (_, place, entry), index in zip(some, indexes, strict=True):
                        if index is not None:
                            # all of them stay in memory
                            bare = replace(index, process={})
                            self._keep(Kept(bare, place, entry.size, entry.modified_ms))
                self._went_on += 1
                progressed()
            unheard = sorted(files - self._read_from.keys() - {self._told})
            read = all_of(self.storage, partial(log_needs.read, self.storage), unheard, _READ_AT_ONCE)
            with self._lock:
                self._read_from = {path: said for path, said in self._read_from.items() if path in files}
                for path, said in zip(unheard, read, strict=True):
                    # what could not be read for a moment is read again
                    if not isinstance(said, LaminaError):
                        self._read_from[path] = said
                        self._hear_all(said)
                self._looked = now
            if self._tells:
                self._tell(now)
        finally:
            self._looking.release()

    def _warn_of(self, unreached: Sequence[Unreached]) -> None:
        known = {one.where for one in self._unreached}
        for one in unreached:
            if one.where not in known:
                log.warning("no log object goes while %s cannot be read: %s", one.where, one.error)

    def _keep(self, found: Kept) -> None:
        self._objects[found.index.log] = found
        if not found.index.parts:
            self._needless.add(found.index.log)
        for part in found.index.parts:
            self._parts.setdefault(part.store, []).append((found, part))
            if (needs := self._needs.get(part.store)) is not None:
                self._mark(found, part, needs)

    def _mark(self, found: Kept, part: Part, needs: Needs) -> None:
        if found.mark(part, needs):
            self._needless.add(found.index.log)
        else:
            self._needless.discard(found.index.log)

    def _forget_all(self, gone: Set[str]) -> None:
        """Forgets objects that are not there any more."""
        if gone:
            self._doubted -= gone
            self._needless -= gone
            for id in gone:
                self._indexes.pop(id)
            kept = [self._objects.pop(id) for id in gone if id in self._objects]
            for store in {part.store for found in kept for part in found.index.parts}:
                left = [(found, part) for found, part in self._parts[store] if found.index.log not in gone]
                if left:
                    self._parts[store] = left
                else:
                    del self._parts[store]

    def _tell(self, now: float) -> None:
        """Writes what this process knows where others may wait for it; who tells anew removes what it told before."""
        with self._lock:
            due = self._told_at is None or now - self._told_at >= TOLD_AFTER_S
            if not due or self._run is None or not self._is_waited_for():
                return
            run, own, before = self._run, dict(self._own), self._told
        path = paths.log_needs_path(self._ids.hex128())
        try:
            self.storage.publish(path, iter([log_needs.to_bytes(run, own)]))
            if before is not None:
                self.storage.delete_many([before])
        except LaminaError as error:
            log.warning("%s is written again later: %s", self.storage.location(path), error)
        with self._lock:
            self._told, self._told_at = path, now

    def _is_waited_for(self) -> bool:
        """Whether an old object stays of which this process knows that some of its stores do not need it."""
        old = self._clock.now_ms() - 1000 * TOLD_AFTER_S
        return any(
            found.modified_ms < old and found.needless and log_id not in self._needless
            for log_id, found in self._objects.items()
        )

    def _index_of_listed(self, listed: tuple[str, LogPlace, Listed]) -> LogIndex | None:
        """An index; None where it cannot be read, which is tried again."""
        id, place, entry = listed
        try:
            index = place.asked(lambda: self._index_at(place, id))
        except LaminaError as error:
            if error.kind == "file.missing":
                return None  # it went meanwhile
            if not error.kind.startswith("file.") and error.kind != "storage.denied":
                raise
            # whoever needs a part of it meets the error; it stays, since nobody knows whose parts it has
            with self._lock:
                is_new = id not in self._unread
                self._unread[id] = Unread(place, entry.modified_ms, error)
            if is_new:
                log.warning("the log object %s stays, since it cannot be read: %s", id, error)
            return None
        with self._lock:
            self._unread.pop(id, None)
        return index

    def _index_at(self, place: LogPlace, log: str) -> LogIndex:
        """The index of an object of a place, of which a local copy may be damaged."""
        known = self._indexes.get(log)
        if known is not None:
            return known.index
        try:
            return self._remembered(log, self._read_at(place, log)).index
        except LaminaError as error:
            if not error.kind.startswith("file.") or not place.storage.forget(place.path(log)):
                raise
        return self._remembered(log, self._read_at(place, log)).index

    def forget(self, log: str) -> bool:
        """Drops what is known of an object, whose contents turned out wrong; whether there was a local copy."""
        with self._lock:
            self._doubted.add(log)
            self._indexes.pop(log)
        self._looks.forget(log)
        places = (self.places.own, *self.places.elsewhere())
        dropped = [place.storage.forget(place.path(log)) for place in places]
        return any(dropped)

    def _read_at(self, place: LogPlace, log: str) -> Found:
        return self._parsed(place, log, *place.storage.read_tail(place.path(log), _TAIL_BYTES))

    @staticmethod
    def _parsed(place: LogPlace, log: str, tail: pa.Buffer, size: int) -> Found:
        where = place.location(log)
        end = Footer.parse(tail, size, where)
        start = end.manifest_offset - (size - tail.size)
        stored = (
            tail.slice(start, end.stored_length)
            if start >= 0
            else place.storage.read_range(place.path(log), end.manifest_offset, end.stored_length)
        )
        index = log_object.index_of(end.manifest(stored, where), end, log, where)
        if tail.size == size:
            check_header(tail, LOG, index.header_crc, where)
        return Found(index, size, place)
