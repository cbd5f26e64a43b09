"""Files of the format with a manifest of the test's choice, whose checksums fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lamina.format import container, manifest


def sealed(body: bytes, value: Mapping[str, Any]) -> bytes:
    """A file: `body`, which is its header and sections, then this manifest, then the footer that fits both."""
    text = manifest.to_bytes(value)
    stored = pa.Codec("zstd").compress(text, asbytes=True)
    size = len(body) + len(stored) + container.FOOTER.size
    return body + stored + container.footer(len(body), stored, len(text), size)
