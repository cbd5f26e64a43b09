"""Writes the golden files of lists of tables anew: `python -m tests.golden.make_tables <directory>`.

As tests/golden/make_format_1.py: a store on tables of RocksDB, with puts, deletes and appends in tables and above them.
RocksDB has its own say in the bytes of tables, so these are other ones each time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lamina.store.direct.open import open_store
from lamina.testing import ManualClock, SequenceIds


def main(directory: Path) -> None:
    clock, ids = ManualClock(1_790_000_000_000), SequenceIds(1)
    store = open_store(
        str(directory), 0, 0, writable=True, clock=clock, ids=ids, backend="rocksdb", rocksdb_materialize_every=2
    )
    expected = {}
    for number in range(9):
        clock.advance(1000)
        for one in range(30 * number, 30 * number + 45):
            store.put(b"key %05d" % one, b"value %d of %d" % (number, one))
        store.remove(b"key %05d" % (30 * number))
        store.commit()
        if number % 3 == 1:
            store.compact()
        rows = {key.hex(): value.hex() for key, value in store.scan() if isinstance(value, bytes)}
        expected[f"{store.version.version}_{store.version.attempt}.lam"] = rows
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
