"""The logs that Spark 4.2 and 4.3 really wrote, read with `CheckpointLogs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.checkpoint import CheckpointLogs
from lamina.storage import Storage

GOLDEN = Path(__file__).parent.parent.parent / "golden"
MINORS = ("spark-4.2", "spark-4.3")
ALL = sorted(path for minor in MINORS for path in (GOLDEN / minor).iterdir())
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)


def logs(minor: str, case: str) -> CheckpointLogs:
    return CheckpointLogs(Storage(str(GOLDEN / minor / case)))


def field_names(schema: object) -> list[str]:
    assert isinstance(schema, dict)
    return [field["name"] for field in schema["fields"]]


def test_both_minors_have_every_query_that_they_can_run() -> None:
    cases = [{path.name for path in (GOLDEN / minor).iterdir()} for minor in MINORS]
    assert cases[1] - cases[0] == {"join-4-rocksdb-v2"}
    assert cases[0] <= cases[1]
    assert len(cases[0]) == 13


@pytest.mark.parametrize("directory", ALL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_file_of_every_checkpoint_is_read(directory: Path) -> None:
    found = CheckpointLogs(Storage(str(directory)))
    read = {"metadata"}
    assert len(found.query_id()) == 36
    for batch in found.planned_batches():
        entry = found.offsets(batch)
        assert entry.batch == batch
        assert entry.conf["spark.sql.streaming.stateStore.providerClass"].endswith("StateStoreProvider")
        assert entry.timestamp_ms > 1_700_000_000_000
        read.add(f"offsets/{batch}")
    for batch in found.committed_batches():
        found.commit(batch)
        read.add(f"commits/{batch}")
    for operator in found.operators():
        for store in operator.stores:
            assert found.column_families(operator, store)
            read.update(store.schema_files or {schema_file(operator.operator, store.name)})
        read.add(f"state/{operator.operator}/_metadata/{'metadata' if operator.version == 1 else 'v2/0'}")
    there = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert read == there


def schema_file(operator: int, store: str) -> str:
    return f"state/{operator}/0/{'' if store == 'default' else store + '/'}_metadata/schema"


@pytest.mark.parametrize("minor", MINORS)
def test_format_v1_names_no_attempts(minor: str) -> None:
    found = logs(minor, "aggregation-hdfs-v1")
    assert found.committed_batches() == [0, 1, 2, 3]
    entry = found.commit(1)
    (operator,) = found.operators()
    assert (entry.version, entry.state_ids) == (1, None)
    assert found.state_id(entry, operator, 0, "default") is None
    # 2013-01-01 11:03 less ten minutes: the watermark after the file of hour 11
    assert entry.next_watermark_ms == 1_357_037_580_000


@pytest.mark.parametrize("minor", MINORS)
def test_format_v2_names_an_attempt_for_every_partition(minor: str) -> None:
    found = logs(minor, "aggregation-rocksdb-v2")
    (operator,) = found.operators()
    assert (operator.name, operator.version) == ("stateStoreSave", 1)
    ids = [
        found.state_id(found.commit(batch), operator, partition, "default") for batch in (0, 1) for partition in (0, 1)
    ]
    assert len(set(ids)) == 4
    assert all(id is not None and len(id) == 36 for id in ids)


@pytest.mark.parametrize("minor", MINORS)
def test_a_failed_batch_is_planned_and_not_committed(minor: str) -> None:
    found = logs(minor, "aggregation-failed-batch")
    assert found.planned_batches() == [0, 1, 2]
    assert found.committed_batches() == [0, 1]


@pytest.mark.parametrize("minor", MINORS)
def test_offset_log_v2_and_commit_log_v3_name_sources_and_sinks(minor: str) -> None:
    found = logs(minor, "aggregation-logs-2-3")
    offsets, commit = found.offsets(1), found.commit(1)
    assert (offsets.version, commit.version) == (2, 3)
    assert offsets.sources == {"flights": '{"logOffset":1}'}
    assert commit.sinks["out"]["isActive"] is True
    assert commit.state_ids is not None
    assert [len(partition) for partition in commit.state_ids[0]] == [1, 1]


@pytest.mark.parametrize("minor", MINORS)
def test_offset_log_v1_numbers_the_sources(minor: str) -> None:
    entry = logs(minor, "join-2-rocksdb-v2").offsets(1)
    assert entry.version == 1
    assert entry.sources == {"0": '{"logOffset":1}', "1": '{"logOffset":1}'}


@pytest.mark.parametrize("minor", MINORS)
def test_the_four_stores_of_a_join_have_an_attempt_each_in_the_order_of_the_metadata(minor: str) -> None:
    found = logs(minor, "join-2-rocksdb-v2")
    (operator,) = found.operators()
    assert tuple(store.name for store in operator.stores) == JOIN_STORES
    entry = found.commit(0)
    assert entry.state_ids is not None
    assert tuple(found.state_id(entry, operator, 1, store) for store in JOIN_STORES) == entry.state_ids[0][1]
    values = found.column_families(operator, operator.stores[1])[0].schema.value_schema
    assert field_names(values) == ["carrier", "left_at", "delay", "matched"]


@pytest.mark.parametrize("minor", MINORS)
def test_join_3_has_one_store_with_four_column_families(minor: str) -> None:
    found = logs(minor, "join-3-rocksdb-v2")
    (operator,) = found.operators()
    assert (operator.version, operator.properties) == (2, {"useVirtualColumnFamilies": True})
    families = found.column_families(operator, operator.stores[0])
    assert tuple(family.schema.name for family in families) == JOIN_STORES
    assert {family.schema.encoder["keyStateEncoderType"] for family in families if family.schema.encoder} == {
        "NoPrefixKeyStateEncoderSpec"
    }
    assert not any(family.multi_value for family in families)


def test_join_4_has_several_values_per_key_and_timestamp_encoders() -> None:
    found = logs("spark-4.3", "join-4-rocksdb-v2")
    (operator,) = found.operators()
    families = {family.schema.name: family for family in found.column_families(operator, operator.stores[0])}
    values, index = families["left-keyWithTsToValues"], families["left-tsWithKey"]
    assert values.schema.encoder == {"keyStateEncoderType": "TimestampAsPostfixKeyStateEncoderSpec"}
    assert index.schema.encoder == {"keyStateEncoderType": "TimestampAsPrefixKeyStateEncoderSpec"}
    assert (values.multi_value, values.internal) == (True, False)
    assert (index.multi_value, index.internal) == (True, True)


@pytest.mark.parametrize("minor", MINORS)
def test_a_session_window_has_prefix_scans(minor: str) -> None:
    (operator,) = logs(minor, "session-window-rocksdb-v2").operators()
    assert operator.stores[0].prefix_columns == 1


@pytest.mark.parametrize("minor", MINORS)
def test_column_names_beyond_ascii_are_read(minor: str) -> None:
    found = logs(minor, "drop-duplicates-hdfs-v1")
    (operator,) = found.operators()
    (family,) = found.column_families(operator, operator.stores[0])
    assert field_names(family.schema.key_schema) == ["größe ✈ 𝛿", "at"]
    assert family.schema.encoder is None


@pytest.mark.parametrize("minor", MINORS)
def test_two_operators_are_found_in_order(minor: str) -> None:
    found = logs(minor, "two-operators-rocksdb-v2")
    operators = list(found.operators())
    assert [(operator.operator, operator.name) for operator in operators] == [(0, "stateStoreSave"), (1, "dedupe")]
    entry = found.commit(0)
    assert found.state_id(entry, operators[0], 0, "default") != found.state_id(entry, operators[1], 0, "default")


@pytest.mark.parametrize("minor", MINORS)
def test_transform_with_state_has_variables_lists_ttl_and_timers(minor: str) -> None:
    found = logs(minor, "transform-with-state-rocksdb-v2")
    (operator,) = found.operators()
    assert {variable.name: (variable.kind, variable.ttl) for variable in operator.variables} == {
        "seen": ("ValueState", False),
        "delays": ("ListState", True),
        "byMinute": ("MapState", True),
        "$procTimers_keyToTimestamp": ("TimerState", False),
    }
    families = {family.schema.name: family for family in found.column_families(operator, operator.stores[0])}
    assert [name for name, family in families.items() if family.multi_value] == ["delays"]
    assert {name for name, family in families.items() if family.ttl and not family.internal} == {"delays", "byMinute"}
    assert families["$ttl_delays"].schema.encoder == {
        "keyStateEncoderType": "RangeKeyScanStateEncoderSpec",
        "orderingOrdinals": [0],
    }
    assert families["byMinute"].schema.user_key_schema is not None
    assert field_names(families["byMinute"].schema.user_key_schema) == ["minute"]
    assert families["seen"].schema.user_key_schema is None


@pytest.mark.parametrize("minor", MINORS)
def test_a_global_limit_has_one_partition_whatever_its_metadata_says(minor: str) -> None:
    found = logs(minor, "limit-rocksdb-v2")
    (operator,) = found.operators()
    assert operator.stores[0].partitions == 2
    assert found.partitions(operator, found.commit(0)) == 1
    assert found.partitions(operator) == 1
    (other,) = logs(minor, "aggregation-hdfs-v1").operators()
    assert found.partitions(other) == 2
