"""Ways around broken files: other chains of references that lead to the same state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamina.errors import LaminaError
from lamina.format.manifest import INCREMENT, CommitManifest, Reference
from lamina.format.paths import SegmentName, TableListName, parse_name
from lamina.storage import Listed
from lamina.storage.in_flight import all_of
from lamina.store.files.store_files import Opened, StoreFiles
from lamina.store.versions import chain
from lamina.store.versions.chain import Replacement, Segment, TableList

Place = tuple[str | None, str | None, int]
"""A section: root and path of its file, and offset in it."""

_READ_AT_ONCE = 16


class TakenNextTime(LaminaError):
    """A file is broken, and what has been handed out rules out all ways around it; a load from the beginning takes one.

    Its kind is that of the broken file's error.
    """

    @classmethod
    def of(cls, error: LaminaError) -> TakenNextTime:
        """For the error about the broken file."""
        return cls(error.kind, f"{error.message}. Other retained files lead to this state: try once more")


def unrecoverable(error: LaminaError) -> LaminaError:
    """The error about a broken file that nothing else can stand in for, with what to do about it."""
    return LaminaError.from_kind(
        error.kind,
        f"{error.message}. No other retained files lead to this state: put the file back from a copy, or restart the "
        "query from an older batch whose version is whole (lamina fsck says which are)",
    )


def advised(error: LaminaError) -> LaminaError:
    """`unrecoverable`, where a version's own file is lost; another error as it is."""
    return unrecoverable(error) if error.kind in ("file.missing", "file.damaged") else error


def alternatives(walk: Iterable[Opened], files: StoreFiles, broken: frozenset[Place]) -> list[Reference]:
    """A chain for the state of the first version of `walk` which needs none of the `broken` sections.

    Each step down the lineage takes the increment of one more attempt and tries the references of its base, as they are
    and with any segment or list of the directory in place of what it was made of.

    Args:
        walk: the version and those that it stands on, newest first.
    Raises:
        LaminaError: `file.*` where the walk meets a file that is not there any more or has no increment.
    """
    steps: list[Reference] = []
    made = _replacements(files, broken)
    last = None
    for opened in walk:
        around = _around(opened.references, made, broken)
        if around is not None:
            return [*steps, *around]
        last = opened.manifest.version
        increment = increment_reference(opened, files)
        if increment is None or place(increment) in broken:
            break
        steps.append(increment)
    raise LaminaError.from_kind("file.damaged", f"no other way leads to version {last}")


def _around(
    references: Sequence[Reference], made: Sequence[Replacement], broken: frozenset[Place]
) -> Sequence[Reference] | None:
    """`references` with all that fits in place of what it was made of; None where broken ones remain.

    It fits where exactly what it was made of is referred to, so its lineage is the same.
    """
    found = True
    while found:
        found = False
        for one in made:
            adopted = chain.adopt(references, one)
            if adopted is not None:
                references, found = adopted, True
    return None if any(place(reference) in broken for reference in references) else references


def _replacements(files: StoreFiles, broken: frozenset[Place]) -> list[Replacement]:
    """The segments and lists of tables in the store's directory that are not known to be broken, those of the most
    versions first."""

    def opened(entry: Listed) -> tuple[int, Replacement] | None:
        name = parse_name(entry.name)
        try:
            if isinstance(name, SegmentName):
                segment, size = files.open_segment(name)
                return name.end - name.start, Segment(segment, size, entry.modified_ms)
            if isinstance(name, TableListName):
                tables, size, sha256 = files.open_table_list(name)
                return name.version, TableList(tables, size, sha256, entry.modified_ms)
        except LaminaError as error:
            if not error.kind.startswith("file."):
                raise
        return None

    made = [entry for entry in files.list() if isinstance(parse_name(entry.name), SegmentName | TableListName)]
    found = [one for one in all_of(files.storage, opened, made, _READ_AT_ONCE) if one is not None]
    whole = [one for one in found if broken.isdisjoint(map(place, one[1].references()))]
    return [made for _, made in sorted(whole, key=lambda one: -one[0])]


def place(reference: Reference) -> Place:
    """Where the section that is referred to lies."""
    return reference.root, reference.path, reference.offset


def increment_reference(opened: Opened, files: StoreFiles) -> Reference | None:
    """A reference to the increment in a commit's own file, whether or not the version consists of it."""
    manifest: CommitManifest = opened.manifest
    section = manifest.section(INCREMENT)
    if section is None:
        return None
    start = manifest.base.version if manifest.base else 0
    return opened.placed(chain.own_reference(section, start, manifest.version, files.identity))
