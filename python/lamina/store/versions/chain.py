"""Chains: which references make a version, and when a commit must bring a snapshot.

Pure functions over references, newest first. A chain is whole when each reference begins where the next older one ends,
and the oldest begins at 0, or the rewrites in it cover every key. Whole files are a base: all of them are the state of
one version, at which what is newer begins. So is a union: chains with disjoint keys, each whole by itself in the
versions of the store that wrote it.

A rewrite of version v holds every row of v whose key is in one of n parts, and comes before (is newer than) what else
v brought. A chain that ends at the oldest of n rewrites of all n parts needs nothing older: a row that lives was
written in full by the rewrite of its part, or after it; and where the chain has something of a key that was removed
since, it has the removal too, as it has every change after its oldest rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

from lamina.errors import LaminaError
from lamina.format.manifest import (
    FILE,
    INCREMENT,
    REWRITE,
    RUN,
    SNAPSHOT,
    Part,
    Reference,
    Section,
    SegmentManifest,
    StoreIdentity,
    UnionMember,
)
from lamina.format.paths import SegmentName, TableListName
from lamina.format.table_list import TableListManifest
from lamina.settings import Settings


@dataclass(frozen=True)
class Segment:
    """A finished segment: its manifest, the size of its file, and when it was published."""

    manifest: SegmentManifest
    size: int
    published_ms: int

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.manifest.start, self.manifest.end, self.manifest.segment)

    def reference(self) -> Reference:
        """How a manifest refers to the segment."""
        section = self.manifest.sections[0]
        return Reference(
            None,
            str(self.name),
            section.offset,
            section.length,
            self.size,
            section.sha256,
            RUN,
            self.manifest.start,
            self.manifest.end,
            section.rows,
            self.manifest.store,
        )

    def references(self) -> tuple[Reference, ...]:
        return (self.reference(),)

    def new_names(self) -> list[str]:
        return [str(self.name)]


@dataclass(frozen=True)
class TableList:
    """A finished list of sorted tables: its manifest, size and checksum of its file, and when its first new file was
    published."""

    manifest: TableListManifest
    size: int
    sha256: str
    published_ms: int

    @property
    def name(self) -> TableListName:
        return TableListName(self.manifest.version, self.manifest.list)

    def references(self) -> tuple[Reference, ...]:
        version, store = self.manifest.version, self.manifest.store
        own = Reference(None, str(self.name), 0, self.size, self.size, self.sha256, FILE, 0, version, 0, store)
        return (own, *(table.reference(version, store) for table in self.manifest.tables))

    def new_names(self) -> list[str]:
        tables = [table.path for table in self.manifest.tables if table.version == self.manifest.version]
        return [str(self.name), *tables]


Replacement = Segment | TableList
"""What a materializer made: files that take the place of the references in `manifest.inputs`. `references` says how a
manifest refers to them, newest first, and `new_names` which files no version can have referred to before."""


def wants_snapshot(settings: Settings, version: int, chain: Sequence[Reference]) -> bool:
    """Whether the commit of `version`, on top of `chain`, brings a snapshot although it has a usable base.

    In mode `full` the first one at or after each multiple of the interval does. A version that changed nothing has no
    file, whatever is asked for here, so the multiples themselves may all be missed.
    """
    if settings.compaction_mode == "full":
        written = chain[0].version if chain else 0
        interval = settings.compaction_full_interval
        if version // interval > written // interval:
            return True
    return files(chain) >= longest(settings, chain)


ABOVE_TABLES = 256
"""So many files a version may consist of in any case where it stands on tables, or is to: to write all of it may be
more than a commit has time for. Twice as many increments as come together by default, also where a run with that
default has left them and this one has a smaller `rocksdb.materializeEvery`, or another backend."""


def longest(settings: Settings, chain: Sequence[Reference]) -> int:
    """How many files a version may consist of before a commit on `chain` writes a snapshot.

    As many more as a cycle of rewrites takes, which then leaves the older ones out. Increments that are to be put into
    tables have twice the time that they take to come together.
    """
    cycle = settings.compaction_rolling_parts if settings.compaction_mode == "rolling" else 0
    most = settings.compaction_max_chain + cycle
    if settings.backend == "rocksdb":
        return max(most, ABOVE_TABLES, 2 * settings.rocksdb_materialize_every)
    return max(most, ABOVE_TABLES) if tables(chain) else most


def files(chain: Sequence[Reference]) -> int:
    """How many containers the references are in."""
    return len({(reference.root, reference.path) for reference in chain if reference.kind != FILE})


def increments(chain: Sequence[Reference]) -> tuple[int, int]:
    """How many increments are in it that nothing was merged of yet, and their bytes as they are stored."""
    found = [reference.length for reference in chain if reference.kind == INCREMENT]
    return len(found), sum(found)


def next_part(chain: Sequence[Reference], parts: int) -> int:
    """The part of `parts` whose turn it is to be rewritten on top of `chain`: the one that was longest ago.

    The chain alone decides, so that attempts of one version rewrite the same part, and one that failed changes nothing.
    """
    rewritten = [part.part for part in map(_own_part, chain) if part is not None and part.parts == parts]
    last = {part: age for age, part in reversed(list(enumerate(rewritten)))}
    return max(range(parts), key=lambda part: last.get(part, len(rewritten)))


def trimmed(chain: Sequence[Reference]) -> tuple[Reference, ...]:
    """`chain` without what is older than a full cycle of rewrites."""
    return tuple(chain[: _covered(map(_own_part, chain)) or len(chain)])


def carried(older: Sequence[Reference], part: Part | None) -> Sequence[Reference]:
    """What of `older` a commit on top of it refers to, which itself rewrites `part`, or none."""
    covered = _covered([part, *map(_own_part, older)])
    return older if covered is None else older[: covered - 1]


def _own_part(reference: Reference) -> Part | None:
    """What a reference rewrites in the store whose manifest it is in."""
    return reference.part if reference.union is None else None


def _covered(parts: Iterable[Part | None]) -> int | None:
    """How many of the references, from the newest on, hold a rewrite of each part; None where all of them do not.

    Args:
        parts: what each of them rewrites, newest first.
    """
    seen: dict[tuple[str, int], set[int]] = {}
    for count, part in enumerate(parts, start=1):
        if part is not None:
            group = seen.setdefault((part.hash, part.parts), set())
            group.add(part.part)
            if len(group) == part.parts:
                return count
    return None


def own_references(
    sections: Sequence[Section],
    version: int,
    base_version: int,
    older: Sequence[Reference],
    store: StoreIdentity,
    part: Part | None = None,
) -> tuple[Reference, ...]:
    """The references of a new commit: its snapshot alone, or its increment on top of `older`.

    Args:
        part: what its rewrite covers, where it brings one.
    """
    by_name = {section.name: section for section in sections}
    if SNAPSHOT in by_name:
        return (own_reference(by_name[SNAPSHOT], 0, version, store),)
    chain = (own_reference(by_name[INCREMENT], base_version, version, store), *older)
    if REWRITE in by_name:
        # before the increment: it has the rows as they are after it
        chain = (own_reference(by_name[REWRITE], 0, version, store, part), *chain)
    return trimmed(chain)


def own_reference(section: Section, start: int, end: int, store: StoreIdentity, part: Part | None = None) -> Reference:
    """A reference to a section of a commit's own file, without the file's name."""
    return Reference(
        None,
        None,
        section.offset,
        section.length,
        None,
        section.sha256,
        section.name,
        start,
        end,
        section.rows,
        store,
        part,
    )


def adopt(chain: Sequence[Reference], made: Replacement) -> tuple[Reference, ...] | None:
    """`chain` with what was made in place of the references that it was made of; None where they are not in it."""
    inputs = [_key(reference) for reference in made.manifest.inputs]
    keys = [_key(reference) for reference in chain]
    for position in range(len(keys) - len(inputs) + 1):
        if keys[position : position + len(inputs)] == inputs:
            return (*chain[:position], *made.references(), *chain[position + len(inputs) :])
    return None


def _key(reference: Reference) -> tuple[str | None, str | None, int, str, UnionMember | None]:
    # the same bytes under another filter are other rows
    return reference.root, reference.path, reference.offset, reference.sha256, reference.union


def check(chain: Sequence[Reference], version: int, where: Callable[[], str]) -> None:
    """Raises `file.damaged` where the references do not add up to `version`; `where` names their file to people."""
    if not _is_whole(chain, version):
        raise LaminaError.from_kind(
            "file.damaged", f"{where()} is damaged: its references do not add up to version {version}"
        )


def _is_whole(chain: Sequence[Reference], version: int) -> bool:
    own = tuple(takewhile(lambda reference: reference.union is None, chain))
    above = mergeable(own)
    start = _start(above, version)
    if start is None:
        return False
    base, union = own[len(above) :], chain[len(own) :]
    if base or union:
        files = all(one.kind == FILE and one.start == 0 and one.end == start for one in base)
        return files and start > 0 and (not union or (not base and _is_union(union, start)))
    return start == 0 or _covered(map(_own_part, own)) is not None


def _is_union(union: Sequence[Reference], version: int) -> bool:
    """Whether references are whole chains, one after the other, that make `version` together."""
    chains = [list(group) for _, group in groupby(union, key=lambda reference: reference.union)]
    members = [group[0].union for group in chains]
    if any(one is None or (one.chains, one.end) != (len(chains), version) for one in members):
        return False
    if [one.chain for one in members if one is not None] != [*range(len(chains))]:
        return False
    return all(_is_whole([replace(one, union=None) for one in group], group[0].end) for group in chains)


def _start(chain: Sequence[Reference], end: int) -> int | None:
    """The version at which references that end at `end` begin; None where they do not join."""
    for reference in chain:
        if reference.end != end or reference.start >= reference.end:
            return None
        if reference.kind != REWRITE:
            end = reference.start
    return end


def mergeable(chain: Sequence[Reference]) -> Sequence[Reference]:
    """The references above a base of whole files, which hold entries; all where there is no such base."""
    return chain[: next((index for index, reference in enumerate(chain) if reference.kind == FILE), len(chain))]


def tables(chain: Sequence[Reference]) -> Sequence[Reference]:
    """The whole files that the references stand on; none where there are none."""
    return chain[len(mergeable(chain)) :] if any(reference.kind == FILE for reference in chain) else ()


def since(chain: Sequence[Reference], version: int) -> tuple[Reference, ...] | None:
    """The changes after `version`, newest first; None where the references do not begin there."""
    newer = tuple(reference for reference in chain if reference.version > version and reference.kind != REWRITE)
    # the versions within a union are those of other stores
    joins = not newer or (newer[-1].start == version and all(reference.union is None for reference in newer))
    return newer if joins else None
