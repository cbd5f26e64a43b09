"""A second reader of lamina's files, written from docs/spec/files.md alone: plain pyarrow, json and hashlib, and
rocksdict for tables.

It shares no code with lamina, so that a mistake in the writer and the reader of lamina does not hide itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

Key = tuple[int, bytes]


class Damaged(Exception):
    """The file is not what the specification says."""


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Damaged(what)


def half_sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def fold_1(key: bytes) -> int:
    """The hash of a key that files call fold-1, unsigned."""
    bits = (1 << 64) - 1
    k0, k1, k2 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F

    def signed(number: int) -> int:
        return number - (1 << 64) if number >> 63 else number

    def fold(a: int, b: int) -> int:
        upper = (signed(a) * signed(b) >> 64) & bits
        return ((a * b) & bits) ^ ((upper << 23 | upper >> 41) & bits) ^ a

    h = k0 ^ (len(key) * k2 & bits)
    words = len(key) // 8 * 8
    for start in range(0, words, 8):
        h = fold(h ^ int.from_bytes(key[start : start + 8], "little"), k1)
    if words < len(key):
        h = fold(h ^ int.from_bytes(key[words:], "little"), k2)
    h = fold(h ^ k2, k0)
    return h ^ (h >> 29)


def part_of(key: bytes, parts: int, name: str) -> int:
    """Which part of a rewrite a key is in."""
    if name == "fold-1":
        return fold_1(key) * parts >> 64
    need(name == "crc32", "hash of a rewrite")
    return zlib.crc32(key) % parts


PART = re.compile(r"[0-9]+_(L1\.[0-9]+\.[0-9]+\.g\.([0-9a-f]{32})-([0-9]+)\.[0-9a-f]{32})\.lam", re.ASCII)


def content_of(path: Path) -> bytes:
    """The bytes of a file, or those of the part of a log object that goes by its name."""
    match = PART.fullmatch(path.name)
    if match is None:
        return path.read_bytes()
    state = next(parent for parent in path.parents if parent.name == "state")
    return LogObject(state / "_lamina" / "log" / f"{match[2]}.log").part(match[1], int(match[3]))


def container_of(data: bytes) -> tuple[int, int, int, dict[str, Any]]:
    """Format version, kind, where the manifest begins, and the manifest, all verified."""
    need(len(data) >= 80, "too short")
    need(data[:8] == b"LAMINA\r\n", "magic at the start")
    version, kind = struct.unpack("<HB", data[8:11])
    need(version in (1, 2, 3), "format version in the header")
    need(kind in (1, 2, 3, 4), "kind")
    need(data[11:16] == bytes(5), "zeros in the header")
    footer = data[-64:]
    offset, stored, length = struct.unpack("<QQQ", footer[:24])
    whole, crc, footer_version = struct.unpack("<QII", footer[40:56])
    need(footer[56:] == b"\r\nANIMAL", "magic at the end")
    need(footer_version == version, "format version in the footer")
    need(zlib.crc32(footer[:48]) == crc, "checksum of the footer")
    need(whole == len(data), "length of the file")
    need(offset + stored + 64 == len(data), "the manifest ends where the footer begins")
    manifest = data[offset : offset + stored]
    need(half_sha256(manifest) == footer[24:40], "checksum of the manifest")
    text = pa.Codec("zstd").decompress(manifest, decompressed_size=length, asbytes=True)
    found: dict[str, Any] = json.loads(text)
    need(json.dumps(found, sort_keys=True) == json.dumps(json.loads(text)), "object keys are sorted")
    need(found["header_crc"] == zlib.crc32(data[:16]), "checksum of the header")
    return version, kind, offset, found


class LogObject:
    """One `.log` file, verified as the specification asks."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        version, kind, offset, self.manifest = container_of(self.data)
        need(version == 1 and kind == 4, "a log object")
        need(f"{self.manifest['log']}.log" == path.name, "it has its own name")
        end, last = 16, -1
        for part in self.manifest["parts"]:
            need(part["offset"] % 8 == 0, "parts start at multiples of 8")
            need(not any(self.data[end : part["offset"]]) and 0 <= part["offset"] - end < 8, "zero padding")
            need(part["number"] > last, "numbers ascend")
            end, last = part["offset"] + part["length"], part["number"]
        need(not any(self.data[end:offset]) and 0 <= offset - end < 8, "zero padding before the manifest")

    def part(self, attempt: str, number: int) -> bytes:
        """The commit of an attempt."""
        found = [one for one in self.manifest["parts"] if one["number"] == number and one["attempt"] == attempt]
        need(len(found) == 1, f"a part of {attempt}")
        return self.data[found[0]["offset"] :][: found[0]["length"]]


