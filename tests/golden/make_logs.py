"""Writes the golden files of log objects anew: `python -m tests.golden.make_logs <directory>`.

As tests/golden/make_format_1.py: three stores whose commits are parts of objects, with puts, deletes and appends, a
part that is lacking, and a version whose chain has files and parts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lamina.format.entries import DELETE, PUT
from lamina.storage import Storage
from tests.unit.store.grouped import Grouped
from tests.unit.store.writing import Change, Query


def main(directory: Path) -> None:
    grouped = Grouped(Query(Storage(str(directory / "state"))))
    stores, versions = grouped.begun(3)
    expected: dict[str, dict[str, str]] = {}
    for number in range(6):
        grouped.query.clock.advance(1000)
        if number == 3:
            # one that is never filled
            grouped.groups.reserve().drop()
        if number == 4:
            stores[2] = grouped.open(2, groups=False)
        accepted = []
        for place, store in enumerate(stores):
            changes: dict[bytes, Change] = {
                b"key %d" % one: (PUT, b"value %d of store %d" % (number, place)) for one in range(number, number + 4)
            }
            if number:
                changes[b"key %d" % (number - 1)] = (DELETE, b"")
            accepted.append(grouped.accept(store, versions[place], changes))
        grouped.seal()
        for place, one in enumerate(accepted):
            one.publish()
            versions[place] = type(versions[place])(versions[place].version + 1, one.attempt)
            rows = {key.hex(): value.hex() for key, value in grouped.query.states[one.attempt].items()}
            expected[f"0/{place}/{versions[place].version}_{one.attempt}.lam"] = rows
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
