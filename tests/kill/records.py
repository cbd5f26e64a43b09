"""The records of the kill campaign, which say themselves what they are, and the judge of what the query made of them.

A record is (key, number of the record within its key, time). The query collects, per key and window of time, the list
of `<number>:<tag>`; the tag differs each time that a record is read. So an output shows which records are in the state,
in which order, and by which execution of a batch they came there: of two executions of one batch only the one counts
whose output is the last that was written before Spark committed the batch.

A batch reads one file, but for the batch after the kill of a driver whose source had logged the next file and whose
query had not: Spark then takes that file and the one after it for one batch. An output says how far it has read.
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
SECONDS_A_FILE = 10
WINDOW_S = 200
DELAY_S = 100
START_S = 1_700_000_000

Place = tuple[int, str]
"""Start of the window in seconds since 1970, and key."""


@dataclass
class Feed:
    """Input files, of so many `records` each; the same seed gives the same files."""

    folder: Path
    seed: int
    keys: int = KEYS
    records: int = RECORDS
    files: list[dict[Place, list[int]]] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)

    def up_to(self, files: int) -> None:
        """Writes files until there are `files` of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while len(self.files) < files:
            self._add(len(self.files))

    def touch_all(self) -> None:
        """One more file, with a record for each window and key that is still open."""
        seconds = START_S + (len(self.files) - 1) * SECONDS_A_FILE
        places = {place for file in self.files for place in file}
        self._write([(key, start) for start, key in sorted(places) if start + WINDOW_S > seconds - DELAY_S])

    def _add(self, file: int) -> None:
        drawn = random.Random(self.seed * 1_000_003 + file)
        seconds = START_S + file * SECONDS_A_FILE
        self._write([(f"key {drawn.randrange(self.keys):02d}", seconds) for _ in range(self.records)])

    def _write(self, records: list[tuple[str, int]]) -> None:
        """The next file, of keys and times."""
        file = len(self.files)
        found: dict[Place, list[int]] = {}
        lines = []
        for key, seconds in records:
            self.numbers[key] += 1
            found.setdefault((seconds - seconds % WINDOW_S, key), []).append(self.numbers[key])
            time = datetime.fromtimestamp(seconds, timezone.utc).isoformat()
            lines.append(json.dumps({"k": key, "s": self.numbers[key], "t": time}))
        self.files.append(found)
        temporary = self.folder / f".{file}"
        temporary.write_text("\n".join(lines) + "\n")
        # the source takes files in the order of their times
        os.utime(temporary, (START_S + file, START_S + file))
        temporary.rename(self.folder / f"{file:06d}.json")


@dataclass
class Judge:
    """Counts what is wrong in the outputs of committed batches."""

    feed: Feed
    outputs: Path
    checked: int = 0
    read: int = 0
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

    @property
    def joined(self) -> int:
        """How many files more than batches were read."""
        return self.read - self.checked

    def check(self, committed: int) -> None:
        """Checks the outputs of batches below `committed` that were not checked yet."""
        for batch in range(self.checked, committed):
            output = json.loads((self.outputs / f"{batch}.json").read_text())
            found = {(start, key): list(items) for start, key, items in output["rows"]}
            files = self.feed.files[self.read : output["read"]]
            for place in {*found, *(place for file in files for place in file)}:
                added = [number for file in files for number in file.get(place, [])]
                self._compare(batch, place, found.get(place, []), added, in_order=len(files) == 1)
            self.checked, self.read = batch + 1, output["read"]

    def _compare(self, batch: int, place: Place, found: list[str], added: list[int], *, in_order: bool) -> None:
        before = self.state.get(place, [])
        numbers = [int(item.split(":")[0]) for item in found]
        if not in_order:
            # which of its files a batch reads first is Spark's choice
            numbers[len(before) :] = sorted(numbers[len(before) :])
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
