"""Opening stores from what `openStore` was given, in the engine and in the maintenance process alike."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.components import Clock, Ids
from lamina.engine.merge_failures import MergeFailures
from lamina.engine.ticker import Ticker
from lamina.errors import EngineError, SettingsError
from lamina.format import paths
from lamina.settings import PREFIX, Settings, readable_roots
from lamina.storage import Jvm, LocalCache, Storage
from lamina.store import CheckpointState, Store, StoreConf, StoreId
from lamina.store.changelog.changelog import Changelog, check_times
from lamina.store.changelog.groups import Groups
from lamina.store.collection.untold import UntoldFootprints
from lamina.store.commit.log_age import LogAge
from lamina.store.factory import make_store
from lamina.store.files.log_parts import LogObjects
from lamina.store.materialization.waiting_segments import WaitingSegments
from lamina.store.restore.broken import BrokenPlaces

_UNUSED_CHECKPOINTS = 16

_UNUSED_S = 3600.0
"""After so long what is known of a checkpoint that nobody has open is forgotten, and footprints of a store that was
closed: its next commits are made in another process."""

_WAITING_TIMES = 24
"""And after so many times as long where a merge waits for a commit, which would be made anew: a trigger may be rare."""


@dataclass(frozen=True)
class OpenArgument:
    """The argument of `openStore` (docs/spec/wire.md), checked for its shape.

    `claimed` is for the maintenance process alone: uuid of the checkpoint and epoch of the run, as the engine has them.
    """

    store: StoreId
    settings: Mapping[str, str]
    hadoop: Mapping[str, str]
    run_id: str
    read_only: bool
    format_version: int
    spark: str
    min_versions: int
    claimed: tuple[str, int] | None = None

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> OpenArgument:
        """The argument that `value` says.

        Raises:
            EngineError: `engine.protocol` where a field is missing or of another type.
        """
        try:
            store, claimed = value["store"], value.get("claimed")
            argument = OpenArgument(
                StoreId(value["url"].rstrip("/"), int(store["operator"]), int(store["partition"]), str(store["name"])),
                {str(key): str(text) for key, text in value["settings"].items()},
                {str(key): str(text) for key, text in value["hadoop"].items()},
                str(value["run_id"]),
                bool(value["read_only"]),
                int(value["format_version"]),
                str(value["spark"]),
                int(value["minVersionsToRetain"]),
                (str(claimed["checkpoint"]), int(claimed["epoch"])) if claimed else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError("engine.protocol", f"openStore without a field, or with a wrong one: {error!r}") from None
        return argument

    def to_json(self) -> dict[str, Any]:
        """The same as `from_json` reads."""
        return {
            "store": {"operator": self.store.operator, "partition": self.store.partition, "name": self.store.name},
            "url": self.store.checkpoint_url,
            "settings": dict(self.settings),
            "hadoop": dict(self.hadoop),
            "run_id": self.run_id,
            "read_only": self.read_only,
            "format_version": self.format_version,
            "spark": self.spark,
            "minVersionsToRetain": self.min_versions,
            "claimed": None if self.claimed is None else dict(zip(("checkpoint", "epoch"), self.claimed, strict=True)),
        }


@dataclass
class Known:
    """What the handles of one store share: how many are open, what their next commits are to refer to, what the next
    collection is to be told of and whether there was a first one, and what became of merges."""

    failures: MergeFailures
    users: int = 0
    segments: WaitingSegments = field(default_factory=WaitingSegments)
    untold: UntoldFootprints = field(default_factory=UntoldFootprints)
    log_age: LogAge = field(default_factory=LogAge)
    broken: BrokenPlaces = field(default_factory=BrokenPlaces)
    was_collected: bool = False

    def begins_collections(self) -> bool:
        """Whether nobody has asked for a collection of the store in this run; who hears so is to ask."""
        begins, self.was_collected = not self.was_collected, True
        return begins


@dataclass
class _Shared:
    """A checkpoint as one run uses it: how many handles are open, its stores, and since when which are closed, the
    longest first, in seconds of the clock."""

    state: CheckpointState
    logs: LogObjects
    read_only: bool
    changelog: Changelog | None = None
    users: int = 0
    unused_since: float = 0.0
    stores: dict[StoreId, Known] = field(default_factory=dict)
    closed: OrderedDict[StoreId, float] = field(default_factory=OrderedDict)

    def entered(self, store: StoreId, failures: MergeFailures) -> Known:
        known = self.stores.setdefault(store, Known(failures))
        known.users += 1
        self.users += 1
        self.closed.pop(store, None)
        return known

    def left(self, store: StoreId, now: float) -> None:
        known = self.stores[store]
        known.users -= 1
        self.users -= 1
        self.unused_since = now
        if known.users == 0:
            self.closed[store] = now

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits for the next commit of a store, which would be merged anew."""
        return any(known.segments.all() for known in self.stores.values())

    def forget(self, before: float) -> None:
        """Forgets the footprints of stores that have been closed since `before` or longer."""
        while self.closed and next(iter(self.closed.values())) <= before:
            store, _ = self.closed.popitem(last=False)
            self.stores[store].untold.take()


