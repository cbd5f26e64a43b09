"""The files of the kill campaign's checkpoint: which are whole, which are needed, which are orphans."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lamina.errors import LaminaError
from lamina.format.attempt_id import EMPTY, AttemptId
from lamina.format.container import verify
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CommitName
from lamina.storage import is_temporary


def committed(checkpoint: Path) -> int:
    """How many batches Spark has committed: 1 + the greatest number in its commit log."""
    try:
        numbers = [int(entry.name) for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit()]
    except FileNotFoundError:
        return 0
    return 1 + max(numbers, default=-1)


def attempts(checkpoint: Path, batch: int) -> list[str]:
    """The attempt of each partition that Spark's log names for a batch."""
    text = (checkpoint / "commits" / str(batch)).read_text()
    ids = json.loads(text.split("\n", 1)[1])["stateUniqueIds"]["0"]
    return [stores[0] for stores in ids]


@dataclass
class Footprints:
    """Collects which files the retained versions need, while the query goes on."""

    checkpoint: Path
    min_batches: int
    needed: set[Path] = field(default_factory=set)
    looked: set[int] = field(default_factory=set)

    def look(self) -> None:
        """Adds what the versions need that are retained now and were not looked at yet."""
        newest = committed(self.checkpoint)
        for batch in range(max(0, newest - 1 - self.min_batches), newest):
            if batch in self.looked:
                continue
            try:
                self._look_at(batch)
            except FileNotFoundError:
                # Spark purges batch N - 1 - min_batches when it begins batch N, long before it commits N
                if batch >= committed(self.checkpoint) - self.min_batches:
                    raise

    def _look_at(self, batch: int) -> None:
        for partition, attempt in enumerate(attempts(self.checkpoint, batch)):
            self._add(self.checkpoint / "state" / "0" / str(partition), AttemptId.parse(attempt))
        self.looked.add(batch)

    def _add(self, folder: Path, attempt: AttemptId) -> None:
        if attempt.kind == EMPTY:
            return
        path = folder / str(CommitName(attempt))
        manifest = verify(path.read_bytes(), str(path))
        assert isinstance(manifest, CommitManifest)
        self.needed.add(path)
        self.needed.update(folder / reference.path for reference in manifest.references if reference.path)


def state_files(checkpoint: Path) -> list[Path]:
    """The files of all stores, temporary ones too."""
    return sorted(path for path in (checkpoint / "state" / "0").glob("*/*") if path.is_file() and _is_store(path))


def _is_store(path: Path) -> bool:
    return path.parent.name.isdigit() and not path.name.endswith(".crc")


def orphans(checkpoint: Path, needed: set[Path], before: float) -> list[str]:
    """Files last written before `before` (seconds since 1970) that nothing needs, those cut off in `_lamina` too."""
    shared = (path for path in (checkpoint / "state" / "_lamina").rglob("*") if is_temporary(path.name))
    return [
        str(path.relative_to(checkpoint))
        for path in [*state_files(checkpoint), *shared]
        if path not in needed and path.stat().st_mtime < before
    ]


def damaged(checkpoint: Path) -> list[str]:
    """Published files that are not whole."""
    found = []
    for path in state_files(checkpoint):
        if path.name.startswith("."):
            continue
        try:
            verify(path.read_bytes(), path.name)
        except FileNotFoundError:
            continue
        except LaminaError as error:
            found.append(str(error))
    return found


def checked(checkpoint: Path) -> list[str]:
    """What `lamina fsck` finds wrong."""
    command = [sys.executable, "-m", "lamina.cli", "fsck", "--json", str(checkpoint)]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode == 0:
        return []
    try:
        stores = json.loads(found.stdout)["stores"]
    except ValueError:
        return [f"lamina fsck: {found.stderr.strip()}"]
    return [f"lamina fsck: {problem}" for store in stores for problem in store["problems"]]


def wait_for(checkpoint: Path, batches: int, seconds: float) -> bool:
    """Whether Spark has committed `batches` batches within `seconds`."""
    end = time.monotonic() + seconds
    while committed(checkpoint) < batches:
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True
