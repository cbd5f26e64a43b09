"""The stores of a checkpoint: its operators as they really are, and the versions of each store in Spark's log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lamina.checkpoint.batch_logs import CommitEntry
from lamina.checkpoint.families import ColumnFamilyMeaning
from lamina.checkpoint.followed_log import FollowedLog
from lamina.checkpoint.logs import PROVIDER_CLASS, CheckpointLogs
from lamina.checkpoint.operators import OperatorMetadata
from lamina.checkpoint.runs import QueryRun, read_identity, read_runs
from lamina.components import SystemClock
from lamina.errors import FileError, LaminaError, StateError
from lamina.format.manifest import StoreIdentity
from lamina.format.paths import CHECKPOINT, FIRST_STORES, store_directory
from lamina.storage import Storage


@dataclass(frozen=True)
class StoreSelection:
    """Which stores are asked for; None is all."""

    operator: int | None = None
    partition: int | None = None
    store: str | None = None

    def takes(self, identity: StoreIdentity) -> bool:
        return (
            self.operator in (None, identity.operator)
            and self.partition in (None, identity.partition)
            and self.store in (None, identity.name)
        )

    def __str__(self) -> str:
        parts = {"operator": self.operator, "partition": self.partition, "store": self.store}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


@dataclass(frozen=True)
class OperatorSurvey:
    """One stateful operator, with the partitions that it really has; `families` by store name."""

    metadata: OperatorMetadata
    partitions: int
    families: Mapping[str, tuple[ColumnFamilyMeaning, ...]]


@dataclass(frozen=True)
class LoggedStores:
    """The selected stores of one checkpoint; `state` is rooted at its directory `state`."""

    url: str
    logs: CheckpointLogs
    state: Storage
    runs: Sequence[QueryRun]
    identities: Sequence[StoreIdentity]
    log: FollowedLog

    def named_now(self) -> Collection[int]:
        """The versions that the commit log names now."""
        return {batch + 1 for batch in self.logs.committed_batches()}


def query_logs(storage: Storage) -> CheckpointLogs:
    """The logs of the query whose checkpoint is the root of `storage`. Raises `file.missing` where it is none."""
    logs = CheckpointLogs(storage)
    if not logs.is_checkpoint:
        raise FileError(
            "file.missing", f"{storage.url} is not the checkpoint of a streaming query: it has no file named metadata"
        )
    return logs


def survey_operators(logs: CheckpointLogs, newest: CommitEntry | None) -> list[OperatorSurvey]:
    """The stateful operators as of the newest commit."""
    return [
        OperatorSurvey(
            metadata,
            logs.partitions(metadata, newest),
            {store.name: logs.column_families(metadata, store) for store in metadata.stores},
        )
        for metadata in logs.operators()
    ]


def selected_stores(operators: Sequence[OperatorSurvey], uuid: str, selection: StoreSelection) -> list[StoreIdentity]:
    """The selected stores of the checkpoint `uuid`.

    Raises:
        StateError: `state.not-retained` where there are stores and the selection takes none.
    """
    identities = [
        StoreIdentity(uuid, operator.metadata.operator, partition, store.name)
        for operator in operators
        for store in operator.metadata.stores
        for partition in range(operator.partitions)
    ]
    selected = [identity for identity in identities if selection.takes(identity)]
    if identities and not selected:
        names = sorted({identity.name for identity in identities})
        raise StateError(
            "state.not-retained",
            f"the checkpoint has no {selection}: its operators are 0 to {operators[-1].metadata.operator}, their "
            f"partitions 0 to {max(identity.partition for identity in identities)}, their stores {', '.join(names)}",
        )
    return selected


def logged_stores(storage: Storage, selection: StoreSelection) -> LoggedStores:
    """The stores of the checkpoint whose directory is the root of `storage`, which must keep its state in lamina.

    Raises:
        LaminaError: `file.*` about Spark's logs, `state.not-retained` where the selection takes nothing,
            `store.unsupported` where the state is not in lamina, `storage.*`.
    """
    logs = query_logs(storage)
    state = storage.at(f"{storage.url}/state")
    identity = read_identity(state)
    # the runs before the log: a run that starts between the two is newer than all that is known here
    runs = read_runs(state)
    entries = logs.commits()
    newest = entries[-1] if entries else None
    if identity is None:
        if read_identity(state) is not None:
            # the first batch was committed meanwhile
            return logged_stores(storage, selection)
        raise no_state(logs, logs.provider(logs.planned_batches()), newest)
    operators = survey_operators(logs, newest)
    _refuse_unknown(logs, len(operators), newest)
    log = FollowedLog(logs, [operator.metadata for operator in operators], entries, SystemClock())
    return LoggedStores(storage.url, logs, state, runs, selected_stores(operators, identity.uuid, selection), log)


def no_state(logs: CheckpointLogs, provider: str | None, newest: CommitEntry | None) -> LaminaError:
    """Why there is nothing of lamina's in a checkpoint: `file.missing` where the log says that there was.

    Args:
        provider: the class that keeps the query's state, where that is known.
        newest: the newest entry of the commit log.
    """
    url = logs.storage.url
    if provider == PROVIDER_CLASS and newest is None:
        return StateError("store.unsupported", f"{url} keeps no state in lamina yet: no batch was committed")
    # without ids the log of a query with a state is that of one without
    if provider != PROVIDER_CLASS or newest is None or not (newest.state_ids or any(logs.operators())):
        return StateError("store.unsupported", f"{url} keeps no state in lamina")
    return FileError(
        "file.missing",
        f"{logs.storage.location(f'state/{CHECKPOINT}')} is not there, and batch {newest.batch} was committed "
        "with state in lamina: put it, and what else of the directory state is lost, back from a copy",
    )


def _refuse_unknown(logs: CheckpointLogs, known: int, newest: CommitEntry | None) -> None:
    """An error where there is state of an operator without metadata: its stores would be passed over."""
    named = newest is not None and any(operator >= known for operator in newest.state_ids or ())
    if named or any(logs.storage.list(f"state/{store_directory(known, 0, name)}") for name in FIRST_STORES):
        raise FileError(
            "file.missing",
            f"{logs.storage.location(f'state/{known}/_metadata')} tells nothing of operator {known}, of which there is "
            "state: put Spark's files there back from a copy",
        )
