"""Logs of a newer Spark are refused, damaged ones are named; neither is guessed at."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from lamina.checkpoint import (
    CheckpointLogs,
    parse_commit,
    parse_offsets,
    parse_operator,
    parse_state_schema,
    read_identity,
    read_runs,
    sealed_bytes,
)
from lamina.errors import FileError, LaminaError
from lamina.storage import Storage

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "spark-4.3"
STRUCT = '{"type":"struct","fields":[]}'


def utf(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def chunks(*texts: bytes) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(utf(text) for text in texts)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of a checkpoint of transformWithState, which has v2 metadata and v3 schemas."""
    return Path(shutil.copytree(GOLDEN / "transform-with-state-rocksdb-v2", tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("offsets/0", b"v1", b"v3"),
        ("commits/0", b"v2", b"v4"),
        ("state/0/_metadata/v2/0", b"v2", b"v3"),
        ("state/0/_stateSchema/default/*", b"\0\x02v3", b"\0\x02v4"),
        ("state/0/_stateSchema/default/*", b"NoPrefixKeyStateEncoderSpec", b"NoSuffixKeyStateEncoderSpec"),
    ],
)
def test_an_unknown_version_is_refused_and_the_file_is_named(
    checkpoint: Path, file: str, old: bytes, new: bytes
) -> None:
    (path,) = checkpoint.glob(file)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(FileError) as error:
        read_all(checkpoint)
    assert error.value.kind == "file.version"
    assert str(path) in error.value.message
    assert "upgrade" in error.value.message


@pytest.mark.parametrize(
    "file", ["metadata", "offsets/0", "commits/0", "state/0/_metadata/v2/0", "state/0/_stateSchema/default/*"]
)
@pytest.mark.parametrize("damage", ["empty", "cut", "not text"])
def test_a_damaged_log_is_named(checkpoint: Path, file: str, damage: str) -> None:
    (path,) = checkpoint.glob(file)
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "not text": b"\xff\xfe" + data}[damage])
    with pytest.raises(FileError) as error:
        read_all(checkpoint)
    assert error.value.kind == "file.damaged"
    assert str(path) in error.value.message


def test_a_log_that_is_gone_is_named(checkpoint: Path) -> None:
    (path,) = (checkpoint / "state/0/_stateSchema/default").iterdir()
    path.unlink()
    with pytest.raises(LaminaError) as error:
        read_all(checkpoint)
    assert error.value.kind == "file.missing"
    assert str(path) in error.value.message


def read_all(checkpoint: Path) -> None:
    found = CheckpointLogs(Storage(str(checkpoint)))
    found.query_id()
    for batch in found.planned_batches():
        found.offsets(batch)
    for batch in found.committed_batches():
        found.commit(batch)
    for operator in found.operators():
        for store in operator.stores:
            found.column_families(operator, store)


def test_reading_leaves_the_checkpoint_as_it_was(checkpoint: Path) -> None:
    before = {path: path.stat() for path in checkpoint.rglob("*")}
    read_all(checkpoint)
    assert {path: path.stat().st_mtime_ns for path in checkpoint.rglob("*")} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }


def test_a_checkpoint_that_was_moved_still_finds_its_schemas(checkpoint: Path) -> None:
    # the metadata names file:/checkpoint/state/0/_stateSchema/…, which is not where this copy is
    found = CheckpointLogs(Storage(str(checkpoint)))
    (operator,) = found.operators()
    assert operator.stores[0].schema_files[0].startswith("state/0/_stateSchema/default/0_")
    assert found.state_schemas(0, operator.stores[0])[0].version == 3


def test_operator_metadata_v2_is_read_as_of_a_batch(checkpoint: Path) -> None:
    directory = checkpoint / "state/0/_metadata/v2"
    (directory / "5").write_bytes((directory / "0").read_bytes().replace(b"transformWithStateIn", b"renamedSince"))
    found = CheckpointLogs(Storage(str(checkpoint)))
    names = [operator.name for batch in (0, 4, 5, None) if (operator := found.operator(0, batch))]
    assert names == ["transformWithStateInPySparkExec"] * 2 + ["renamedSincePySparkExec"] * 2


def test_temporary_and_checksum_files_are_no_batches(checkpoint: Path) -> None:
    for name in (".1.crc", ".7.abc.tmp", "8.tmp", "9.crc", "\u06f9"):
        (checkpoint / "commits" / name).write_bytes(b"")
    assert CheckpointLogs(Storage(str(checkpoint))).committed_batches() == [0]


@pytest.mark.parametrize("version", [b"", b"x1", b"v", b"v0", b"v-1", b"v1x", "v\u0661".encode()])
def test_a_malformed_version_is_damage(version: bytes) -> None:
    with pytest.raises(FileError, match="should begin with a version") as error:
        parse_commit("commits/3", 3, version + b"\n{}")
    assert error.value.kind == "file.damaged"


