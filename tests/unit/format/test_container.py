"""The container: what is written verifies, and every change of a byte and every truncation is detected."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.format import container, entries
from lamina.format.blocks import MAX_BLOCK_BYTES, BlockHasher, half_sha256
from lamina.format.container import COMMIT, ContainerWriter, Footer, verify
from lamina.format.entries import SCHEMA, Compression
from lamina.format.manifest import CommitManifest, Lineage, Section, to_bytes
from lamina.storage import Storage
from lamina.store.files import store_files as files
from lamina.store.files.store_files import StoreFiles
from lamina.testing.expect import fails_with
from tests.sealed import sealed

GOLDEN = Path(__file__).parents[2] / "golden" / "format-1" / "state" / "0" / "0"
ROLLING = next((GOLDEN.parents[3] / "format-2" / "state" / "0" / "0").glob("9_*.lam"))
BLOCKS = next((GOLDEN.parents[3] / "format-2" / "state" / "0" / "0").glob("12_*.lam"))
COMMITS = sorted(GOLDEN.glob("*.lam"))
SEGMENTS = sorted(GOLDEN.glob("*.seg"))


def batch(rows: int, value: bytes = b"v") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([0] * rows, pa.uint16()),
            pa.array([1] * rows, pa.uint8()),
            pa.array([b"%d" % number for number in range(rows)], pa.binary()),
            pa.array([value] * rows, pa.binary()),
        ],
        schema=SCHEMA,
    )


def written(batches: list[pa.RecordBatch], compression: Compression | None = None) -> bytes:
    template = json.loads(
        json.dumps(CommitManifest.from_json(verify(COMMITS[0].read_bytes(), "golden").to_json()).to_json())
    )
    writer = ContainerWriter(COMMIT, compression or Compression())

    def manifest_of(sections: Any, crc: int) -> bytes:
        return to_bytes({**template, "sections": [section.to_json() for section in sections], "header_crc": crc})

    data = b"".join(bytes(chunk) for chunk in writer.chunks([("increment", batches)], manifest_of))
    assert len(data) == writer.size
    return data


@pytest.mark.parametrize(
    "path",
    [COMMITS[1], COMMITS[-1], SEGMENTS[0], ROLLING, BLOCKS],
    ids=["commit", "full", "segment", "rolling", "blocks"],
)
def test_every_flipped_byte_of_a_file_is_detected_and_the_file_named(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for position in range(len(data)):
        for flip in (0x01, 0xFF):
            data[position] ^= flip
            with fails_with("file.damaged", "file.version") as caught:
                verify(bytes(data), path.name)
            assert path.name in caught.error.message, position
            data[position] ^= flip
    verify(bytes(data), path.name)


@pytest.mark.parametrize("path", [COMMITS[1], SEGMENTS[0], ROLLING], ids=["commit", "segment", "rolling"])
def test_every_truncation_of_a_file_is_detected_and_the_file_named(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        with fails_with("file.damaged") as caught:
            verify(data[:length], path.name)
        assert path.name in caught.error.message, length


def test_bytes_added_to_a_file_are_detected() -> None:
    data = COMMITS[0].read_bytes()
    for more in (b"\0", b"\0" * 8, data, data[-64:]):
        with fails_with("file.damaged"):
            verify(data + more, "f")
        with fails_with("file.damaged"):
            verify(more + data, "f")


@pytest.mark.parametrize("position", [None, 16 + 13, 16 + 15, 32 + 13, 32 + 15])
def test_padding_that_is_not_zero_is_detected(position: int | None) -> None:
    """Arrow streams end at multiples of 8; the container does not rely on it."""
    first = container.header(COMMIT)
    content = b"thirteen byte"
    body = bytearray(first + content + bytes(3) + content + bytes(3))
    template = verify(COMMITS[0].read_bytes(), "golden").to_json()
    sections = [
        {"name": name, "offset": offset, "length": 13, "rows": 0, "sha256": container.checksum(content)}
        for name, offset in (("increment", 16), ("snapshot", 32))
    ]
    value = {**template, "sections": sections}
    if position is None:
        verify(sealed(bytes(body), value), "f")
        return
    body[position] = 1
    with fails_with("file.damaged"):
        verify(sealed(bytes(body), value), "f")


def test_a_file_of_a_newer_format_is_refused_by_name() -> None:
    data = bytearray(COMMITS[0].read_bytes())
    data[-12:-8] = struct.pack("<I", container.FORMAT_VERSION + 1)
    with fails_with("file.version") as caught:
        verify(bytes(data), "the-file.lam")
    assert "the-file.lam" in caught.error.message


def test_a_format_that_does_not_fit_the_manifest_is_detected() -> None:
    """The footer's checksum does not cover its version, and a reader of format 1 must not take rewrites for more."""
    for path, version in ((COMMITS[0], 2), (ROLLING, 1)):
        data = bytearray(path.read_bytes())
        data[-12:-8] = struct.pack("<I", version)
        with fails_with("file.damaged") as caught:
            verify(bytes(data), "the-file.lam")
        assert "the-file.lam" in caught.error.message


