"""Files of the format with a manifest of the test's choice, whose checksums fit."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lamina.format import container, manifest
from lamina.format.manifest import CommitManifest, Reference


def sealed(body: bytes, value: Mapping[str, Any], version: int = container.PLAIN) -> bytes:
    """A file: `body`, which is its header and sections, then this manifest, then the footer that fits both."""
    text = manifest.to_bytes(value)
    stored = pa.Codec("zstd").compress(text, asbytes=True)
    size = len(body) + len(stored) + container.FOOTER.size
    return body + stored + container.footer(len(body), stored, len(text), size, version)


def with_base(data: bytes, base: Sequence[Reference], **changed: Any) -> bytes:
    """The file of a commit of which only its own increment is left, on top of `base`.

    Args:
        changed: further members of its manifest.
    """
    found = container.verify(data, "the commit")
    assert isinstance(found, CommitManifest)
    references = (next(one for one in found.references if one.path is None), *base)
    version = container.version_of({one.kind for one in references}, union=any(one.union for one in references))
    header = container.header(container.COMMIT, version)
    value = replace(found, references=references, header_crc=zlib.crc32(header), **changed).to_json()
    end = container.Footer.parse(data, len(data), "the commit").manifest_offset
    return sealed(header + data[len(header) : end], value, version)


def flippable(size: int, step: int) -> list[int]:
    """Every `step`-th byte of a file of `size` bytes, but those of its format version: with one of them flipped it says
    that a newer release wrote it, which is no damage. Its length hangs on random ids, so `step` may hit them."""
    header, footer = len(container.MAGIC), size - len(container.END_MAGIC) - 4
    versions = {*range(header, header + 2), *range(footer, footer + 4)}
    return [at for at in range(0, size, step) if at not in versions]


def without_sections(value: CommitManifest) -> bytes:
    """The file of a commit that brings no changes of its own, with a manifest of the test's choice."""
    kinds = {one.kind for one in value.references}
    version = container.version_of(kinds, union=any(one.union for one in value.references))
    header = container.header(container.COMMIT, version)
    return sealed(header, replace(value, sections=(), header_crc=zlib.crc32(header)).to_json(), version)
