"""Chains: which references make a version, and when a commit must bring a snapshot.

Pure functions over references, newest first. A chain is whole when each reference begins where the next older one ends,
and the oldest begins at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.errors import LaminaError
from lamina.format.manifest import INCREMENT, RUN, SNAPSHOT, Reference, Section, SegmentManifest, StoreIdentity
from lamina.format.paths import SegmentName
from lamina.settings import Settings


@dataclass(frozen=True)
class Segment:
    """A finished segment: its manifest, the size of its file, and when it was published."""

    manifest: SegmentManifest
    size: int
    published_ms: int

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.manifest.start, self.manifest.end, self.manifest.segment)

    def to_json(self) -> dict[str, Any]:
        """The segment as it travels from the maintenance process to the engine."""
        return {"manifest": self.manifest.to_json(), "size": self.size, "published_ms": self.published_ms}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Segment:
        return cls(SegmentManifest.from_json(value["manifest"]), int(value["size"]), int(value["published_ms"]))

    def reference(self) -> Reference:
        """How a manifest refers to the segment."""
        section = self.manifest.sections[0]
        return Reference(
            None,
            str(self.name),
            section.offset,
            section.length,
            self.size,
            section.sha256,
            RUN,
            self.manifest.start,
            self.manifest.end,
            section.rows,
            self.manifest.store,
        )


def wants_snapshot(settings: Settings, version: int, chain: Sequence[Reference]) -> bool:
    """Whether the commit of `version`, on top of `chain`, brings a snapshot although it has a usable base."""
    if settings.compaction_mode == "full" and version % settings.compaction_full_interval == 0:
        return True
    return len(chain) >= settings.compaction_max_chain


def own_references(
    sections: Sequence[Section],
    version: int,
    base_version: int,
    older: Sequence[Reference],
    store: StoreIdentity,
) -> tuple[Reference, ...]:
    """The references of a new commit: its snapshot alone, or its increment on top of `older`."""
    by_name = {section.name: section for section in sections}
    if SNAPSHOT in by_name:
        return (_own(by_name[SNAPSHOT], SNAPSHOT, 0, version, store),)
    return (_own(by_name[INCREMENT], INCREMENT, base_version, version, store), *older)


def _own(section: Section, kind: str, start: int, end: int, store: StoreIdentity) -> Reference:
    return Reference(
        None, None, section.offset, section.length, None, section.sha256, kind, start, end, section.rows, store
    )


def adopt(chain: Sequence[Reference], segment: Segment) -> tuple[Reference, ...] | None:
    """`chain` with the segment in place of the references that it was merged from; None where they are not in it."""
    inputs = [_key(reference) for reference in segment.manifest.inputs]
    keys = [_key(reference) for reference in chain]
    for position in range(len(keys) - len(inputs) + 1):
        if keys[position : position + len(inputs)] == inputs:
            return (*chain[:position], segment.reference(), *chain[position + len(inputs) :])
    return None


def _key(reference: Reference) -> tuple[str | None, str | None, int, str]:
    return reference.root, reference.path, reference.offset, reference.sha256


def check(chain: Sequence[Reference], version: int, where: str) -> None:
    """Raises `file.damaged` where the references do not add up to `version`."""
    end = version
    for reference in chain:
        if reference.end != end or reference.start >= reference.end:
            break
        end = reference.start
    else:
        if end == 0:
            return
    raise LaminaError.from_kind(
        "file.damaged", f"{where} is damaged: its references do not add up to version {version}"
    )


def since(chain: Sequence[Reference], version: int) -> tuple[Reference, ...] | None:
    """The references after `version`, newest first; None where one of them reaches behind it."""
    newer = tuple(reference for reference in chain if reference.end > version)
    return newer if all(reference.start >= version for reference in newer) else None
