"""The settings of lamina: one typed, frozen table of keys with default, meaning and trade-off.

`Settings.parse` reads full Spark keys and fails on unknown and ill-typed ones; `python -m lamina.settings --markdown`
prints the table as `docs/settings.md`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lamina.errors import SettingsError

PREFIX = "spark.sql.streaming.stateStore.lamina."

AUTO = "auto"
NONE = "none"
"""How a setting whose value is derived at run time is written."""

_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_BYTES = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
"""As Spark reads sizes, in powers of 1024: the shim reads them with Spark's own parser."""

_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_DIRECTORY = re.compile(r"(?:/|[A-Za-z][A-Za-z0-9+.-]*:/).*[^/]")
_ODD_PARTS = {"", ".", ".."}
"""Of a path: there would be two ways to write it."""
_CLASS = re.compile(r"[\w$]+(\.[\w$]+)*")
_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Kind:
    """The type of a setting: what a value looks like, and how it is read; `read` raises ValueError."""

    expected: str
    read: Callable[[str], Any]


def _integer(low: int, high: int, unit: str = "") -> Kind:
    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError(text)
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind(f"a whole number{f' of {unit}' if unit else ''} from {low} to {high}", read)


_LONGEST_MS = 7 * 24 * 3600 * 1000


def _milliseconds(low: int = 0) -> Kind:
    return _integer(low, _LONGEST_MS, "milliseconds")


def _bytes_or_auto(low: int, high: int = 1 << 60) -> Kind:
    def read(text: str) -> int | None:
        if text.lower() == AUTO:
            return None
        match = _BYTES.fullmatch(text)
        if match is None:
            raise ValueError(text)
        value = int(match[1]) * _BYTE_UNITS[match[2].lower()]
        if not low <= value <= high:
            raise ValueError(text)
        return value

    least = f", at least {_in_words(low)}" if low else ""
    most = f", at most {_in_words(high)}" if high < 1 << 60 else ""
    return Kind(f"`{AUTO}`, or bytes as 536870912, 512m or 2g{least}{most}", read)


def _in_words(size: int) -> str:
    return f"{size >> 20}m" if size >= 1 << 20 else f"{size >> 10}k"


def _integer_or_auto(low: int, high: int, unit: str) -> Kind:
    whole = _integer(low, high, unit)
    return Kind(f"`{AUTO}`, or {whole.expected}", lambda text: None if text.lower() == AUTO else whole.read(text))


def _choice_or_auto(*values: str) -> Kind:
    one = _choice(AUTO, *values)
    return Kind(one.expected, lambda text: None if text == AUTO else one.read(text))


def _function_or_none() -> Kind:
    def read(text: str) -> str:
        if text.lower() == NONE:
            return NONE
        if _FUNCTION.fullmatch(text) is None:
            raise ValueError(text)
        return text

    return Kind(f"`{NONE}`, or `package.module:function`", read)


def _class_or_none() -> Kind:
    def read(text: str) -> str:
        if text.lower() == NONE:
            return NONE
        if not _CLASS.fullmatch(text):
            raise ValueError(text)
        return text

    return Kind(f"`{NONE}`, or the full name of a class", read)


def _directory_or_none() -> Kind:
    def read(text: str) -> str:
        if text.lower() == NONE:
            return NONE
        url = text.rstrip("/")
        # memory of one process would lose what it was given
        parts = url.partition("://")[2] or url
        if not _DIRECTORY.fullmatch(url) or url.lower().startswith("memory:") or _ODD_PARTS & {*parts.split("/")[1:]}:
            raise ValueError(text)
        return url

    return Kind(f"`{NONE}`, or the URL or the absolute path of a directory that outlives this process", read)


def _choice(*values: str) -> Kind:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return Kind("`" + "`, `".join(values) + "`" if len(values) == 1 else "one of `" + "`, `".join(values) + "`", read)


