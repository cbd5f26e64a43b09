"""Manifests: what one version of one store, or one segment, consists of; frozen data with JSON in both directions.

Unknown keys are ignored when read. A meaning never changes under the same key (docs/spec/files.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any

from lamina.format import attempt_id, blocks
from lamina.format.entries import MAX_FAMILY_ID
from lamina.format.paths import commit_of, require_normal, require_root

INCREMENT = "increment"
SNAPSHOT = "snapshot"
RUN = "run"
REWRITE = "rewrite"
FILE = "file"
"""Kinds of references. Those of kind `FILE` are to whole files that are no containers; the others are to sections."""


@dataclass(frozen=True)
class Part:
    """The keys whose hash falls into part `part` of `parts`; `hash` names the function, which only its writer knows."""

    part: int
    parts: int
    hash: str

    def to_json(self) -> dict[str, Any]:
        return {"part": self.part, "parts": self.parts, "hash": self.hash}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Part:
        found = cls(int(value["part"]), int(value["parts"]), str(value["hash"]))
        if not 0 <= found.part < found.parts:
            raise ValueError(f"part {found.part} of {found.parts}")
        return found


@dataclass(frozen=True)
class Filter:
    """The keys that Spark's hash partitioning puts into `partition` of `partitions`."""

    partitions: int
    partition: int

    def to_json(self) -> dict[str, Any]:
        return {"partitions": self.partitions, "partition": self.partition}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Filter:
        found = cls(int(value["partitions"]), int(value["partition"]))
        if not 0 <= found.partition < found.partitions:
            raise ValueError(f"partition {found.partition} of {found.partitions}")
        return found


