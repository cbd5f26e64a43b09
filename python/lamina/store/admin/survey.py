"""What is in a checkpoint: logs, operators, stores, versions, files. Reads only.

A store costs one listing and the manifest of its newest committed version; `details` reads every manifest.
Whatever is wrong with one file becomes a problem of its store, and the survey goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.checkpoint import (
    PROVIDER_CLASS,
    CheckpointIdentity,
    FollowedLog,
    OperatorSurvey,
    QueryRun,
    StoreSelection,
    no_state,
    query_logs,
    read_identity,
    read_runs,
    selected_stores,
    survey_operators,
)
from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.log_object import LogIndex
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.store.admin.side_by_side import Outages, Progress, side_by_side
from lamina.store.admin.store_survey import StoreSurvey, survey_store
from lamina.store.files.log_parts import LogObjects

_LOOKED_AT = 16
"""So many of the newest log objects are asked for what their writers say: as many processes are seen at most."""


@dataclass(frozen=True)
class LogWriter:
    """What a process said of itself in an object.

    Args:
        process: its id, or that of the object where it has none.
        published_ms: when the object was published.
        commits: in the object.
        figures: what the process had done before, by kind and name (docs/spec/files.md): counts, bytes, milliseconds.
    """

    process: str
    published_ms: int
    commits: int
    figures: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, index: LogIndex, published_ms: int) -> LogWriter | None:
        """None where it does not say. What is no count is left out: later releases may say other things."""
        figures = {
            kind: {name: count for name, count in counts.items() if isinstance(count, int) and 0 <= count < 1 << 63}
            for kind, counts in index.process.items()
            if isinstance(counts, dict)
        }
        process = str(index.process.get("id", index.log))
        return cls(process, published_ms, len(index.parts), figures) if figures else None


def _writers(logs: LogObjects, objects: Iterable[tuple[str, int]]) -> Sequence[LogWriter]:
    """Those of the newest of these objects, by id and time; what is wrong with one is a problem of its stores."""

    def read(one: tuple[str, int]) -> LogWriter | None:
        log, published_ms = one
        try:
            return LogWriter.of(logs.find(log).index, published_ms)
        except LaminaError:
            return None

    newest = sorted(objects, key=lambda one: one[1], reverse=True)[:_LOOKED_AT]
    found: dict[str, LogWriter] = {}
    for writer in side_by_side(read, newest, lambda done, total: None):
        if writer is not None:
            found.setdefault(writer.process, writer)
    return list(found.values())


@dataclass(frozen=True)
class LogSurvey:
    """What is in the log of a checkpoint.

    Args:
        objects, bytes: log objects, whole; the commits in them are files of their stores, too.
        needs: files that say what stores need of them.
        oldest_ms: when the oldest object was published; None where there is none.
        places: where objects lie besides the checkpoint: URL, number and bytes.
        unreached: places that could not be listed, one sentence each.
        writers: what the newest objects say, of each process that wrote one the newest.
    """

    objects: int
    bytes: int
    needs: int
    oldest_ms: int | None
    places: Sequence[tuple[str, int, int]] = ()
    unreached: Sequence[str] = ()
    writers: Sequence[LogWriter] = ()

    @classmethod
    def of(cls, state: Storage) -> LogSurvey:
        """As it is now; `state` is rooted at the directory `state` of the checkpoint."""
        places = LogObjects.of(state).places
        places.remember_silence()
        listing, unreached = places.list()
        objects = [(log, place, entry) for place, entry in listing if (log := place.log_of(entry.name))]
        needs = sum(place.id is None and paths.is_log_needs(place.path_of(entry.name)) for place, entry in listing)
        oldest = min((entry.modified_ms for _, _, entry in objects), default=None)
        found = {place: [entry.size for _, other, entry in objects if other is place] for place in places.elsewhere()}
        return cls(
            len(objects),
            sum(entry.size for _, _, entry in objects),
            needs,
            oldest,
            [(place.storage.url, len(sizes), sum(sizes)) for place, sizes in found.items()],
            [one.error.message for one in unreached],
            # those that stores share leave out what is said of the writer
            _writers(LogObjects(state, places=places), [(log, entry.modified_ms) for log, _, entry in objects]),
        )


@dataclass(frozen=True)
class CheckpointSurvey:
    """One checkpoint.

    Args:
        provider: class of the state store provider that the offset log pins; None before the first batch.
        format_version: 2 where the commit log names attempts, 1 where it has numbers, None before the first commit.
        identity: None where lamina never wrote to this checkpoint.
        stores: the selected stores; empty where another provider keeps the state, and where `lost` says something.
        lost: what to say where the checkpoint has no identity, and there was a state in lamina.
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
    log: LogSurvey
    lost: str | None = None

    @property
    def is_lamina(self) -> bool:
        return self.provider == PROVIDER_CLASS or self.identity is not None

    @property
    def problems(self) -> list[str]:
        lost = [] if self.lost is None else [self.lost]
        return [*lost, *self.log.unreached, *(problem for store in self.stores for problem in store.problems)]


def _identity(state: Storage) -> tuple[CheckpointIdentity | None, str | None]:
    """The identity of a checkpoint, and what to say where it was lost."""
    try:
        return read_identity(state), None
    except LaminaError as error:
        if error.kind != "file.missing":
            raise
        return None, error.message


def survey(storage: Storage, selection: StoreSelection, *, details: bool, progress: Progress) -> CheckpointSurvey:
    """Looks at the checkpoint whose directory is the root of `storage`.

    Args:
        details: whether every manifest of the selected stores is read.
        progress: called with the stores that are done and their number.
    Raises:
        LaminaError: `file.*` about Spark's logs, `state.not-retained` where the selection takes nothing, `storage.*`.
    """
    logs = query_logs(storage)
    state = storage.at(f"{storage.url}/state")
    planned, committed = logs.planned_batches(), logs.committed_batches()
    provider = logs.provider(planned)
    entries = logs.commits(committed)
    newest = entries[-1] if entries else None
    identity, lost = _identity(state)
    if identity is None and lost is None:
        absent = no_state(logs, provider, newest)
        lost = absent.message if absent.kind == "file.missing" else None
    result = CheckpointSurvey(
        url=storage.url,
        query=logs.query_id(),
        planned=planned,
        committed=committed,
        watermark_ms=newest.next_watermark_ms if newest else None,
        provider=provider,
        format_version=(1 if newest.state_ids is None else 2) if newest else None,
        identity=identity,
        runs=read_runs(state),
        operators=survey_operators(logs, newest),
        stores=(),
        log=LogSurvey.of(state),
        lost=lost,
    )
    selected = selected_stores(result.operators, identity.uuid if identity else "", selection)
    if not result.is_lamina or lost is not None:
        return result

    outages = Outages()
    log = FollowedLog(logs, [operator.metadata for operator in result.operators], entries, SystemClock())

    def one(identity: StoreIdentity) -> StoreSurvey:
        store = log.store(identity)
        newest = max(store.named, default=None)
        found = outages.outlived(
            lambda: survey_store(state, identity, store.named, details=details),
            lambda error: StoreSurvey(identity, newest, None, None, (), (), (error.message,)),
        )
        return replace(found, problems=(*store.problems, *found.problems))

    return replace(result, stores=side_by_side(one, selected, progress))