def _boolean() -> Kind:
    def read(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return Kind("`true` or `false`", read)


def _share() -> Kind:
    def read(text: str) -> float:
        value = float(text)
        if not 0.05 <= value <= 0.95:
            raise ValueError(text)
        return value

    return Kind("a number from 0.05 to 0.95", read)


def _list(what: str) -> Kind:
    def read(text: str) -> tuple[str, ...]:
        return () if text.lower() == NONE else tuple(part.strip() for part in text.split(",") if part.strip())

    return Kind(f"`{NONE}`, or {what}", read)


def _some_of(*names: str) -> Kind:
    def read(text: str) -> tuple[str, ...]:
        wanted = () if text.lower() == NONE else tuple(part.strip() for part in text.split(",") if part.strip())
        if not set(wanted) <= set(names):
            raise ValueError(text)
        return wanted

    return Kind(f"`{NONE}`, or some of `" + "`, `".join(names) + "`, separated by commas", read)


def _absolute_or_auto(what: str) -> Kind:
    def read(text: str) -> str | None:
        if text.lower() != AUTO and not os.path.isabs(text):
            raise ValueError(text)
        return None if text.lower() == AUTO else text

    return Kind(f"`{AUTO}`, or the absolute path of {what}", read)


def _path_or_auto(what: str) -> Kind:
    def read(text: str) -> str | None:
        if not text:
            raise ValueError(text)
        return None if text.lower() == AUTO else text

    return Kind(f"`{AUTO}`, or the path of {what}", read)


@dataclass(frozen=True)
class Key:
    """One setting. `name` is the key without `PREFIX`.

    `process_wide` settings are shared by all queries of a JVM and fixed by the first store that opens; the others
    belong to a query. `on_restart` says whether a query may be restarted from its checkpoint with another value.
    """

    name: str
    kind: Kind
    default: Any
    meaning: str
    trade_off: str
    since: str
    process_wide: bool
    on_restart: bool

    @property
    def full_name(self) -> str:
        """The key as a user writes it."""
        return PREFIX + self.name


def _key(
    name: str,
    kind: Kind,
    default: Any,
    meaning: str,
    trade_off: str,
    *,
    since: str = "0.1.0",
    process_wide: bool = False,
    on_restart: bool = True,
) -> Any:
    key = Key(name, kind, default, meaning, trade_off, since, process_wide, on_restart)
    return field(default=default, metadata={"key": key})


READ_METRICS = (
    "getCount",
    "readBlockCacheHitCount",
    "readBlockCacheMissCount",
    "totalBytesRead",
    "totalBytesReadThroughIterator",
    "bloomFilterUsefulCount",
)
"""Of what the JVM reads from tables, by their names after `lamina`."""

LEVEL_METRICS = tuple(f"numFilesAtLevel{level}" for level in range(7))
"""Of the tables that the JVM has open."""

CACHE_METRICS = ("blockCacheUsage",)
"""Of the cache of blocks that all stores of a JVM share."""

MERGE_METRICS = ("totalBytesReadByCompaction", "totalBytesWrittenByCompaction", "totalCompactionLatencyMs")
"""Of what RocksDB merges in the maintenance process."""


@dataclass(frozen=True)
class Settings:
    """The settings of one store, checked. Attribute names are the keys in snake_case; None stands for `auto`."""

    backend: str = _key(
        "backend",
        _choice("heap", "rocksdb"),
        "heap",
        "What a version stands on. `heap`: segments. `rocksdb`: sorted tables of RocksDB, each written once. It needs "
        "`rocksdict` on the executors.",
        "With `heap` all rows are in memory. With `rocksdb` the local disk bounds the state: rows that are not in "
        "memory are read from there, some microseconds each.",
    )
    rocksdb_materialize_every: int = _key(
        "rocksdb.materializeEvery",
        _integer(1, 450, "files"),
        128,
        "With `backend` `rocksdb`: a version that stands on so many increments has them put into the tables in the "
        "background, and so has one whose increments together are 64 MiB large (with the changelog "
        "`changelog.materializeBytes`), or 16 MiB and four times as large as its tables; all three are up to a quarter "
        "less, by store. With 1 each batch waits for that of the one before.",
        "Small: shorter restores, more tables. Large: the opposite, and more changed rows that have to stay in memory.",
    )
    rocksdb_memory_fixed_per_executor_bytes: int | None = _key(
        "rocksdb.memory.fixedPerExecutorBytes",
        _bytes_or_auto(8 << 20),
        None,
        "Most memory that tables on RocksDB of one executor take together: changed rows, rows that were read, and the "
        "blocks of RocksDB's cache. `auto` is `heap.maxBytes`, which tables of backend `heap` share then.",
        "Where it gets short, rows that are also on the disk are dropped from memory first; after that, batches wait "
        "until changed rows have been written to tables. RocksDB's cache passes its part where what it may not drop is "
        "more: blocks that are being read, and the top of the index and of the filter of each open table.",
        process_wide=True,
    )
    rocksdb_memory_write_buffer_ratio: float = _key(
        "rocksdb.memory.writeBufferRatio",
        _share(),
        0.5,
        "The part of that memory for rows; the rest is RocksDB's cache of blocks.",
        "Large where each batch changes many keys; small where many keys are read that are not changed.",
        process_wide=True,
    )
    rocksdb_timers: str = _key(
        "rocksdb.timers",
        _choice("rocksdb", "heap"),
        "rocksdb",
        "Where rows of timers of `transformWithState` are between batches: read from the tables where they are needed, "
        "or all of them in memory (`heap`), and in the tables besides.",
        "`heap` finds timers that are due sooner, and takes memory for all timers and time to read them at a restore.",
    )
    rocksdb_metrics: tuple[str, ...] = _key(
        "rocksdb.metrics",
        _some_of(*READ_METRICS, *LEVEL_METRICS, *CACHE_METRICS, *MERGE_METRICS),
        (),
        "Metrics of RocksDB that the query's progress shows, each as `lamina…` where Spark's provider says `rocksdb…`; "
        "the others are 0.",
        "Those of reads cost a little time with each row that is read from a table.",
    )
    rocksdb_predefined_options: str = _key(
        "rocksdb.predefinedOptions",
        _choice("default", "spinning-disk", "spinning-disk-high-memory", "flash-ssd"),
        "default",
        "Options of RocksDB that fit a kind of local disk; the guide to backends has them in a table.",
        "Those for spinning disks read and write more at once; that for SSDs merges more at once.",
    )
    rocksdb_block_size: int | None = _key(
        "rocksdb.blockSize",
        _bytes_or_auto(1 << 10, 64 << 20),
        None,
        "Bytes of a block of a table, before compression. `auto`, here and below: as `rocksdb.predefinedOptions` says.",
        "Large blocks take less room, and a read of one row reads more.",
    )
    rocksdb_bloom_bits_per_key: int | None = _key(
        "rocksdb.bloomBitsPerKey",
        _integer_or_auto(0, 32, "bits"),
        None,
        "Bits of the filter of a table for each of its keys; 0 makes none.",
        "More bits save reads of keys that are not there, and take memory.",
    )
    rocksdb_target_file_size_base: int | None = _key(
        "rocksdb.targetFileSizeBase",
        _bytes_or_auto(1 << 20),
        None,
        "About what a table holds at most, in bytes.",
        "Large: fewer files. Small: a merge rewrites less, so that less is uploaded.",
    )
    rocksdb_max_bytes_for_level_base: int | None = _key(
        "rocksdb.maxBytesForLevelBase",
        _bytes_or_auto(1 << 20),
        None,
        "What the first level below the newest tables holds before it is merged with the next one.",
        "Large: less is merged. Small: reads look at less.",
    )
    rocksdb_compression: str | None = _key(
        "rocksdb.compression",
        _choice_or_auto("lz4", "zstd", "uncompressed"),
        None,
        "Compression of the blocks of tables.",
        "`zstd` takes least room and bandwidth; `lz4` costs less processor time with each block that is read.",
    )
    rocksdb_options_factory: str = _key(
        "rocksdb.optionsFactory",
        _function_or_none(),
        NONE,
        "A function of yours that is given rocksdict's `Options` of a database, changes them, and gives them back. It "
        "comes after all other options; buffers and the format of tables stay managed, with a warning.",
        "It runs in the engine's Python, where its module has to be installed.",
    )
    heap_max_bytes: int | None = _key(
        "heap.maxBytes",
        _bytes_or_auto(1 << 20),
        None,
        "Most memory that the tables of one executor take together, rows, index and undo log. `auto` derives it from "
        "the container's limit and `spark.executor.memoryOverhead`, on YARN also from Spark's default of it.",
        "Too low fails a batch with `memory.cap`; too high lets the container's killer decide.",
        process_wide=True,
    )
    heap_hand_over_ms: int = _key(
        "heap.handOverMs",
        _milliseconds(),
        120_000,
        "How long the table of a closed store is kept for a restart of the query in the same JVM; 0 drops it at once.",
        "Longer makes more restarts free of loading; shorter gives memory back sooner.",
    )
    compaction_mode: str = _key(
        "compaction.mode",
        _choice("background", "full", "rolling"),
        "background",
        "`background` merges increments in the maintenance process; `full` writes the whole state every "
        "`compaction.fullInterval` batches as part of the commit, a store that this batch does not change with the "
        "next one that changes it; `rolling` rewrites one of `compaction.rollingParts` parts of the state with each "
        "commit, in turn, so that older files fall off. `backend` `rocksdb` takes `background` alone: leave this out.",
        "`full` makes restores read one file, and those batches as slow as the state is large. `rolling` makes every "
        "batch alike and merges nothing afterwards, and every batch writes a part of the state. Its files are of "
        "format 2, which readers of format 1 refuse.",
    )
    compaction_full_interval: int = _key(
        "compaction.fullInterval",
        _integer(1, 1_000_000, "batches"),
        10,
        "With `compaction.mode` `full`: every how many batches the whole state is written, by the first version at or "
        "after each multiple that changed anything; 1 means each batch.",
        "Small: short restores, much writing. Large: the opposite.",
    )
    compaction_rolling_parts: int = _key(
        "compaction.rollingParts",
        _integer(1, 256, "parts"),
        16,
        "With `compaction.mode` `rolling`: in how many parts, by a hash of the key, the state is rewritten, one a "
        "batch; a version consists of about as many files.",
        "Few: short restores, each batch writes more. Many: the opposite.",
    )
    compaction_max_chain: int = _key(
        "compaction.maxChain",
        _integer(2, 900, "files"),
        64,
        "Most files that a version may consist of before its commit writes a snapshot itself; with `compaction.mode` "
        "`rolling` these and `compaction.rollingParts` more, and with tables of `rocksdb` at least 256 and twice "
        "`rocksdb.materializeEvery`.",
        "Small: a commit is slow more often when compaction cannot keep up. Large: longer restores.",
    )
    compression_codec: str = _key(
        "compression.codec",
        _choice("zstd", "lz4", "uncompressed"),
        "zstd",
        "Compression of the files' contents.",
        "`zstd` writes least, and leaves changes of less than 4 KiB to `lz4`; `lz4` costs less processor time; "
        "`uncompressed` pays off on fast local storage only.",
    )
    compression_level: int = _key(
        "compression.level",
        _integer(1, 19),
        1,
        "Level of `zstd`; the other codecs have none.",
        "Higher levels write a little less and take several times longer.",
    )
    durability_level: str = _key(
        "durability.level",
        _choice("task", "store", "executor"),
        "task",
        "What a commit waits for: `store` waits until its own file is durable; `task` lets the uploads of a task's "
        "stores overlap, and the task ends when all are durable. With `executor` tasks do not wait for log objects, "
        "and the batch's entry in Spark's commit log does: it needs `changelog.enabled` and "
        "`spark.sql.streaming.checkpointFileManagerClass` `org.apache.spark.sql.lamina.LaminaCheckpointFileManager`.",
        "`store` adds the uploads up where a task has several stores (joins). With `task` an upload that fails does so "
        "after a sink in the same task has committed: a file sink leaves files then that Spark passes over, and other "
        "readers of its directory do not. With `executor` all stores of an "
        "executor wait for one object, and a lost executor costs a restart of the query in place of a task. A batch is "
        "durable with each.",
    )
    changelog_enabled: bool = _key(
        "changelog.enabled",
        _boolean(),
        False,
        "Whether small commits of all stores of an executor become durable together, in one log object, instead of in "
        "a file each. It needs checkpoint format v2.",
        "One request for many stores; a commit waits for others up to `changelog.persistDelayMs`. On a local disk a "
        "file each is as quick.",
    )
    changelog_path: str = _key(
        "changelog.path",
        _directory_or_none(),
        NONE,
        "A directory below which log objects lie, instead of in the checkpoint: on a faster storage, or in another "
        "bucket. Several checkpoints may share it. What was written elsewhere before stays there and is read there; "
        "`storage.roots` has to name it then.",
        "Commits wait for that storage, and the state needs both to last: a copy of the checkpoint alone has not all "
        "of it.",
    )
    changelog_persist_delay_ms: int | None = _key(
        "changelog.persistDelayMs",
        _integer_or_auto(0, _LONGEST_MS, "milliseconds"),
        None,
        "How long at most a commit stays open for others to join its log object while a task waits for it. `auto` is "
        "10, and not after none has come for as long as an upload takes by the median of late. It is not held once all "
        "stores have committed that committed in the batch before.",
        "Longer: fewer objects. Shorter: less waiting where commits come one by one.",
    )
    changelog_batch_delay_ms: int = _key(
        "changelog.batchDelayMs",
        _milliseconds(),
        500,
        "How long a log object waits for a further commit where no task waits, but the batch at its end "
        "(`durability.level` `executor`); twenty times as long in all, which counts in the bound of "
        "`changelog.upload.timeoutMs`.",
        "Longer: fewer objects where tasks take long. Shorter: less waiting after stores have moved away.",
    )
    changelog_max_object_bytes: int = _key(
        "changelog.maxObjectBytes",
        _integer(1 << 10, 1 << 30, "bytes"),
        8 << 20,
        "A log object that is as large takes no more commits.",
        "Larger: fewer requests. Smaller: an upload takes less long, and begins earlier.",
    )
    changelog_max_idle_batches: int = _key(
        "changelog.maxIdleBatches",
        _integer(1, 1_000_000),
        100,
        "What a store has in log objects is merged when it has changed nothing for so many batches, and the store "
        "leaves them with a small file, so that no object is kept for longer by stores that rest or change seldom. "
        "Where its commits are merged already, it leaves them after a tenth of that; then a store without log objects, "
        "too, names what was merged of it. With `compaction.mode` `full` or `rolling`, where nothing is merged, its "
        "next commit writes its state whole.",
        "Fewer: less space of the log. More: stores that rest are merged less often.",
    )
    changelog_materialize_parts: int = _key(
        "changelog.materializeParts",
        _integer(1, 1_000),
        32,
        "How many commits in log objects a version may consist of before they are merged into a file of the store, "
        "with `backend` `heap`, or up to a quarter fewer, by store, and at most half of `compaction.maxChain`; with "
        "`rocksdb` `rocksdb.materializeEvery` says it.",
        "More: fewer files of stores are written, restores read more objects, and objects are kept for longer.",
    )
    changelog_materialize_bytes: int = _key(
        "changelog.materializeBytes",
        _integer(1, 1 << 40, "bytes"),
        64 << 20,
        "Commits in log objects, as they are stored, of which a version may have so many bytes before they are merged, "
        "however few they are; with `rocksdb` what is not in the tables yet, up to a quarter less, by store, and "
        "16 MiB where that is four times as large as the tables. With `heap` they are merged sooner where "
        "they change the same rows again and again.",
        "More: fewer merges of stores that change much. Fewer: shorter restores and less of the log.",
    )
    changelog_materialize_interval_ms: int = _key(
        "changelog.materializeIntervalMs",
        _milliseconds(),
        600_000,
        "When a commit has been in a log object for so long, or for up to a quarter less, by store, what the store "
        "has there is merged, however little it is, with `compaction.mode` `background`. It counts from when an engine "
        "first saw it, and is looked at when a batch begins. `0`: never for that.",
        "Longer: fewer merges of stores that change seldom. Shorter: objects go sooner.",
    )
    changelog_materialize_failures: int = _key(
        "changelog.materializeFailures",
        _integer(0, 1_000_000),
        10,
        "How many merges of a store's commits may fail in a row before the query fails, with the changelog; one that "
        "failed is tried again after a second, and after up to a minute then. `0`: however many.",
        "Fewer: it is seen sooner that the log only grows. More: a query outlives longer failures of the storage.",
    )
    changelog_upload_attempts: int = _key(
        "changelog.upload.attempts",
        _integer(1, 20),
        4,
        "How often the upload of a log object is tried; attempts beside a slow one do not count.",
        "More: a batch outlives more failures of the storage, and fails later where it is down.",
    )
    changelog_upload_timeout_ms: int = _key(
        "changelog.upload.timeoutMs",
        _milliseconds(1),
        30_000,
        "How long an attempt may take before it counts as failed. All attempts of an upload, 2 s between two of them "
        "and the time that its object waits for commits may take three eighths of `retention.minAgeMs` together: what "
        "a commit refers to has to stay until it is durable.",
        "Shorter gives a hanging request up sooner.",
    )
    changelog_uploads_in_flight: int = _key(
        "changelog.upload.inFlight",
        _integer(1, 256),
        4,
        "How many log objects of a checkpoint are uploaded at once; others wait.",
        "More: more bandwidth, and more memory and threads.",
    )
    changelog_barrier_timeout_ms: int = _key(
        "changelog.barrierTimeoutMs",
        _milliseconds(1),
        300_000,
        "How long a batch waits for its log objects, with `durability.level` `executor`, before it fails.",
        "It ends the wait where no news of a lost executor reach the driver; it has to be longer than what "
        "`changelog.upload.timeoutMs` bounds.",
    )
    changelog_checkpoint_file_manager_class: str = _key(
        "changelog.checkpointFileManagerClass",
        _class_or_none(),
        NONE,
        "With `durability.level` `executor`: the checkpoint file manager that writes Spark's logs, around which "
        "lamina's is put. `none` is the one that Spark would choose.",
        "It is what `spark.sql.streaming.checkpointFileManagerClass` was before; `lamina.configure` takes it from "
        "there.",
    )
    changelog_hedging_enabled: bool = _key(
        "changelog.hedging.enabled",
        _boolean(),
        True,
        "Whether an upload that takes longer than 95.5 % of those before has a second attempt beside it, and a third "
        "where that one is slow, too.",
        "It shortens the slowest commits by about one request more in twenty.",
    )
    storage_fsync_enabled: bool = _key(
        "storage.fsync.enabled",
        _boolean(),
        False,
        "Whether local files are flushed to the disk before they count as written. Object stores need none.",
        "`true` survives a power failure of the machine and adds what two flushes of its disk take to a commit.",
    )
    storage_roots: tuple[str, ...] = _key(
        "storage.roots",
        _list("URLs of directories, separated by commas"),
        (),
        "Directories besides the query's own checkpoint whose files its state may refer to.",
        "What is named here is read with the query's credentials; a reference to any other place is refused.",
    )
    storage_cache_max_bytes: int | None = _key(
        "storage.cache.maxBytes",
        _bytes_or_auto(0),
        None,
        "Most disk that local copies of files in a remote storage take together; 0 keeps none. `auto` is 4 GiB, at "
        "most a tenth of the disk. A copy without room is not made; older ones make room in the background. Local "
        "checkpoints need no copies.",
        "Larger lets a restart on the same machine read less from the storage; it takes the executor's disk.",
        process_wide=True,
    )
    storage_cache_directory: str | None = _key(
        "storage.cache.directory",
        _absolute_or_auto("a directory"),
        None,
        "Where local copies lie. `auto` is `lamina_cache_<user id>` in `TMPDIR` or `/tmp`. Processes may share it.",
        "It must outlive an executor to be of use after its restart; a disk that is memory (tmpfs) counts as memory.",
        process_wide=True,
    )
    retention_min_age_ms: int = _key(
        "retention.minAgeMs",
        _milliseconds(),
        600_000,
        "How long a file stays after no retained version needs it.",
        "Longer gives slow readers more time; shorter frees storage sooner. A merge fails whose file, and then a copy "
        "of it, take more than three quarters of it to be written, or half on a storage without stamps.",
    )
    retention_min_version_age_ms: int = _key(
        "retention.minVersionAgeMs",
        _milliseconds(),
        0,
        "Versions that were the newest one within this time are retained, besides those that Spark's "
        "`minBatchesToRetain` counts; 0 counts only.",
        "Longer keeps versions of a fast query for a time that people can act in, and takes storage; Spark itself goes "
        "back only as far as its own logs, `lamina.open_store` and a copy of Spark's logs go further. Each retained "
        "version of a store costs its collections some 55 µs, and the maintenance process 550 bytes: with very many "
        "collections come less often.",
    )
    engine_python: str | None = _key(
        "engine.python",
        _path_or_auto("a program"),
        None,
        "The Python that runs the engine. `auto` takes `spark.pyspark.python`, then `PYSPARK_PYTHON` in the executor's "
        "environment, then `python3`.",
        "It needs `pyarrow` and `fsspec`.",
        process_wide=True,
    )
    engine_start_timeout_ms: int = _key(
        "engine.startTimeoutMs",
        _milliseconds(1),
        60_000,
        "How long the start of the engine may take.",
        "Longer tolerates slow file systems under Python; shorter reports a broken Python sooner.",
        process_wide=True,
    )
    engine_request_timeout_ms: int = _key(
        "engine.requestTimeoutMs",
        _milliseconds(1),
        600_000,
        "How long a commit or a load may take before it fails with `engine.deadline`.",
        "Longer tolerates slow storage; shorter notices a storage that hangs sooner.",
        process_wide=True,
    )
    engine_connections: int = _key(
        "engine.connections",
        _integer(1, 1024),
        64,
        "Most data connections that the engine serves at once, and most commits that it publishes at once in one "
        "storage; more wait.",
        "More lets more tasks commit at once; each costs a thread and buffers in the engine.",
        process_wide=True,
    )

    engine_local_directory: str | None = _key(
        "engine.localDirectory",
        _absolute_or_auto("a directory"),
        None,
        "Where the engine has its working files: the tables of `backend` `rocksdb`, and files of merges. `auto` is the "
        "JVM's `java.io.tmpdir`. Each engine has a directory of its own there, which goes with it.",
        "It takes the local tables of all stores of the executor. It has to be of this machine alone; a disk that is "
        "memory (tmpfs) counts as memory.",
        process_wide=True,
    )
    engine_local_max_bytes: int | None = _key(
        "engine.localMaxBytes",
        _bytes_or_auto(1 << 20),
        None,
        "Most disk that the tables of `backend` `rocksdb` take there, of all stores of an executor. Where a "
        "materialization might pass it, it fails and is tried again; a restore fails. `auto`: the disk's own bound.",
        "Lower leaves room to others; it has to hold all tables of the executor's stores, and those of a merge once "
        "more.",
        process_wide=True,
    )
    engine_memory_bytes: int | None = _key(
        "engine.memoryBytes",
        _bytes_or_auto(32 << 20),
        None,
        "Most memory that restores, uploads and change feeds have in the engine together; who finds none free waits. "
        "`auto` is a sixteenth of the container's memory, 64 MiB to 256 MiB. The engine itself takes about 100 MiB "
        "beside it.",
        "Larger lets more restores and large commits go on at once; it has to fit beside the tables in the container.",
        process_wide=True,
    )
    engine_maintenance_workers: int = _key(
        "engine.maintenanceWorkers",
        _integer(1, 64, "stores"),
        8,
        "How many stores an executor's maintenance process compacts and collects at once. Merges of more than 8 MiB go "
        "one after the other beside them.",
        "Most of the time of a small job on an object store is waiting, so more keep up with more stores there; each "
        "costs a thread, and up to 32 for the first collection of a store, with `backend` `rocksdb` also 16 MiB. On "
        "local disks a few keep the process busy.",
        process_wide=True,
    )

    @staticmethod
    def parse(conf: Mapping[str, str]) -> Settings:
        """The settings in `conf`, a mapping of full Spark keys; keys outside `PREFIX` are not ours and pass.

        Raises:
            SettingsError: `settings.unknown` or `settings.invalid`, naming the key.
        """
        values: dict[str, Any] = {}
        for full_name, text in conf.items():
            if not full_name.startswith(PREFIX):
                continue
            key = _BY_NAME.get(full_name[len(PREFIX) :])
            if key is None:
                raise SettingsError("settings.unknown", _unknown(full_name))
            try:
                values[_ATTRIBUTES[key.name]] = key.kind.read(str(text).strip())
            except ValueError:
                raise SettingsError(
                    "settings.invalid",
                    f"{full_name} is {text!r}; it must be {key.kind.expected}. Its default is {as_text(key.default)}.",
                ) from None
        return Settings(**values)

    def value(self, key: Key) -> Any:
        """The value of `key`; None stands for `auto`."""
        return getattr(self, _ATTRIBUTES[key.name])

    def resolved(self) -> dict[str, Any]:
        """Every setting under its full key, typed as in JSON; `auto` stays the text `auto`."""
        values = {key.full_name: getattr(self, _ATTRIBUTES[key.name]) for key in KEYS}
        return {name: AUTO if value is None else value for name, value in values.items()}


_ATTRIBUTES: dict[str, str] = {f.metadata["key"].name: f.name for f in fields(Settings)}

KEYS: tuple[Key, ...] = tuple(f.metadata["key"] for f in fields(Settings))
"""Every setting, in the order of the documentation."""

_BY_NAME: dict[str, Key] = {key.name: key for key in KEYS}

_FOREIGN: tuple[tuple[str, str], ...] = (
    ("spark.databricks.", "is known to Databricks only; neither Spark nor lamina reads it"),
    ("spark.sql.streaming.stateStore.rocksdb.", "configures Spark's RocksDB provider; lamina does not read it"),
    (
        "spark.sql.streaming.stateStore.minDeltasForSnapshot",
        "configures Spark's own providers; lamina does not read it",
    ),
)


_SET_BY_SPARK = frozenset({"spark.sql.streaming.stateStore.rocksdb.formatVersion"})
"""Keys that Spark itself sets for every streaming query."""


def warnings_for(conf: Mapping[str, str]) -> list[str]:
    """One sentence for each key of `conf` that looks as if it tuned the state but has no effect with lamina."""
    names = sorted(set(conf) - _SET_BY_SPARK)
    return [f"{name} {why}." for name in names for start, why in _FOREIGN if name.startswith(start)]


def join_process(fixed: Settings, conf: Mapping[str, str]) -> Settings:
    """The settings in `conf`, for a JVM whose process settings are `fixed`; those that `conf` leaves out follow it.

    Raises:
        SettingsError: `settings.conflict` where `conf` sets another value, naming both; and as `Settings.parse`.
    """
    wanted = Settings.parse(conf)
    shared: dict[str, Any] = {}
    for key in KEYS:
        if not key.process_wide:
            continue
        attribute = _ATTRIBUTES[key.name]
        there, here = getattr(fixed, attribute), getattr(wanted, attribute)
        if key.full_name in conf and there != here:
            raise SettingsError(
                "settings.conflict",
                f"{key.full_name} is {as_text(here)} here, but {as_text(there)} was fixed by the first query of this "
                "JVM, and all queries of a JVM share it. Use one value, or run the queries in different applications.",
            )
        shared[attribute] = there
    return replace(wanted, **shared)


def readable_roots(settings: Settings) -> tuple[str, ...]:
    """Directories besides the checkpoint whose files its state may refer to."""
    path = settings.changelog_path
    return settings.storage_roots if path == NONE else (*settings.storage_roots, path)


def as_text(value: Any) -> str:
    """A value as a user would write it in a Spark configuration."""
    if isinstance(value, (tuple, list)):
        return ",".join(value) or NONE
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _unknown(full_name: str) -> str:
    names = [key.full_name for key in KEYS]
    lowered = {name.lower(): name for name in names}
    near: Iterable[str] = difflib.get_close_matches(full_name.lower(), lowered, n=1, cutoff=0.0)
    return f"{full_name} is not a setting of lamina. The nearest one is {''.join(lowered[name] for name in near)}."


def markdown() -> str:
    """The page `docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Generated by `python -m lamina.settings --markdown`; do not edit.",
        "",
        f"Every key starts with `{PREFIX}`. A key under this prefix that is not listed here is an error.",
        "*Scope* `query` settings belong to one query; `process` settings are shared by all queries of a JVM and fixed",
        "by the first store that opens. *Restart* says whether a query may be restarted from its checkpoint with",
        "another value.",
        "",
        "| key | default | values | meaning | trade-off | scope | restart | since |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in KEYS:
        cells = [
            f"`{key.name}`",
            f"`{as_text(key.default)}`",
            key.kind.expected,
            key.meaning,
            key.trade_off,
            "process" if key.process_wide else "query",
            "yes" if key.on_restart else "no",
            key.since,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Retention counts batches with Spark's own `spark.sql.streaming.minBatchesToRetain`.",
        "",
        "Keys that other platforms or other state store providers know and lamina does not read get a warning:",
        "",
        *(f"* `{start}{'*' if start.endswith('.') else ''}` {why}" for start, why in _FOREIGN),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] != ["--markdown"]:
        sys.exit("usage: python -m lamina.settings --markdown")
    sys.stdout.write(markdown())
