"""The container of `.lam`, `.seg` and `.rdb` files: header, sections, manifest, footer (docs/spec/files.md).

The writer yields the bytes of a file while its sections are produced, so that nothing has to fit into memory. The
reader works on bytes and knows no storage.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format import manifest
from lamina.format.blocks import BlockHasher, half_sha256
from lamina.format.entries import Compression, Written, encode
from lamina.format.manifest import CommitManifest, Section, SegmentManifest, StoreIdentity
from lamina.format.table_list import TableListManifest

PLAIN = 1
REWRITES = 2
BASES = 3
"""Format versions: 2 where a commit refers to rewrites, and 3 where to whole files or a union, which readers of smaller
ones would misunderstand, else 1."""

FORMAT_VERSION = BASES
"""The greatest format version that this release reads."""

COMMIT = 1
SEGMENT = 2
TABLE_LIST = 3
LOG = 4

MAGIC = b"LAMINA\r\n"
END_MAGIC = b"\r\nANIMAL"
HEADER = struct.Struct("<8sHB5x")
FOOTER = struct.Struct("<QQQ16sQII8s")
_FOOTER_CRC_BYTES = 48

MAX_MANIFEST_BYTES = 256 << 20
"""No manifest is larger; a damaged length must not allocate the machine's memory."""

Manifest = CommitManifest | SegmentManifest | TableListManifest

_CODEC = pa.Codec("zstd", compression_level=1)

_KINDS = {"segment": SEGMENT, "list": TABLE_LIST, "attempt": COMMIT}
"""Kinds of files by the member of their manifest that has their id."""

_Parsed = TypeVar("_Parsed")


def checksum(*chunks: Any) -> str:
    """First 16 bytes of SHA-256, in hexadecimal."""
    return half_sha256(*chunks).hex()


def version_of(kinds: Collection[str], *, union: bool) -> int:
    """The format version of a commit with references of these kinds, some of them to a union or none."""
    if union or manifest.FILE in kinds:
        return BASES
    return REWRITES if manifest.REWRITE in kinds else PLAIN


def header(kind: int, version: int = PLAIN) -> bytes:
    """The first 16 bytes of a file."""
    return HEADER.pack(MAGIC, version, kind)


