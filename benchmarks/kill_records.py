"""The records of the kill campaign, which say themselves what they are, and the judge of what the query made of them.

A record is (key, number of the record within its key, time). The query collects, per key and window of time, the list
of `<number>:<tag>`; the tag differs each time that a record is read. So an output shows which records are in the state,
in which order, and by which execution of a batch they came there: of two executions of one batch only the one counts
whose output is the last that was written before Spark committed the batch.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

KEYS = 40
RECORDS = 60
SECONDS_A_BATCH = 10
WINDOW_S = 200
DELAY_S = 100
START_S = 1_700_000_000

Place = tuple[int, str]
"""Start of the window in seconds since 1970, and key."""


@dataclass
class Feed:
    """Input files, one for each batch; the same seed gives the same files."""

    folder: Path
    seed: int
    batches: list[dict[Place, list[int]]] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)

    def up_to(self, batches: int) -> None:
        """Writes files until there are `batches` of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while len(self.batches) < batches:
            self._add(len(self.batches))

    def touch_all(self) -> None:
        """One more file, with a record for each window and key that is still open."""
        seconds = START_S + (len(self.batches) - 1) * SECONDS_A_BATCH
        places = {place for batch in self.batches for place in batch}
        self._write([(key, start) for start, key in sorted(places) if start + WINDOW_S > seconds - DELAY_S])

    def _add(self, batch: int) -> None:
        drawn = random.Random(self.seed * 1_000_003 + batch)
        seconds = START_S + batch * SECONDS_A_BATCH
        self._write([(f"key {drawn.randrange(KEYS):02d}", seconds) for _ in range(RECORDS)])

    def _write(self, records: list[tuple[str, int]]) -> None:
        """The file of the next batch, of keys and times."""
        batch = len(self.batches)
        found: dict[Place, list[int]] = {}
        lines = []
        for key, seconds in records:
            self.numbers[key] += 1
            found.setdefault((seconds - seconds % WINDOW_S, key), []).append(self.numbers[key])
            time = datetime.fromtimestamp(seconds, timezone.utc).isoformat()
            lines.append(json.dumps({"k": key, "s": self.numbers[key], "t": time}))
        self.batches.append(found)
        temporary = self.folder / f".{batch}"
        temporary.write_text("\n".join(lines) + "\n")
        # the source takes files in the order of their times
        os.utime(temporary, (START_S + batch, START_S + batch))
        temporary.rename(self.folder / f"{batch:06d}.json")


@dataclass
class Judge:
    """Counts what is wrong in the outputs of committed batches."""

    feed: Feed
    outputs: Path
    checked: int = 0
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    foreign: int = 0
    examples: list[str] = field(default_factory=list)
    state: dict[Place, list[str]] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        return self.lost + self.duplicated + self.reordered + self.foreign

    def check(self, committed: int) -> None:
        """Checks the outputs of batches below `committed` that were not checked yet."""
        for batch in range(self.checked, committed):
            path = self.outputs / f"{batch}.json"
            found = {(start, key): list(items) for start, key, items in json.loads(path.read_text())}
            expected = self.feed.batches[batch]
            for place in {*found, *expected}:
                self._compare(batch, place, found.get(place, []), expected.get(place, []))
            self.checked = batch + 1

    def _compare(self, batch: int, place: Place, found: list[str], added: list[int]) -> None:
        before = self.state.get(place, [])
        numbers = [int(item.split(":")[0]) for item in found]
        wanted = [*(int(item.split(":")[0]) for item in before), *added]
        counts = Counter(numbers)
        lost = sum((Counter(wanted) - counts).values())
        duplicated = sum((counts - Counter(wanted)).values())
        reordered = int(lost == duplicated == 0 and numbers != wanted)
        foreign = 0
        if not (lost or duplicated or reordered):
            foreign = sum(one != other for one, other in zip(before, found, strict=False))
        if lost or duplicated or reordered or foreign:
            self.examples.append(f"batch {batch}, {place}: {found} after {before} with {added}")
        self.records += len(added)
        self.lost += lost
        self.duplicated += duplicated
        self.reordered += reordered
        self.foreign += foreign
        self.state[place] = found
