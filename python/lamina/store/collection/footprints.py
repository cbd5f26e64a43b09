"""What commits need and stand on, read from their manifests: each once, and several at once where a read is a request
to another machine.

What an engine has written it hands to the process that collects, so that that one need not read it. A commit is
asked for as the newest one, as one of the lineage, and before that as one above the confirmed version. Its
manifest never changes, so what one of them read is remembered for the next. Of a version of the lineage the registry
remembers what it needs, and nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from lamina.errors import LaminaError
from lamina.format.attempt_id import AttemptId
from lamina.storage import in_flight
from lamina.store.files.store_files import Opened, StoreFiles

READS = 32
"""Manifests of a remote storage that are read at once for one store. Of each only the footprint is kept."""

MOST_KNOWN = 1_000
"""Where more footprints are remembered, all are forgotten before others are told of, and read if they are asked for. A
collection forgets most, but none may come to its end, where a pin cannot be read for example."""

Entry = tuple[str, int]
"""An attempt of a lineage and its version."""

Progressed = Callable[[], None]
"""Hears that long work goes on."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What is remembered of a manifest.

    Args:
        names: the files in the store's directory that the version needs, its own first.
        stands_on: the version before it in its lineage; None where it is the first.
    """

    names: Sequence[str]
    stands_on: Entry | None

    @classmethod
    def of(cls, opened: Opened) -> Footprint:
        return cls(tuple(opened.footprint()), next(iter(opened.manifest.lineage), None))


def footprint(files: StoreFiles, attempt: str) -> Footprint:
    """That of an attempt, read.

    Raises:
        LaminaError: `file.*`.
    """
    return Footprint.of(files.open_commit(attempt))


class Footprints:
    """The footprints of one store's commits. Remembers those that it is told to."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._known: dict[str, Footprint] = {}

    def note(self, attempt: str, footprint: Footprint) -> None:
        """Remembers what the manifest of an attempt says, which was read or written for another reason."""
        self._known[attempt] = footprint

    def note_told(self, told: Iterable[tuple[str, Footprint]]) -> None:
        """Remembers what others say that manifests say; not to be called while a collection goes on."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._known.update(told)

    def learn(self, attempts: Collection[str], progressed: Progressed) -> None:
        """Reads and remembers those that are not known yet; one whose file is gone needs nothing.

        Args:
            progressed: called after each manifest.
        Raises:
            LaminaError: `file.*` where another one cannot be read, `storage.*`.
        """
        unknown = [attempt for attempt in attempts if attempt not in self._known]
        with closing(self.read(unknown)) as reads:
            for attempt, read in zip(unknown, reads, strict=True):
                try:
                    self._known[attempt] = read()
                except LaminaError as error:
                    # whoever opened it before it broke may read anything that it referred to
                    if error.kind != "file.missing":
                        raise
                finally:
                    progressed()

    def names(self, attempt: str) -> Sequence[str]:
        """The files that the version of an attempt needs that was learned; none where its file was gone."""
        known = self._known.get(attempt)
        return () if known is None else known.names

    def lineage(self, attempt: str, down_to: Entry | None) -> list[Entry] | None:
        """The lineage of an attempt down to that entry, newest first; None where not all of it is known."""
        entries = [(attempt, AttemptId.parse(attempt).version)]
        while entries[-1] != down_to:
            known = self._known.get(entries[-1][0])
            if known is None or known.stands_on is None:
                return None
            entries.append(known.stands_on)
        return entries

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forgets those of attempts that are not wanted any more."""
        self._known = {attempt: known for attempt, known in self._known.items() if wanted(attempt)}

    def read(self, attempts: Sequence[str]) -> Generator[Callable[[], Footprint], None, None]:
        """For each attempt, in the order given, a call that gives its footprint, or raises as `footprint`.

        What is not remembered is read, and not remembered either.
        """
        known = {attempt: self._known[attempt] for attempt in attempts if attempt in self._known}
        unknown = [attempt for attempt in attempts if attempt not in known]
        read = partial(footprint, self._files)
        with closing(in_flight(self._files.storage, read, unknown, READS)) as reads:
            for attempt in attempts:
                yield partial(known.__getitem__, attempt) if attempt in known else next(reads)