class File:
    """One `.lam`, `.seg` or `.rdb` file, verified as the specification asks; `sections` are decoded entries by name."""

    def __init__(self, path: Path) -> None:
        data = content_of(path)
        version, kind, offset, self.manifest = container_of(data)
        references = self.manifest.get("references", ())
        rewrites = any("rewrite" in reference for reference in references)
        bases = any(reference["kind"] == "file" or "union" in reference for reference in references)
        need(version == (3 if bases else 2 if rewrites else 1), "format version fits the manifest")
        fitting = 2 if "segment" in self.manifest else 3 if "list" in self.manifest else 1
        need(kind == fitting, "kind fits the manifest")
        self.name = path.name
        self.size = len(data)
        self.sections: dict[str, list[tuple[int, int, bytes, bytes]]] = {}
        self._ranges: dict[tuple[int, int], str] = {}
        end = 16
        for section in sorted(self.manifest["sections"], key=lambda section: section["offset"]):
            need(section["offset"] % 8 == 0, "sections start at multiples of 8")
            need(not any(data[end : section["offset"]]) and section["offset"] - end < 8, "zero padding")
            end = section["offset"] + section["length"]
            content = data[section["offset"] : end]
            need(checksum(content, section) == section["sha256"], f"checksum of {section['name']}")
            rows = entries(content)
            need(len(rows) == section["rows"], "number of rows")
            self.sections[section["name"]] = rows
            self._ranges[section["offset"], section["length"]] = section["name"]
        need(not any(data[end:offset]) and offset - end < 8, "zero padding before the manifest")

    def section_at(self, offset: int, length: int) -> list[tuple[int, int, bytes, bytes]]:
        return self.sections[self._ranges[offset, length]]


def checksum(content: bytes, section: dict[str, Any]) -> str:
    """The checksum of a section's bytes, those of its blocks compared on the way."""
    if "blocks" not in section:
        need(len(content) <= 16 << 20, f"no blocks of {section['name']}")
        return half_sha256(content).hex()
    size = section["block_bytes"]
    need(0 < size <= 16 << 20 and size < len(content), f"size of the blocks of {section['name']}")
    blocks = [half_sha256(content[start : start + size]) for start in range(0, len(content), size)]
    need(b"".join(blocks).hex() == section["blocks"], f"checksums of the blocks of {section['name']}")
    return half_sha256(b"".join(blocks)).hex()


def entries(content: bytes) -> list[tuple[int, int, bytes, bytes]]:
    """(cf, op, key, value) of an Arrow stream."""
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    types = {"cf": pa.uint16(), "op": pa.uint8(), "key": pa.binary(), "value": pa.binary()}
    for name, kind in types.items():
        need(table.schema.field(name).type == kind, f"type of {name}")
        need(table.column(name).null_count == 0, f"no nulls in {name}")
    rows = list(zip(*(table.column(name).to_pylist() for name in types), strict=True))
    need(all(op in (1, 2, 3) for _, op, _, _ in rows), "known ops")
    need(len({(cf, key) for cf, _, key, _ in rows}) == len(rows), "each key once")
    return rows


