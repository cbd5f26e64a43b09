"""How databases of tables are opened: RocksDB's options, from settings and a function of the user's.

Predefined options come first, single settings next, and the function last. What bounds memory, and what readers of the
tables rely on, is set after all of them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lamina.errors import LaminaError, SettingsError
from lamina.settings import MERGE_METRICS, NONE, PREFIX, Settings

log = logging.getLogger(__name__)

_CACHE_BYTES = 8 << 20
_WRITE_BUFFER_BYTES = 64 << 10
"""Nothing is ever in a memtable."""

_FORMAT = 5
"""Spark's RocksDB reads it, and each release of this one."""

_METADATA_BLOCK_BYTES = 4 << 10

_LEVELS = 7

FEWEST_MERGED, MOST_MERGED = 4, 12
"""So many of the newest tables, which may each have any key, are merged with all below, which is then written anew: the
first number of them when they are together as large as what is below, else the second one, or fewer when they are
larger than a level may be. A read that finds a key nowhere looks into the filter of each."""

_MANAGED = {
    "write_buffer_size": "memory",
    "db_write_buffer_size": "memory",
    "max_write_buffer_number": "memory",
    "disable_auto_compactions": "merges, which a job waits for",
    "num_levels": "what other readers of the tables expect",
    "error_if_exists": "jobs that go on from a list",
    "enable_blob_files": "which files a version consists of",
}
"""What is set whatever a function says, by RocksDB's names, and for the sake of what."""

_TABLE_FORMAT = "TableOptions/BlockBasedTable"
"""The section of RocksDB's file of options that is about the format of tables."""

_STYLE = "kCompactionStyleLevel"
"""Of RocksDB's merges those that lose nothing and come to an end."""

_PLACES = ("wal_dir", "db_log_dir")


@dataclass(frozen=True)
class TableOptions:
    """Options of a database.

    Args:
        block_bytes: of a block of a table, before compression.
        bloom_bits: of the filter, for each key.
        table_bytes: about what a table holds at most.
        level_bytes: what the first level below the newest tables holds before it is merged with the next one.
        compression: of blocks: `lz4`, `zstd` or `uncompressed`.
        jobs: merges in the background at once.
        read_ahead_bytes: what a merge reads at once; 0 for RocksDB's own way.
        statistics: whether RocksDB counts what it merges.
        factory: `package.module:function`, which is given rocksdict's options and gives them back.
    """

    block_bytes: int = 4 << 10
    bloom_bits: int = 10
    table_bytes: int = 64 << 20
    level_bytes: int = 256 << 20
    compression: str = "lz4"
    jobs: int = 2
    read_ahead_bytes: int = 0
    statistics: bool = False
    factory: str | None = None

    @staticmethod
    def of(settings: Settings) -> TableOptions:
        """What settings say."""
        single: dict[str, Any] = {
            "block_bytes": settings.rocksdb_block_size,
            "bloom_bits": settings.rocksdb_bloom_bits_per_key,
            "table_bytes": settings.rocksdb_target_file_size_base,
            "level_bytes": settings.rocksdb_max_bytes_for_level_base,
            "compression": settings.rocksdb_compression,
            "factory": None if settings.rocksdb_options_factory == NONE else settings.rocksdb_options_factory,
        }
        single["statistics"] = True if set(MERGE_METRICS) & set(settings.rocksdb_metrics) else None
        given = {name: value for name, value in single.items() if value is not None}
        return replace(PREDEFINED[settings.rocksdb_predefined_options], **given)

    def options(self, *, create: bool) -> Any:
        """rocksdict's options.

        Raises:
            SettingsError: `settings.invalid` about the function.
        """
        options = self._own(create=create)
        if self.factory is not None:
            options = _applied(self.factory, options)
            self._managed(options)
        return options

    def _own(self, *, create: bool) -> Any:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(create)
        options.set_compression_type(getattr(rocksdict.DBCompressionType, _COMPRESSIONS[self.compression])())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_target_file_size_base(self.table_bytes)
        options.set_max_bytes_for_level_base(self.level_bytes)
        options.set_level_zero_file_num_compaction_trigger(MOST_MERGED)
        options.set_max_background_jobs(self.jobs)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        if self.statistics:
            options.enable_statistics()
        if self.read_ahead_bytes:
            options.set_compaction_readahead_size(self.read_ahead_bytes)
        self._managed(options)
        return options

    def _managed(self, options: Any) -> None:
        import rocksdict

        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_db_write_buffer_size(0)
        options.set_max_write_buffer_number(2)
        options.set_enable_blob_files(False)
        options.set_disable_auto_compactions(False)
        options.set_num_levels(_LEVELS)
        options.set_error_if_exists(False)
        tables = rocksdict.BlockBasedOptions()
        tables.set_block_cache(rocksdict.Cache(_CACHE_BYTES))
        tables.set_format_version(_FORMAT)
        tables.set_block_size(self.block_bytes)
        if self.bloom_bits:
            tables.set_bloom_filter(self.bloom_bits, False)
            tables.set_partition_filters(True)
        # the index and the filters of a large table are larger than a small cache
        tables.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        tables.set_metadata_block_size(_METADATA_BLOCK_BYTES)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(tables)


