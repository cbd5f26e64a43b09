"""The one place where a store is put together: which backend, and with it what makes its bases."""

from __future__ import annotations

from lamina.components import Clock, Ids
from lamina.errors import SettingsError
from lamina.format.entries import Compression
from lamina.settings import PREFIX
from lamina.store.changelog.groups import Groups
from lamina.store.collection.untold import UntoldFootprints
from lamina.store.commit.log_age import LogAge
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.store_files import StoreFiles
from lamina.store.materialization.compaction import Compaction
from lamina.store.materialization.materializer import Materializer, spread_over
from lamina.store.materialization.table_building import TableBuilding
from lamina.store.materialization.waiting_segments import WaitingSegments
from lamina.store.model import StoreConf, StoreId
from lamina.store.restore.broken import BrokenPlaces
from lamina.store.tables.database import require
from lamina.store.tables.options import TableOptions, check
from lamina.store.versioned_store import VersionedStore
from lamina.store.versions.checkpoint_state import CheckpointState

DUE_BYTES = 64 << 20
"""Without the changelog, increments of so many bytes are put into tables, however few they are."""


def make_store(
    checkpoint: CheckpointState,
    store_id: StoreId,
    conf: StoreConf,
    *,
    clock: Clock,
    ids: Ids,
    segments: WaitingSegments | None = None,
    untold: UntoldFootprints | None = None,
    log_age: LogAge | None = None,
    broken: BrokenPlaces | None = None,
    groups: Groups | None = None,
    logs: LogObjects | None = None,
) -> VersionedStore:
    """A store of `checkpoint`, as its settings say; no request is made for it.

    Args:
        segments: finished segments that other handles of the store share, if there are any.
        untold: footprints of commits that they share.
        log_age: since when they have seen the oldest commit in the log.
        broken: what was found damaged or missing, of which tables that are here are published anew.
        groups: small commits wait there, and become durable together with those of other stores.
        logs: the log objects of the checkpoint, whose indexes its stores share.
    """
    settings = conf.settings
    options = TableOptions.of(settings)
    if settings.backend == "rocksdb":
        if settings.compaction_mode != "background":
            raise SettingsError(
                "settings.invalid",
                f"{PREFIX}compaction.mode is {settings.compaction_mode!r}, and {PREFIX}backend is 'rocksdb', whose "
                "tables are made in the background; leave compaction.mode out, or use backend heap",
            )
        require()
        check(options)
    compression = Compression(settings.compression_codec, settings.compression_level)

    broken = BrokenPlaces() if broken is None else broken

    def materializer_of(files: StoreFiles) -> Materializer:
        if settings.backend == "rocksdb":
            return TableBuilding(
                files,
                options,
                settings.rocksdb_materialize_every,
                settings.retention_min_age_ms,
                clock,
                ids,
                broken,
                most_bytes=settings.changelog_materialize_bytes if settings.changelog_enabled else DUE_BYTES,
            )
        if not settings.changelog_enabled:
            # what is in a log object since before is merged with the rest
            return Compaction(files, compression, settings.retention_min_age_ms, clock, ids)
        parts = min(settings.changelog_materialize_parts, max(1, settings.compaction_max_chain // 2))
        return Compaction(
            files,
            compression,
            settings.retention_min_age_ms,
            clock,
            ids,
            most_parts=spread_over(parts, files.identity),
            most_bytes=settings.changelog_materialize_bytes,
        )

    return VersionedStore(
        checkpoint,
        store_id,
        conf,
        materializer_of,
        clock=clock,
        ids=ids,
        segments=segments,
        untold=untold,
        log_age=log_age,
        broken=broken,
        groups=groups,
        logs=logs,
    )
