"""Spark's two logs of batches: `offsets/<batch>`, what a batch is made of, and `commits/<batch>`, that it is done.

Offset log v1 lists one offset a source, v2 (Spark 4.2) names the sources. Commit log v1 has the watermark, v2 adds
the ids of the state that the batch committed, v3 (Spark 4.2) adds the sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.reading import checked_version, damaged, member, parsed_object, text_lines, text_map
from lamina.checkpoint.writing import json_text, read_back

OFFSET_LOG_NEWEST = 2
COMMIT_LOG_NEWEST = 3

VOID_OFFSET = "-"
"""How Spark writes that a source has no offset yet."""


@dataclass(frozen=True)
class OffsetEntry:
    """What one batch is made of.

    Args:
        sources: offset as JSON text by source, None where the source has none; v1 numbers the sources from "0".
        source_info: what v2 records of a source (`providerName`, `apiVersion`), by name.
        conf: the settings that the offset log pins for the query.
        control: what v2 records of a batch that changes the query instead of reading rows, None for others.
    """

    version: int
    batch: int
    watermark_ms: int
    timestamp_ms: int
    conf: Mapping[str, str]
    sources: Mapping[str, str | None]
    source_info: Mapping[str, Mapping[str, Any]]
    control: Mapping[str, Any] | None


@dataclass(frozen=True)
class CommitEntry:
    """One finished batch.

    Args:
        state_ids: operator → partition → one attempt id per store; None where the log keeps none (checkpoint format v1,
            or a query without state).
        sinks: what v3 records of a sink, by name.
    """

    version: int
    batch: int
    next_watermark_ms: int
    state_ids: Mapping[int, tuple[tuple[str, ...], ...]] | None
    sinks: Mapping[str, Mapping[str, Any]]


def parse_offsets(path: str, batch: int, data: bytes) -> OffsetEntry:
    """Reads one file of `offsets`. Raises FileError naming `path`."""
    lines = text_lines(path, data)
    version = checked_version(path, lines[0] if lines else "", OFFSET_LOG_NEWEST)
    if len(lines) < 2:
        damaged(path, "ends after its version")
    metadata = parsed_object(path, lines[1]) if lines[1].strip() else {}
    if version == 1:
        sources = {str(index): _offset(line) for index, line in enumerate(lines[2:])}
    elif not metadata:
        damaged(path, "has no metadata, which v2 must have")
    else:
        sources = dict(_named_offset(path, line) for line in lines[2:])
    return OffsetEntry(
        version=version,
        batch=batch,
        watermark_ms=member(path, metadata, "batchWatermarkMs", int, 0),
        timestamp_ms=member(path, metadata, "batchTimestampMs", int, 0),
        conf=text_map(path, metadata, "conf"),
        sources=sources,
        source_info=_objects(path, metadata, "sourceMetadataInfo"),
        control=member(path, metadata, "controlBatchInfo", dict, None),
    )


def parse_commit(path: str, batch: int, data: bytes) -> CommitEntry:
    """Reads one file of `commits`. Raises FileError naming `path`."""
    lines = text_lines(path, data)
    version = checked_version(path, lines[0] if lines else "", COMMIT_LOG_NEWEST)
    metadata = parsed_object(path, lines[1]) if len(lines) > 1 else {}
    ids = member(path, metadata, "stateUniqueIds", dict, None) if version > 1 else None
    return CommitEntry(
        version=version,
        batch=batch,
        next_watermark_ms=member(path, metadata, "nextBatchWatermarkMs", int, 0),
        state_ids=None if ids is None else _state_ids(path, ids),
        sinks=_objects(path, metadata, "sinkMetadataMap") if version > 2 else {},
    )


def offsets_bytes(path: str, entry: OffsetEntry) -> bytes:
    """The file of `offsets` for `entry`; the inverse of `parse_offsets`.

    Raises:
        FileError: `file.version`, naming `path`.
        ValueError: for an entry that its version cannot hold.
    """
    version = entry.version
    metadata: dict[str, Any] = {
        "batchWatermarkMs": entry.watermark_ms,
        "batchTimestampMs": entry.timestamp_ms,
        "conf": entry.conf,
    }
    if version > 1:
        metadata["sourceMetadataInfo"] = entry.source_info
        if entry.control is not None:
            metadata["controlBatchInfo"] = entry.control
    lines = [f"v{version}", json_text(metadata)]
    for name, offset in entry.sources.items():
        text = VOID_OFFSET if offset is None else offset
        lines.append(text if version == 1 else f"{name}:{text}")
    data = "\n".join(lines).encode()
    return read_back(path, entry, data, lambda written: parse_offsets(path, entry.batch, written))


def commit_bytes(path: str, entry: CommitEntry) -> bytes:
    """The file of `commits` for `entry`; the inverse of `parse_commit`.

    Raises:
        FileError: `file.version`, naming `path`.
        ValueError: for an entry that its version cannot hold.
    """
    version = entry.version
    metadata: dict[str, Any] = {"nextBatchWatermarkMs": entry.next_watermark_ms}
    if version > 1 and entry.state_ids is not None:
        metadata["stateUniqueIds"] = entry.state_ids
    if version > 2:
        metadata["sinkMetadataMap"] = entry.sinks
    data = f"v{version}\n{json_text(metadata)}".encode()
    return read_back(path, entry, data, lambda written: parse_commit(path, entry.batch, written))


def _offset(text: str) -> str | None:
    return None if text == VOID_OFFSET else text


def _named_offset(path: str, line: str) -> tuple[str, str | None]:
    name, colon, offset = line.partition(":")
    if not colon:
        damaged(path, f"a line should be source:offset, found {line[:40]!r}")
    return name, _offset(offset)


def _state_ids(path: str, ids: dict[str, Any]) -> dict[int, tuple[tuple[str, ...], ...]]:
    result = {}
    for operator, partitions in ids.items():
        if not operator.isdecimal() or not _is_table_of_text(partitions):
            damaged(path, "'stateUniqueIds' should map an operator to the ids of each partition's stores")
        result[int(operator)] = tuple(tuple(stores) for stores in partitions)
    return result


def _is_table_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(isinstance(cell, str) for cell in row) for row in value
    )


def _objects(path: str, values: dict[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    found = member(path, values, name, dict, {})
    if not all(isinstance(value, dict) for value in found.values()):
        damaged(path, f"{name!r} should map names to JSON objects")
    return dict(found)