@dataclass(frozen=True)
class OpenedStore:
    """A store that was opened, and what it is used with until it is closed.

    Args:
        changelog: what its small commits go into; None where each is a file of its own.
        key: of what the opener shares among its stores.
        known: what its handles share.
    """

    store: Store
    checkpoint: CheckpointState
    settings: Settings
    changelog: Changelog | None
    id: StoreId
    key: tuple[Any, ...]
    known: Known


@dataclass
class _Opening:
    lock: threading.Lock
    users: int = 0


class StoreOpener:
    """Opens stores; those of one checkpoint, run and set of credentials share what is known of the checkpoint.

    Nothing here is global: another query, session or set of credentials is another key. `settings_of` reads the
    settings of an open; `jvm` has file systems for URLs that Python has none for. A writer's checkpoint is remembered
    for a while after its last store was closed, since with `unloadOnCommit` all stores close after each batch; a
    reader's is not, since it may come to one that was made anew.

    Args:
        ticker: seals groups of commits in time; without one, each commit is a file of its own.
        figures: gives what log objects say of this process besides their uploads.
        unused_s: for how long a checkpoint is remembered that nobody has open.
    """

    def __init__(
        self,
        settings_of: Callable[[Mapping[str, str]], Settings],
        clock: Clock,
        ids: Ids,
        jvm: Jvm | None = None,
        ticker: Ticker | None = None,
        figures: Callable[[], Mapping[str, Any]] = dict,
        unused_s: float = _UNUSED_S,
    ) -> None:
        self._unused_s = unused_s
        self._ticker = ticker
        self._figures = figures
        self._settings_of = settings_of
        self._jvm = jvm
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._cache: LocalCache | None = None
        self._opening: dict[tuple[Any, ...], _Opening] = {}
        self._shared: OrderedDict[tuple[Any, ...], _Shared] = OrderedDict()
        self._left: list[Groups] = []
        """Of checkpoints that are being forgotten: what was accepted into them may still wait for its object."""

    def open(self, argument: OpenArgument) -> OpenedStore:
        """The store that `argument` says, open until `close`.

        Raises:
            LaminaError: `settings.*`, `storage.*`, `file.*`.
        """
        settings = self._settings_of(argument.settings)
        key = self._key(argument, settings)
        shared, known = self._checkpoint(key, argument, settings)
        checkpoint, changelog = shared.state, shared.changelog
        try:
            store = make_store(
                checkpoint,
                argument.store,
                StoreConf(settings, argument.format_version, argument.spark, argument.min_versions),
                clock=self._clock,
                ids=self._ids,
                segments=known.segments,
                untold=known.untold,
                log_age=known.log_age,
                broken=known.broken,
                groups=None if changelog is None else changelog.groups,
                logs=shared.logs,
            )
        except BaseException:
            self._leave(key, argument.store)
            raise
        return OpenedStore(store, checkpoint, settings, changelog, argument.store, key, known)

    def _failures_of(self, settings: Settings) -> MergeFailures:
        most = settings.changelog_materialize_failures if settings.changelog_enabled else 0
        return MergeFailures(most, self._clock.monotonic)

    def close(self, opened: OpenedStore) -> None:
        """Says that a store is used no more; to be called once."""
        self._leave(opened.key, opened.id)

    def _leave(self, key: tuple[Any, ...], store: StoreId) -> None:
        with self._lock:
            now = self._clock.monotonic()
            shared = self._shared[key]
            shared.left(store, now)
            for one in self._shared.values():
                one.forget(now - _UNUSED_S)
            forgotten = [self._popped(key)] if shared.users == 0 and shared.read_only else []
            outlived = self._pop_outlived()
            unused = [(key, shared) for key, shared in self._shared.items() if shared.users == 0]
            for number, (old, one) in enumerate(unused, _UNUSED_CHECKPOINTS - len(unused)):
                if number < 0:
                    forgotten.append(self._popped(old))
                elif now - one.unused_since >= self._unused_s * (_WAITING_TIMES if one.has_waiting else 1):
                    outlived.append(self._popped(old))
        # what waits in a changelog is published first
        for one in forgotten:
            self._forget(one)
        self._forget_later(outlived)

    def finish(self, timeout_s: float) -> int:
        """Publishes what was accepted into changelogs, within that time; how many commits are left."""
        with self._lock:
            used = [shared.changelog.groups for shared in self._shared.values() if shared.changelog is not None]
            groups = [*used, *self._left]
        for one in groups:
            one.end()
        ends = self._clock.monotonic() + timeout_s
        return sum(one.left(max(0.0, ends - self._clock.monotonic())) for one in groups)

    def is_outlived(self, opened: OpenedStore) -> bool:
        """Whether a newer run of the query has stores here than the one that a store was opened by."""
        with self._lock:
            return self._has_newer(opened.checkpoint)

    def _has_newer(self, state: CheckpointState) -> bool:
        return any(shared.state.outlives(state) for shared in self._shared.values())

    def _pop_outlived(self) -> list[_Shared]:
        """Takes out what unused checkpoints of a run are known by, where a newer run, or one on a checkpoint made anew,
        has used them since."""
        present: dict[str, str | None] = {}
        outlived = []
        for key, shared in reversed(self._shared.items()):
            if not shared.read_only:
                is_gone = present.setdefault(key[0], shared.state.uuid) != shared.state.uuid
                if shared.users == 0 and (is_gone or self._has_newer(shared.state)):
                    outlived.append(key)
        return [self._popped(key) for key in outlived]

    def _popped(self, key: tuple[Any, ...]) -> _Shared:
        """What a checkpoint is known by, which is to be forgotten."""
        shared = self._shared.pop(key)
        if shared.changelog is not None:
            self._left.append(shared.changelog.groups)
        return shared

    def _forget_later(self, outlived: Iterable[_Shared]) -> None:
        """Forgets what older runs had, of which an upload may hang."""
        for one in outlived:
            try:
                threading.Thread(target=self._forget, args=(one,), name="lamina-forget", daemon=True).start()
            except RuntimeError:
                # no further thread
                self._forget(one)

    def _forget(self, shared: _Shared) -> None:
        if shared.changelog is not None and self._ticker is not None:
            try:
                self._ticker.remove(shared.changelog.groups)
                shared.changelog.close()
            finally:
                with self._lock:
                    self._left.remove(shared.changelog.groups)

    def _checkpoint(self, key: tuple[Any, ...], argument: OpenArgument, settings: Settings) -> tuple[_Shared, Known]:
        with self._turn(key):
            with self._lock:
                shared = self._shared.get(key)
                if shared is not None:
                    self._shared.move_to_end(key)
                    return shared, shared.entered(argument.store, self._failures_of(settings))
            state = self._opened(argument, settings)
            logs = LogObjects(state.storage, self._clock, self._ids, tells=not argument.read_only)
            if self._ticker is None:
                # the maintenance process lists them for each store
                logs.places.remember_silence()
            changelog = self._changelog_of(argument, state, logs, settings)
            shared = _Shared(state, logs, argument.read_only, changelog)
            with self._lock:
                self._shared[key] = shared
                known = shared.entered(argument.store, self._failures_of(settings))
                outlived = self._pop_outlived()
        self._forget_later(outlived)
        return shared, known

    def _changelog_of(
        self, argument: OpenArgument, state: CheckpointState, logs: LogObjects, settings: Settings
    ) -> Changelog | None:
        """What commits of the run go into; None where each is a file of its own."""
        if not settings.changelog_enabled or argument.read_only or self._ticker is None:
            return None
        if argument.format_version < 2:
            raise SettingsError(
                "settings.invalid",
                f"{PREFIX}changelog.enabled is set, and the checkpoint has format v1, whose logs name no attempts; "
                f"leave it out, or begin a checkpoint with spark.sql.streaming.stateStore.checkpointFormatVersion=2",
            )
        check_times(settings)
        place = logs.places.take(settings.changelog_path, state.uuid or "", self._ids)
        # what is written here is known here: no commit reads it back to see what it stands on
        changelog = Changelog(
            place,
            state.uuid or "",
            settings,
            self._clock,
            self._ids,
            written=logs.add_written,
            figures=self._figures,
        )
        self._ticker.add(changelog.groups)
        return changelog

    def _opened(self, argument: OpenArgument, settings: Settings) -> CheckpointState:
        storage = Storage(
            argument.store.checkpoint_url,
            argument.hadoop,
            settings.storage_fsync_enabled,
            cache=self._local_cache(settings),
            jvm=self._jvm,
            roots=readable_roots(settings),
        )
        if argument.claimed is not None:
            uuid, epoch = argument.claimed
            return CheckpointState.rejoin(storage, uuid, argument.run_id, epoch)
        return CheckpointState.open(
            storage, run_id=argument.run_id, read_only=argument.read_only, clock=self._clock, ids=self._ids
        )

    @contextlib.contextmanager
    def _turn(self, key: tuple[Any, ...]) -> Iterator[None]:
        """Stores of one checkpoint open at the same time, one does the work; other checkpoints do not wait for it."""
        with self._lock:
            opening = self._opening.setdefault(key, _Opening(threading.Lock()))
            opening.users += 1
        try:
            with opening.lock:
                yield
        finally:
            with self._lock:
                opening.users -= 1
                if opening.users == 0:
                    del self._opening[key]

    def _local_cache(self, settings: Settings) -> LocalCache:
        """The local copies of all stores: their settings are the process's."""
        with self._lock:
            if self._cache is None:
                self._cache = LocalCache(
                    settings.storage_cache_directory,
                    settings.storage_cache_max_bytes,
                    paths.is_immutable,
                    paths.is_table,
                )
            return self._cache

    @property
    def copied_bytes(self) -> int:
        """What the local copies take, of all stores on this machine."""
        with self._lock:
            return 0 if self._cache is None else self._cache.held_bytes

    def stats(self) -> dict[str, Any]:
        """Figures of each changelog, and of the local copies; None before a store was opened."""
        with self._lock:
            cache = None if self._cache is None else self._cache.stats()
            changelogs = [
                ({"url": url, "run_id": run}, shared.changelog)
                for (url, run, *_), shared in self._shared.items()
                if shared.changelog is not None
            ]
        return {"cache": cache, "changelogs": [{**which, **one.stats()} for which, one in changelogs]}

    @staticmethod
    def _key(argument: OpenArgument, settings: Settings) -> tuple[Any, ...]:
        credentials = tuple(sorted(argument.hadoop.items()))
        return (
            argument.store.checkpoint_url,
            argument.run_id,
            argument.read_only,
            settings.storage_fsync_enabled,
            settings.storage_roots,
            settings.changelog_path,
            credentials,
        )
