"""Writes the golden files of format version 1 anew: `python -m tests.golden.make_format_1 <directory>`.

The files in tests/golden/format-1 were made once with this and stay as they are: a release must read what an older one
wrote. What it wrote is in expected.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore
from lamina.testing import ManualClock, SequenceIds

FAMILIES = ("default", "lists")


def main(directory: Path) -> None:
    clock, ids = ManualClock(1_790_000_000_000), SequenceIds(1)
    expected = {}

    def commit(store: DirectStore, *, snapshot: bool = False) -> None:
        clock.advance(1000)
        version = store.commit(snapshot=snapshot)
        expected[f"{version.version}_{version.attempt}.lam"] = {
            family: {
                key.hex(): [element.hex() for element in value] if isinstance(value, list) else value.hex()
                for key, value in store.scan(family)
            }
            for family in FAMILIES
        }

    store = open_store(str(directory), writable=True, clock=clock, ids=ids)
    for number in range(20):
        store.put(b"key %d" % number, b"value %d" % number)
    store.put(b"", b"empty key")
    store.put(b"empty value", b"")
    commit(store)
    store.append(b"list", b"first", "lists")
    store.remove(b"key 3")
    commit(store)
    store.append(b"list", b"second", "lists")
    store.append(b"list", b"", "lists")
    store.append(b"other list", b"x", "lists")
    store.put(b"key 3", b"back")
    commit(store)
    commit(store)
    store.compact()
    store.remove(b"other list", "lists")
    store.put(bytes(range(256)), bytes(range(255, -1, -1)))
    commit(store)
    store.append(b"list", b"third", "lists")
    commit(store, snapshot=True)
    for codec in ("lz4", "uncompressed"):
        store = open_store(str(directory), writable=True, clock=clock, ids=ids, compression_codec=codec)
        store.put(b"codec", codec.encode())
        commit(store)
    store = open_store(
        str(directory), writable=True, clock=clock, ids=ids, compaction_mode="full", compaction_full_interval=3
    )
    store.remove(b"codec")
    commit(store)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
