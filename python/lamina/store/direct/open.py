"""Opens a store that Python uses directly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lamina.checkpoint import CheckpointLogs
from lamina.components import Clock, Ids, RandomIds, SystemClock
from lamina.errors import LaminaError
from lamina.format.paths import is_immutable, is_table
from lamina.settings import Settings, as_text, readable_roots
from lamina.storage import LocalCache, Storage
from lamina.store.direct.store import MIN_VERSIONS, DirectStore
from lamina.store.model import StoreConf, StoreId
from lamina.store.versions.query_log import QueryLog

_OF_A_QUERY = ("heap_", "durability_", "engine_", "rocksdb_memory_", "rocksdb_metrics", "rocksdb_timers")
"""Settings of the JVM's table, of tasks and of the engine's process, which a store without Spark has none of."""

_DEFAULT_MIN_VERSIONS = 100
_RETENTION = ("retention_min_age_ms", "retention_min_version_age_ms")


def open_store(
    path: str,
    operator: int = 0,
    partition: int = 0,
    name: str = "default",
    *,
    writable: bool = False,
    hadoop: Mapping[str, str] | None = None,
    min_versions: int | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    storage: Storage | None = None,
    **settings: Any,
) -> DirectStore:
    """Opens the newest version of a store: for reading, which changes nothing, or for writing.

    Of a query's checkpoint it is the newest version that Spark has committed, and it may be open beside the query.
    Such a checkpoint is not opened for writing.

    A store of its own starts a run with the first commit, compaction or collection after each open and `restore`. Any
    other that is open for writing cannot commit any more then.

    Args:
        path: the checkpoint's directory; files are under `<path>/state`.
        writable: whether it may be changed.
        hadoop: Hadoop configuration keys with the access to `path`.
        min_versions: how many versions before the newest one a collection keeps; by default as many as the newest
            version records, or 100 where there is none. Settings `retention_…` that are not given follow it, too.
        storage: used in place of the storage that `path` and the settings `storage_…` name; its root is the
            directory `state`. Spark's logs are not looked for then.
        settings: settings of lamina, with the attribute names of `lamina.settings.Settings`; not those of the JVM's
            table, of tasks and of the engine's process (`heap_…`, `durability_…`, `engine_…`, `rocksdb_memory_…`).
    Raises:
        LaminaError: `settings.*`, `storage.*`, `file.*` (`file.missing` also where nothing is there and `writable` is
            not set); `store.unsupported` where the checkpoint is a query's and
            `writable` is set, or its state is not in lamina; `state.not-retained` where the query has no such store.
    """
    parsed = _settings(settings)
    url = path.rstrip("/") + "/state"
    store_id = StoreId(url, operator, partition, name)
    query = None
    if storage is None:
        cache = LocalCache(parsed.storage_cache_directory, parsed.storage_cache_max_bytes, is_immutable, is_table)
        storage = Storage(url, hadoop, parsed.storage_fsync_enabled, cache=cache, roots=readable_roots(parsed))
        query = QueryLog(CheckpointLogs(storage.at(path.rstrip("/"))), store_id)
    return DirectStore(
        storage,
        store_id,
        StoreConf(parsed, 1, "none", _DEFAULT_MIN_VERSIONS if min_versions is None else min_versions),
        clock or SystemClock(),
        ids or RandomIds(),
        query,
        writable=writable,
        inherited=_inherited(settings, min_versions),
    )


def _inherited(settings: Mapping[str, Any], min_versions: int | None) -> set[str]:
    """Which of the numbers of retention nobody has given."""
    return {name for name in _RETENTION if name not in settings} | ({MIN_VERSIONS} if min_versions is None else set())


def _settings(values: Mapping[str, Any]) -> Settings:
    keys = {
        field.name: field.metadata["key"].full_name
        for field in dataclasses.fields(Settings)
        if not field.name.startswith(_OF_A_QUERY)
    }
    for attribute in values:
        if attribute not in keys:
            known = ", ".join(sorted(keys))
            raise LaminaError.from_kind(
                "settings.unknown", f"a store without Spark has no setting {attribute!r}; it has {known}"
            )
    return Settings.parse({keys[attribute]: as_text(value) for attribute, value in values.items()})
