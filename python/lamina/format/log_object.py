"""Log objects: commits of many stores in one object, and an index of them at its end (docs/spec/files.md).

Each commit is a part, byte for byte what a file of its own would be: whoever knows where it lies needs nothing else of
the object. Its attempt's id names the object and the part's number, since where it lies is known only when the object
is whole.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format import manifest
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.container import HEADER, LOG, Footer, check_header, damaged, footer, header, parse
from lamina.format.manifest import StoreIdentity

_CONTAINER = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,6})", re.ASCII)


@dataclass(frozen=True)
class PartId:
    """A part: the object's id, and the number of the part in it."""

    log: str
    number: int

    def __str__(self) -> str:
        return f"{self.log}-{self.number}"

    @staticmethod
    def is_named_by(attempt: AttemptId) -> bool:
        """Whether the commit of an attempt is in a log object, by a grammar that this release knows."""
        return attempt.kind == GROUP and _CONTAINER.fullmatch(attempt.container) is not None

    @classmethod
    def of(cls, attempt: AttemptId) -> PartId:
        """Where the commit of an attempt is.

        Raises:
            LaminaError: `attempt-id.unknown` where it is in no log object, or one of another grammar.
        """
        match = _CONTAINER.fullmatch(attempt.container) if attempt.kind == GROUP else None
        if match is None:
            raise LaminaError.from_kind(
                "attempt-id.unknown", f"attempt id {attempt} names no part of a log object that this release can open"
            )
        return cls(match[1], int(match[2]))


@lru_cache(8192)
def _store(checkpoint: str, operator: int, partition: int, name: str) -> StoreIdentity:
    """One object for each store: its parts are in all indexes."""
    return StoreIdentity(checkpoint, operator, partition, name)


@dataclass(frozen=True, slots=True)
class Part:
    """A commit in a log object.

    Args:
        number: by which the attempt's id names it. Numbers ascend, and some are missing: of attempts that failed.
        store: whose commit it is; of the object's checkpoint.
        attempt: that the part is the commit of.
        after, to: the versions between which its changes are: `after` is its base's version, or `to` - 1.
    """

    number: int
    offset: int
    length: int
    store: StoreIdentity
    attempt: str
    after: int
    to: int

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "offset": self.offset,
            "length": self.length,
            "operator": self.store.operator,
            "partition": self.store.partition,
            "name": self.store.name,
            "attempt": self.attempt,
            "after": self.after,
            "to": self.to,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], checkpoint: str) -> Part:
        store = _store(checkpoint, int(value["operator"]), int(value["partition"]), str(value["name"]))
        number, offset, length = (int(value[name]) for name in ("number", "offset", "length"))
        return cls(number, offset, length, store, str(value["attempt"]), int(value["after"]), int(value["to"]))


@dataclass(frozen=True)
class LogIndex:
    """What a log object holds; its parts in their order.

    Args:
        process: what the process that wrote it had done before, for people (docs/spec/files.md); empty where it did
            not say.
    """

    log: str
    checkpoint: str
    header_crc: int
    created_ms: int
    writer: str
    parts: tuple[Part, ...]
    process: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def by_number(self) -> Mapping[int, Part]:
        """The parts by their numbers."""
        return {part.number: part for part in self.parts}

    def to_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "checkpoint": self.checkpoint,
            "header_crc": self.header_crc,
            "created_ms": self.created_ms,
            "writer": self.writer,
            "parts": [part.to_json() for part in self.parts],
            **({"process": self.process} if self.process else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LogIndex:
        checkpoint = str(value["checkpoint"])
        parts = tuple(Part.from_json(one, checkpoint) for one in value["parts"])
        return cls(
            str(value["log"]),
            checkpoint,
            int(value["header_crc"]),
            int(value["created_ms"]),
            str(value["writer"]),
            parts,
            process if isinstance(process := value.get("process"), dict) else {},
        )


@dataclass(frozen=True)
class Whole:
    """A commit that is to become a part: the bytes of its file, and what the index says of it."""

    number: int
    chunks: Sequence[Any]
    store: StoreIdentity
    attempt: str
    after: int
    to: int


def chunks(
    log: str,
    checkpoint: str,
    created_ms: int,
    writer: str,
    commits: Iterable[Whole],
    process: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Any]:
    """The bytes of a log object, of commits in the order of their numbers; the last two chunks are its index."""
    first = header(LOG)
    yield first
    position, parts = len(first), []
    for commit in commits:
        offset = position
        for chunk in commit.chunks:
            position += len(chunk)
            yield chunk
        length = position - offset
        parts.append(Part(commit.number, offset, length, commit.store, commit.attempt, commit.after, commit.to))
        if padding := -position % 8:
            position += padding
            yield bytes(padding)
    index = LogIndex(log, checkpoint, zlib.crc32(first), created_ms, writer, tuple(parts), process)
    text = manifest.to_bytes(index.to_json())
    stored = pa.Codec("zstd", compression_level=1).compress(text, asbytes=True)
    yield stored
    yield footer(position, stored, len(text), position + len(stored) + len(footer(0, b"", 0, 0)))


def index_of(value: Mapping[str, Any], end: Footer, log: str, where: str) -> LogIndex:
    """The index that the JSON at the end of the object `log` is.

    Raises:
        LaminaError: `file.damaged` naming `where`, `file.identity` where it is another object.
    """
    index = parse(LogIndex.from_json, value, where)
    position, number = HEADER.size, -1
    for part in index.parts:
        behind = part.offset + part.length
        inside = part.offset % 8 == 0 and position <= part.offset <= behind <= end.manifest_offset
        if not inside or part.number <= number:
            raise damaged(where, f"the part of {part.attempt} lies outside its place")
        position, number = behind, part.number
    if index.log != log:
        raise LaminaError.from_kind("file.identity", f"{where} is not what its name says: it is {index.log}")
    return index


def verify(data: Any, log: str, where: str) -> LogIndex:
    """Verifies every byte of a log object but those of its parts, which have checksums of their own."""
    view = memoryview(data)
    end = Footer.parse(view, len(view), where)
    stored = view[end.manifest_offset : end.manifest_offset + end.stored_length]
    index = index_of(end.manifest(stored, where), end, log, where)
    check_header(view, LOG, index.header_crc, where)
    check_padding(index, end.manifest_offset, [view[HEADER.size : end.manifest_offset]], where)
    return index


def check_padding(index: LogIndex, end: int, pieces: Iterable[Any], where: str) -> None:
    """Raises `file.damaged` naming `where` if what lies between the parts is not zero.

    Args:
        end: where the index begins.
        pieces: the bytes between header and index, in their order.
    """
    starts = [HEADER.size, *(part.offset + part.length for part in index.parts)]
    stops = [*(part.offset for part in index.parts), end]
    position = HEADER.size
    for piece in pieces:
        view = memoryview(piece)
        for start, stop in zip(starts, stops, strict=True):
            if any(view[max(0, start - position) : max(0, stop - position)]):
                raise damaged(where, "its padding is not zero")
        position += len(view)
