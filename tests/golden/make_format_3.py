"""Writes the golden files of format version 3 anew: `python -m tests.golden.make_format_3 <directory>`.

As tests/golden/make_format_1.py, for bases that no mode writes yet: the checkpoint `new` stands on the checkpoint `old`
beside it. Its store 0/0 is a union of both old stores with all keys, 0/1 and 0/2 have the keys of two of three
partitions and another column family id, and 0/3 stands on whole files.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lamina.format.attempt_id import AttemptId
from lamina.format.blocks import half_sha256
from lamina.format.container import verify
from lamina.format.manifest import FILE, ColumnFamily, CommitManifest, Count, Filter, Lineage, Reference, UnionMember
from lamina.store.direct.open import open_store
from lamina.store.direct.store import DirectStore
from lamina.testing import ManualClock, SequenceIds
from tests.golden import decoder
from tests.sealed import without_sections

SCHEMA = {"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]}
DESCRIPTION = {
    "multi_value": False,
    "key_schema": json.dumps(SCHEMA),
    "key_bytes": "row",
    "partition_key": {"kind": "key"},
}
VERSION = 11


def main(directory: Path) -> None:
    clock, ids = ManualClock(1_790_000_000_000), SequenceIds(1)
    new = directory / "new" / "state"
    chains: list[list[Reference]] = []

    def opened(where: str, partition: int, **settings: Any) -> DirectStore:
        return open_store(str(directory / where), 0, partition, writable=True, clock=clock, ids=ids, **settings)

    for partition, settings in enumerate(({}, {"compaction_mode": "rolling", "compaction_rolling_parts": 2})):
        old = opened("old", partition, **settings)
        for number in range(6):
            clock.advance(1000)
            for one in range(10 * number, 10 * number + 14):
                old.put(struct.pack("<qq", 0, 2 * one + partition), b"value %d" % number)
            old.remove(struct.pack("<qq", 0, 20 * number + partition))
            old.commit()
            old.compact()
        clock.advance(1000)
        old.put(struct.pack("<qq", 1, 0) if partition else b"\0" * 16, b"of null" if partition else b"of zero")
        old.commit()
        chains.append(references(directory, partition, old))
    expected = {}

    def stand(partition: int, bases: Sequence[Reference], family: int) -> str:
        """Makes the version of a new store that is `bases`; gives its file's name."""
        opened("new", partition).compact()
        attempt = str(AttemptId.for_file(VERSION, 1, ids.hex128()))
        uuid = json.loads((new / "_lamina" / "checkpoint").read_text())["uuid"]
        found = verify(next((directory / "old/state/0/0").glob("7_*.lam")).read_bytes(), "")
        assert isinstance(found, CommitManifest)
        manifest = replace(
            found,
            attempt=attempt,
            version=VERSION,
            base=None,
            store=replace(found.store, checkpoint=uuid, partition=partition),
            references=tuple(bases),
            lineage=Lineage(),
            counts={},
            column_families=(ColumnFamily(family, "default", DESCRIPTION),),
            next_column_family=family + 1,
        )
        path = new / "0" / str(partition) / f"{VERSION}_{attempt}.lam"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(without_sections(manifest))
        if bases[0].union:
            rows = decoder.state(path.parent, path.name)
            counted = Count(len(rows), sum(len(key) + len(value) for (_, key), value in rows.items()))
            path.write_bytes(without_sections(replace(manifest, counts={family: counted})))
        return f"{partition}/{path.name}"

    def note(name: str, store: DirectStore) -> None:
        rows = {key.hex(): value.hex() for key, value in store.scan() if isinstance(value, bytes)}
        expected[name] = rows

    for partition, filter, families in ((0, None, None), (1, Filter(3, 0), ((0, 4),)), (2, Filter(3, 2), ((0, 4),))):
        members = [
            replace(reference, union=UnionMember(chain, 2, VERSION, filter, families))
            for chain, found in enumerate(chains)
            for reference in found
        ]
        name = stand(partition, members, 0 if families is None else 4)
        store = opened("new", partition, storage_roots=str(directory / "old"))
        note(name, store)
        clock.advance(1000)
        store.put(struct.pack("<qq", 0, 1), b"further")
        store.commit()
        note(f"{partition}/{store.version.version}_{store.version.attempt}.lam", store)
    tables = []
    for number in range(2):
        content = b"a table that is no container %d" % number * 20
        path = new / "0" / "3" / f"{number:032x}.sst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256, origin = half_sha256(content).hex(), replace(chains[0][0].origin, partition=3)
        tables.append(Reference(None, path.name, 0, len(content), len(content), sha256, FILE, 0, VERSION, 0, origin))
    stand(3, tables, 0)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def references(directory: Path, partition: int, store: DirectStore) -> list[Reference]:
    """What the version of an old store consists of, as the new ones refer to it."""
    path = directory / "old/state/0" / str(partition) / f"{store.version.version}_{store.version.attempt}.lam"
    manifest = verify(path.read_bytes(), "")
    assert isinstance(manifest, CommitManifest)
    return [
        replace(reference.placed(path.name, path.stat().st_size), root=f"../old/state/0/{partition}")
        for reference in manifest.references
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