def test_only_files_with_rewrites_are_of_the_newer_format() -> None:
    """So that a release that does not know them refuses these by name, and reads all others."""
    assert {path.read_bytes()[8] for path in (*COMMITS, *SEGMENTS)} == {1}
    assert (ROLLING.read_bytes()[8], ROLLING.read_bytes()[-12]) == (2, 2)


def test_a_newer_format_in_the_header_is_refused_by_name() -> None:
    data = bytearray(COMMITS[0].read_bytes())
    data[8:10] = struct.pack("<H", container.FORMAT_VERSION + 1)
    with fails_with("file.version") as caught:
        verify(bytes(data), "the-file.lam")
    assert "the-file.lam" in caught.error.message


def test_a_manifest_with_a_filter_is_refused() -> None:
    """A reader that ignored the filter would restore keys that are not in the version."""
    manifest = verify(COMMITS[0].read_bytes(), "f").to_json()
    manifest["references"][0]["filter"] = {"keep": "half"}
    with fails_with("file.damaged"):
        container.parse_manifest(manifest, "f")


@pytest.mark.parametrize(
    "change",
    [
        {"references": 5},
        {"version": float("inf")},
        {"sections": [{"name": "increment", "offset": 16, "length": 10**30, "rows": 1, "sha256": "00" * 16}]},
        {"sections": [{"name": "increment", "offset": 16, "length": -16, "rows": 1, "sha256": "00" * 16}]},
    ],
    ids=["references that are no list", "a number without end", "a section beyond the file", "a negative length"],
)
@pytest.mark.parametrize("tail", [64 << 10, 64], ids=["read whole", "read in parts"])
def test_a_manifest_whose_checksum_fits_is_refused_for_what_no_file_has(
    change: dict[str, Any], tail: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_TAIL_BYTES", tail)
    data = COMMITS[1].read_bytes()
    found = verify(data, "f")
    end = Footer.parse(data, len(data), "f")
    refused = sealed(data[: end.manifest_offset], {**found.to_json(), **change})
    path = tmp_path / "0" / "0" / COMMITS[1].name
    path.parent.mkdir(parents=True)
    path.write_bytes(refused)
    opened = StoreFiles(Storage(str(tmp_path)), found.store)
    with fails_with("file.damaged") as caught:
        opened.verify(path.name, lambda _: None)
    assert path.name in caught.error.message
    with fails_with("file.damaged"):
        verify(refused, "f")


def test_an_op_that_is_not_known_is_refused_by_name() -> None:
    for op in (0, 4, 5, 255):
        unknown = pa.RecordBatch.from_arrays(
            [
                pa.array([0], pa.uint16()),
                pa.array([op], pa.uint8()),
                pa.array([b"k"], pa.binary()),
                pa.array([b""], pa.binary()),
            ],
            schema=SCHEMA,
        )
        schema, found = messages_of(stream([unknown]), "the-file.lam")
        with fails_with("file.version") as caught:
            entries.decode(next(found), schema, "the-file.lam")
        assert "the-file.lam" in caught.error.message


def test_unknown_columns_are_ignored() -> None:
    more = batch(3).append_column("later", pa.array([1, 2, 3]))
    schema, found = messages_of(stream([more]))
    assert entries.decode(next(found), schema, "f").equals(batch(3))


def test_a_section_without_a_column_is_refused() -> None:
    with fails_with("file.damaged"):
        messages_of(stream([batch(3).select(["cf", "op", "key"])]))
    with fails_with("file.damaged"):
        messages_of(pa.BufferReader(b"no stream of Arrow messages at all"))
    with fails_with("file.damaged"):
        messages_of(pa.BufferReader(b""))


def messages_of(section: pa.NativeFile, path: str = "f") -> tuple[pa.Schema, Iterator[Any]]:
    return entries.messages(section, section.size(), path)


def stream(batches: list[pa.RecordBatch]) -> pa.NativeFile:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for one in batches:
            writer.write_batch(one)
    return pa.BufferReader(sink.getvalue())


def sections_in_blocks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = verify(BLOCKS.read_bytes(), "f").to_json()["sections"]
    assert [len(section["blocks"]) // 32 for section in found] == [2, 2]
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"block_bytes": 999},
        {"block_bytes": 0},
        {"block_bytes": -1000},
        {"block_bytes": 1 << 40},
        {"blocks": ""},
        {"blocks": "00" * 32},
        {"blocks": "no digits"},
        {"sha256": "00" * 16},
    ],
    ids=str,
)
def test_checksums_of_blocks_that_do_not_fit_their_section_are_refused(change: dict[str, Any]) -> None:
    data = BLOCKS.read_bytes()
    end = Footer.parse(data, len(data), "f")
    sections = sections_in_blocks()
    value = {**verify(data, "f").to_json(), "sections": [{**sections[0], **change}, *sections[1:]]}
    with fails_with("file.damaged"):
        verify(sealed(data[: end.manifest_offset], value), "f")


