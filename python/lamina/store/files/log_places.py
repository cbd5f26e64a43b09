"""Places of log objects: the checkpoint's own directory, and those that files of it name (`changelog.path`).

    <state>/_lamina/log/<place>.at                  says where the place is, and whose
    <changelog.path>/<uuid>/<place>/<place>.at      the same: without it, the place is not there
    <changelog.path>/<uuid>/<place>/<id>.log

1. Both files are published before the first object goes there, and never deleted while the checkpoint lives. So who
   knows the checkpoint knows all its places, whatever is set by then. Both have the same random number: a directory
   that is not the same for all processes, or not any more, is noticed before an object is written there.
2. An object lies in one place, which its id does not name. It is looked for where the last one was found, and then
   elsewhere; only where it is in no place that is known are the files listed once more.
3. A place is named after its path and the checkpoint that writes there. A copy of a checkpoint reads what the original
   has in its places, writes to others, and deletes nothing in them.
4. A place that does not answer, or may not be read, has objects of which nobody knows: who asks for one that is found
   nowhere gets that error, not that the object is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lamina.checkpoint import read_sealed, sealed_bytes
from lamina.components import Clock, Ids, SystemClock
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.settings import NONE, PREFIX
from lamina.storage import Listed, Storage

_FORMAT = 1
_MOST_BYTES = 64 << 10
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")

_LONG_S = 1.0
_SILENT_S = 60.0
_SILENT_TIMES = 10.0
"""A place whose listing failed after so long is not asked again for so long, or so many times as long as it took."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False)
class LogPlace:
    """Where log objects lie.

    Args:
        storage: of the checkpoint, rooted at its directory `state`, or of a place, rooted there.
        id: of a place of its own; None of the checkpoint's.
        named_by: how the file that names the place is named to people.
        is_own: whether it is this checkpoint that writes there, and not one that this is a copy of.
    """

    storage: Storage
    id: str | None = None
    named_by: str = ""
    is_own: bool = True

    def path(self, log: str) -> str:
        """The path of an object in `storage`."""
        return paths.log_path(log) if self.id is None else paths.placed_log_path(log)

    def log_of(self, name: str) -> str | None:
        """The id of the object that a listed file is; None for any other."""
        return paths.log_of(self.path_of(name)) if self.id is None else paths.placed_log_of(name)

    def path_of(self, name: str) -> str:
        """The path of a listed file in `storage`."""
        return paths.join(self._directory, name)

    def location(self, log: str) -> str:
        """How an object is named to people."""
        return self.storage.location(self.path(log))

    def list(self) -> Sequence[Listed]:
        """The files that are there.

        Raises:
            LaminaError: `storage.*`, naming the file that names the place; also where the place is not there.
        """
        found = self.asked(lambda: self.storage.list(self._directory), may_be_elsewhere=True)
        if self.id is not None and paths.log_place_path(self.id, "") not in {entry.name for entry in found}:
            raise self.absent()
        return found

    def require(self) -> None:
        """Raises `storage.failed` where a place is not there: then it says nothing that an object is not."""
        if self.id is not None:
            marker = paths.log_place_path(self.id, "")
            if not self.asked(lambda: self.storage.exists(marker)):
                raise self.absent()

    def asked(self, ask: Callable[[], _Found], *, may_be_elsewhere: bool = False) -> _Found:
        """What `ask` gives; errors of a place's storage name the file that names the place.

        Args:
            may_be_elsewhere: then it is not looked whether the place itself is there when an object is not.
        """
        try:
            return ask()
        except LaminaError as error:
            if error.kind == "file.missing" and not may_be_elsewhere:
                self.require()
            if self.id is None or not error.kind.startswith("storage."):
                raise
            text = f"{error.message}; {self.named_by} says that log objects are in {self.storage.url}"
            raise LaminaError.from_kind(error.kind, text) from error

    @property
    def _directory(self) -> str:
        return paths.LOG if self.id is None else ""

    def absent(self) -> LaminaError:
        """The error of a place that is not there."""
        return LaminaError.from_kind(
            "storage.failed",
            f"{self.storage.url}, where {self.named_by} says that log objects are, is not there: bring it back; if it "
            "is lost, delete that file, and what needs those objects is lost with them",
        )


@dataclass(frozen=True)
class Unreached:
    """A place that could not be read, and how it is named to people."""

    where: str
    error: LaminaError


