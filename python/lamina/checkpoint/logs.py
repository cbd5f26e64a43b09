"""The logs of one streaming checkpoint (`log_paths`), read as they are asked for; nothing is ever written.

A running query removes old entries, so an entry that a listing shows may be gone when it is read (`file.missing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lamina.checkpoint.batch_logs import CommitEntry, OffsetEntry, parse_commit, parse_offsets
from lamina.checkpoint.families import ColumnFamilyMeaning, column_families
from lamina.checkpoint.log_paths import (
    COMMITS,
    OFFSETS,
    QUERY,
    commit_path,
    offsets_path,
    operator_batches,
    operator_path,
    schema_path,
)
from lamina.checkpoint.operators import OperatorMetadata, StoreMetadata, parse_operator
from lamina.checkpoint.reading import batches, decoded, member, parsed_object, read_if_there
from lamina.checkpoint.state_schemas import StateSchema, parse_state_schema
from lamina.errors import LaminaError
from lamina.storage import Storage

PROVIDER_CLASS = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
"""Lamina's, as a query's settings name it."""

_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS_KEY = "spark.sql.shuffle.partitions"
_GLOBAL_LIMIT = "globalLimit"
_CONCURRENT_READS = 8


class CheckpointLogs:
    """Spark's logs of the checkpoint whose directory is the root of `storage`.

    Every method may raise LaminaError `file.missing`, `file.damaged`, `file.version` (all naming the file) and
    `storage.*`.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def is_checkpoint(self) -> bool:
        """Whether a query ever started on this directory."""
        return self.storage.exists(QUERY)

    def query_id(self) -> str:
        """The id that the query keeps over all its runs."""
        path = self.storage.location(QUERY)
        return str(member(path, parsed_object(path, decoded(path, bytes(self.storage.read(QUERY)))), "id", str))

    def planned_batches(self) -> list[int]:
        """The batches in the offset log, ascending."""
        return batches(self.storage, OFFSETS)

    def committed_batches(self) -> list[int]:
        """The batches in the commit log, ascending. Batch N made version N + 1."""
        return batches(self.storage, COMMITS)

    def offsets(self, batch: int) -> OffsetEntry:
        """What `batch` is made of."""
        path = offsets_path(batch)
        return parse_offsets(self.storage.location(path), batch, bytes(self.storage.read(path)))

    def provider(self, planned: Sequence[int]) -> str | None:
        """The class that keeps the state, as the newest of the batches `planned` has it; None before the first one."""
        return self.offsets(planned[-1]).conf.get(_PROVIDER_KEY) if planned else None

    def commit(self, batch: int) -> CommitEntry:
        """How `batch` ended."""
        path = commit_path(batch)
        return parse_commit(self.storage.location(path), batch, bytes(self.storage.read(path)))

    def commits(self, committed: Sequence[int] | None = None) -> list[CommitEntry]:
        """The commit log, oldest entry first; of the batches `committed`, if given.

        A running query removes its oldest entries meanwhile; where none is left, it is listed again.
        """
        listed = self.committed_batches() if committed is None else committed

        def one(batch: int) -> CommitEntry | None:
            try:
                return self.commit(batch)
            except LaminaError as error:
                if error.kind != "file.missing" or batch == listed[-1]:
                    raise
                return None

        with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
            while True:
                try:
                    return [entry for entry in pool.map(one, listed) if entry is not None]
                except LaminaError as error:
                    now = self.committed_batches()
                    if error.kind != "file.missing" or now[-1:] == listed[-1:]:
                        raise
                    listed = now

    def operators(self, batch: int | None = None) -> Iterator[OperatorMetadata]:
        """The stateful operators as of `batch` (None: the newest). Spark numbers them from 0 without gaps."""
        operator = 0
        while (metadata := self.operator(operator, batch)) is not None:
            yield metadata
            operator += 1

    def operator(self, operator: int, batch: int | None = None) -> OperatorMetadata | None:
        """One operator as of `batch`; None where there is none, or where Spark (before 3.5) wrote nothing about it."""
        there = batches(self.storage, operator_batches(operator))
        written = max((found for found in there if batch is None or found <= batch), default=None)
        path = operator_path(operator, written)
        data = read_if_there(self.storage, path)
        return None if data is None else parse_operator(self.storage.location(path), operator, written, data)

    def state_schemas(self, operator: int, store: StoreMetadata) -> list[StateSchema]:
        """All schemas of a store, oldest first; none where Spark has not written one yet."""
        if store.schema_files:
            return [self._schema(path, bytes(self.storage.read(path))) for path in store.schema_files]
        path = schema_path(operator, store.name)
        data = read_if_there(self.storage, path)
        return [] if data is None else [self._schema(path, data)]

    def column_families(self, operator: OperatorMetadata, store: StoreMetadata) -> tuple[ColumnFamilyMeaning, ...]:
        """The column families of a store by its newest schema."""
        schemas = self.state_schemas(operator.operator, store)
        return column_families(operator, schemas[-1]) if schemas else ()

    def partitions(self, operator: OperatorMetadata, entry: CommitEntry | None = None) -> int:
        """How many partitions the operator really has, by the newest commit where it names attempts, else by what its
        batch was planned with.

        Operator metadata always has the number of shuffle partitions, also for a global limit, which runs in one; and
        v1 that of the beginning, also after an offline repartition.
        """
        if entry is not None and entry.state_ids is not None and operator.operator in entry.state_ids:
            return len(entry.state_ids[operator.operator])
        if operator.name == _GLOBAL_LIMIT:
            return 1
        planned = None if entry is None else self._shuffle_partitions(entry.batch)
        return planned or max((store.partitions for store in operator.stores), default=0)

    def _shuffle_partitions(self, batch: int) -> int | None:
        """What a batch was planned with; None where its entry is not there, or does not say."""
        path = offsets_path(batch)
        data = read_if_there(self.storage, path)
        pinned = (
            None if data is None else parse_offsets(self.storage.location(path), batch, data).conf.get(_PARTITIONS_KEY)
        )
        return int(pinned) if pinned is not None and pinned.isdecimal() else None

    def state_id(self, entry: CommitEntry, operator: OperatorMetadata, partition: int, store: str) -> str | None:
        """The attempt id that `entry` names for a store; None where the log keeps none.

        Raises:
            LaminaError: `file.damaged` where the commit log and the operator metadata do not fit together.
        """
        if entry.state_ids is None:
            return None
        try:
            position = [metadata.name for metadata in operator.stores].index(store)
            return entry.state_ids[operator.operator][partition][position]
        except (KeyError, IndexError, ValueError):
            raise LaminaError.from_kind(
                "file.damaged",
                f"{self.storage.location(commit_path(entry.batch))}: names no state of operator {operator.operator}, "
                f"partition {partition}, store {store}",
            ) from None

    def named_versions(
        self, operator: OperatorMetadata, partition: int, store: str, entries: Sequence[CommitEntry]
    ) -> tuple[dict[int, str | None], list[str]]:
        """The versions of a store that `entries` name with their attempts (None under format v1), and problems."""
        named: dict[int, str | None] = {}
        problems = []
        for entry in entries:
            try:
                named[entry.batch + 1] = self.state_id(entry, operator, partition, store)
            except LaminaError as error:
                # an operator may be younger than the log; the newest entry must name all
                if entry is entries[-1]:
                    problems.append(error.message)
        return named, problems

    def _schema(self, path: str, data: bytes) -> StateSchema:
        return parse_state_schema(self.storage.location(path), data)
