"""Restoring: streams the entries of a chain of references, reading, verifying and decompressing ahead in threads.

Every section is verified before its first entry is handed out. A file that turns out damaged or missing half-way is
worked around where another chain leads to the same state: what was handed out already covers the versions behind it,
so the rest may come from the manifest of the version at which the broken reference ends (`alternatives`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.entries import decode, messages
from lamina.format.manifest import INCREMENT, CommitManifest, Reference
from lamina.store.files import Opened, StoreFiles

_THREADS = 4
_FILES_AHEAD = 4
_BYTES_AHEAD = 64 << 20
"""Files beyond the current one are read ahead while their sections stay below this together."""

_BATCHES_AHEAD = 6

Place = tuple[str | None, int]
"""A section: path of its file, and offset in it."""

Recover = Callable[[Reference, frozenset[Place]], Sequence[Reference]]
"""Given a broken reference and the places of all broken sections: another chain for the state at its end."""


def stream(files: StoreFiles, chain: Sequence[Reference], recover: Recover | None) -> Iterator[pa.RecordBatch]:
    """The entries of `chain`, reference by reference in its order.

    Raises:
        LaminaError: `file.*` naming the file, where nothing else leads to the state.
    """
    broken: set[Place] = set()
    first: LaminaError | None = None
    remaining = list(chain)
    while remaining:
        reader = _Reader(files, remaining)
        try:
            yield from reader.batches()
            return
        except LaminaError as error:
            failed = reader.failed
            if recover is None or failed is None or not error.kind.startswith("file."):
                raise
            first = first or error
            broken.add(_place(failed))
            try:
                remaining = list(recover(failed, frozenset(broken)))
            except LaminaError:
                # what is missing for another way is not the news; the broken file is
                raise first from None


class _Reader:
    """One pass over a chain. `failed` is the reference whose section could not be read."""

    def __init__(self, files: StoreFiles, chain: Sequence[Reference]) -> None:
        self._files = files
        self._chain = chain
        self.failed: Reference | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-restore")
        try:
            yield from self._ordered(pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _ordered(self, pool: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        fetched: deque[Future[pa.Buffer]] = deque()
        decoded: deque[Future[pa.RecordBatch]] = deque()
        requested = 0
        for index, reference in enumerate(self._chain):
            requested = self._fetch_ahead(pool, fetched, index, requested)
            section = fetched.popleft()
            while decoded and not section.done():
                yield decoded.popleft().result()
            where = self._files.place(reference)
            try:
                schema, undecoded = messages(section.result(), where)
            except LaminaError:
                # everything before this section is whole and goes out first
                while decoded:
                    yield decoded.popleft().result()
                self.failed = reference
                raise
            for message in undecoded:
                decoded.append(pool.submit(decode, message, schema, where))
                if len(decoded) >= _BATCHES_AHEAD:
                    yield decoded.popleft().result()
        while decoded:
            yield decoded.popleft().result()

    def _fetch_ahead(
        self, pool: ThreadPoolExecutor, fetched: deque[Future[pa.Buffer]], index: int, requested: int
    ) -> int:
        """Starts reading from reference `index` on; `requested` references were started before."""
        ahead = sum(reference.length for reference in self._chain[index + 1 : requested])
        while requested < len(self._chain) and len(fetched) < _FILES_AHEAD:
            reference = self._chain[requested]
            if requested > index and ahead + reference.length > _BYTES_AHEAD:
                break
            ahead += reference.length
            fetched.append(pool.submit(self._files.read, reference))
            requested += 1
        return requested


def alternatives(
    open_commit: Callable[[str], Opened], files: StoreFiles, attempt: str, broken: frozenset[Place]
) -> list[Reference]:
    """A chain for the state that `attempt` made which needs none of the `broken` sections.

    Walks down the lineage: each step takes the increment of one more attempt and tries the references of its base.

    Raises:
        LaminaError: `file.*` where the walk meets a file that is not there any more or has no increment.
    """
    steps: list[Reference] = []
    while True:
        opened = open_commit(attempt)
        chain = opened.references()
        if not any(_place(reference) in broken for reference in chain):
            return [*steps, *chain]
        increment = increment_reference(opened, files)
        base = opened.manifest.base
        if increment is None or base is None or _place(increment) in broken:
            raise LaminaError.from_kind("file.damaged", f"no other way leads to version {opened.manifest.version}")
        steps.append(increment)
        attempt = base.attempt


def _place(reference: Reference) -> Place:
    return reference.path, reference.offset


def increment_reference(opened: Opened, files: StoreFiles) -> Reference | None:
    """A reference to the increment in a commit's own file, whether or not the version consists of it."""
    manifest: CommitManifest = opened.manifest
    section = manifest.section(INCREMENT)
    if section is None:
        return None
    return Reference(
        None,
        opened.name,
        section.offset,
        section.length,
        opened.size,
        section.sha256,
        INCREMENT,
        manifest.base.version if manifest.base else 0,
        manifest.version,
        section.rows,
        files.identity,
    )
