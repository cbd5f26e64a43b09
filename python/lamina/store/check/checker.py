"""Checks one store: every version that is retained or pinned, every file that one of them needs, byte by byte.

Only what such a version needs can be damage; it may lie in another checkpoint. The check runs beside the query: a file
that was collected between the listing and the reading is none, which shows by the versions that needed it being
retained no more (`retained`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lamina.checkpoint import Pin, read_pins
from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.format.container import Manifest
from lamina.format.manifest import FILE, Lineage, Reference, StoreIdentity
from lamina.storage import Listed, Storage, in_flight
from lamina.store.check import row_counts
from lamina.store.check.findings import Findings
from lamina.store.check.manifests import AT_ONCE, manifests
from lamina.store.check.other_pins import OtherPins
from lamina.store.check.places import Place, parts_of, place_of, users_of
from lamina.store.check.report import COUNTS, LINEAGE, UNREAD, Problem, StoreCheck
from lamina.store.collection.classes import FOREIGN, MERGED, kind_of, number_of
from lamina.store.collection.retained import Retained
from lamina.store.files.locator import is_part
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.model import Version
from lamina.store.tables.database import lacking
from lamina.store.tables.reading import is_table_list, of_list, table_list
from lamina.store.versions import chain
from lamina.store.versions.resolution import Versions, is_empty

Users = Sequence[tuple[int, Reference | None]]
"""The versions that need a file, and how each refers to it; None where it is the version's own."""

Examined = tuple[Manifest, str]
"""What is in a file, and how it is named to people."""

_SMALL_BYTES = 1 << 20


