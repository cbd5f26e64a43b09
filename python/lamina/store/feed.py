"""The change feed: the net change per key and version, read from the increments of a lineage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import LaminaError
from lamina.format.entries import SCHEMA
from lamina.format.manifest import CommitManifest, Reference
from lamina.storage import in_flight
from lamina.store.files.store_files import StoreFiles
from lamina.store.memory.budget import Share, unbounded
from lamina.store.restore import detours, stream
from lamina.store.versions.resolution import Versions

_MANIFESTS_AT_ONCE = 32
"""Of a remote storage, where each is a round trip."""

FEED_SCHEMA = pa.schema([*SCHEMA, pa.field("version", pa.int64(), nullable=False)])


def increments(versions: Versions, files: StoreFiles, newest: CommitManifest, start: int) -> list[Reference]:
    """The increments of versions `start` … `newest.version` along its lineage, oldest first.

    A version that changed nothing has none.

    Raises:
        LaminaError: `state.not-retained` where one of them was collected, `state.base` where a version was not
            written as an increment.
    """
    if newest.version < start:
        return []
    older, complete = versions.lineage(newest, start)
    older = [entry for entry in older if entry[1] >= start]
    if not complete:
        raise _not_kept(start, "the lineage cannot be followed so far")
    found = []
    attempts = [*(attempt for attempt, _ in reversed(older)), newest.attempt]
    with closing(in_flight(files.storage, versions.open, attempts, _MANIFESTS_AT_ONCE)) as manifests:
        for attempt, opened in zip(attempts, manifests, strict=True):
            try:
                reference = detours.increment_reference(opened(), files)
            except LaminaError as error:
                if error.kind != "file.missing":
                    raise
                raise _not_kept(start, error.message) from error
            if reference is None:
                raise LaminaError.from_kind("state.base", f"{attempt} was written as a snapshot; it has no change feed")
            found.append(reference)
    return found


def _not_kept(start: int, reason: str) -> LaminaError:
    return LaminaError.from_kind(
        "state.not-retained", f"the changes from version {start} on are not kept any more: {reason}"
    )


def batches(
    versions: Versions,
    files: StoreFiles,
    references: Sequence[Reference],
    family: int | None,
    share: Share | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entries of `references` with their version, of one column family or of all."""
    sections = stream.Sections(files, references, share or unbounded())
    for reference, batch in versions.watched(lambda: (sections.failed or references[-1]).end, sections.batches()):
        entries = batch
        if family is not None:
            entries = batch.filter(pc.equal(batch.column(0), pa.scalar(family, pa.uint16())))
        if entries.num_rows:
            version = pa.repeat(pa.scalar(reference.end, pa.int64()), entries.num_rows)
            yield pa.RecordBatch.from_arrays([*entries.columns, version], schema=FEED_SCHEMA)