class LogPlaces:
    """The places of one checkpoint. Thread-safe.

    Args:
        storage: rooted at the directory `state` of the checkpoint.
        opened: gives the storage of a place by its URL; by default only where that may be read, as
            `Storage.named` has it.
    """

    def __init__(
        self, storage: Storage, opened: Callable[[str], Storage] | None = None, clock: Clock | None = None
    ) -> None:
        self.own = LogPlace(storage)
        self._clock = clock or SystemClock()
        self._remembers_silence = False
        self._silent: dict[LogPlace, tuple[float, LaminaError]] = {}
        self._storage = storage
        self._opened = opened or storage.named
        self._lock = threading.Lock()
        self._known: dict[str, LogPlace] = {}
        self._refused: dict[str, Unreached] = {}
        self._order: list[LogPlace] = [self.own]

    def remember_silence(self) -> None:
        """To be called by who lists the places for very many stores: a place whose listing failed after a long time is
        not asked again at once for each of them, which would take as long each time."""
        self._remembers_silence = True

    def take(self, path: str, uuid: str, ids: Ids) -> LogPlace:
        """The place below a path that objects are written to from now on.

        Args:
            path: as the setting `changelog.path` has it; `none`: the checkpoint's own.
            uuid: of the checkpoint.
        Raises:
            LaminaError: `settings.invalid` where it cannot be; `file.*`, `storage.*`.
        """
        if path == NONE:
            return self.own
        if self._storage.encloses(path, up=1):
            raise _invalid(path, "which is in the checkpoint: take a directory beside it, or leave it out")
        owner = _absolute(self._storage.url)
        id = hashlib.sha256(f"{path}\n{owner}".encode()).hexdigest()[:32]
        url = f"{path}/{uuid}/{id}"
        mine = sealed_bytes({"format": _FORMAT, "url": url, "checkpoint": owner, "nonce": ids.hex128()})
        with _refused_as_setting(path, remote=False):
            storage = self._opened(url)
        self._make(id, storage, path, mine)
        self._learn([id])
        with self._lock:
            place, refused = self._known.get(id), self._refused.get(id)
        if place is None:
            gone = LaminaError.from_kind("storage.failed", f"the file that names {url} was deleted")
            raise gone if refused is None else refused.error
        self._to_front(place)
        return place

    def _make(self, id: str, storage: Storage, path: str, mine: bytes) -> None:
        """Publishes the files of a place where they are not there; both have the bytes of who was first."""
        named, marker = paths.log_place_path(id), paths.log_place_path(id, "")
        known = _bytes_of(self._storage, named)
        with _refused_as_setting(path, remote=storage.remote):
            if known is not None and _bytes_of(storage, marker) != known:
                raise LogPlace(storage, id, self._storage.location(named)).absent()
            # also to see whether it may be written
            storage.publish_if_absent(marker, mine if known is None else known)
            there = _bytes_of(storage, marker)
        if known is None and there is not None:
            self._storage.publish_if_absent(named, there)
            known = _bytes_of(self._storage, named)
        if known is None or there != known:
            if there == mine:
                # it would say that the place is there
                storage.delete_many([marker])
            raise _invalid(path, "which is another directory for other processes of the query: take one that all share")

    def find(self, ask: Callable[[LogPlace], _Found]) -> tuple[_Found, LogPlace]:
        """What `ask` gives of the place that has an object, and that place.

        Args:
            ask: raises `file.missing` where a place has it not.
        Raises:
            LaminaError: `file.missing` where it is in no place; what `ask` raises of an object that is there; the
                error of a place that could not be asked, where it is in no other.
        """
        asked: set[LogPlace] = set()
        missing: LaminaError | None = None
        failed: LaminaError | None = None
        for listed_anew in (False, True):
            for place in self._to_ask():
                if place in asked:
                    continue
                asked.add(place)
                try:
                    found = place.asked(partial(ask, place), may_be_elsewhere=True)
                except LaminaError as error:
                    if error.kind == "file.missing":
                        # of the checkpoint's own object it says most
                        missing = error if missing is None or place is self.own else missing
                        continue
                    if place is self.own or not error.kind.startswith("storage."):
                        raise
                    failed = failed or error
                    continue
                self._to_front(place)
                return found, place
            if not listed_anew:
                self._know(self.own.list())
        with self._lock:
            refused = list(self._refused.values())
        if failed is not None:
            raise failed
        if refused:
            raise refused[0].error
        for place in asked:
            place.require()
        assert missing is not None
        others = ", ".join(sorted(place.storage.url for place in asked if place is not self.own))
        if others:
            raise LaminaError.from_kind("file.missing", f"{missing.message}; nor is it in {others}") from missing
        raise missing

    def list(self) -> tuple[list[tuple[LogPlace, Listed]], list[Unreached]]:
        """The files of all places, and the places that could not be listed.

        Raises:
            LaminaError: `storage.*` of the checkpoint's own.
        """
        found = [(self.own, entry) for entry in self.own.list()]
        self._know([entry for _, entry in found])
        with self._lock:
            places, unreached = list(self._known.values()), list(self._refused.values())
        for place in places:
            try:
                found += [(place, entry) for entry in self._listed(place)]
            except LaminaError as error:
                unreached.append(Unreached(f"{place.storage.url} (a place that {place.named_by} names)", error))
        return found, unreached

    def _listed(self, place: LogPlace) -> Sequence[Listed]:
        began = self._clock.monotonic()
        until, error = self._silent.get(place, (began, None))
        if error is not None and began < until:
            # another one: what is raised again and again keeps what each of its frames had
            raise LaminaError.from_kind(error.kind, error.message)
        try:
            return place.list()
        except LaminaError as failed:
            now = self._clock.monotonic()
            if self._remembers_silence and now - began >= _LONG_S:
                self._silent[place] = now + max(_SILENT_S, _SILENT_TIMES * (now - began)), failed
            raise

    def elsewhere(self) -> Sequence[LogPlace]:
        """The places besides the checkpoint's own, as far as they are known."""
        with self._lock:
            return list(self._known.values())

    def _know(self, listed: Iterable[Listed]) -> None:
        """Reads the files of new places; one whose file somebody has deleted is given up."""
        ids = [id for entry in listed if (id := paths.log_place_of(entry.name)) is not None]
        with self._lock:
            self._known = {id: place for id, place in self._known.items() if id in ids}
            self._refused = {id: refused for id, refused in self._refused.items() if id in ids}
            self._order = [place for place in self._order if place.id is None or place.id in ids]
        self._learn(ids)

    def _learn(self, ids: Collection[str]) -> None:
        with self._lock:
            new = [id for id in ids if id not in self._known]
        for id in new:
            place = self._read(id)
            with self._lock:
                if isinstance(place, Unreached):
                    # perhaps another time
                    self._refused[id] = place
                    continue
                self._refused.pop(id, None)
                if place is not None and id not in self._known:
                    self._known[id] = place
                    self._order.append(place)

    def _read(self, id: str) -> LogPlace | Unreached | None:
        """The place that a file names; None where it is not there any more."""
        path = paths.log_place_path(id)
        where = self._storage.location(path)
        try:
            values = read_sealed(self._storage, path, _MOST_BYTES, _FORMAT)
            if values is None:
                return None
            url, owner = values.get("url"), values.get("checkpoint")
            if not isinstance(url, str) or not isinstance(owner, str) or url.rpartition("/")[2] != id:
                raise LaminaError.from_kind("file.identity", f"{where} names no place that it can be the file of")
            try:
                storage = self._opened(url)
            except LaminaError as error:
                text = f"{error.message}; {where} says that log objects are in {url}"
                # what is there may be whole
                kind = "storage.denied" if error.kind == "file.identity" else error.kind
                raise LaminaError.from_kind(kind, text) from error
        except LaminaError as error:
            return Unreached(f"the place of log objects that {where} names", error)
        return LogPlace(storage, id, where, self._storage.leads_to(owner, ""))

    def _to_ask(self) -> Sequence[LogPlace]:
        with self._lock:
            return list(self._order)

    def _to_front(self, place: LogPlace) -> None:
        with self._lock:
            if self._order[0] is not place:
                self._order = [place, *(one for one in self._order if one is not place)]


def _bytes_of(storage: Storage, path: str) -> bytes | None:
    try:
        return bytes(storage.read(path))
    except LaminaError as error:
        if error.kind != "file.missing":
            raise
        return None


@contextlib.contextmanager
def _refused_as_setting(path: str, *, remote: bool) -> Iterator[None]:
    """Errors of a place's storage, as those of the setting; a remote storage may only not answer for a moment."""
    try:
        yield
    except LaminaError as error:
        if error.kind in ("storage.denied", "storage.scheme") or (error.kind == "storage.failed" and not remote):
            raise _invalid(path, f"where no objects can be written: {error.message}") from error
        raise


def _absolute(url: str) -> str:
    return url if _ABSOLUTE.match(url) else os.path.abspath(url)


def _invalid(path: str, why: str) -> LaminaError:
    return LaminaError.from_kind("settings.invalid", f"{PREFIX}changelog.path is {path!r}, {why}")
