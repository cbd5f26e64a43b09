"""What `CheckpointLogWriter` writes is what Spark wrote, byte for byte; nothing is replaced, nothing is guessed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import (
    CheckpointLogs,
    CheckpointLogWriter,
    ColumnFamilySchema,
    CommitEntry,
    OffsetEntry,
    OperatorMetadata,
    StateSchema,
    StateVariable,
    StoreMetadata,
    commit_bytes,
    offsets_bytes,
    operator_bytes,
    parse_offsets,
    parse_operator,
    parse_state_schema,
    state_schema_bytes,
)
from lamina.components import SystemClock
from lamina.errors import FileError, LaminaError
from lamina.storage import Storage
from lamina.testing.memory import MemoryBackend

GOLDEN = Path(__file__).parent.parent.parent / "golden"
ALL = sorted(path for minor in ("spark-4.2", "spark-4.3") for path in (GOLDEN / minor).iterdir())
LOCATION = "file:/checkpoint"  # what make_golden.py puts in place of the real one

EMPTY: dict[str, Any] = {"type": "struct", "fields": []}
NO_PREFIX = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
OFFSETS = OffsetEntry(1, 3, 5, 6, {"a": "b"}, {"0": '{"x":1}', "1": None}, {}, None)
COMMIT = CommitEntry(2, 3, 5, {0: (("a", "b"), ("c", "d"))}, {})
OPERATOR = OperatorMetadata(1, 0, None, "dedupe", (StoreMetadata("default", 0, 2, ()),), {}, ())
SCHEMA = StateSchema(3, (ColumnFamilySchema("default", 0, EMPTY, 1, EMPTY, NO_PREFIX, None),))


def family(**changes: Any) -> ColumnFamilySchema:
    return dataclasses.replace(SCHEMA.column_families[0], **changes)


def named(name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}}]}


def rewrite(source: CheckpointLogs, target: CheckpointLogWriter) -> None:
    target.query_id(source.query_id())
    planned = source.planned_batches()
    for newest in source.operators():
        for operator in filter(None, (source.operator(newest.operator, batch) for batch in planned)):
            for store in operator.stores:
                target.state_schemas(operator.operator, store, source.state_schemas(operator.operator, store))
            target.operator(operator)
    for batch in planned:
        target.offsets(source.offsets(batch))
    for batch in source.committed_batches():
        target.commit(source.commit(batch))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointLogWriter:
    return CheckpointLogWriter(Storage(str(tmp_path)), LOCATION)


@pytest.mark.parametrize("directory", ALL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_log_that_spark_wrote_is_written_again_byte_for_byte(
    directory: Path, tmp_path: Path, writer: CheckpointLogWriter
) -> None:
    rewrite(CheckpointLogs(Storage(str(directory))), writer)
    assert contents(tmp_path) == contents(directory)


def test_writing_the_same_again_changes_nothing(tmp_path: Path, writer: CheckpointLogWriter) -> None:
    source = CheckpointLogs(Storage(str(GOLDEN / "spark-4.3" / "transform-with-state-rocksdb-v2")))
    rewrite(source, writer)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    rewrite(source, writer)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before


WRITES: dict[str, tuple[str, Callable[[CheckpointLogWriter], None], Callable[[CheckpointLogWriter], None]]] = {
    "query": ("metadata", lambda writer: writer.query_id("a"), lambda writer: writer.query_id("b")),
    "offsets": (
        "offsets/3",
        lambda writer: writer.offsets(OFFSETS),
        lambda writer: writer.offsets(dataclasses.replace(OFFSETS, timestamp_ms=7)),
    ),
    "commit": (
        "commits/3",
        lambda writer: writer.commit(COMMIT),
        lambda writer: writer.commit(dataclasses.replace(COMMIT, state_ids={0: (("a", "b"), ("c", "e"))})),
    ),
    "operator": (
        "state/0/_metadata/metadata",
        lambda writer: writer.operator(OPERATOR),
        lambda writer: writer.operator(dataclasses.replace(OPERATOR, name="globalLimit")),
    ),
    "schema": (
        "state/0/0/left/_metadata/schema",
        lambda writer: writer.state_schemas(0, StoreMetadata("left", 0, 2, ()), [SCHEMA]),
        lambda writer: writer.state_schemas(
            0, StoreMetadata("left", 0, 2, ()), [StateSchema(3, (family(value_schema_id=2),))]
        ),
    ),
}


@pytest.mark.parametrize(("path", "first", "second"), WRITES.values(), ids=WRITES)
def test_a_log_that_says_something_else_is_not_replaced(
    tmp_path: Path,
    writer: CheckpointLogWriter,
    path: str,
    first: Callable[[CheckpointLogWriter], None],
    second: Callable[[CheckpointLogWriter], None],
) -> None:
    first(writer)
    before = contents(tmp_path)
    assert list(before) == [path]
    with pytest.raises(LaminaError, match="says something else") as error:
        second(writer)
    assert error.value.kind == "state.superseded"
    assert str(tmp_path / path) in error.value.message
    assert contents(tmp_path) == before


class Overtaken(MemoryBackend):
    """Somebody else publishes `first` just before each conditional write."""

    def __init__(self, first: bytes) -> None:
        super().__init__(SystemClock())
        self.first = first

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        self.publish(path, [self.first])
        return super().publish_if_absent(path, data)


def test_of_two_writers_at_once_the_first_stays() -> None:
    first = CommitEntry(1, 3, 5, None, {})
    storage = Storage("memory://checkpoint", backend=Overtaken(commit_bytes("commits/3", first)))
    writer = CheckpointLogWriter(storage, "s3a://bucket/checkpoint")
    with pytest.raises(LaminaError, match="says something else"):
        writer.commit(COMMIT)
    assert CheckpointLogs(storage).commit(3) == first


def test_of_two_writers_of_the_same_both_are_done() -> None:
    storage = Storage("memory://checkpoint", backend=Overtaken(commit_bytes("commits/3", COMMIT)))
    CheckpointLogWriter(storage, "s3a://bucket/checkpoint").commit(COMMIT)
    assert CheckpointLogs(storage).commit(3) == COMMIT


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.offsets(dataclasses.replace(OFFSETS, version=3)),
        lambda writer: writer.commit(dataclasses.replace(COMMIT, version=4)),
        lambda writer: writer.operator(dataclasses.replace(OPERATOR, version=3)),
        lambda writer: writer.state_schemas(0, OPERATOR.stores[0], [dataclasses.replace(SCHEMA, version=4)]),
    ],
    ids=["offsets", "commit", "operator", "schema"],
)
def test_an_unknown_version_is_refused_and_the_file_is_named(
    tmp_path: Path, writer: CheckpointLogWriter, write: Callable[[CheckpointLogWriter], None]
) -> None:
    with pytest.raises(FileError) as error:
        write(writer)
    assert error.value.kind == "file.version"
    assert str(tmp_path) in error.value.message
    assert contents(tmp_path) == {}


def test_an_unknown_key_encoder_is_refused() -> None:
    schema = StateSchema(3, (family(encoder={"keyStateEncoderType": "NoSuffixKeyStateEncoderSpec"}),))
    with pytest.raises(FileError) as error:
        state_schema_bytes("schema", schema)
    assert error.value.kind == "file.version"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"sources": {"0": '{\n"x":1}'}},
        {"sources": {"0": "-"}},
        {"sources": {"flights": '{"x":1}'}},
        {"control": {"operationType": "rewind"}},
        {"source_info": {"0": {"providerName": "json"}}},
        {"version": 2, "sources": {"a:b": '{"x":1}'}},
    ],
)
def test_offsets_that_a_version_cannot_hold_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="offsets/3 cannot hold"):
        offsets_bytes("offsets/3", dataclasses.replace(OFFSETS, **changes))


@pytest.mark.parametrize("changes", [{"version": 1}, {"sinks": {"out": {}}}, {"state_ids": {0: ("a",)}}])
def test_commits_that_a_version_cannot_hold_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="commits/3 cannot hold"):
        commit_bytes("commits/3", dataclasses.replace(COMMIT, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0},
        {"version": 2},
        {"properties": {"timeMode": "None"}},
        {"variables": (StateVariable("seen", "ValueState", False),)},
        {"stores": (StoreMetadata("default", 0, 2, ("state/0/_stateSchema/default/0_a",)),)},
        {"version": 2, "batch": 0, "stores": (StoreMetadata("default", 0, 2, ("state/1/_stateSchema/default/0_a",)),)},
        {"version": 2, "batch": 0, "stores": (StoreMetadata("default", 0, 2, ("state/0/_stateSchema/../0_a",)),)},
    ],
)
def test_operators_that_a_version_cannot_hold_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="_metadata cannot hold"):
        operator_bytes("_metadata", dataclasses.replace(OPERATOR, **changes), LOCATION)


@pytest.mark.parametrize(
    "schema",
    [
        StateSchema(3, (family(encoder=None),)),
        StateSchema(3, (family(name="x" * 65_536),)),
        StateSchema(2, (family(encoder=None, value_schema_id=0), family(encoder=None, value_schema_id=0))),
        StateSchema(2, (family(encoder=None, value_schema_id=0, name="left"),)),
        StateSchema(1, (family(encoder=None, value_schema_id=1),)),
        StateSchema(1, (family(encoder=None, value_schema_id=0, key_schema=named("x" * 65_536)),)),
    ],
)
def test_schemas_that_a_version_cannot_hold_are_refused(schema: StateSchema) -> None:
    with pytest.raises(ValueError, match="schema cannot hold"):
        state_schema_bytes("schema", schema)


def test_a_number_that_json_has_not_is_refused() -> None:
    struct = named("a")
    struct["fields"][0]["metadata"] = {"x": float("nan")}
    with pytest.raises(ValueError, match="JSON"):
        state_schema_bytes("schema", StateSchema(3, (family(key_schema=struct),)))


def test_as_many_schemas_are_written_as_the_store_has_files(tmp_path: Path, writer: CheckpointLogWriter) -> None:
    files = ("state/0/_stateSchema/default/0_a", "state/0/_stateSchema/default/4_b")
    store = StoreMetadata("default", 0, 2, files)
    writer.state_schemas(0, store, [SCHEMA, StateSchema(3, (family(value_schema_id=2),))])
    assert tuple(sorted(contents(tmp_path))) == files
    with pytest.raises(ValueError, match="shorter"):
        writer.state_schemas(0, store, [SCHEMA])


def test_a_commit_of_a_query_without_state_has_no_ids() -> None:
    entry = dataclasses.replace(COMMIT, state_ids=None)
    assert commit_bytes("commits/3", entry) == b'v2\n{"nextBatchWatermarkMs":5}'


def test_control_batches_and_source_metadata_are_written_where_spark_has_them() -> None:
    entry = dataclasses.replace(
        OFFSETS,
        version=2,
        sources={"flights": '{"a":"b:c"}', "delays": None},
        source_info={"flights": {"sourceId": "flights", "providerName": "json", "apiVersion": "DSv1"}},
        control={"operationType": "rewind"},
    )
    version, metadata, *sources = offsets_bytes("offsets/3", entry).decode().split("\n")
    assert (version, sources) == ("v2", ['flights:{"a":"b:c"}', "delays:-"])
    assert list(json.loads(metadata)) == [
        "batchWatermarkMs",
        "batchTimestampMs",
        "conf",
        "sourceMetadataInfo",
        "controlBatchInfo",
    ]


@pytest.mark.parametrize("name", ["größe ✈ 𝛿", "a\0b", 'tab\tquote"back\\slash/\u2028', "\x1f"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_names_of_any_characters_come_back(name: str, version: int) -> None:
    changes: dict[str, Any] = {} if version == 3 else {"encoder": None, "value_schema_id": 0}
    schema = StateSchema(version, (family(key_schema=named(name), **changes),))
    assert parse_state_schema("schema", state_schema_bytes("schema", schema)) == schema
    entry = dataclasses.replace(OFFSETS, conf={name: name})
    assert parse_offsets("offsets/3", 3, offsets_bytes("offsets/3", entry)) == entry


def test_names_of_column_families_are_written_as_java_writes_them() -> None:
    # the character 0 in two bytes, and U+1D6FF as two surrogates of three bytes
    data = state_schema_bytes("schema", StateSchema(3, (family(name="a\0\U0001d6ff"),)))
    assert b"\0\x09a\xc0\x80\xed\xa0\xb5\xed\xbb\xbf" in data


def test_a_schema_of_more_than_one_chunk_is_cut_where_spark_cuts_it() -> None:
    name = "x" * 65_535
    data = state_schema_bytes(
        "schema", StateSchema(2, (family(encoder=None, value_schema_id=0, key_schema=named(name)),))
    )
    text = json.dumps(named(name), separators=(",", ":")).encode()
    # 2 bytes of length and "v2"; then the number of chunks, and each with its length
    assert data[4:10] == b"\0\0\0\2\xff\xff"
    assert data[10 : 10 + 65_535] == text[:65_535]
    assert data[10 + 65_535 :][2:].startswith(text[65_535:])


def test_the_metadata_of_an_operator_names_schema_files_where_the_checkpoint_is_now() -> None:
    file = "state/0/_stateSchema/default/0_a"
    metadata = dataclasses.replace(OPERATOR, version=2, batch=0, stores=(StoreMetadata("default", 0, 2, (file,)),))
    data = operator_bytes("_metadata", metadata, "s3a://bucket/flights")
    assert json.loads(data.partition(b"\n")[2])["stateStoreInfo"][0]["stateSchemaFilePaths"] == [
        f"s3a://bucket/flights/{file}"
    ]
    assert parse_operator("_metadata", 0, 0, data) == metadata


@pytest.mark.parametrize("location", ["", "/data/flights", "s3a:bucket", "file:/data/flights/"])
def test_a_location_that_spark_would_look_for_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        CheckpointLogWriter(Storage(str(tmp_path)), location)


def test_the_checksum_of_a_log_that_was_there_before_goes(tmp_path: Path, writer: CheckpointLogWriter) -> None:
    # Hadoop's local file system would refuse the new file by it
    (tmp_path / "commits").mkdir()
    for name in (".3.crc", ".4.crc"):
        (tmp_path / "commits" / name).write_bytes(b"crc\0 of another file")
    writer.commit(COMMIT)
    assert sorted(contents(tmp_path)) == ["commits/.4.crc", "commits/3"]
