"""Options of databases: which of them counts, what stays managed, and functions of users that are refused."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rocksdict

from lamina.errors import SettingsError
from lamina.format.entries import PUT
from lamina.settings import MERGE_METRICS, PREFIX, Settings
from lamina.store.tables import database
from lamina.store.tables import options as table_options
from lamina.store.tables.database import Database
from lamina.store.tables.options import FEWEST_MERGED, MOST_MERGED, PREDEFINED, TableOptions, check
from tests.unit.store.writing import entries

FUNCTIONS = """
import rocksdict

def small(options):
    options.set_target_file_size_base(256 << 10)
    return options

def deeper(options):
    options.set_max_bytes_for_level_multiplier(5.0)
    options.set_target_file_size_base(3 << 20)
    return options

def greedy(options):
    options.set_write_buffer_size(1 << 30)
    options.set_enable_blob_files(True)
    options.set_disable_auto_compactions(True)
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_size(1 << 20)
    options.set_block_based_table_factory(tables)
    return options

def fresh(options):
    return rocksdict.Options()

def nothing(options):
    options.set_num_levels(6)

def fails(options):
    raise RuntimeError("no such disk")

def forgets(options):
    options.set_compaction_style(rocksdict.DBCompactionStyle.fifo())
    return options

def logs(options):
    options.set_wal_dir("{elsewhere}")
    return options

def elsewhere(options):
    options.set_db_paths([rocksdict.DBPath("{elsewhere}", 1 << 40)])
    return options

deeper_still = 5
"""


@pytest.fixture
def tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = re.sub(r"\W", "_", tmp_path.name) + "_tuning"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS.replace("{elsewhere}", str(tmp_path / "elsewhere")))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    check.cache_clear()
    table_options._imported.cache_clear()


def test_a_merge_that_is_pending_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_IDLE_LOOKS", 20)
    asked = []
    with Database(str(tmp_path / "pending")) as opened:
        monkeypatch.setattr(
            opened, "_db", Pending(opened._db, lambda name: asked.append(name) or int(name.endswith("pending")))
        )
        opened.settle(lambda: None)
    assert len(asked) >= 40


class Pending:
    """A database of which a property is what a test says."""

    def __init__(self, inner: Any, said: Callable[[str], int]) -> None:
        self._inner = inner
        self.property_int_value = said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def of(**settings: str) -> TableOptions:
    return TableOptions.of(Settings.parse({PREFIX + "rocksdb." + name: value for name, value in settings.items()}))


def effective(tmp_path: Path, options: TableOptions) -> dict[str, str]:
    """What a database that is open with these options has, by RocksDB's names."""
    directory = tmp_path / "database"
    with Database(str(directory), options):
        (file,) = directory.glob("OPTIONS-*")
        return dict(re.findall(r"^\s*(\w+)=(.*)$", file.read_text(), re.MULTILINE))


_READ_AHEAD_BYTES = 2 << 20
"""What a merge reads at once by RocksDB's own choice."""


_KEYS = 20_000


def filter_bits(directory: Path, options: TableOptions) -> int:
    """Bits of the filter for each key of a table; RocksDB's file of options does not have them."""
    with Database(str(directory / "filtered"), options) as opened:
        opened.ingest(iter([entries((0, PUT, b"%09d" % key, b"") for key in range(_KEYS))]))
        properties = opened._db.property_value("rocksdb.aggregated-table-properties")
    size = re.search(r"filter block size=(\d+)", properties)
    assert size is not None
    # the blocks of the filter have an index of their own, which is small
    return int(size[1]) * 8 // _KEYS


@pytest.mark.parametrize("name", PREDEFINED)
def test_predefined_options_are_those_of_the_database(tmp_path: Path, name: str) -> None:
    found = effective(tmp_path, of(predefinedOptions=name))
    wanted = PREDEFINED[name]
    assert int(found["block_size"]) == wanted.block_bytes
    assert int(found["target_file_size_base"]) == wanted.table_bytes
    assert int(found["max_background_jobs"]) == wanted.jobs
    assert int(found["max_bytes_for_level_base"]) == wanted.level_bytes
    assert int(found["compaction_readahead_size"]) == (wanted.read_ahead_bytes or _READ_AHEAD_BYTES)
    assert filter_bits(tmp_path, of(predefinedOptions=name)) == wanted.bloom_bits


def test_a_single_option_counts_more_than_predefined_ones_and_a_function_more_than_both(
    tmp_path: Path, tuning: str
) -> None:
    single = {"predefinedOptions": "spinning-disk", "targetFileSizeBase": "2m", "compression": "zstd"}
    single |= {"maxBytesForLevelBase": "48m", "bloomBitsPerKey": "14"}
    found = effective(tmp_path / "single", of(**single))
    assert int(found["max_bytes_for_level_base"]) == 48 << 20
    assert filter_bits(tmp_path, of(**single)) == 14
    assert (found["target_file_size_base"], found["compression"], found["block_size"]) == (
        str(2 << 20),
        "kZSTD",
        str(32 << 10),
    )
    found = effective(tmp_path / "function", of(**single, optionsFactory=f"{tuning}:deeper"))
    assert (found["target_file_size_base"], found["compression"]) == (str(3 << 20), "kZSTD")
    assert float(found["max_bytes_for_level_multiplier"]) == 5.0


