"""What the maintenance process reports of a finished segment, as JSON in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.format import SegmentManifest
from lamina.store import Segment


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """All that the store needs to refer to the segment without reading it."""
    return {
        "manifest": segment.manifest.to_json(),
        "size": segment.size,
        "published_ms": segment.published_ms,
    }


def segment_from_json(value: Mapping[str, Any]) -> Segment:
    """The segment that `segment_to_json` wrote."""
    return Segment(SegmentManifest.from_json(value["manifest"]), int(value["size"]), int(value["published_ms"]))
