"""Bytes on disk: containers, manifests, entries, attempt ids and paths. Knows no storage."""

from __future__ import annotations

from lamina.format.attempt_id import AttemptId
from lamina.format.container import ContainerWriter, Footer, verify
from lamina.format.entries import APPEND, DELETE, PUT, SCHEMA, Compression
from lamina.format.manifest import (
    Base,
    ColumnFamily,
    CommitManifest,
    Count,
    Reference,
    Run,
    Section,
    SegmentManifest,
    StoreIdentity,
)
from lamina.format.paths import CommitName, SegmentName, parse_name, store_directory

__all__ = [
    "APPEND",
    "DELETE",
    "PUT",
    "SCHEMA",
    "AttemptId",
    "Base",
    "ColumnFamily",
    "CommitManifest",
    "CommitName",
    "Compression",
    "ContainerWriter",
    "Count",
    "Footer",
    "Reference",
    "Run",
    "Section",
    "SegmentManifest",
    "SegmentName",
    "StoreIdentity",
    "parse_name",
    "store_directory",
    "verify",
]
