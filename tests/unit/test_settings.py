"""The settings table: parsing, its errors, and the page generated from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.errors import SettingsError
from lamina.settings import KEYS, PREFIX, Settings, join_process, markdown, warnings_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def parse(**values: str) -> Settings:
    return Settings.parse({PREFIX + name.replace("__", "."): value for name, value in values.items()})


def test_without_any_key_every_setting_has_its_default() -> None:
    settings = Settings.parse({})
    assert settings.resolved() == {key.full_name: "auto" if key.default is None else key.default for key in KEYS}


def test_keys_outside_the_prefix_are_not_ours() -> None:
    assert Settings.parse({"spark.sql.streaming.stateStore.providerClass": "x", "spark.app.name": "y"}) == Settings()


def test_values_are_typed() -> None:
    settings = parse(
        heap__maxBytes="2g", compaction__mode="full", storage__fsync__enabled="TRUE", retention__minAgeMs=" 5 "
    )
    assert settings.heap_max_bytes == 2 << 30
    assert settings.compaction_mode == "full"
    assert settings.storage_fsync_enabled is True
    assert settings.retention_min_age_ms == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("536870912", 1 << 29),
        ("512m", 1 << 29),
        ("512MB", 1 << 29),
        ("2048k", 2 << 20),
        ("1t", 1 << 40),
        ("1pb", 1 << 50),
        ("auto", None),
    ],
)
def test_byte_sizes_are_read_as_spark_writes_them(text: str, value: int | None) -> None:
    assert parse(heap__maxBytes=text).heap_max_bytes == value


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("heap.maxbytes", "heap.maxBytes"),
        ("heap.maxByte", "heap.maxBytes"),
        ("compression.kodec", "compression.codec"),
        ("fsync.enabled", "storage.fsync.enabled"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(wrong: str, nearest: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.parse({PREFIX + wrong: "1"})
    assert caught.value.kind == "settings.unknown"
    assert PREFIX + wrong in caught.value.message
    assert PREFIX + nearest in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heap.maxBytes", "lots"),
        ("heap.maxBytes", "12"),
        ("heap.maxBytes", "-1g"),
        ("heap.maxBytes", "2 g"),
        ("heap.maxBytes", "512MiB"),
        ("retention.minAgeMs", "10min"),
        ("retention.minAgeMs", "-1"),
        ("compression.codec", "gzip"),
        ("compression.level", "20"),
        ("storage.fsync.enabled", "yes"),
        ("engine.connections", "0"),
        ("engine.python", ""),
        ("backend", "disk"),
        ("engine.localDirectory", "work"),
        ("storage.cache.directory", "copies"),
        ("rocksdb.blockSize", "1g"),
        ("rocksdb.memory.writeBufferRatio", "1"),
        ("rocksdb.metrics", "getCount, misses"),
    ],
)
def test_an_ill_typed_value_names_key_and_value_and_what_is_expected(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.parse({PREFIX + name: value})
    assert caught.value.kind == "settings.invalid"
    assert PREFIX + name in caught.value.message
    assert repr(value) in caught.value.message
    assert "must be" in caught.value.message


def test_a_process_setting_that_differs_later_is_a_conflict_naming_both_values() -> None:
    with pytest.raises(SettingsError) as caught:
        join_process(parse(heap__maxBytes="1g"), {PREFIX + "heap.maxBytes": "2g"})
    assert caught.value.kind == "settings.conflict"
    assert str(1 << 30) in caught.value.message
    assert str(2 << 30) in caught.value.message
    assert "heap.maxBytes" in caught.value.message


def test_a_later_query_that_leaves_a_process_setting_out_follows_the_first() -> None:
    first = parse(heap__maxBytes="1g", compression__codec="lz4")
    second = join_process(first, {PREFIX + "compression.codec": "zstd"})
    assert second.heap_max_bytes == 1 << 30
    assert second.compression_codec == "zstd"


def test_keys_that_only_other_platforms_or_providers_know_get_a_warning() -> None:
    warnings = warnings_for(
        {
            "spark.databricks.streaming.statefulOperator.asyncCheckpoint.enabled": "true",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
            "spark.sql.shuffle.partitions": "2",
        }
    )
    assert len(warnings) == 2  # Spark itself sets the version of RocksDB's format
    assert "Databricks" in warnings[0]
    assert "RocksDB" in warnings[1]


def test_every_key_says_its_meaning_and_its_trade_off() -> None:
    for key in KEYS:
        assert key.meaning.endswith("."), key.name
        assert key.trade_off.endswith("."), key.name


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text() == markdown(), "run: python -m lamina.settings --markdown > docs/settings.md"


def test_the_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "lamina.settings", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1] / "python")}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == markdown()
