"""How long what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lamina.format.manifest import CommitManifest
from lamina.settings import Settings


@dataclass(frozen=True)
class Retention:
    """How long what is kept.

    Args:
        min_versions: versions before the newest confirmed one.
        min_version_age_ms: versions that were the newest one within this time.
        min_age_ms: how long a file stays after nothing needs it any more.
    """

    min_versions: int
    min_version_age_ms: int
    min_age_ms: int

    @classmethod
    def of(cls, settings: Settings, min_versions: int) -> Retention:
        """The retention of a store with these settings and Spark's `minVersionsToRetain`."""
        return cls(min_versions, settings.retention_min_version_age_ms, settings.retention_min_age_ms)

    def at_least(self, min_versions: int) -> Retention:
        """The same with no fewer versions."""
        return replace(self, min_versions=max(self.min_versions, min_versions))

    def to_json(self) -> dict[str, int]:
        """As manifests record it, for tools."""
        return {
            "min_versions": self.min_versions,
            "min_version_age_ms": self.min_version_age_ms,
            "min_age_ms": self.min_age_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> Retention:
        return cls(int(value["min_versions"]), int(value["min_version_age_ms"]), int(value["min_age_ms"]))

    @classmethod
    def recorded(cls, newest: CommitManifest) -> Retention:
        """What the manifest of the newest version records."""
        return cls.from_json(newest.retention) if newest.retention else cls.of(Settings(), 0)

    def retains(self, after: int, published_ms: int, newest: int, now_ms: int) -> bool:
        """Whether it retains the version that version `after`, published at that time, followed in the lineage."""
        aged = self.min_version_age_ms and published_ms + self.min_version_age_ms > now_ms
        return after > newest - self.min_versions or bool(aged)
