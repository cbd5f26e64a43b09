"""What `lamina inspect` finds out about a checkpoint: logs, operators, stores, versions, files. Reads only.

A store costs one listing and the manifest of its newest committed version; `details` reads every manifest.
Whatever is wrong with one file becomes a problem of its store, and the survey goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from lamina.checkpoint import (
    CheckpointIdentity,
    CheckpointLogs,
    ColumnFamilyMeaning,
    CommitEntry,
    OperatorMetadata,
    QueryRun,
    read_identity,
    read_runs,
)
from lamina.cli.inspect_store import StoreSurvey, survey_store
from lamina.errors import FileError, StateError
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage

PROVIDER_CLASS = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_CONCURRENT_READS = 8


@dataclass(frozen=True)
class Selection:
    """Which stores are looked at; None is all."""

    operator: int | None = None
    partition: int | None = None
    store: str | None = None

    def takes(self, identity: StoreIdentity) -> bool:
        return (
            self.operator in (None, identity.operator)
            and self.partition in (None, identity.partition)
            and self.store in (None, identity.name)
        )


@dataclass(frozen=True)
class OperatorSurvey:
    """One stateful operator; `families` by store name."""

    metadata: OperatorMetadata
    partitions: int
    families: dict[str, tuple[ColumnFamilyMeaning, ...]]


@dataclass(frozen=True)
class CheckpointSurvey:
    """One checkpoint.

    Args:
        provider: class of the state store provider that the offset log pins; None before the first batch.
        format_version: 2 where the commit log names attempts, 1 where it has numbers, None before the first commit.
        identity: None where lamina never wrote to this checkpoint.
        stores: the selected stores; empty where another provider keeps the state.
    """

    url: str
    query: str
    planned: Sequence[int]
    committed: Sequence[int]
    watermark_ms: int | None
    provider: str | None
    format_version: int | None
    identity: CheckpointIdentity | None
    runs: Sequence[QueryRun]
    operators: Sequence[OperatorSurvey]
    stores: Sequence[StoreSurvey]

    @property
    def is_lamina(self) -> bool:
        return self.provider == PROVIDER_CLASS or self.identity is not None

    @property
    def problems(self) -> list[str]:
        return [problem for store in self.stores for problem in store.problems]


def survey(
    storage: Storage, selection: Selection, *, details: bool, progress: Callable[[int, int], None]
) -> CheckpointSurvey:
    """Looks at the checkpoint whose directory is the root of `storage`.

    Args:
        details: whether every manifest of the selected stores is read.
        progress: called with the stores that are done and their number.
    Raises:
        LaminaError: `file.*` about Spark's logs, `state.not-retained` where the selection takes nothing, `storage.*`.
    """
    logs = CheckpointLogs(storage)
    if not logs.is_checkpoint:
        raise FileError(
            "file.missing", f"{storage.url} is not the checkpoint of a streaming query: it has no file named metadata"
        )
    state = storage.at(f"{storage.url}/state")
    planned, committed = logs.planned_batches(), logs.committed_batches()
    offsets = logs.offsets(planned[-1]) if planned else None
    entries = logs.commits(committed)
    newest = entries[-1] if entries else None
    identity = read_identity(state)
    result = CheckpointSurvey(
        url=storage.url,
        query=logs.query_id(),
        planned=planned,
        committed=committed,
        watermark_ms=newest.next_watermark_ms if newest else None,
        provider=offsets.conf.get(_PROVIDER_KEY) if offsets else None,
        format_version=(1 if newest.state_ids is None else 2) if newest else None,
        identity=identity,
        runs=read_runs(state),
        operators=[operator_survey(logs, operator, newest) for operator in logs.operators()],
        stores=(),
    )
    if not result.is_lamina:
        _refuse_empty(selection, result.operators)
        return result
    chosen = chosen_stores(result.operators, identity.uuid if identity else "", selection)
    return replace(result, stores=_survey_stores(logs, state, result.operators, chosen, entries, details, progress))


def operator_survey(logs: CheckpointLogs, metadata: OperatorMetadata, newest: CommitEntry | None) -> OperatorSurvey:
    """One operator by its metadata, as of the newest commit."""
    families = {store.name: logs.column_families(metadata, store) for store in metadata.stores}
    return OperatorSurvey(metadata, logs.partitions(metadata, newest), families)


def _refuse_empty(selection: Selection, operators: Sequence[OperatorSurvey]) -> list[StoreIdentity]:
    """The selected stores of `operators`; an error where a selection takes none."""
    identities = [
        StoreIdentity("", operator.metadata.operator, partition, store.name)
        for operator in operators
        for store in operator.metadata.stores
        for partition in range(operator.partitions)
    ]
    chosen = [identity for identity in identities if selection.takes(identity)]
    if identities and not chosen:
        wanted = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("operator", selection.operator),
                ("partition", selection.partition),
                ("store", selection.store),
            )
            if value is not None
        )
        names = sorted({identity.name for identity in identities})
        raise StateError(
            "state.not-retained",
            f"the checkpoint has no {wanted}: its operators are 0 to {operators[-1].metadata.operator}, their "
            f"partitions 0 to {max(identity.partition for identity in identities)}, their stores {', '.join(names)}",
        )
    return chosen


def chosen_stores(operators: Sequence[OperatorSurvey], uuid: str, selection: Selection) -> list[StoreIdentity]:
    """The selected stores of the checkpoint `uuid`. Raises `state.not-retained` where there are none."""
    return [replace(identity, checkpoint=uuid) for identity in _refuse_empty(selection, operators)]


def _survey_stores(
    logs: CheckpointLogs,
    state: Storage,
    operators: Sequence[OperatorSurvey],
    chosen: Sequence[StoreIdentity],
    entries: Sequence[CommitEntry],
    details: bool,
    progress: Callable[[int, int], None],
) -> list[StoreSurvey]:
    metadata = {operator.metadata.operator: operator.metadata for operator in operators}

    def one(identity: StoreIdentity) -> StoreSurvey:
        named, problems = logs.named_versions(metadata[identity.operator], identity.partition, identity.name, entries)
        found = survey_store(state, identity, named, details=details)
        return replace(found, problems=(*problems, *found.problems))

    progress(0, len(chosen))
    pool = ThreadPoolExecutor(_CONCURRENT_READS)
    try:
        futures = [pool.submit(one, identity) for identity in chosen]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(chosen))
        return [future.result() for future in futures]
    finally:
        # an interrupt must not wait for stores that were not begun
        pool.shutdown(wait=False, cancel_futures=True)
