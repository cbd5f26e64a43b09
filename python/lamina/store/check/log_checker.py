"""Checks the log objects that checked stores need, and counts what is beside them in the log, wherever it lies.

Their parts are checked as files of the stores; here it is what a store cannot see: header, padding, whose object it is,
and that the index says of each part what its attempt says. A problem that a store has named is not named again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamina.errors import LaminaError
from lamina.format import log_object, paths
from lamina.format.attempt_id import AttemptId
from lamina.format.container import FOOTER, HEADER, LOG, Footer, check_header, damaged
from lamina.format.log_object import LogIndex, Part, PartId
from lamina.format.manifest import StoreIdentity
from lamina.storage import Listed, Storage, is_temporary
from lamina.store.check.findings import DAMAGE
from lamina.store.check.report import UNREAD, LogCheck, Problem, StoreCheck
from lamina.store.files.log_indexes import Found
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.log_places import LogPlace, Unreached

OBJECT, PART, NEEDS, TEMPORARY = "object", "part", "needs", "temporary"
"""Classes of what no checked store needs: whole objects, parts of objects that another part keeps, files that say what
stores need, cut-off publications. No byte is in two of them."""


@dataclass(frozen=True)
class ObjectCheck:
    """What was found in one log object.

    Args:
        bytes: of an object that was verified, else 0.
        not_needed: its class, number and bytes, where no checked store needs it or some of its parts.
    """

    bytes: int = 0
    not_needed: tuple[str, int, int] | None = None
    problem: Problem | None = None
    warning: str | None = None


class LogChecker:
    """The check of a checkpoint's log, after that of its stores.

    Args:
        state: rooted at the directory `state` of the checkpoint.
        checks: of the stores: of others nobody knows here what they need.
        contents: whether objects are read whole, or only their indexes.
    """

    def __init__(self, state: Storage, checks: Sequence[StoreCheck], *, contents: bool) -> None:
        self._objects = LogObjects.of(state)
        self._contents = contents
        self._unreached: Sequence[Unreached] = ()
        self._newest = {check.identity: check.newest for check in checks}
        self._named = {problem.message for check in checks for problem in check.problems}
        self._needed: dict[str, dict[str, StoreIdentity]] = {}
        for check in checks:
            for attempt in check.parts:
                log = PartId.of(AttemptId.parse(attempt)).log
                self._needed.setdefault(log, {})[attempt] = check.identity

    def listed(self) -> list[tuple[LogPlace, Listed]]:
        """The files of the log; see `unreached`."""
        found, self._unreached = self._objects.places.list()
        return found

    def unreached(self) -> list[ObjectCheck]:
        """The places that could not be listed; what is in them nobody knows."""
        return [ObjectCheck(problem=Problem(UNREAD, (), one.error.message)) for one in self._unreached]

    def check(self, listed: tuple[LogPlace, Listed]) -> ObjectCheck:
        """Looks at one file of the log; one that goes meanwhile is no damage, since what needed it was checked."""
        place, entry = listed
        log = place.log_of(entry.name)
        if log is None:
            is_needs = place.id is None and paths.is_log_needs(place.path_of(entry.name))
            kind = NEEDS if is_needs else TEMPORARY if is_temporary(entry.name) else None
            return ObjectCheck(not_needed=None if kind is None else (kind, 1, entry.size))
        needed = self._needed.get(log, {})
        try:
            found = self._objects.find(log)
            index, size = found.index, found.size
            if needed:
                self._verify(log, found, needed)
        except LaminaError as error:
            return self._failed(error, is_needed=bool(needed))
        return ObjectCheck(size if needed else 0, self._not_needed(index, size, needed))

    def _failed(self, error: LaminaError, *, is_needed: bool) -> ObjectCheck:
        if error.kind == "file.missing":
            return ObjectCheck()
        if not is_needed:
            return ObjectCheck(warning=f"{error.message}; no store that was checked needs it")
        if any(error.message in message for message in self._named):
            return ObjectCheck()
        kind = error.kind if error.kind.startswith(DAMAGE) else UNREAD
        return ObjectCheck(problem=Problem(kind, (), error.message))

    def _verify(self, log: str, found: Found, needed: Mapping[str, StoreIdentity]) -> None:
        index, size, storage = found.index, found.size, found.place.storage
        path, where = found.place.path(log), found.place.location(log)
        for part in index.parts:
            store = needed.get(part.attempt)
            if store is None:
                continue
            if store.checkpoint != index.checkpoint:
                text = f"{where} is of checkpoint {index.checkpoint}, and {store.checkpoint} was expected"
                raise LaminaError.from_kind("file.identity", text)
            if (part.store, part.to) != (store, AttemptId.parse(part.attempt).version):
                raise damaged(where, f"its index has {part.attempt} as version {part.to} of {part.store}")
        if self._contents:
            tail = storage.read_range(path, size - FOOTER.size, FOOTER.size)
            end = Footer.parse(tail, size, where).manifest_offset
            check_header(storage.read_range(path, 0, HEADER.size), LOG, index.header_crc, where)
            pieces = storage.read_pieces(path, HEADER.size, end - HEADER.size, size)
            log_object.check_padding(index, end, pieces, where)

    def _not_needed(
        self, index: LogIndex, size: int, needed: Mapping[str, StoreIdentity]
    ) -> tuple[str, int, int] | None:
        if needed:
            left = [part for part in index.parts if self._is_old(part) and part.attempt not in needed]
            return (PART, len(left), sum(part.length for part in left)) if left else None
        return (OBJECT, 1, size) if all(map(self._is_old, index.parts)) else None

    def _is_old(self, part: Part) -> bool:
        """Whether the check of its store tells if a part is needed; of what was written since nobody knows here."""
        return part.to <= self._newest.get(part.store, -1)


def summed(found: Iterable[ObjectCheck]) -> LogCheck:
    """What was found in the whole log."""
    objects = total = 0
    not_needed: dict[str, tuple[int, int]] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    for one in found:
        objects += one.bytes > 0
        total += one.bytes
        if one.not_needed is not None:
            kind, count, size = one.not_needed
            before = not_needed.get(kind, (0, 0))
            not_needed[kind] = (before[0] + count, before[1] + size)
        if one.problem is not None:
            problems.append(one.problem)
        if one.warning is not None:
            warnings.append(one.warning)
    return LogCheck(objects, total, not_needed, tuple(problems), tuple(warnings))