def test_a_large_section_without_checksums_of_its_blocks_is_refused() -> None:
    """It could not be verified before all of it is in memory."""
    value = {"name": "increment", "offset": 16, "length": MAX_BLOCK_BYTES + 1, "rows": 1, "sha256": "00" * 16}
    with pytest.raises(ValueError, match="no checksums of its blocks"):
        Section.from_json(value)
    assert Section.from_json({**value, "length": MAX_BLOCK_BYTES}).blocks == b""


@pytest.mark.parametrize("chunk", [1, 7, 10, 100])
def test_the_checksums_of_blocks_do_not_depend_on_the_chunks_in_which_bytes_come(chunk: int) -> None:
    for length in (0, 9, 10, 11, 20, 95):
        data = bytes(range(length))
        hasher = BlockHasher(10)
        for start in range(0, length, chunk):
            hasher.update(data[start : start + chunk])
        expected = [half_sha256(data[start : start + 10]) for start in range(0, length, 10)] or [half_sha256(b"")]
        total, blocks = hasher.finish()
        assert blocks == (b"".join(expected) if length > 10 else b"")
        assert total == (half_sha256(b"".join(expected)) if length > 10 else expected[0]).hex()


@pytest.mark.parametrize("codec", ["zstd", "lz4", "uncompressed"])
def test_each_compression_is_read_back(codec: str) -> None:
    data = written([batch(100)], Compression(codec))
    section = verify(data, "f").sections[0]
    content = pa.BufferReader(pa.py_buffer(data).slice(section.offset, section.length))
    schema, found = messages_of(content)
    assert [entries.decode(message, schema, "f") for message in found] == [batch(100)]


def test_a_section_without_entries_is_read_back() -> None:
    section = verify(written([]), "f").sections[0]
    assert section.rows == 0


def test_the_same_entries_and_manifest_give_the_same_bytes() -> None:
    assert written([batch(1000)]) == written([batch(1000)])


def test_large_batches_are_split_and_sections_can_be_decoded_piece_by_piece() -> None:
    data = written([batch(200_000)])
    section = verify(data, "f").sections[0]
    schema, found = messages_of(pa.BufferReader(pa.py_buffer(data).slice(section.offset, section.length)))
    decoded = [entries.decode(message, schema, "f") for message in found]
    assert max(one.num_rows for one in decoded) <= 2 * entries.BATCH_ROWS
    assert pa.Table.from_batches(decoded).equals(pa.Table.from_batches([batch(200_000)]))