def state(directory: Path, name: str) -> dict[Key, bytes]:
    """The state of the version in the file `name`: its references applied oldest first to nothing."""
    newest = File(directory / name)
    references = newest.manifest["references"]
    union = [reference for reference in references if "union" in reference]
    own = references[: len(references) - len(union)]
    need(all("union" not in reference for reference in own), "a union is the oldest")
    rows: dict[Key, bytes] = {}
    tables = [reference for reference in own if reference["kind"] == "file"]
    if tables:
        own = own[: len(own) - len(tables)]
        need(all(reference["kind"] != "file" for reference in own), "whole files are the oldest")
        at, rows = database_of(directory, tables)
        need(at == (own[-1]["from"] if own else newest.manifest["version"]), "the list is of the version below")
    if union:
        begin = own[-1]["from"] if own else newest.manifest["version"]
        rows = union_of(directory, union, begin, newest.manifest["column_families"])
    version = chain(directory, newest, own, rows, based=bool(union or tables))
    need(version == newest.manifest["version"] or not own, "references reach the version")
    for family, count in newest.manifest["counts"].items():
        mine = [(key, value) for (cf, key), value in rows.items() if cf == int(family)]
        need(count == {"rows": len(mine), "bytes": sum(len(key) + len(value) for key, value in mine)}, "counts")
    return rows


def chain(
    directory: Path, newest: File, references: list[dict[str, Any]], rows: dict[Key, bytes], *, based: bool
) -> int:
    """Applies references to `rows`, oldest first; the version that they reach.

    `based`: something older is what the oldest of them begins at.
    """
    rewritten: dict[tuple[str, int], set[int]] = {}
    for reference in references:
        if reference["kind"] == "rewrite":
            part = reference["rewrite"]
            rewritten.setdefault((part["hash"], part["parts"]), set()).add(part["part"])
    covered = any(parts == set(range(number)) for (_, number), parts in rewritten.items())
    version = references[-1]["to"] if covered and references[-1]["kind"] == "rewrite" else 0
    if based and references:
        version = references[-1]["from"]
    for reference in reversed(references):
        if reference["kind"] == "rewrite":
            need(reference["from"] == 0 and reference["to"] == version, "a rewrite is of the version before it")
        else:
            need(reference["from"] == version, "references join")
        version = reference["to"]
        file = newest if reference["path"] is None else File(place(directory, reference))
        need(reference["path"] is None or reference["size"] == file.size, "size of the file")
        need(file.manifest["store"] == reference["origin"], "origin")
        content = file.section_at(reference["offset"], reference["length"])
        if reference["kind"] == "run":
            need([(cf, key) for cf, _, key, _ in content] == sorted((cf, key) for cf, _, key, _ in content), "sorted")
        if reference["kind"] in ("snapshot", "rewrite") or (reference["kind"] == "run" and reference["from"] == 0):
            need(all(op == 1 for _, op, _, _ in content), "only puts")
        if reference["kind"] == "rewrite":
            part = reference["rewrite"]
            places = {part_of(key, part["parts"], part["hash"]) for _, _, key, _ in content}
            need(places <= {part["part"]}, "keys of the part that is rewritten")
        apply(rows, content)
    return version


def place(directory: Path, reference: dict[str, Any]) -> Path:
    """The file of a reference of a store in `directory`."""
    if reference["root"] is None:
        return directory / reference["path"]
    checkpoint = next(parent for parent in directory.parents if parent.name == "state").parent
    return Path(os.path.normpath(checkpoint / reference["root"])) / reference["path"]


def database_of(directory: Path, references: list[dict[str, Any]]) -> tuple[int, dict[Key, bytes]]:
    """The version of a list of tables, and the rows of its database."""
    import rocksdict

    of_list, *of_tables = references
    listed = File(place(directory, of_list))
    need(half_sha256(place(directory, of_list).read_bytes()).hex() == of_list["sha256"], "checksum of a list")
    need(listed.manifest["sections"] == [] and listed.manifest["list"] in listed.name, "a list")
    tables = {table["path"]: table for table in listed.manifest["tables"]}
    need(set(tables) == {one["path"] for one in of_tables}, "the tables of the list")
    with tempfile.TemporaryDirectory() as name:
        database = Path(name)
        for reference in of_tables:
            table, content = tables[reference["path"]], place(directory, reference).read_bytes()
            need(len(content) == table["size"] == reference["size"], "size of a table")
            need(half_sha256(content).hex() == table["sha256"] == reference["sha256"], "checksum of a table")
            (database / table["name"]).write_bytes(content)
        for file, text in listed.manifest["files"].items():
            (database / file).write_bytes(base64.b64decode(text))
        opened = rocksdict.Rdict(name, rocksdict.Options(raw_mode=True), access_type=rocksdict.AccessType.read_only())
        rows = {(int.from_bytes(key[:2], "big"), key[2:]): value for key, value in opened.items()}
        opened.close()
    return listed.manifest["version"], rows