class ContainerWriter:
    """Writes one container: `chunks` yields its bytes; afterwards the other attributes describe it."""

    def __init__(self, kind: int, compression: Compression, version: int = PLAIN) -> None:
        self._kind = kind
        self._version = version
        self._compression = compression
        self.sections: list[Section] = []
        self.size = 0
        self.raw_bytes = 0

    def chunks(
        self,
        sections: Iterable[tuple[str, Iterable[pa.RecordBatch]]],
        manifest_of: Callable[[tuple[Section, ...], int], bytes],
    ) -> Iterator[Any]:
        """The bytes of the file.

        Args:
            sections: names and entries, consumed in order.
            manifest_of: gives the JSON of the manifest; called when all sections are written, with them and the CRC-32
                of the header.
        """
        first = header(self._kind, self._version)
        self.size = len(first)
        yield first
        for name, batches in sections:
            yield from self._section(name, batches)
        text = manifest_of(tuple(self.sections), zlib.crc32(first))
        stored = _CODEC.compress(text, asbytes=True)
        offset = self.size
        self.size += len(stored) + FOOTER.size
        yield stored
        yield footer(offset, stored, len(text), self.size, self._version)

    def _section(self, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        offset, written, hasher = self.size, Written(), BlockHasher()
        for chunks in encode(batches, self._compression, written):
            for chunk in chunks:
                hasher.update(chunk)
                self.size += len(chunk)
                yield chunk
        sha256, blocks = hasher.finish()
        block_bytes = hasher.block_bytes if blocks else 0
        self.sections.append(Section(name, offset, self.size - offset, written.rows, sha256, block_bytes, blocks))
        self.raw_bytes += written.raw_bytes
        padding = -self.size % 8
        if padding:
            self.size += padding
            yield bytes(padding)


def footer(manifest_offset: int, stored: bytes, manifest_length: int, file_length: int, version: int = PLAIN) -> bytes:
    """The last 64 bytes of a file."""
    sha = half_sha256(stored)
    body = struct.pack("<QQQ16sQ", manifest_offset, len(stored), manifest_length, sha, file_length)
    return body + struct.pack("<II8s", zlib.crc32(body), version, END_MAGIC)


@dataclass(frozen=True)
class Footer:
    """A verified footer."""

    manifest_offset: int
    stored_length: int
    manifest_length: int
    sha256: bytes
    file_length: int
    version: int

    @classmethod
    def parse(cls, tail: Any, size: int, path: str) -> Footer:
        """The footer at the end of `tail`, the last bytes of a file of `size` bytes.

        Raises:
            LaminaError: `file.damaged`, or `file.version` for a newer format, naming `path`.
        """
        view = memoryview(tail)
        if size < HEADER.size + FOOTER.size or len(view) < FOOTER.size:
            raise damaged(path, f"it has {size} bytes, fewer than any whole file")
        raw = view[-FOOTER.size :]
        offset, stored, length, sha, file_length, crc, version, magic = FOOTER.unpack(raw)
        if magic != END_MAGIC:
            raise damaged(path, "it does not end as a file of lamina; it was cut off or written by something else")
        if zlib.crc32(raw[:_FOOTER_CRC_BYTES]) != crc:
            raise damaged(path, "its footer does not fit its checksum")
        if version > FORMAT_VERSION:
            raise newer(path, version)
        if version < PLAIN:
            raise damaged(path, f"its footer names format version {version}")
        if file_length != size:
            raise damaged(path, f"it has {size} bytes where its footer says {file_length}")
        if offset + stored + FOOTER.size != size or offset < HEADER.size or length > MAX_MANIFEST_BYTES:
            raise damaged(path, "its footer places the manifest outside the file")
        return cls(offset, stored, length, sha, file_length, version)

    def manifest(self, stored: Any, path: str) -> dict[str, Any]:
        """The manifest's JSON from its bytes as stored, verified."""
        if half_sha256(stored) != self.sha256:
            raise damaged(path, "its manifest does not fit its checksum")
        try:
            text = pa.Codec("zstd").decompress(stored, decompressed_size=self.manifest_length, asbytes=True)
            # the maps of a union say which keys belong to a version; other manifests are spared the time
            value = json.loads(text, object_pairs_hook=_object if self.version >= BASES else None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise damaged(path, f"its manifest cannot be read ({error})") from error
        if not isinstance(value, dict):
            raise damaged(path, "its manifest is no object")
        references = value.get("references")
        found = [one for one in references if isinstance(one, dict)] if isinstance(references, list) else []
        union = any(one.get("union") is not None for one in found)
        needed = version_of({str(one.get("kind")) for one in found}, union=union)
        if self.version != needed:
            raise damaged(path, f"its footer names format version {self.version}, and its manifest is of {needed}")
        return value

    def contents(self, value: Mapping[str, Any], path: str) -> Contents:
        """What the manifest says of its own file, where all sections lie one after the other before it."""
        contents = parse(Contents.from_json, value, path)
        position = HEADER.size
        for section in contents.sections:
            behind = section.offset + section.length
            if section.offset % 8 or section.offset < position or not section.offset <= behind <= self.manifest_offset:
                raise damaged(path, f"section {section.name!r} lies outside its place")
            position = behind
        return contents


@dataclass(frozen=True)
class Contents:
    """What a manifest says of its own file: of which kind and whose it is, and what is in it; not what it refers to.

    A long chain is read file by file, and each one's manifest refers to all before it.

    Args:
        id: of the attempt, of the segment or of the list.
        sections: in the order in which they lie in the file.
    """

    kind: int
    id: str
    store: StoreIdentity
    sections: tuple[Section, ...]
    header_crc: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Contents:
        name = _named_by(value)
        sections = sorted(map(Section.from_json, value["sections"]), key=lambda section: section.offset)
        store = StoreIdentity.from_json(value["store"])
        return cls(_KINDS[name], str(value[name]), store, tuple(sections), int(value["header_crc"]))


def check_header(first: Any, kind: int, header_crc: int, path: str) -> None:
    """Verifies the first 16 bytes of a file against its manifest."""
    raw = bytes(memoryview(first)[: HEADER.size])
    if len(raw) < HEADER.size or raw[:8] != MAGIC:
        raise damaged(path, "it does not begin as a file of lamina")
    _, version, found = HEADER.unpack(raw)
    if zlib.crc32(raw) != header_crc:
        if version > FORMAT_VERSION:
            raise newer(path, version)
        raise damaged(path, "its header does not fit its checksum")
    if found != kind or not PLAIN <= version <= FORMAT_VERSION:
        raise damaged(path, f"its header says kind {found}, version {version}")


def check_section(data: Any, section: Section, path: str) -> None:
    """Verifies the bytes of one section."""
    if len(data) != section.length:
        raise damaged(path, f"section {section.name!r} ends after {len(data)} of {section.length} bytes")
    view = memoryview(data)
    if any(half_sha256(view[start:end]) != checksum for start, end, checksum in section.blocks_in_order()):
        raise damaged(path, f"section {section.name!r} does not fit its checksum")


def check_whole(data: Any, contents: Contents, end: Footer, path: str) -> None:
    """Verifies the header and the padding of a whole file."""
    view = memoryview(data)
    check_header(view, contents.kind, contents.header_crc, path)
    position = HEADER.size
    for section in contents.sections:
        if any(view[position : section.offset]):
            raise damaged(path, "its padding is not zero")
        position = section.offset + section.length
    if any(view[position : end.manifest_offset]):
        raise damaged(path, "its padding is not zero")


def verify(data: Any, path: str) -> Manifest:
    """Verifies every byte of a whole file and gives its manifest."""
    view = memoryview(data)
    end = Footer.parse(view, len(view), path)
    value = end.manifest(view[end.manifest_offset : -FOOTER.size], path)
    contents = end.contents(value, path)
    check_whole(view, contents, end, path)
    for section in contents.sections:
        check_section(view[section.offset : section.offset + section.length], section, path)
    return parse_manifest(value, path)


def _object(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object has a key twice")
    return found


def parse_manifest(value: Mapping[str, Any], path: str) -> Manifest:
    """The manifest that `value` is."""
    match _named_by(value):
        case "segment":
            return parse(SegmentManifest.from_json, value, path)
        case "list":
            return parse(TableListManifest.from_json, value, path)
        case _:
            return parse(CommitManifest.from_json, value, path)


def id_of(manifest: Manifest) -> str:
    """The id of the attempt, the segment or the list that a manifest is of."""
    if isinstance(manifest, CommitManifest):
        return manifest.attempt
    return manifest.segment if isinstance(manifest, SegmentManifest) else manifest.list


def _named_by(value: Mapping[str, Any]) -> str:
    """The member of a manifest that has its file's id."""
    return next((name for name in _KINDS if name in value), "attempt")


def parse(from_json: Callable[[Mapping[str, Any]], _Parsed], value: Mapping[str, Any], path: str) -> _Parsed:
    """What `from_json` makes of the JSON of a manifest."""
    try:
        return from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(path, f"its manifest lacks what it must have ({type(error).__name__}: {error})") from error


def damaged(path: str, reason: str) -> LaminaError:
    """The error that a file is damaged."""
    return LaminaError.from_kind("file.damaged", f"{path} is damaged: {reason}")


def newer(path: str, version: int) -> LaminaError:
    """The error that a file needs a newer release."""
    return LaminaError.from_kind(
        "file.version",
        f"{path} has format version {version}; this release reads up to {FORMAT_VERSION}: use a newer lamina",
    )