def test_tables_that_a_function_wants_small_are_not_joined_again_and_again(tmp_path: Path, tuning: str) -> None:
    """RocksDB would cut what is joined into as many again."""
    options = of(targetFileSizeBase="64m", optionsFactory=f"{tuning}:small")

    def names() -> set[str]:
        with Database(str(tmp_path / "database"), options, read_only=True) as database:
            return {table.name for table in database.live()}

    with Database(str(tmp_path / "database"), options) as database:
        database.ingest(iter([entries((0, PUT, b"%09d" % key, os.urandom(500)) for key in range(20_000))]))
        database.settle(lambda: None)
        whole = rocksdict.CompactOptions()
        whole.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        database._db.compact_range(None, None, whole)
    before = names()
    assert len(before) > 16
    with Database(str(tmp_path / "database"), options) as database:
        database.join(lambda: None)
    assert names() == before


def test_what_bounds_memory_stays_as_it_was_and_the_function_is_told(
    tmp_path: Path, tuning: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = of(optionsFactory=f"{tuning}:greedy")
    with caplog.at_level(logging.WARNING):
        check(options)
    told = [record.getMessage() for record in caplog.records]
    assert {text.split(" sets ")[1].split(", without")[0] for text in told} == {
        "write_buffer_size to 1073741824",
        "enable_blob_files to true",
        "disable_auto_compactions to true",
        "the format of tables",
    }
    found, plain = effective(tmp_path / "greedy", options), effective(tmp_path / "plain", of())
    for name in ("write_buffer_size", "enable_blob_files", "disable_auto_compactions", "block_size"):
        assert found[name] == plain[name]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("fresh", "gives a Options back"),
        ("nothing", "gives a NoneType back"),
        ("fails", "fails: RuntimeError: no such disk"),
        ("forgets", "sets kCompactionStyleFIFO: only kCompactionStyleLevel"),
        ("logs", "sets wal_dir, which databases would share"),
        ("elsewhere", "has RocksDB put its tables elsewhere"),
        ("deeper_still", "is no function"),
        ("missing", "cannot be imported by the Python of engine.python (AttributeError"),
    ],
)
def test_a_function_that_is_of_no_use_is_refused_by_a_sentence(tuning: str, function: str, why: str) -> None:
    with pytest.raises(SettingsError, match=r"rocksdb\.optionsFactory is") as caught:
        check(of(optionsFactory=f"{tuning}:{function}"))
    assert caught.value.kind == "settings.invalid"
    assert why in caught.value.message


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="no_such_package") as caught:
        check(of(optionsFactory="no_such_package.tuning:deeper"))
    assert "ModuleNotFoundError" in caught.value.message


@pytest.mark.parametrize("text", ["tuning", "tuning:", ":deeper", "tuning:deeper()", "tuning deeper"])
def test_what_names_no_function_is_no_value_of_the_setting(text: str) -> None:
    with pytest.raises(SettingsError, match=r"package\.module:function"):
        of(optionsFactory=text)


@pytest.mark.parametrize(("step", "newest"), [(1, FEWEST_MERGED), (40, MOST_MERGED)])
def test_newest_tables_are_merged_when_they_are_as_large_as_what_is_below_or_many(
    tmp_path: Path, step: int, newest: int
) -> None:
    """Each merge writes all that is below anew: of a large state with few changes that is the most."""

    def run(every: int, number: int) -> Iterator[pa.RecordBatch]:
        drawn = random.Random(number)
        yield entries((0, PUT, b"%06d" % key, drawn.randbytes(50)) for key in range(0, 20_000, every))

    with Database(str(tmp_path / "merged")) as opened:
        opened.ingest(run(1, 0))
        opened.settle(lambda: None)
        # a merge that is due begins when RocksDB has a thread for it: on a busy machine a few tables later
        for number in range(1, newest + 40):
            opened.ingest(run(step, number))
            opened.settle(lambda: None)
            if len(opened.live()) < number + 1:
                break
        assert newest <= number < newest + 10


def test_merges_are_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    counted = of(metrics="totalCompactionLatencyMs")
    with Database(str(tmp_path / "counted"), counted) as opened:
        # a merge that is due begins when RocksDB has a thread for it: on a busy machine a few tables later
        for tables in range(1, 41):
            opened.ingest(iter([entries((0, PUT, b"%06d" % number, b"x" * 100) for number in range(20_000))]))
            opened.settle(lambda: None)
            if len(opened.live()) < tables:
                break
        found = opened.merged()
        assert len(opened.live()) < tables, "something was merged"
    assert found["totalBytesReadByCompaction"] > 0
    assert found["totalBytesWrittenByCompaction"] > 0
    assert set(found) == {*MERGE_METRICS}
    with Database(str(tmp_path / "plain"), of()) as opened:
        assert opened.merged() == {}
