"""A store on tables of RocksDB whose local disk is full: `python -m tests.faults.full_local_disk_child <directory>`.

Needs a mount namespace (`unshare -m`): the local disk is a small file system. Prints one JSON object: for each step the
kind and the message of its error, null where there was none, and whether the store has all of its rows then.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError
from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore

MIB = 1 << 20
ROWS = 2000
ROW_BYTES = 400


def mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True, capture_output=True)


def main(folder: Path) -> None:
    local = folder / "local"
    local.mkdir()
    mount("-t", "tmpfs", "-o", f"size={6 * MIB}", "lamina-test", str(local))
    tempfile.tempdir = str(local)
    drawn = random.Random(1)
    store = open_store(str(folder / "checkpoint"), writable=True, backend="rocksdb", rocksdb_materialize_every=1)
    expected: dict[bytes, bytes] = {}

    def batch() -> None:
        for _ in range(ROWS):
            key = b"%08d" % drawn.randrange(10 * ROWS)
            expected[key] = drawn.randbytes(ROW_BYTES)
            store.put(key, expected[key])
        store.commit()

    def outcome(step: Callable[[], Any]) -> dict[str, str] | None:
        try:
            step()
        except LaminaError as error:
            return {"kind": error.kind, "message": error.message}
        return None

    def made() -> None:
        batch()
        store.compact()

    steps: dict[str, Any] = {}
    while (failed := outcome(made)) is None:
        # less than the file system holds, which would not end
        assert len(expected) * ROW_BYTES < 64 * MIB
    steps["materialization"] = failed
    steps["commit after it"] = outcome(batch)
    left = sorted(os.listdir(local))
    mount("-o", f"remount,size={256 * MIB}", str(local))
    steps["materialization with room"] = outcome(made)

    filler = local / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(MIB))
            except OSError:
                pass

    fill()
    # room for the names of a database, and not for what is new
    os.truncate(filler, filler.stat().st_size - ROWS * ROW_BYTES // 4)
    steps["ingesting"] = outcome(made)
    filler.unlink()
    steps["materialization after ingesting"] = outcome(made)
    # a link takes an inode of this file system: there is one more, for the directory of a database
    found = os.statvfs(local)
    mount("-o", f"remount,nr_inodes={found.f_files - found.f_ffree + 1}", str(local))
    steps["linking"] = outcome(made)
    left += sorted(os.listdir(local))
    mount("-o", "remount,nr_inodes=0", str(local))
    steps["materialization after linking"] = outcome(made)
    batch()

    def read() -> DirectStore:
        return open_store(str(folder / "checkpoint"), backend="rocksdb")

    fill()
    steps["restore"] = outcome(read)
    filler.unlink()
    steps["restore with room"] = outcome(read)
    rows = dict(read().scan())
    print("RESULT " + json.dumps({"steps": steps, "right": rows == expected, "left": left}), flush=True)
    subprocess.run(["umount", "-l", str(local)], check=False, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
