"""What the engine and the maintenance process tell each other of a store's files, as JSON: finished segments that the
process reports and that a job tells it of, what commits need, and what is broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lamina.format import SegmentManifest
from lamina.format.table_list import TableListManifest
from lamina.store import Replacement, Store
from lamina.store.collection.footprints import Footprint
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.restore.detours import Place
from lamina.store.versions.chain import Segment, TableList


def segment_to_json(made: Replacement) -> dict[str, Any]:
    """All that the store needs to refer to what was made without reading it."""
    checksum = {"sha256": made.sha256} if isinstance(made, TableList) else {}
    return {"manifest": made.manifest.to_json(), "size": made.size, "published_ms": made.published_ms, **checksum}


def known_to_json(store: Store, broken: BrokenPlaces, collects: bool) -> dict[str, Any]:
    """What a job is told of a store when it is sent: the finished segments that wait for its next commit, what of it a
    merge is to make anew, and where the job collects, the footprints of commits, by any handle of the store, that no
    job was told of."""
    return {
        "broken": places_to_json(broken.to_mend),
        "waiting": [segment_to_json(segment) for segment in store.waiting_segments()],
        "footprints": [_footprint_to_json(*one) for one in store.take_footprints()] if collects else [],
    }


def places_to_json(places: Iterable[Place]) -> list[Any]:
    """Sections of files."""
    return [list(place) for place in places]


def places_from_json(value: Sequence[Any]) -> frozenset[Place]:
    """What `places_to_json` wrote."""
    return frozenset((root, path, offset) for root, path, offset in value)


def _footprint_to_json(attempt: str, footprint: Footprint) -> list[Any]:
    return [attempt, list(footprint.names), None if footprint.stands_on is None else list(footprint.stands_on)]


def footprint_from_json(value: Sequence[Any]) -> tuple[str, Footprint]:
    """An attempt and its footprint, as a job names them."""
    attempt, names, stands_on = value
    return attempt, Footprint(tuple(names), None if stands_on is None else (stands_on[0], stands_on[1]))


def segment_from_json(value: Mapping[str, Any]) -> Replacement:
    """What `segment_to_json` wrote."""
    manifest, size, published_ms = value["manifest"], int(value["size"]), int(value["published_ms"])
    if "list" in manifest:
        return TableList(TableListManifest.from_json(manifest), size, str(value["sha256"]), published_ms)
    return Segment(SegmentManifest.from_json(manifest), size, published_ms)
