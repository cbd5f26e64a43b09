"""The stores that a command works on, with the versions of each that Spark's commit log names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lamina.checkpoint import CheckpointLogs, CommitEntry, QueryRun, read_identity, read_runs
from lamina.cli.inspect_survey import Selection, chosen_stores, operator_survey
from lamina.errors import FileError, StateError
from lamina.format.manifest import StoreIdentity
from lamina.format.paths import FIRST_STORES, store_directory
from lamina.storage import Storage


@dataclass(frozen=True)
class Target:
    """One store.

    Args:
        named: versions in Spark's commit log, with their attempts (None under checkpoint format v1).
        problems: what the log says wrongly.
    """

    identity: StoreIdentity
    named: Mapping[int, str | None]
    problems: Sequence[str]


@dataclass(frozen=True)
class Targets:
    """The selected stores of one checkpoint; `state` is rooted at its directory `state`."""

    url: str
    logs: CheckpointLogs
    state: Storage
    runs: Sequence[QueryRun]
    stores: Sequence[Target]

    def named_now(self) -> Collection[int]:
        """The versions that the commit log names now."""
        return {batch + 1 for batch in self.logs.committed_batches()}


def targets(storage: Storage, selection: Selection) -> Targets:
    """The stores of the checkpoint whose directory is the root of `storage`.

    Raises:
        LaminaError: `file.*` about Spark's logs, `state.not-retained` where the selection takes nothing,
            `store.unsupported` where the state is not in lamina, `storage.*`.
    """
    logs = CheckpointLogs(storage)
    if not logs.is_checkpoint:
        raise FileError(
            "file.missing", f"{storage.url} is not the checkpoint of a streaming query: it has no file named metadata"
        )
    state = storage.at(f"{storage.url}/state")
    identity = read_identity(state)
    if identity is None:
        raise StateError("store.unsupported", f"{storage.url} keeps no state in lamina")
    # the runs before the log: a run that starts between the two is newer than all that is known here
    runs = read_runs(state)
    entries = logs.commits()
    newest = entries[-1] if entries else None
    operators = [operator_survey(logs, operator, newest) for operator in logs.operators()]
    _refuse_unknown(logs, len(operators), newest)
    metadata = {operator.metadata.operator: operator.metadata for operator in operators}
    stores = []
    for store in chosen_stores(operators, identity.uuid, selection):
        named, problems = logs.named_versions(metadata[store.operator], store.partition, store.name, entries)
        stores.append(Target(store, named, problems))
    return Targets(storage.url, logs, state, runs, stores)


def _refuse_unknown(logs: CheckpointLogs, known: int, newest: CommitEntry | None) -> None:
    """An error where there is state of an operator without metadata: its stores would be passed over."""
    named = newest is not None and any(operator >= known for operator in newest.state_ids or ())
    if named or any(logs.storage.list(f"state/{store_directory(known, 0, name)}") for name in FIRST_STORES):
        raise FileError(
            "file.missing",
            f"{logs.storage.location(f'state/{known}/_metadata')} tells nothing of operator {known}, of which there is "
            "state: put Spark's files there back from a copy",
        )