PREDEFINED = {
    "default": TableOptions(),
    # a seek costs as much as reading a megabyte
    "spinning-disk": TableOptions(block_bytes=32 << 10, jobs=2, read_ahead_bytes=2 << 20),
    "spinning-disk-high-memory": TableOptions(
        block_bytes=128 << 10, table_bytes=256 << 20, level_bytes=1 << 30, jobs=2, read_ahead_bytes=4 << 20
    ),
    "flash-ssd": TableOptions(jobs=4),
}

_COMPRESSIONS = {"lz4": "lz4", "zstd": "zstd", "uncompressed": "none"}


@functools.lru_cache(maxsize=64)
def check(options: TableOptions) -> int:
    """Tries the user's function out on a database that is thrown away; once for each. Gives about what a table holds at
    most, in bytes, which the function may have changed.

    Raises:
        SettingsError: `settings.invalid` where it cannot be imported, fails, or makes no database that is of use.
        LaminaError: `storage.failed` where the local disk is the reason.
    """
    if options.factory is None:
        return options.table_bytes
    try:
        plain, tables = _effective(replace(options, factory=None)._own(create=True))
    except Exception as error:
        raise LaminaError.from_kind(
            "storage.failed", f"RocksDB failed on the local disk, in {tempfile.gettempdir()}: {error}"
        ) from error
    given = _applied(options.factory, options._own(create=True))
    try:
        wanted, found = _effective(given)
    except Exception as error:
        raise _refused(options.factory, f"gives options with which RocksDB does not work: {error}") from error
    if found != tables:
        raise _refused(options.factory, "has RocksDB put its tables elsewhere")
    of_family, of_database = wanted["CFOptions"], wanted["DBOptions"]
    if of_family.get("compaction_style") != _STYLE:
        raise _refused(
            options.factory,
            f"sets {of_family.get('compaction_style')}: only {_STYLE} neither drops rows nor goes on for ever",
        )
    for name in _PLACES:
        if of_database.get(name) != plain["DBOptions"].get(name):
            raise _refused(options.factory, f"sets {name}, which databases would share")
    for name, why in _MANAGED.items():
        for section in ("CFOptions", "DBOptions"):
            if wanted[section].get(name) != plain[section].get(name):
                _without_effect(options.factory, f"{name} to {wanted[section].get(name)}", why)
    table_format = wanted.get(_TABLE_FORMAT)
    if table_format != plain[_TABLE_FORMAT]:
        _without_effect(options.factory, "the format of tables", "what readers of the tables expect, and of memory")
    return int(of_family["target_file_size_base"])


def _without_effect(factory: str, what: str, why: str) -> None:
    log.warning("%s sets %s, without effect: it is managed for the sake of %s", factory, what, why)


def _effective(options: Any) -> tuple[dict[str, dict[str, str]], int]:
    """What RocksDB makes of options, in sections and by its own names; and how many tables lie where they should."""
    import rocksdict

    with tempfile.TemporaryDirectory(prefix="lamina-options-") as directory:
        database = rocksdict.Rdict(directory, options)
        writer = rocksdict.SstFileWriter(options)
        path = os.path.join(directory, "ingested.tmp")
        writer.open(path)
        writer[b"key"] = b"value"
        writer.finish()
        database.ingest_external_file([path])
        database.close()
        names = os.listdir(directory)
        with open(os.path.join(directory, max(n for n in names if n.startswith("OPTIONS-"))), encoding="utf-8") as file:
            text = file.read().replace(directory, "")
    sections = re.findall(r"^\[([^\] ]+)[^\]]*\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    found = {title: dict(re.findall(r"^\s*(\w+)=(.*)$", body, re.MULTILINE)) for title, body in sections}
    return found, sum(name.endswith(".sst") for name in names)


def _applied(factory: str, options: Any) -> Any:
    function = _imported(factory)
    try:
        given = function(options)
    except Exception as error:
        raise _refused(factory, f"fails: {type(error).__name__}: {error}") from error
    if given is not options:
        raise _refused(
            factory, f"gives a {type(given).__name__} back; it must change the options that it is given, and give these"
        )
    return options


@functools.lru_cache(maxsize=64)
def _imported(factory: str) -> Callable[[Any], Any]:
    module, _, name = factory.partition(":")
    try:
        function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:
        raise _refused(
            factory,
            f"cannot be imported by the Python of engine.python ({type(error).__name__}: {error}); it must be "
            "installed there, or on its PYTHONPATH",
        ) from error
    if not callable(function):
        raise _refused(factory, "is no function")
    return function


def _refused(factory: str, why: str) -> SettingsError:
    return SettingsError("settings.invalid", f"{PREFIX}rocksdb.optionsFactory is {factory!r}, which {why}")
