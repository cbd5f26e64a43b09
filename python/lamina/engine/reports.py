"""What the engine and the maintenance process tell each other of a store's files, as JSON: finished segments that the
process reports and that a job tells it of, and what commits need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.format import SegmentManifest
from lamina.store import Segment, Store
from lamina.store.collection.footprints import Footprint


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """All that the store needs to refer to the segment without reading it."""
    return {
        "manifest": segment.manifest.to_json(),
        "size": segment.size,
        "published_ms": segment.published_ms,
    }


def known_to_json(store: Store, collects: bool) -> dict[str, Any]:
    """What a job says of a store: the finished segments that wait for its next commit, and where the job collects,
    the footprints of commits, by any handle of the store, that no job was told of."""
    return {
        "waiting": [segment_to_json(segment) for segment in store.waiting_segments()],
        "footprints": [_footprint_to_json(*one) for one in store.take_footprints()] if collects else [],
    }


def _footprint_to_json(attempt: str, footprint: Footprint) -> list[Any]:
    return [attempt, list(footprint.names), None if footprint.stands_on is None else list(footprint.stands_on)]


def footprint_from_json(value: Sequence[Any]) -> tuple[str, Footprint]:
    """An attempt and its footprint, as a job names them."""
    attempt, names, stands_on = value
    return attempt, Footprint(tuple(names), None if stands_on is None else (stands_on[0], stands_on[1]))


def segment_from_json(value: Mapping[str, Any]) -> Segment:
    """The segment that `segment_to_json` wrote."""
    return Segment(SegmentManifest.from_json(value["manifest"]), int(value["size"]), int(value["published_ms"]))
