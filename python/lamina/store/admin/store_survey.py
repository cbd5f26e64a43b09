"""What is in one store: its versions and which of them count, its files, its chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from lamina.errors import LaminaError
from lamina.format.manifest import SNAPSHOT, Reference, StoreIdentity
from lamina.storage import Listed, Storage, in_flight
from lamina.store.check.manifests import AT_ONCE
from lamina.store.collection.classes import kind_of, number_of
from lamina.store.files.locator import attempts_in, is_part
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.model import Version
from lamina.store.versions import chain
from lamina.store.versions.resolution import Versions, is_empty

COMMITTED = "committed"
UNCOMMITTED = "uncommitted"
SUPERSEDED = "superseded"

PART = "part"
"""The class of a commit in a log object, which takes no place of its own."""


@dataclass(frozen=True)
class VersionDetails:
    """What the manifest of a version says.

    Args:
        kind: `snapshot` where the file holds the whole version, else `increment`.
        base: the version that it was built on; None where it stands on nothing.
        changes: rows in the increment.
        rows, state_bytes: live rows, and the bytes of their keys and values.
        chain: what the version consists of, newest first.
    """

    kind: str
    base: int | None
    changes: int
    rows: int
    state_bytes: int
    run: str
    task_attempt: int
    created_ms: int
    spark: str
    writer: str
    chain: Sequence[Reference]

    @property
    def chain_bytes(self) -> int:
        return sum(reference.length for reference in self.chain)


@dataclass(frozen=True)
class VersionSurvey:
    """One commit's file; `details` where its manifest was read and is whole."""

    version: int
    attempt: str
    status: str
    epoch: int
    size: int
    modified_ms: int
    details: VersionDetails | None


@dataclass(frozen=True)
class FileSurvey:
    """One file of a store.

    Args:
        kind: `commit`, `part` (a commit in a log object), `segment`, `table`, `table_list`, `temporary` (a publication
            that was cut off), or `foreign`.
        used: whether the committed version needs it.
    """

    name: str
    kind: str
    size: int
    modified_ms: int
    used: bool


@dataclass(frozen=True)
class StoreSurvey:
    """One store.

    Args:
        version: the newest version that Spark committed; None before the first commit.
        attempt: the attempt that counts for it; None for an empty store and where it cannot be told.
        details: of that attempt.
        problems: what is wrong with it, one sentence each.
    """

    identity: StoreIdentity
    version: int | None
    attempt: str | None
    details: VersionDetails | None
    versions: Sequence[VersionSurvey]
    files: Sequence[FileSurvey]
    problems: Sequence[str]

    def count(self, status: str) -> int:
        return sum(version.status == status for version in self.versions)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def newest_size(self) -> int:
        """Of the files that the committed version needs."""
        return sum(file.size for file in self.files if file.used)


def survey_store(
    state: Storage, identity: StoreIdentity, named: Mapping[int, str | None], *, details: bool
) -> StoreSurvey:
    """Looks at one store.

    Args:
        state: rooted at the directory `state` of the checkpoint.
        named: the versions in Spark's commit log, with the attempt that it names (None under checkpoint format v1).
        details: whether every manifest is read, or only that of the newest committed version.
    """
    files = StoreFiles(state, identity)
    versions = Versions(files)
    listing = sorted(files.list(), key=lambda entry: (number_of(entry.name), entry.name))
    by_version = attempts_in(listing)
    newest = max(named, default=None)
    problems: list[str] = []
    attempt, opened = None, None
    if newest is not None:
        try:
            attempt = versions.locate(Version(newest, named[newest]))
            if attempt is not None and not is_empty(attempt):
                opened = versions.open(attempt, Version(newest, attempt))
                chain.check(opened.references, opened.manifest.version, partial(files.place_of_commit, attempt))
        except LaminaError as error:
            problems.append(error.message)
    committed = {id for id in named.values() if id is not None} | ({attempt} if attempt else set())
    if opened is not None:
        try:
            lineage, _ = versions.lineage(opened.manifest, min(by_version, default=0))
            committed.update(id for id, _ in lineage)
        except LaminaError as error:
            problems.append(error.message)
        problems.extend(_lost(files, opened, listing))
    found = []
    infos = versions.infos(listing)
    asked = [info.attempt for info in infos] if details else []
    with closing(in_flight(files.storage, files.open_commit, asked, AT_ONCE)) as manifests:
        for info, read in zip_longest(infos, manifests):
            # none of them is kept
            manifest = opened if opened is not None and info.attempt == attempt else None
            try:
                manifest = manifest if read is None else read()
            except LaminaError as error:
                # what a running query removes meanwhile is no problem; the newest version was looked at above
                if error.kind != "file.missing" and error.message not in problems:
                    problems.append(error.message)
            status = _status(info.attempt, info.version, committed, newest)
            found.append(
                VersionSurvey(
                    info.version,
                    info.attempt,
                    status,
                    info.epoch,
                    info.size,
                    info.modified_ms,
                    _details(manifest) if manifest else None,
                )
            )
    used = {reference.path for reference in opened.references if reference.root is None} if opened else set()
    return StoreSurvey(
        identity=identity,
        version=newest,
        attempt=attempt,
        details=_details(opened) if opened else None,
        versions=found,
        files=[
            FileSurvey(
                entry.name,
                PART if is_part(entry.name) else kind_of(entry.name),
                entry.size,
                entry.modified_ms,
                entry.name in used,
            )
            for entry in listing
            if not _is_sparks(entry.name)
        ],
        problems=tuple(problems),
    )


def _status(attempt: str, version: int, committed: set[str], newest: int | None) -> str:
    if attempt in committed:
        return COMMITTED
    return UNCOMMITTED if newest is None or version > newest else SUPERSEDED


def _details(opened: Opened) -> VersionDetails:
    manifest = opened.manifest
    increment = manifest.section("increment")
    counts = manifest.counts.values()
    return VersionDetails(
        kind=SNAPSHOT if manifest.section(SNAPSHOT) else "increment",
        base=manifest.base.version if manifest.base else None,
        changes=increment.rows if increment else 0,
        rows=sum(count.rows for count in counts),
        state_bytes=sum(count.bytes for count in counts),
        run=manifest.run.id,
        task_attempt=manifest.run.task_attempt,
        created_ms=manifest.created_ms,
        spark=manifest.spark,
        writer=manifest.writer,
        chain=opened.references,
    )


def _lost(files: StoreFiles, opened: Opened, listing: Sequence[Listed]) -> list[str]:
    """What the committed version refers to in this directory that is not there, or has another size."""
    sizes = {entry.name: entry.size for entry in listing}
    problems = []
    for reference in opened.references:
        if reference.root is not None or reference.path is None or "/" in reference.path:
            continue
        size = sizes.get(reference.path)
        if size is None:
            why = f"{files.location(reference.path)} is not there"
            if is_part(reference.path):
                # what cannot be read of a log object is in no listing
                try:
                    if files.size(reference) == reference.size:
                        # it came after the listing
                        continue
                except LaminaError as error:
                    why = error.message
            problems.append(f"{why}; version {opened.manifest.version} needs it")
        elif size != reference.size:
            problems.append(
                f"{files.location(reference.path)} has {size} bytes; version {opened.manifest.version} needs "
                f"{reference.size}"
            )
    return problems


def _is_sparks(name: str) -> bool:
    """Hadoop's local file system keeps a checksum beside every file that Spark writes."""
    return name.startswith(".") and name.endswith(".crc")
