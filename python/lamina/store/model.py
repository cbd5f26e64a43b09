"""What a store is asked and what it answers: frozen data shared by the modules of this layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lamina.format.manifest import ColumnFamily, Count, Part, Reference
from lamina.settings import Settings

_LEAST_AGE_MS = 20_000


@dataclass(frozen=True)
class StoreId:
    """Which store: `checkpoint_url` is the directory `state` of a query's checkpoint."""

    checkpoint_url: str
    operator: int
    partition: int
    name: str


@dataclass(frozen=True)
class StoreConf:
    """How a store is run.

    Args:
        settings: of this store.
        format_version: Spark's checkpoint format: 1 names versions by number, 2 by attempt id.
        spark: version of Spark, for the manifests.
        min_versions: Spark's `minVersionsToRetain`.
    """

    settings: Settings
    format_version: int
    spark: str
    min_versions: int


@dataclass(frozen=True)
class Version:
    """Version N of a store, and the attempt that made it where that is known."""

    version: int
    attempt: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" + (f" ({self.attempt})" if self.attempt else "")


@dataclass(frozen=True)
class Begin:
    """The answer to `begin`.

    `attempt` is the id of the new attempt, `base_attempt` the id of its base (None where it has none) and `snapshot`
    whether the commit must bring a snapshot section. `rewrite` is (part, parts) where the commit must bring a rewrite
    section with every row of the new version whose key the caller's hash puts into that part. `lost` says that the
    base's file is not whole any more: a caller that changed nothing must commit, too, and write the state anew.
    `apart` asks for a commit that changes nothing, too: the store rests, and with it leaves the log objects that others
    wait to be rid of. `compaction_due` says whether the base consists of so many files that merging some is worth it,
    and `materialization_due` whether whatever is in them is to be merged at once: of a store that rests, so that it can
    leave them, and of one that has been there for long.
    """

    attempt: str
    base_attempt: str | None
    snapshot: bool
    rewrite: tuple[int, int] | None = None
    lost: bool = False
    apart: bool = False
    compaction_due: bool = False
    materialization_due: bool = False


@dataclass(frozen=True)
class CommitRequest:
    """What the shim knows of a commit; `rows` is per section and checked against what arrives.

    `rewrite` says which part the rewrite section holds, and by which hash. `alone` says that who commits does nothing
    else until it is durable, so that no other commit is worth waiting for; `patient` that no task waits for it, but its
    batch at the end.
    """

    attempt: str
    version: int
    base: Version | None
    counts: Mapping[int, Count]
    column_families: tuple[ColumnFamily, ...]
    next_column_family: int
    task_attempt: int
    rows: Mapping[str, int] = field(default_factory=dict)
    rewrite: Part | None = None
    alone: bool = False
    patient: bool = False

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> CommitRequest:
        """The request in a header of the wire protocol (docs/spec/wire.md)."""
        base = header.get("base")
        return cls(
            str(header["attempt"]),
            int(header["version"]),
            None if base is None else Version(int(base["version"]), base.get("attempt")),
            {int(family): Count.from_json(count) for family, count in header["counts"].items()},
            tuple(ColumnFamily.from_json(family) for family in header["column_families"]),
            int(header["next_column_family"]),
            int(header["task_attempt"]),
            {str(name): int(rows) for name, rows in (header.get("rows") or {}).items()},
            None if header.get("rewrite") is None else Part.from_json(header["rewrite"]),
            header.get("alone") is True,
            header.get("patient") is True,
        )


@dataclass(frozen=True)
class Accepted:
    """A commit of which everything was received, and whose attempt has its final id.

    Args:
        attempt: the id that it was accepted as.
        held_bytes: what the file has in memory until `publish` has made it durable: its size, and for a remote
            storage, which joins what was gathered, twice that; 0 where it is durable already.
        publish: makes it durable; to be called once, on any thread.
        when_told: where others make it durable, too: calls what it is given once `publish` waits for nothing any more,
            on whichever thread that comes about, or at once. None where `publish` does it.
        seal: has it wait for no others that are still to come.
        hurry: has it wait for them for no longer than where a task waits for it.
    """

    attempt: str
    held_bytes: int
    publish: Callable[[], Committed]
    when_told: Callable[[Callable[[], None]], None] | None = None
    seal: Callable[[], None] = lambda: None
    hurry: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Committed:
    """A durable commit: its file and that file's size, the bytes of its entries uncompressed, and how long it took.

    `increments` are those of which its version consists, with `increment_bytes` as they are stored: what came since
    its changes were last merged.
    """

    file: str
    bytes: int
    raw_bytes: int
    write_ms: float
    increments: int = 0
    increment_bytes: int = 0