def test_a_batch_with_too_many_bytes_is_split_down_to_single_entries() -> None:
    large = batch(5, b"x" * (40 << 20))
    parts = list(entries.bounded_batches(large))
    assert [part.num_rows for part in parts] == [1, 1, 1, 1, 1]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([large]))


def test_small_sections_are_compressed_less_and_are_read_as_any_other() -> None:
    def codec_of(rows: int) -> str:
        encoded = b"".join(
            bytes(chunk)
            for part in entries.encode([batch(rows)], Compression("zstd"), entries.Written())
            for chunk in part
        )
        return "zstd" if b"\x28\xb5\x2f\xfd" in encoded else "lz4" if b"\x04\x22\x4d\x18" in encoded else "none"

    assert (codec_of(5), codec_of(60), codec_of(5_000)) == ("none", "lz4", "zstd")


def test_the_writer_does_not_gather_the_file() -> None:
    """Chunks come while entries are still being asked for."""
    asked = []

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            asked.append(number)
            yield batch(1000)

    writer = ContainerWriter(COMMIT, Compression())
    chunks = writer.chunks([("increment", source())], lambda sections, crc: b"{}")
    for _ in range(6):
        next(chunks)
    assert len(asked) < 8


def test_entries_with_nulls_or_wrong_types_are_not_written() -> None:
    nulls = pa.RecordBatch.from_arrays(
        [
            pa.array([0], pa.uint16()),
            pa.array([1], pa.uint8()),
            pa.array([None], pa.binary()),
            pa.array([b""], pa.binary()),
        ],
        names=list(SCHEMA.names),
    )
    texts = batch(1).set_column(2, "key", pa.array(["text"]))
    for wrong in (nulls, texts, batch(1).select(["cf", "key", "value"])):
        with fails_with("engine.protocol"):
            entries.as_entries(wrong)


def test_the_footer_of_a_manifest_that_lies_outside_the_file_is_refused() -> None:
    body = struct.pack("<QQQ16sQ", 1 << 60, 10, 10, bytes(16), 200)
    tail = body + struct.pack("<II8s", zlib.crc32(body), 1, container.END_MAGIC)
    with fails_with("file.damaged"):
        Footer.parse(bytes(136) + tail, 200, "f")


def test_a_manifest_is_stored_with_sorted_keys() -> None:
    data = COMMITS[0].read_bytes()
    end = Footer.parse(data, len(data), "f")
    stored = data[end.manifest_offset : end.manifest_offset + end.stored_length]
    text = pa.Codec("zstd").decompress(stored, decompressed_size=end.manifest_length, asbytes=True)
    value = json.load(io.BytesIO(text))
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_manifest_is_written_as_its_json_is() -> None:
    """Also where members are encoded by themselves: keys sorted, no spaces, and ids as strings of any kind."""
    manifest = CommitManifest.from_json(verify(COMMITS[0].read_bytes(), "golden").to_json())
    strange = replace(manifest, lineage=Lineage((('a "quoted" \\ id\n\u2028é', 7), *manifest.lineage)))
    for one in (manifest, strange, replace(manifest, lineage=Lineage(), references=(), retention=None)):
        expected = json.dumps(one.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert one.to_bytes() == to_bytes(one.to_json()) == expected.encode()


@pytest.mark.parametrize("most", [1, 2, 3, 128])
def test_a_lineage_is_written_with_the_text_of_the_one_before(most: int) -> None:
    """It is the same as of all entries one by one, also where one is cut off, two stand on one, and ids are strange."""

    def expected(lineage: Lineage) -> str:
        entries = [[attempt, version] for attempt, version in lineage]
        return json.dumps(entries, separators=(",", ":"), ensure_ascii=False)

    grown = Lineage()
    for version in range(1, 8):
        base, name = grown, f'"{version}",[é\\' * version
        grown, sibling = base.after(name, version, most), base.after(f"{version}", version, most)
        assert list(grown) == [(name, version), *base][:most]
        assert [one.encoded for one in (grown, sibling, base)] == [expected(one) for one in (grown, sibling, base)]
    assert grown.after("shorter", 8, 2).encoded == expected(Lineage([("shorter", 8), *grown][:2]))
