"""Which parts of log objects are needed, as the processes of a checkpoint know it together.

Whoever collects a store knows which of its versions in log objects something needs, and that it will never need more of
those up to the confirmed one, as long as the run goes on. An object goes when that is known of all stores that have a
part in it, and none needs its part. The stores of an object may have moved to other executors since, of which each
collects some. So what a process knows it writes down beside the objects, where others wait for it.

What was found in one run says nothing in another, which may have gone back to an older batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.checkpoint import QueryRun, read_sealed, sealed_bytes
from lamina.errors import LaminaError
from lamina.format.log_object import LogIndex, Part
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.store.files.log_places import LogPlace

_FORMAT = 1
_MOST_BYTES = 64 << 20
_MOST_RANGES = 64
"""Of more those next to each other are joined, and what lies between them counts as needed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needs:
    """What one store needs of log objects.

    Args:
        confirmed: the newest confirmed version when this was found; all above it may be needed.
        ranges: first and last of versions up to that one that are needed, ascending.
    """

    confirmed: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, confirmed: int, versions: Iterable[int]) -> Needs:
        """Those of a store of which these versions are needed."""
        needed = sorted(version for version in versions if version <= confirmed)
        ranges, gap = _ranges(needed, 1), 1
        while len(ranges) > _MOST_RANGES:
            gap *= 2
            ranges = _ranges(needed, gap)
        return cls(confirmed, tuple(ranges))

    def includes(self, version: int) -> bool:
        """Whether a version is needed, or may be."""
        return version > self.confirmed or any(first <= version <= last for first, last in self.ranges)


def _ranges(versions: Iterable[int], gap: int) -> list[tuple[int, int]]:
    """Ranges that have all of these ascending versions; where two are no further apart, they are in one."""
    ranges: list[tuple[int, int]] = []
    for version in versions:
        if ranges and version - ranges[-1][1] <= gap:
            ranges[-1] = (ranges[-1][0], version)
        else:
            ranges.append((version, version))
    return ranges


Said = tuple[QueryRun, Mapping[StoreIdentity, Needs]]
"""What a process has written down: as found in which run."""


@dataclass
class Kept:
    """An object that was listed, and its parts that nothing needs."""

    index: LogIndex
    place: LogPlace
    size: int
    modified_ms: int
    needless: set[int] = field(default_factory=set)
    said_at: dict[bool, float | None] = field(default_factory=dict)
    """When it was last said to be needless to those who delete (False), and to those who only ask (True)."""

    def mark(self, part: Part, needs: Needs) -> bool:
        """Notes whether the store of a part needs it; whether nobody needs any."""
        if needs.includes(part.to):
            self.needless.discard(part.number)
        else:
            self.needless.add(part.number)
        return len(self.needless) == len(self.index.parts)


def to_bytes(run: QueryRun, needs: Mapping[StoreIdentity, Needs]) -> bytes:
    """The file that says what stores need."""
    stores = [
        [
            store.checkpoint,
            store.operator,
            store.partition,
            store.name,
            one.confirmed,
            [list(pair) for pair in one.ranges],
        ]
        for store, one in needs.items()
    ]
    return sealed_bytes({"format": _FORMAT, "epoch": run.epoch, "run": run.id, "stores": stores})


def read(storage: Storage, path: str) -> Said | LaminaError | None:
    """What such a file says; None where it says nothing that can be used: objects then stay longer. The error where
    the storage did not give it, and may another time."""
    try:
        values = read_sealed(storage, path, _MOST_BYTES, _FORMAT)
        return None if values is None else _parsed(values)
    except (LaminaError, ValueError, TypeError, KeyError) as error:
        log.warning("%s is left out: %s", storage.location(path), error)
        return error if isinstance(error, LaminaError) and error.kind.startswith("storage.") else None


def _parsed(values: Mapping[str, Any]) -> Said:
    needs = {}
    for checkpoint, operator, partition, name, confirmed, ranges in values["stores"]:
        store = StoreIdentity(str(checkpoint), int(operator), int(partition), str(name))
        needs[store] = Needs(int(confirmed), tuple((int(first), int(last)) for first, last in ranges))
    return QueryRun(int(values["epoch"]), str(values["run"])), needs