@dataclass(frozen=True)
class InPlace:
    """The state of a version as a database of RocksDB in a local directory, which is the receiver's to remove.

    `attempt` is the one that made the version, where that is known; `bytes` and `files` are those of its tables, and
    `fetched` bytes of these had to be read from the storage.
    """

    directory: str
    version: int
    bytes: int
    files: int
    attempt: str | None = None
    fetched: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "version": self.version,
            "bytes": self.bytes,
            "files": self.files,
            "fetched": self.fetched,
            "attempt": self.attempt,
        }


@dataclass(frozen=True)
class Load:
    """A version on its way to a table.

    `start` "empty": `batches` are newest first and the table starts empty. "have": oldest first, on top of the
    version that the caller has. `version` is the one inside the attempt id; `rows` is an upper bound of the live
    rows. `in_place` is what the entries of `batches` come on top of, where they are not all of the version. Of
    `bytes_read`, which are as they are stored, `replayed_bytes` are of increments.
    """

    attempt: str | None
    version: int
    start: str
    rows: int
    counts: Mapping[int, Count]
    column_families: tuple[ColumnFamily, ...]
    next_column_family: int
    files: int
    bytes_read: int
    batches: Iterator[pa.RecordBatch]
    in_place: InPlace | None = None
    replayed_bytes: int = 0


@dataclass(frozen=True)
class Feed:
    """Changes per version; `batches` have the column `version` (int64, ascending) after those of an entry."""

    column_families: tuple[ColumnFamily, ...]
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class VersionInfo:
    """A commit's file as a listing shows it."""

    version: int
    attempt: str
    epoch: int
    size: int
    modified_ms: int


DELETE, WAIT, KEEP = "delete", "wait", "keep"
"""What a collection does with a file: `WAIT` is for files that nothing needs and that are younger than the minimum age,
or that such a commit refers to."""


@dataclass(frozen=True)
class Verdict:
    """What a collection does with one file, and why.

    Args:
        path: the file's name; of a `shared_temporary` and a `log` its path below the directory `state`.
        kind: `commit`, `segment`, `table`, `temporary`, `shared_temporary`, `log` or `foreign`.
        age_ms: since nothing needs the file; of a file that is needed, since its publication.
        action: `DELETE`, `WAIT` or `KEEP`.
    """

    path: str
    kind: str
    size: int
    age_ms: int
    action: str
    reason: str


@dataclass(frozen=True)
class Collected:
    """What a collection did, or would do, with each file; `stopped` says why it looked at none.

    `newest_bytes` are of the files that the confirmed version needs. `needs_repair`: it looks at none before somebody
    has done something about it. `lost` are those of the newest version's references whose files are not there.
    """

    verdicts: tuple[Verdict, ...]
    dry_run: bool
    stopped: str | None = None
    newest_bytes: int = 0
    needs_repair: bool = False
    lost: tuple[Reference, ...] = ()

    @property
    def deleted(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.action == DELETE)

    @property
    def stored_bytes(self) -> int:
        """Of the store's files, and its commits in log objects, that stay."""
        return sum(verdict.size for verdict in self.verdicts if verdict.action != DELETE)

    def metrics(self) -> dict[str, int]:
        """Files and bytes by action and by class, such as `delete_segment_files`."""
        found: dict[str, int] = {}
        for verdict in self.verdicts:
            for name in (verdict.action, f"{verdict.action}_{verdict.kind}"):
                found[f"{name}_files"] = found.get(f"{name}_files", 0) + 1
                found[f"{name}_bytes"] = found.get(f"{name}_bytes", 0) + verdict.size
        return found


def judged_ms(min_age_ms: int) -> int:
    """The minimum age by which ages are judged: so short a one as some tests set protects nothing anyhow."""
    return max(min_age_ms, _LEAST_AGE_MS)