class StoreChecker:
    """The check of one store.

    Args:
        state: rooted at the directory `state` of the checkpoint.
        named: the versions in Spark's commit log, with the attempt that it names (None under checkpoint format v1).
        clock: by which versions are retained by their age.
        still_named: the versions that the log names now, where those may have become others.
        pins: what other checkpoints need of this one; by default it is read.
        others: pins of the checkpoints that this one refers to.
        read: called with the number of bytes that were read.
        plan: called with the number of bytes that will be.
        contents: whether files are read whole and rows counted, or only manifests and sizes looked at.
    """

    def __init__(
        self,
        state: Storage,
        identity: StoreIdentity,
        named: Mapping[int, str | None],
        *,
        clock: Clock,
        still_named: Callable[[], Collection[int]] | None = None,
        pins: Sequence[Pin] | None = None,
        others: OtherPins | None = None,
        read: Callable[[int], None] = lambda _: None,
        plan: Callable[[int], None] = lambda _: None,
        contents: bool = True,
    ) -> None:
        self._identity = identity
        self._files = StoreFiles(state, identity)
        self._versions = Versions(self._files)
        self._named = named
        self._retained = Retained(self._files, self._versions, named, still_named or (lambda: named), clock)
        self._read = read
        self._plan = plan
        self._contents = contents
        self._pins = read_pins(state) if pins is None else pins
        self._others = others or OtherPins()
        self._findings = Findings()
        self._checked: list[Problem] = []
        self._uncounted: list[str] = []

    def check(self) -> StoreCheck:
        """Looks at everything; never changes the store.

        Raises:
            LaminaError: `storage.*`, of this checkpoint's storage; what is wrong with files is in the answer.
        """
        listing = {entry.name: entry for entry in self._files.list()}
        opened = self._opened(listing)
        pinned = self._opened_pinned(opened)
        self._check_lineage(opened)
        versions = [*opened.items(), *pinned]
        needed = self._needed(versions, {name: entry.size for name, entry in listing.items()})
        broken = self._findings.broken
        self._plan(sum(size for place, size in needed.items() if place not in broken))
        verified = size_verified = 0
        users = users_of(versions)
        for place, examined in self._examined([place for place in needed if place not in broken], needed, users):
            if self._is_whole(place, examined, users[place]):
                verified += 1
                size_verified += needed[place]
        rows = self._count(opened, pinned) if self._contents else None
        problems, collected = self._confirmed_problems()
        damaged = {version for problem in problems for version in problem.versions}
        newest = max(self._named, default=0)
        newest_ms = self._published_ms(opened.get(newest), listing)
        orphans: dict[str, tuple[int, int]] = {}
        for name, entry in listing.items():
            place, kind = (None, name), kind_of(name)
            # a commit in a log object takes no place of its own
            is_needed = place in needed or place in broken
            # what was merged since, the next commit is to refer to
            is_newer = number_of(name) > newest or (kind in MERGED and entry.modified_ms >= newest_ms)
            if not is_needed and not is_newer and kind != FOREIGN and not is_part(name):
                number, total = orphans.get(kind, (0, 0))
                orphans[kind] = (number + 1, total + entry.size)
        whole = self._retained.versions | {version for version, _ in pinned}
        if collected and collected >= self._named.keys():
            text = "all versions that Spark's log named left retention meanwhile; run it once more"
            where = self._files.storage.location(self._files.directory)
            problems.append(Problem(UNREAD, (), f"{where} was not checked: {text}"))
        return StoreCheck(
            self._identity,
            tuple(sorted(whole - damaged - collected - self._findings.versions())),
            tuple(sorted(damaged)),
            verified,
            size_verified,
            rows,
            orphans,
            tuple(sorted(collected)),
            (*problems, *self._findings.unread_problems()),
            (*self._uncounted, *self._others.missing(self._files, self._elsewhere(versions))),
            tuple(parts_of({*needed, *broken, *self._findings.unread})),
            newest,
        )

    def _published_ms(self, opened: Opened | None, listing: Mapping[str, Listed]) -> float:
        """When a version was published, in the storage's own time."""
        listed = None if opened is None else self._files.locator.of(opened.manifest.attempt).listed(listing)
        return math.inf if listed is None else listed.modified_ms

    def _opened(self, listing: Mapping[str, Listed]) -> dict[int, Opened]:
        """The manifest of each version that has a file and can be read, newest first."""
        found = self._opened_of_log()
        if not found:
            return found
        self._retained.follow(found[max(found)].manifest, listing)
        unread: dict[int, LaminaError] = {}
        read = manifests(self._files, self._retained.below.values(), _shortened)
        for version, attempt in self._retained.below.items():
            try:
                found[version] = read[attempt]()
            except LaminaError as error:
                unread[version] = error
        for version in self._retained.forget_collected(found, listing):
            found.pop(version, None)
            unread.pop(version, None)
        for version, why in unread.items():
            self._note_version(version, self._retained.below[version], why)
        return found

    def _opened_of_log(self) -> dict[int, Opened]:
        """As `_opened`, of the versions in Spark's log."""
        found: dict[int, Opened] = {}
        lineage: dict[int, str] = {}
        read = manifests(self._files, self._named.values())
        for version in sorted(self._named, reverse=True):
            try:
                # without ids in the log, a version is the attempt that the newest one stands on
                attempt = self._named[version] or lineage.get(version)
                if attempt is None and not _was_there(version, lineage, found):
                    continue
                attempt = attempt or self._versions.locate(Version(version))
                if attempt is None or is_empty(attempt):
                    continue
                if attempt not in read:
                    below = (lineage[number] for number in lineage if number < version and number in self._named)
                    read |= manifests(self._files, [attempt, *(name for name in below if name not in read)])
                found[version] = read[attempt]()
                lineage.update((number, name) for name, number in found[version].manifest.lineage)
            except LaminaError as error:
                self._note_version(version, self._named[version] or lineage.get(version), error)
        return found

    def _opened_pinned(self, opened: Mapping[int, Opened]) -> list[tuple[int, Opened]]:
        """The versions that other checkpoints need, but for those that are retained anyway."""
        known = {found.manifest.attempt for found in opened.values()}
        found: dict[str, Opened] = {}
        for pin in self._pins:
            for attempt in pin.of(self._identity):
                if attempt in known or attempt in found or is_empty(attempt):
                    continue
                try:
                    found[attempt] = _shortened(self._files.open_commit(attempt))
                except LaminaError as error:
                    text = f"{error.message}; pin {pin.id} of {pin.url or pin.checkpoint} needs it"
                    self._note_version(_version(attempt), attempt, LaminaError.from_kind(error.kind, text))
        return sorted(((one.manifest.version, one) for one in found.values()), key=lambda one: one[0])

    def _note_version(self, version: int, attempt: str | None, error: LaminaError) -> None:
        """Notes what is wrong with the file of a version, or with the version where nobody knows which file that is."""
        if attempt is None or error.kind == "attempt-id.unknown":
            self._findings.note((None, f"version {version}"), error, version)
        else:
            self._findings.note((None, self._files.locator.of(attempt).name), error, version)

    def _check_lineage(self, opened: Mapping[int, Opened]) -> None:
        """Each version must stand on the one that Spark committed before it."""
        for version, newer in opened.items():
            number = self._retained.before.get(version, version - 1)
            older = opened.get(number)
            if older is None or newer.manifest.attempt == older.manifest.attempt:
                continue
            stands_on = newer.manifest.lineage[0][0] if newer.manifest.lineage else None
            base = newer.manifest.base
            if stands_on != older.manifest.attempt or (base is not None and base.attempt != stands_on):
                self._checked.append(
                    Problem(
                        LINEAGE,
                        (version,),
                        f"{self._files.location(newer.name)} stands on {stands_on}, and version {number}, which "
                        f"Spark committed before it, is {older.manifest.attempt}",
                    )
                )

    def _needed(self, versions: Iterable[tuple[int, Opened]], sizes: Mapping[str, int]) -> dict[Place, int]:
        """The files that the versions need, with the sizes that are referred to; what does not fit is noted."""
        broken, unread = self._findings.broken, self._findings.unread
        needed: dict[Place, int] = {}
        seen: dict[Place, int | None] = {(None, name): size for name, size in sizes.items()}
        for version, found in versions:
            references = found.references
            try:
                chain.check(references, found.manifest.version, partial(self._files.location, found.name))
            except LaminaError as error:
                self._findings.note((None, found.name), error, version)
            needed[None, found.name] = found.size
            for reference in references:
                place = place_of(reference)
                if place not in broken and place not in unread and place not in seen:
                    seen[place] = self._size(reference)
                if place in unread:
                    unread[place].versions.add(version)
                    continue
                needed.setdefault(place, reference.size or 0)
                if place in broken:
                    broken[place].versions.add(version)
                elif seen[place] != reference.size:
                    where = self._files.place(reference)
                    text = f"{where} has {seen[place]} bytes, and {reference.size} are referred to"
                    self._findings.note(place, LaminaError.from_kind("file.damaged", text), version)
        return needed

    def _size(self, reference: Reference) -> int | None:
        """The size of a file that is not in the listing; where it is not there, or cannot be read, that is noted."""
        try:
            return self._files.size(reference)
        except LaminaError as error:
            place = place_of(reference)
            if error.kind == "file.identity":
                self._findings.note_unread(place, error)
            else:
                self._findings.note(place, error)
            return None

    def _elsewhere(self, versions: Iterable[tuple[int, Opened]]) -> list[Reference]:
        """References to files outside of the store's directory that can be read."""
        return [
            reference
            for _, found in versions
            for reference in found.references
            if reference.root is not None and place_of(reference) not in self._findings.unread
        ]

    def _examined(
        self, places: Sequence[Place], sizes: Mapping[Place, int], users: Mapping[Place, Users]
    ) -> Iterator[tuple[Place, Callable[[], Examined | None]]]:
        """For each of these files a call that gives what is in it, verified; small ones, of which each is a request to
        another machine, are read side by side, before the large ones."""

        def examined(place: Place) -> Examined | None:
            return self._examine(place, sizes[place], users[place])

        small = [place for place in places if sizes[place] <= _SMALL_BYTES]
        with contextlib.closing(in_flight(self._files.storage, examined, small, AT_ONCE)) as found:
            yield from zip(small, found, strict=True)
        yield from ((place, partial(examined, place)) for place in places if sizes[place] > _SMALL_BYTES)

    def _examine(self, place: Place, size: int, users: Users) -> Examined | None:
        """The manifest of a file that is whole, and how it is named; None of one without, and where none is read."""
        root, path = place
        with self._reading(size) as read:
            if not self._contents:
                return None
            tables = {(one.sha256, one.length): one for _, one in users if one is not None and one.kind == FILE}
            for table in tables.values():
                for piece in self._files.read_file(table):
                    read(piece.size)
            return None if tables else self._files.verify(path, read, root)

    def _is_whole(self, place: Place, examined: Callable[[], Examined | None], users: Users) -> bool:
        """Whether a file is whole, and what its users take it for; what is wrong is noted."""
        try:
            found = examined()
        except LaminaError as error:
            self._findings.note(place, error, *(version for version, _ in users))
            return False
        if found is None:
            return True
        manifest, where = found
        sections = {(section.offset, section.length, section.sha256, section.rows) for section in manifest.sections}
        for version, reference in users:
            try:
                self._files.check_origin(where, manifest, reference.origin if reference else None)
            except LaminaError as error:
                self._findings.note(place, error, version)
            if reference and (reference.offset, reference.length, reference.sha256, reference.rows) not in sections:
                text = f"{where} does not have the section that version {version} refers to"
                self._findings.note(place, LaminaError.from_kind("file.damaged", text), version)
        return place not in self._findings.broken

    def _count(self, opened: Mapping[int, Opened], pinned: Sequence[tuple[int, Opened]]) -> int | None:
        """The live rows of the newest version, None where it is broken; the manifest of each version that is whole must
        agree with what its files have. Versions that stand on whole files without a list are not counted."""
        newest = max(self._named, default=None)
        unopened = self._check_lists([*opened.items(), *pinned])
        broken = self._findings.versions()
        if newest not in opened and newest not in broken:
            return 0

        def counted(version: int, found: Opened) -> bool:
            whole_files = [reference for reference in found.references if reference.kind == FILE]
            is_counted = not whole_files or any(map(is_table_list, whole_files))
            return is_counted and version not in broken and version not in unopened

        for version, found in pinned:
            if counted(version, found):
                try:
                    self._counted({version: found})
                except row_counts.CannotCount as failed:
                    self._findings.note(failed.place, failed.error, version)
        left = {version: found for version, found in opened.items() if counted(version, found)}
        while left:
            try:
                live = self._counted(left)
                return live if newest in left else None
            except row_counts.CannotCount as failed:
                # the oldest versions may have been collected meanwhile, with files that are counted by; the rest stays
                gone = set(left) - self._now() if failed.error.kind == "file.missing" else set()
                attempts = {found.manifest.attempt for found in failed.group}
                lost = gone or {version for version, found in left.items() if found.manifest.attempt in attempts}
                self._findings.note(failed.place, failed.error, *lost)
                left = {version: found for version, found in left.items() if version not in lost}
        return None

    def _check_lists(self, versions: Sequence[tuple[int, Opened]]) -> set[int]:
        """The versions whose tables cannot be opened here, of which the lists are read instead; that is told."""
        why = lacking()
        lists = [
            (version, found, first)
            for version, found in (versions if why else ())
            for first in filter(is_table_list, found.references)
        ]
        for version, found, first in lists:
            place = place_of(first)
            if place not in self._findings.broken and place not in self._findings.unread:
                try:
                    table_list(self._files, of_list(found.references, first))
                except LaminaError as error:
                    self._findings.note(place, error, version)
        unopened = {version for version, _, _ in lists}
        if unopened:
            numbers = ", ".join(map(str, sorted(unopened)))
            self._uncounted.append(f"rows of versions {numbers} were not counted, nor their tables opened: {why}")
        return unopened

    def _counted(self, opened: Mapping[int, Opened]) -> int:
        numbers: dict[str, list[int]] = {}
        for version, found in sorted(opened.items()):
            # a version that changed nothing is the attempt of the one before it
            numbers.setdefault(found.manifest.attempt, []).append(version)
        groups = row_counts.together([opened[versions[0]] for versions in numbers.values()])
        planned = sum(map(row_counts.size, groups))
        self._plan(planned)
        live = 0
        with self._reading(planned) as read:
            for group in groups:
                rows = row_counts.counted(self._files, group, read)
                for found, each in zip(group, rows, strict=True):
                    live = self._compared(found, each, numbers[found.manifest.attempt])
        return live

    @contextlib.contextmanager
    def _reading(self, planned: int) -> Iterator[Callable[[int], None]]:
        """What to call with bytes that were read; at the end those that were planned besides count as read, too."""
        left = planned

        def read(count: int) -> None:
            nonlocal left
            left -= count
            self._read(count)

        try:
            yield read
        finally:
            self._read(left)

    def _compared(self, found: Opened, rows: Mapping[int, int], versions: Sequence[int]) -> int:
        """The live rows among `rows`, which the manifest must agree with."""
        manifest = found.manifest
        said = {family: count.rows for family, count in manifest.counts.items() if count.rows}
        # entries of a column family that was dropped may still be there
        has = {family.id: rows[family.id] for family in manifest.column_families if rows[family.id]}
        if has != said:
            where, is_said = self._files.location(found.name), row_counts.said(said)
            text = f"{where} says that it has {is_said}, and has {row_counts.said(has)}"
            problem = Problem(COUNTS, tuple(versions), text)
            if problem not in self._checked:
                self._checked.append(problem)
        return sum(has.values())

    def _now(self) -> set[int]:
        """The versions that are retained or pinned now."""
        try:
            pins: Sequence[Pin] = read_pins(self._files.storage)
        except LaminaError:
            pins = self._pins
        pinned = {_version(attempt) for pin in pins for attempt in pin.of(self._identity)}
        return self._retained.now() | pinned

    def _confirmed_problems(self) -> tuple[list[Problem], set[int]]:
        """Problems with versions that are still retained, and the versions that are not any more."""
        problems = list(self._checked)
        collected: set[int] = set()
        broken = self._findings.broken.values()
        now = self._now() if broken else self._retained.versions
        for found in broken:
            kept = found.versions & now
            if kept or not found.versions:
                problems.append(Problem(found.error.kind, tuple(sorted(kept)), found.error.message))
            collected |= found.versions - now
        return problems, collected


def _version(attempt: str) -> int:
    return AttemptId.parse(attempt).version


def _was_there(version: int, lineage: Mapping[int, str], found: Mapping[int, Opened]) -> bool:
    """Whether the store of a version that newer ones do not stand on may have been a partition's then: by an offline
    repartition it may come later than its query, or go and come back.

    Args:
        lineage: what the versions found stand on.
    """
    began = bool(found) and not found[min(found)].manifest.lineage and version < min(found)
    return not began and not any(number < version for number in lineage)


def _shortened(opened: Opened) -> Opened:
    """A manifest without its lineage but for what it stands on: of very many versions, lineages take the memory."""
    return replace(opened, manifest=replace(opened.manifest, lineage=Lineage(opened.manifest.lineage[:1])))