@dataclass(frozen=True)
class UnionMember:
    """Of which chain of a union a reference is, and what of that chain belongs to the version.

    Args:
        chain, chains: the number of the chain, and how many there are.
        end: the version of the store that refers to them whose state the chains make together.
        filter: which keys of the chain belong to it; None for all.
        families: pairs of ids of column families, as they are in the files and as the manifest has them; entries of
            others do not belong to it. None where all do, under the same ids.
    """

    chain: int
    chains: int
    end: int
    filter: Filter | None
    families: tuple[tuple[int, int], ...] | None

    def to_json(self) -> dict[str, Any]:
        return {
            "union": {"chain": self.chain, "chains": self.chains, "to": self.end},
            "filter": None if self.filter is None else self.filter.to_json(),
            "families": None if self.families is None else {str(theirs): ours for theirs, ours in self.families},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnionMember:
        """From the members of a reference."""
        union, families, pairs = value["union"], value.get("families"), None
        if families is not None:
            pairs = tuple(sorted((int(theirs), int(ours)) for theirs, ours in families.items()))
            twice = any(len({*ids}) < len(ids) for ids in zip(*pairs, strict=True))
            if twice or any(not 0 <= one <= MAX_FAMILY_ID for pair in pairs for one in pair):
                raise ValueError(f"{families} gives no column families their ids")
        return cls(
            int(union["chain"]),
            int(union["chains"]),
            int(union["to"]),
            None if value.get("filter") is None else Filter.from_json(value["filter"]),
            pairs,
        )


@dataclass(frozen=True)
class StoreIdentity:
    """Which store wrote a file: `checkpoint` is the uuid of the checkpoint, not its place."""

    checkpoint: str
    operator: int
    partition: int
    name: str

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": self.checkpoint,
            "operator": self.operator,
            "partition": self.partition,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StoreIdentity:
        return cls(str(value["checkpoint"]), int(value["operator"]), int(value["partition"]), str(value["name"]))

    def __str__(self) -> str:
        return f"store {self.operator}/{self.partition}/{self.name} of checkpoint {self.checkpoint}"


@dataclass(frozen=True)
class Section:
    """A range of the file that holds one Arrow stream.

    `sha256` is the first half of the SHA-256 of its only block, or of the checksums of its blocks, in hexadecimal;
    `blocks` are these checksums, of blocks of `block_bytes`, and empty where there is one block only.
    """

    name: str
    offset: int
    length: int
    rows: int
    sha256: str
    block_bytes: int = 0
    blocks: bytes = b""

    def blocks_in_order(self) -> Iterator[tuple[int, int, bytes]]:
        """Where each block begins and ends, from the beginning of the section, and its checksum."""
        return blocks.ranges(self.length, self.sha256, self.block_bytes, self.blocks)

    def to_json(self) -> dict[str, Any]:
        several = {"block_bytes": self.block_bytes, "blocks": self.blocks.hex()} if self.blocks else {}
        return {
            **several,
            "name": self.name,
            "offset": self.offset,
            "length": self.length,
            "rows": self.rows,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Section:
        several = "blocks" in value
        found = cls(
            str(value["name"]),
            int(value["offset"]),
            int(value["length"]),
            int(value["rows"]),
            str(value["sha256"]),
            int(value["block_bytes"]) if several else 0,
            bytes.fromhex(value["blocks"]) if several else b"",
        )
        blocks.check(found.length, found.sha256, found.block_bytes, found.blocks)
        return found


@dataclass(frozen=True)
class Reference:
    """Where one part of a version is, and whose it was when written.

    `root` None is the directory of the store whose manifest this is; else it is a path from that one's checkpoint, or a
    URL. `path` None is the manifest's own file, whose `size` is then not known yet and None. `start` exclusive, `end`
    inclusive; in a chain of a `union` they are versions of the store that wrote the chain. `part` says what a rewrite
    covers; None for the other kinds. Of a whole file `length` is its size and `sha256` that of all its bytes.
    """

    root: str | None
    path: str | None
    offset: int
    length: int
    size: int | None
    sha256: str
    kind: str
    start: int
    end: int
    rows: int
    origin: StoreIdentity
    part: Part | None = None
    union: UnionMember | None = None

    @property
    def version(self) -> int:
        """The version of the store whose manifest this is up to which the reference leads."""
        return self.end if self.union is None else self.union.end

    @cached_property
    def is_in_log(self) -> bool:
        """Whether it is to a commit in a log object of the checkpoint."""
        if self.root is not None or self.path is None:
            return False
        commit = commit_of(self.path)
        return commit is not None and commit.attempt.kind == attempt_id.GROUP

    @property
    def is_sorted(self) -> bool:
        """Whether what belongs to the version comes sorted by (column family, key)."""
        families = self.union.families if self.union is not None else None
        return self.kind in (RUN, FILE) and (
            families is None or [*families] == sorted(families, key=lambda pair: pair[1])
        )

    def to_json(self) -> dict[str, Any]:
        part = {} if self.part is None else {"rewrite": self.part.to_json()}
        union = {"filter": None} if self.union is None else self.union.to_json()
        return {
            **part,
            **union,
            "root": self.root,
            "path": self.path,
            "offset": self.offset,
            "length": self.length,
            "size": self.size,
            "sha256": self.sha256,
            "kind": self.kind,
            "from": self.start,
            "to": self.end,
            "rows": self.rows,
            "origin": self.origin.to_json(),
        }

    @cached_property
    def encoded(self) -> str:
        """Its JSON as it is stored, which each commit above it writes again."""
        return _encode(self.to_json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reference:
        union = value.get("union")
        if union is None and (value.get("filter") is not None or value.get("families") is not None):
            raise ValueError("a reference has a filter, and is of no union")
        kind = str(value["kind"])
        found = cls(
            None if value["root"] is None else require_root(str(value["root"])),
            None if value["path"] is None else require_normal(str(value["path"])),
            int(value["offset"]),
            int(value["length"]),
            None if value["size"] is None else int(value["size"]),
            str(value["sha256"]),
            kind,
            int(value["from"]),
            int(value["to"]),
            int(value["rows"]),
            StoreIdentity.from_json(value["origin"]),
            Part.from_json(value["rewrite"]) if kind == REWRITE else None,
            None if union is None else UnionMember.from_json(value),
        )
        if kind == FILE and (found.path is None or found.offset or found.length < 1 or found.length != found.size):
            raise ValueError("a reference to a whole file is to a part of one")
        return found

    def placed(self, path: str, size: int) -> Reference:
        """This reference as a manifest of another file writes it."""
        return replace(self, path=path, size=size) if self.path is None else self


@dataclass(frozen=True)
class ColumnFamily:
    """A column family as the shim describes it; the values are passed through unchanged (docs/spec/files.md)."""

    id: int
    name: str
    description: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**self.description, "id": self.id, "name": self.name}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ColumnFamily:
        return cls(int(value["id"]), str(value["name"]), dict(value))

    @property
    def multi_value(self) -> bool:
        """Whether values are lists of elements."""
        return bool(self.description.get("multi_value", False))


@dataclass(frozen=True)
class Count:
    """Live rows of a column family, and the sum of their key and value bytes."""

    rows: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Count:
        return cls(int(value["rows"]), int(value["bytes"]))


@dataclass(frozen=True)
class Base:
    """The version that an attempt was built on."""

    version: int
    attempt: str


class Lineage(tuple[tuple[str, int], ...]):
    """The attempts that led to a version, with their versions, newest first.

    Of a long one all but an entry is what the version before wrote. So the newest one has the text of all, which the
    next one takes from it.
    """

    _text: str | None = None

    def after(self, attempt: str, version: int, most: int) -> Lineage:
        """That of what stands on `attempt`, whose own this is; no longer than `most`."""
        found = Lineage(((attempt, version), *self)[:most])
        text, self._text = self._text, None
        if text and len(found) >= max(2, len(self)):
            behind = len(_entry(*self[-1])) + 1 if len(self) == len(found) else 0
            found._text = f"{_entry(attempt, version)},{text[: len(text) - behind]}"
        return found

    @property
    def encoded(self) -> str:
        """Its JSON as it is stored."""
        text = self._text
        if text is None:
            text = self._text = ",".join([_entry(attempt, version) for attempt, version in self])
        return f"[{text}]"


def _entry(attempt: str, version: int) -> str:
    return f"[{encode_basestring(attempt)},{version}]"


@dataclass(frozen=True)
class Run:
    """Who wrote: the run of the query and its epoch, the task attempt, and the attempts of the same version it saw."""

    epoch: int
    id: str
    task_attempt: int
    siblings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "id": self.id,
            "task_attempt": self.task_attempt,
            "siblings": list(self.siblings),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        siblings = tuple(str(sibling) for sibling in value.get("siblings", ()))
        return cls(int(value["epoch"]), str(value["id"]), int(value["task_attempt"]), siblings)


@dataclass(frozen=True)
class CommitManifest:
    """What one version of one store consists of."""

    attempt: str
    version: int
    base: Base | None
    store: StoreIdentity
    run: Run
    created_ms: int
    writer: str
    spark: str
    sections: tuple[Section, ...]
    header_crc: int
    references: tuple[Reference, ...]
    lineage: Lineage
    counts: Mapping[int, Count]
    column_families: tuple[ColumnFamily, ...]
    next_column_family: int
    retention: Mapping[str, int] | None = None

    def section(self, name: str) -> Section | None:
        """The section of that name, if the file has one."""
        return next((section for section in self.sections if section.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {
            **self._own(),
            "references": [reference.to_json() for reference in self.references],
            "lineage": [[attempt, version] for attempt, version in self.lineage],
        }

    def to_bytes(self) -> bytes:
        """`to_bytes` of its JSON; most of that is what the commits before had, too."""
        references = ",".join([reference.encoded for reference in self.references])
        return to_bytes(self._own(), {"references": f"[{references}]", "lineage": self.lineage.encoded})

    def _own(self) -> dict[str, Any]:
        retention = {} if self.retention is None else {"retention": dict(self.retention)}
        return {
            **retention,
            "attempt": self.attempt,
            "version": self.version,
            "base": None if self.base is None else {"version": self.base.version, "attempt": self.base.attempt},
            "store": self.store.to_json(),
            "run": self.run.to_json(),
            "created_ms": self.created_ms,
            "writer": self.writer,
            "spark": self.spark,
            "sections": [section.to_json() for section in self.sections],
            "header_crc": self.header_crc,
            "counts": {str(family): count.to_json() for family, count in self.counts.items()},
            "column_families": [family.to_json() for family in self.column_families],
            "next_column_family": self.next_column_family,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CommitManifest:
        base = value["base"]
        return cls(
            str(value["attempt"]),
            int(value["version"]),
            None if base is None else Base(int(base["version"]), str(base["attempt"])),
            StoreIdentity.from_json(value["store"]),
            Run.from_json(value["run"]),
            int(value["created_ms"]),
            str(value["writer"]),
            str(value["spark"]),
            tuple(Section.from_json(section) for section in value["sections"]),
            int(value["header_crc"]),
            tuple(Reference.from_json(reference) for reference in value["references"]),
            Lineage((str(attempt), int(version)) for attempt, version in value["lineage"]),
            {int(family): Count.from_json(count) for family, count in value["counts"].items()},
            tuple(ColumnFamily.from_json(family) for family in value["column_families"]),
            int(value["next_column_family"]),
            retention if isinstance(retention := value.get("retention"), dict) else None,
        )


@dataclass(frozen=True)
class SegmentManifest:
    """What one compacted segment holds, and what it was merged from (newest first)."""

    store: StoreIdentity
    segment: str
    start: int
    end: int
    sections: tuple[Section, ...]
    header_crc: int
    created_ms: int
    writer: str
    inputs: tuple[Reference, ...]

    def section(self, name: str) -> Section | None:
        """The section of that name, if the file has one."""
        return next((section for section in self.sections if section.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.store.to_json(),
            "segment": self.segment,
            "from": self.start,
            "to": self.end,
            "sections": [section.to_json() for section in self.sections],
            "header_crc": self.header_crc,
            "created_ms": self.created_ms,
            "writer": self.writer,
            "inputs": [reference.to_json() for reference in self.inputs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentManifest:
        return cls(
            StoreIdentity.from_json(value["store"]),
            str(value["segment"]),
            int(value["from"]),
            int(value["to"]),
            tuple(Section.from_json(section) for section in value["sections"]),
            int(value["header_crc"]),
            int(value["created_ms"]),
            str(value["writer"]),
            tuple(Reference.from_json(reference) for reference in value["inputs"]),
        )


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def to_bytes(value: Mapping[str, Any], encoded: Mapping[str, str] | None = None) -> bytes:
    """JSON as it is stored: UTF-8, object keys sorted, no spaces.

    Args:
        encoded: further members, as they are stored.
    """
    if not encoded:
        return _encode(value).encode()
    rest, members = sorted(value.items(), reverse=True), []
    for name in sorted(encoded):
        before = {}
        while rest and rest[-1][0] < name:
            key, member = rest.pop()
            before[key] = member
        members += [_encode(before)[1:-1], f'"{name}":{encoded[name]}']
    members.append(_encode(dict(rest))[1:-1])
    return f"{{{','.join(filter(None, members))}}}".encode()
