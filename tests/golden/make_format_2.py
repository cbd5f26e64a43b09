"""Writes the golden files of format version 2 anew: `python -m tests.golden.make_format_2 <directory>`.

As tests/golden/make_format_1.py, for what came with version 2: rewrites of parts of a state, begun on files of
version 1, through more than one cycle, with another number of parts, and left again. The last versions have sections of
several blocks, which are smaller than a release writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lamina.format import blocks
from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore
from lamina.testing import ManualClock, SequenceIds

FAMILIES = ("default", "lists")


def main(directory: Path) -> None:
    clock, ids = ManualClock(1_790_000_000_000), SequenceIds(1)
    expected = {}

    def opened(**settings: Any) -> DirectStore:
        return open_store(str(directory), writable=True, clock=clock, ids=ids, **settings)

    def commit(store: DirectStore) -> None:
        clock.advance(1000)
        version = store.commit()
        expected[f"{version.version}_{version.attempt}.lam"] = {
            family: {
                key.hex(): [element.hex() for element in value] if isinstance(value, list) else value.hex()
                for key, value in store.scan(family)
            }
            for family in FAMILIES
        }

    store = opened()
    for number in range(12):
        store.put(b"key %d" % number, b"value %d" % number)
    store.append(b"list", b"first", "lists")
    store.append(b"other list", b"x", "lists")
    commit(store)
    for parts, batches in ((3, 5), (2, 3)):
        store = opened(compaction_mode="rolling", compaction_rolling_parts=parts)
        for number in range(batches):
            store.put(b"key %d" % number, b"changed with %d parts" % parts)
            store.remove(b"key %d" % (3 * number + parts))
            store.append(b"list", b"%d" % number, "lists")
            if number == 2:
                store.remove(b"other list", "lists")
            commit(store)
    store = opened()
    store.put(b"last", b"one")
    commit(store)
    blocks.BLOCK_BYTES = 1000
    store = opened(compaction_mode="full", compaction_full_interval=2)
    for number in range(2):
        for key in range(40):
            store.put(b"key %d" % key, b"in blocks %d" % number)
        commit(store)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
