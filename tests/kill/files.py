"""The files of the kill campaign's checkpoint: which are whole, which are needed, which are orphans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from lamina.errors import LaminaError
from lamina.format import log_object, paths
from lamina.format.attempt_id import EMPTY, GROUP, AttemptId
from lamina.format.container import verify
from lamina.format.log_object import PartId
from lamina.format.manifest import CommitManifest
from lamina.format.paths import CommitName, TableName, parse_name
from lamina.storage import is_temporary
from lamina.store.collection.classes import TEMPORARY, least_age_ms
from lamina.store.files.locator import attempt_of


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, looked at past lamina's own storage.

    Args:
        url: as Spark and lamina take it.
        system: the file system in which it lies.
        root: where it lies there.
        hadoop: the keys of Hadoop with which lamina reaches it.
        apart: a directory of this machine that log objects lie below; None where they are in the checkpoint.
    """

    url: str
    system: Any
    root: str
    hadoop: Mapping[str, str] = field(default_factory=dict)
    apart: Path | None = None

    @staticmethod
    def on_disk(directory: Path, apart: Path | None = None) -> Checkpoint:
        """A directory of this machine."""
        return Checkpoint(str(directory), fsspec.filesystem("file"), str(directory), apart=apart)

    def names(self, directory: str) -> list[str]:
        """What lies directly in a directory; nothing where it does not exist."""
        try:
            return [path.rsplit("/", 1)[1] for path in self.system.ls(f"{self.root}/{directory}", detail=False)]
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        """A file's bytes, of a log object wherever it lies; FileNotFoundError where it is not there."""
        apart = self.log_apart().get(path) if _log_of(path) else None
        return bytes(self.system.cat_file(f"{self.root}/{path}" if apart is None else apart["name"]))

    def written(self, directory: str) -> dict[str, float]:
        """All files below a directory, and when each was last written, in seconds since 1970."""
        found = self.system.find(f"{self.root}/{directory}", detail=True)
        here = {path.removeprefix(f"{self.root}/"): info for path, info in sorted(found.items())}
        there = {path: info for path, info in self.log_apart().items() if path.startswith(f"{directory}/")}
        return {path: _written(info) for path, info in {**here, **there}.items()}

    def log_apart(self) -> dict[str, Mapping[str, Any]]:
        """Log objects that lie apart, and temporary files there, by where they would be in the checkpoint."""
        found = self.system.find(str(self.apart), detail=True) if self.apart is not None else {}
        would = {f"state/{paths.LOG}/{path.rsplit('/', 1)[1]}": info for path, info in found.items()}
        return {path: info for path, info in would.items() if is_temporary(path.rsplit("/", 1)[1]) or _log_of(path)}


def _written(info: Mapping[str, Any]) -> float:
    when = info["mtime"] if "mtime" in info else info["LastModified"]
    return when.timestamp() if isinstance(when, datetime) else float(when)


def committed(checkpoint: Checkpoint) -> int:
    """How many batches Spark has committed: 1 + the greatest number in its commit log."""
    return 1 + max((int(name) for name in checkpoint.names("commits") if name.isdigit()), default=-1)


def attempts(checkpoint: Checkpoint, batch: int) -> list[str]:
    """The attempt of each partition that Spark's log names for a batch."""
    text = checkpoint.read(f"commits/{batch}").decode()
    ids = json.loads(text.split("\n", 1)[1])["stateUniqueIds"]["0"]
    return [stores[0] for stores in ids]


@dataclass
class Footprints:
    """Collects which files the retained versions need, while the query goes on."""

    checkpoint: Checkpoint
    min_batches: int
    needed: set[str] = field(default_factory=set)
    parts: set[tuple[str, int]] = field(default_factory=set)
    """By store, the versions of commits in log objects that are needed: other attempts of these stay with them."""
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
            self._add(f"state/0/{partition}", AttemptId.parse(attempt))
        self.looked.add(batch)

    def _add(self, directory: str, attempt: AttemptId) -> None:
        if attempt.kind == EMPTY:
            return
        path = _place(directory, str(CommitName(attempt)))
        data = self.checkpoint.read(path)
        manifest = verify(data if attempt.kind != GROUP else _part(data, path, attempt), path)
        assert isinstance(manifest, CommitManifest)
        self.needed.add(path)
        names = [reference.path for reference in manifest.references if reference.path]
        self.needed.update(_place(directory, name) for name in names)
        parts = [part for part in map(attempt_of, (str(CommitName(attempt)), *names)) if part is not None]
        self.parts.update((directory, part.version) for part in parts if part.kind == GROUP)


