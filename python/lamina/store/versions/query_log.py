"""What Spark's own logs say of one store: which versions its query has committed, and by which attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.checkpoint import CheckpointLogs, CommitEntry
from lamina.errors import LaminaError
from lamina.store.model import StoreId


class QueryLog:
    """The commit log of the query whose checkpoint is the root of `logs`, as far as it is about one store."""

    def __init__(self, logs: CheckpointLogs, store_id: StoreId) -> None:
        self._logs = logs
        self._store_id = store_id

    @property
    def is_there(self) -> bool:
        """Whether a query ever started on this directory: then nobody else writes to it."""
        return self._logs.is_checkpoint

    def refuse_writing(self) -> None:
        """Raises `store.unsupported` where the checkpoint is a query's."""
        if self.is_there:
            raise LaminaError.from_kind(
                "store.unsupported",
                f"{self._logs.storage.url} is the checkpoint of a streaming query, whose state only the query itself "
                "writes: open the store without `writable` to read it, or write to a directory of its own",
            )

    def committed(self) -> Mapping[int, str | None]:
        """The versions in the commit log, with the attempt that it names (None under checkpoint format v1).

        Raises:
            LaminaError: `state.not-retained` where the query has no such store; `file.*`, `storage.*`.
        """
        return self._named(self._logs.commits())

    def newest(self) -> tuple[int, str | None]:
        """The newest of these, from its own entry alone, which has the ids of all stores; 0 where there is none.

        Raises:
            LaminaError: as `committed`.
        """
        return max(self._named(self._logs.commits(self._logs.committed_batches()[-1:])).items(), default=(0, None))

    def attempt_of(self, version: int) -> str | None:
        """The attempt that the entry of one version names; None where there is no entry, or it names none.

        Raises:
            LaminaError: `file.damaged`, `file.version`, `storage.*`.
        """
        try:
            entry = self._logs.commit(version - 1)
        except LaminaError as error:
            if error.kind != "file.missing":
                raise
            return None
        operator = self._logs.operator(self._store_id.operator, version - 1)
        if operator is None:
            return None
        # a store that was no partition's then is no problem
        named, _ = self._logs.named_versions(operator, self._store_id.partition, self._store_id.name, [entry])
        return named.get(version)

    def _named(self, entries: Sequence[CommitEntry]) -> Mapping[int, str | None]:
        operator = self._logs.operator(self._store_id.operator)
        if not entries:
            return {}
        partitions = 0 if operator is None else self._logs.partitions(operator, entries[-1])
        names = [] if operator is None else [store.name for store in operator.stores]
        if operator is None or self._store_id.partition >= partitions or self._store_id.name not in names:
            raise LaminaError.from_kind(
                "state.not-retained",
                f"the query of {self._logs.storage.url} has no store {self._store_id.name!r} of operator "
                f"{self._store_id.operator}, partition {self._store_id.partition}: `lamina inspect` lists its stores",
            )
        named, problems = self._logs.named_versions(operator, self._store_id.partition, self._store_id.name, entries)
        if problems:
            raise LaminaError.from_kind("file.damaged", problems[0])
        return named