def test_a_commit_may_have_no_metadata() -> None:
    entry = parse_commit("commits/3", 3, b"v1")
    assert (entry.batch, entry.next_watermark_ms, entry.state_ids) == (3, 0, None)


@pytest.mark.parametrize("ids", ["[]", '{"x":[["a"]]}', '{"0":["a"]}', '{"0":[[1]]}'])
def test_state_ids_of_another_shape_are_damage(ids: str) -> None:
    with pytest.raises(FileError, match="stateUniqueIds"):
        parse_commit("commits/3", 3, f'v2\n{{"stateUniqueIds":{ids}}}'.encode())


def test_a_source_without_an_offset_and_a_line_separator_inside_json_are_read() -> None:
    data = 'v1\n{"conf":{"name":"a\u2028b"}}\n-\n{"logOffset":1}'
    entry = parse_offsets("offsets/3", 3, data.encode())
    assert entry.sources == {"0": None, "1": '{"logOffset":1}'}
    assert entry.conf == {"name": "a\u2028b"}


def test_offset_log_v2_keeps_colons_of_the_offset() -> None:
    entry = parse_offsets("offsets/3", 3, b'v2\n{"batchWatermarkMs":5}\na:{"x":1}\nb:-')
    assert entry.sources == {"a": '{"x":1}', "b": None}
    with pytest.raises(FileError, match="source:offset"):
        parse_offsets("offsets/3", 3, b'v2\n{"batchWatermarkMs":5}\nnothing')


def test_metadata_of_another_operator_is_damage() -> None:
    data = b'v1\n{"operatorInfo":{"operatorId":1,"operatorName":"dedupe"},"stateStoreInfo":[]}'
    assert parse_operator("metadata", 1, None, data).stores == ()
    with pytest.raises(FileError, match="operator 1, not 0"):
        parse_operator("metadata", 0, None, data)


@pytest.mark.parametrize("version", [b"v1", b"v2"])
def test_state_schemas_v1_and_v2_hold_one_family(version: bytes) -> None:
    text = STRUCT.encode()
    body = utf(text) * 2 if version == b"v1" else chunks(text[:7], text[7:]) * 2
    schema = parse_state_schema("schema", utf(version) + body)
    (family,) = schema.column_families
    assert (family.name, family.key_schema, family.encoder) == ("default", {"type": "struct", "fields": []}, None)


def test_characters_are_read_as_java_writes_them_even_across_chunks() -> None:
    # Java writes U+1D6FF as two surrogates of three bytes, and a chunk may end between them; 0 is C0 80
    head, tail = b'{"type":"struct","fields":[{"name":"\xed\xa0\xb5', b'\xed\xbb\xbf\xc3\x9f\xc0\x80"}]}'
    empty = chunks(STRUCT.encode())
    with pytest.raises(FileError, match="not JSON"):
        # JSON allows no bare 0, but it was decoded up to there
        parse_state_schema("schema", utf(b"v2") + chunks(head, tail) + empty)
    schema = parse_state_schema("schema", utf(b"v2") + chunks(head, tail.replace(b"\xc0\x80", b"")) + empty)
    assert schema.column_families[0].key_schema["fields"] == [{"name": "\U0001d6ffß"}]


def test_bytes_behind_a_schema_are_damage() -> None:
    with pytest.raises(FileError, match="1 bytes behind its end"):
        parse_state_schema("schema", utf(b"v1") + utf(STRUCT.encode()) * 2 + b"\0")


def test_identity_and_runs_are_read_and_the_smallest_epoch_of_a_run_counts(tmp_path: Path) -> None:
    state = Storage(str(tmp_path))
    assert read_identity(state) is None
    assert read_runs(state) == []
    state.publish(
        "_lamina/checkpoint",
        sealed_bytes({"uuid": "u", "format": 1, "created_ms": 5, "created_by": "lamina 0.1.0", "new": 1}),
    )
    for name in ("10_b", "2_a", "3_a", "note"):
        state.publish(f"_lamina/runs/{name}", b"{}")
    identity = read_identity(state)
    assert identity is not None
    assert (identity.uuid, identity.created_ms) == ("u", 5)
    assert [(run.epoch, run.id) for run in read_runs(state)] == [(2, "a"), (10, "b")]


@pytest.mark.parametrize(
    ("text", "kind"), [(b'{"uuid":"u","format":2}', "file.version"), (b'{"uuid":1,"format":1}', "file.damaged")]
)
def test_an_identity_of_a_newer_format_is_refused(tmp_path: Path, text: bytes, kind: str) -> None:
    state = Storage(str(tmp_path))
    state.publish("_lamina/checkpoint", text)
    with pytest.raises(FileError) as error:
        read_identity(state)
    assert error.value.kind == kind
    assert str(tmp_path) in error.value.message
