"""Finished segments as JSON: those that the maintenance process reports, and those that a job tells it of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.format import SegmentManifest
from lamina.store import Segment, Store


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """All that the store needs to refer to the segment without reading it."""
    return {
        "manifest": segment.manifest.to_json(),
        "size": segment.size,
        "published_ms": segment.published_ms,
    }


def waiting_to_json(store: Store) -> list[dict[str, Any]]:
    """The finished segments that wait for the next commit of a store."""
    return [segment_to_json(segment) for segment in store.waiting_segments()]


def segment_from_json(value: Mapping[str, Any]) -> Segment:
    """The segment that `segment_to_json` wrote."""
    return Segment(SegmentManifest.from_json(value["manifest"]), int(value["size"]), int(value["published_ms"]))