def _place(directory: str, name: str) -> str:
    """Where a file of a store is, or the log object that has it as a part."""
    attempt = attempt_of(name)
    if attempt is None or attempt.kind != GROUP:
        return f"{directory}/{name}"
    return f"state/{paths.log_path(PartId.of(attempt).log)}"


def _part(data: bytes, path: str, attempt: AttemptId) -> bytes:
    """The commit of an attempt in a log object."""
    index = log_object.verify(data, PartId.of(attempt).log, path)
    part = next(part for part in index.parts if part.attempt == str(attempt))
    return data[part.offset : part.offset + part.length]


def state_files(checkpoint: Checkpoint) -> dict[str, float]:
    """The files of all stores, temporary ones too, and when each was last written."""
    return {path: written for path, written in checkpoint.written("state/0").items() if _is_store(path)}


def _is_store(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 4 and parts[2].isdigit() and not parts[3].endswith(".crc")


def orphans(checkpoint: Checkpoint, footprints: Footprints, before: float, min_age_s: float) -> list[str]:
    """Files last written before `before` (seconds since 1970) that nothing needs, log objects and those cut off in
    `_lamina`, too. Of cut off ones those that are old enough to go: another process may go on with one."""
    cut_off = before - (least_age_ms(TEMPORARY, 1000) / 1000 - 1) * min_age_s
    shared = checkpoint.written("state/_lamina").items()
    others = {path: written for path, written in shared if is_temporary(path.rsplit("/", 1)[1]) or _log_of(path)}
    found = {**state_files(checkpoint), **others}
    old = [
        path
        for path, written in found.items()
        if path not in footprints.needed and written < (cut_off if is_temporary(path.rsplit("/", 1)[1]) else before)
    ]
    return [path for path in old if not _stays(checkpoint, path, footprints)]


def _stays(checkpoint: Checkpoint, path: str, footprints: Footprints) -> bool:
    """Whether a log object has another attempt of a version that is needed."""
    if (log := _log_of(path)) is None:
        return False
    parts = log_object.verify(checkpoint.read(path), log, path).parts
    return any((f"state/{part.store.operator}/{part.store.partition}", part.to) in footprints.parts for part in parts)


def _log_of(path: str) -> str | None:
    return paths.log_of(path.removeprefix("state/"))


def damaged(checkpoint: Checkpoint) -> list[str]:
    """Published files that are not whole; of tables, which are no containers, `lamina fsck` says so."""
    found = []
    logs = {path for path in checkpoint.written("state/_lamina") if _log_of(path)}
    for path in [*state_files(checkpoint), *logs]:
        name = path.rsplit("/", 1)[1]
        if name.startswith(".") or isinstance(parse_name(name), TableName):
            continue
        try:
            if (log := _log_of(path)) is None:
                verify(checkpoint.read(path), name)
            else:
                log_object.verify(checkpoint.read(path), log, name)
        except FileNotFoundError:
            continue
        except LaminaError as error:
            found.append(str(error))
    return found


def checked(checkpoint: Checkpoint) -> list[str]:
    """What `lamina fsck` finds wrong."""
    command = [sys.executable, "-m", "lamina.cli", "fsck", "--json", checkpoint.url]
    command += [f"--hadoop={key}={value}" for key, value in checkpoint.hadoop.items()]
    command += [f"--root={checkpoint.apart}"] if checkpoint.apart is not None else []
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode == 0:
        return []
    try:
        answer = json.loads(found.stdout)
    except ValueError:
        return [f"lamina fsck: {found.stderr.strip()}"]
    problems = [problem for one in (*answer["stores"], answer["log"]) for problem in one["problems"]]
    return [f"lamina fsck: {problem}" for problem in problems] or [f"lamina fsck ends with {found.returncode}"]


def misplaced(checkpoint: Checkpoint, needed: Collection[str]) -> list[str]:
    """What is wrong with where log objects lie, if they are to lie apart."""
    if checkpoint.apart is None:
        return []
    here = [f"{checkpoint.root}/state/{paths.LOG}/{name}" for name in checkpoint.names(f"state/{paths.LOG}")]
    wrong = [f"{path} is not below {checkpoint.apart}" for path in here if path.endswith(".log")]
    if checkpoint.log_apart().keys().isdisjoint(needed):
        wrong.append(f"nothing that is needed is below {checkpoint.apart}")
    return wrong