def whole_files(directory: Path, name: str) -> list[bytes]:
    """The whole files that the version in the file `name` stands on."""
    references = [one for one in File(directory / name).manifest["references"] if one["kind"] == "file"]
    contents = [place(directory, reference).read_bytes() for reference in references]
    for reference, content in zip(references, contents, strict=True):
        need(len(content) == reference["size"] == reference["length"] > 0, "size of a whole file")
        need(reference["offset"] == 0 and reference["rows"] == 0, "a whole file has no sections")
        need(half_sha256(content).hex() == reference["sha256"], "checksum of a whole file")
    return contents


def union_of(
    directory: Path, references: list[dict[str, Any]], version: int, families: list[dict[str, Any]]
) -> dict[Key, bytes]:
    """The rows of the chains of a union at `version`."""
    rows: dict[Key, bytes] = {}
    number = references[0]["union"]["chains"]
    need([one["union"]["chain"] for one in references] == sorted(one["union"]["chain"] for one in references), "order")
    for index in range(number):
        members = [one for one in references if one["union"]["chain"] == index]
        said = [(one["union"], one["filter"], one["families"]) for one in members]
        need(bool(said) and all(one == said[0] for one in said), "members of one chain are alike")
        need(members[0]["union"] == {"chain": index, "chains": number, "to": version}, "a chain of the union")
        theirs: dict[Key, bytes] = {}
        chain(directory, File(place(directory, members[0])), members, theirs, based=False)
        for (cf, key), value in theirs.items():
            ours = cf if members[0]["families"] is None else members[0]["families"].get(str(cf))
            if ours is None or not belongs(key, members[0]["filter"], families, ours):
                continue
            need((ours, key) not in rows, "chains have different keys")
            rows[ours, key] = value
    return rows


def belongs(key: bytes, filter: dict[str, int] | None, families: list[dict[str, Any]], family: int) -> bool:
    """Whether a filter lets a key through; only keys of one column of 64 bits are known here."""
    if filter is None:
        return True
    described = next((one for one in families if one["id"] == family), None)
    if described is None:
        return False
    (column,) = json.loads(described["key_schema"])["fields"]
    need(column["type"] == "long" and described["partition_key"] == {"kind": "key"}, "a key of one long")
    nulls, low, high = struct.unpack("<QII", key)
    bits = 42 if nulls else murmur_3([low, high])
    signed = bits - (1 << 32) if bits >> 31 else bits
    return signed % filter["partitions"] == filter["partition"]


def murmur_3(words: list[int]) -> int:
    """Murmur3 (x86, 32 bits) of words of 32 bits, with seed 42."""
    bits = (1 << 32) - 1
    h = 42
    for word in words:
        k = word * 0xCC9E2D51 & bits
        k = (k << 15 | k >> 17) & bits
        h ^= k * 0x1B873593 & bits
        h = (h << 13 | h >> 19) & bits
        h = (h * 5 + 0xE6546B64) & bits
    h ^= 4 * len(words)
    h = (h ^ h >> 16) * 0x85EBCA6B & bits
    h = (h ^ h >> 13) * 0xC2B2AE35 & bits
    return h ^ h >> 16


def apply(rows: dict[Key, bytes], content: list[tuple[int, int, bytes, bytes]]) -> None:
    for cf, op, key, value in content:
        if op == 1:
            rows[cf, key] = value
        elif op == 2:
            rows.pop((cf, key), None)
        else:
            rows[cf, key] = rows.get((cf, key), b"") + value
