"""Restoring: streams the entries of a chain of references. What is large is read, verified and decompressed ahead, in
threads.

Every byte is verified before an entry of it is handed out. A file that turns out damaged or missing half-way through
the chain is worked around where another chain leads to the same state: what was handed out already covers the versions
behind it, so the rest may come from the manifest of the version at which the broken reference ends, from older segments
with the increments after them, or from another segment that was merged from the same files (`alternatives`).

Puts and deletes of the broken section itself may be out already: they decide, whatever else has the same key. Appends
that are out must not come again, so the restore fails then, and the next one goes around the section from its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.format.decoded_size import decoded_bytes
from lamina.format.entries import decode, has_appends, messages
from lamina.format.manifest import FILE, ColumnFamily, Reference, UnionMember
from lamina.store.files.selection import selected
from lamina.store.files.store_files import StoreFiles
from lamina.store.memory.budget import Share, unbounded
from lamina.store.restore.detours import Place, TakenNextTime, place, unrecoverable
from lamina.store.tables.database import OPEN_BYTES
from lamina.store.tables.reading import TableReader

_THREADS = 4
_FILES_AHEAD = 4
_REMOTE_FILES_AHEAD = 32
_BYTES_AHEAD = 64 << 20
"""Files beyond the current one are read ahead while their sections stay below this together; more of a remote storage,
of which each takes round trips."""

_BATCHES_AHEAD = 6

_SMALL_BYTES = 128 << 10
"""What is no larger is decoded, and read from local files, in less time than handing it to a thread takes."""

_T = TypeVar("_T")

Recover = Callable[[Reference, frozenset[Place], bool], Sequence[Reference]]
"""Given a broken reference, the places of all broken sections, and whether appends of it are out: another chain for the
state at its end. Raises `TakenNextTime` where there is one from the beginning only."""


def stream(
    files: StoreFiles,
    references: Sequence[Reference],
    recover: Recover | None,
    share: Share | None = None,
    families: Sequence[ColumnFamily] = (),
    worked: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:
    """The entries of `references`, reference by reference in its order.

    Args:
        families: of the manifest that has them; only references to a union need them.
        share: what is in memory at once is taken from it; a batch that was handed out counts until the one after it
            was handed out, since a loop keeps the last one until then.
        worked: called between tables that are fetched, before there are entries.
    Raises:
        LaminaError: `file.*` naming the file, where nothing else leads to the state; `engine.cancelled`.
    """
    broken: set[Place] = set()
    first: LaminaError | None = None
    remaining = list(references)
    while remaining:
        reader = Sections(files, remaining, share or unbounded(), families, worked)
        try:
            for _, batch in reader.batches():
                yield batch
                del batch
            return
        except LaminaError as error:
            failed = reader.failed
            if recover is None or failed is None or not error.kind.startswith("file."):
                raise
            first = first or error
            broken.add(place(failed))
            try:
                remaining = list(recover(failed, frozenset(broken), reader.appended))
            except TakenNextTime:
                raise TakenNextTime.of(first) from first
            except LaminaError:
                # what is missing for another way is beside the point: the broken file is named
                raise unrecoverable(first) from first


@dataclass(frozen=True)
class _Decoding:
    """A batch that is being decoded, of which reference it is, and what was taken for it."""

    reference: Reference
    size: int
    batch: Future[pa.RecordBatch]


class Sections:
    """One pass over references, in their order; what comes next is read ahead. Args as of `stream`.

    `failed` is the reference whose section could not be read, and `appended` whether appends of it were handed out.
    """

    def __init__(
        self,
        files: StoreFiles,
        references: Sequence[Reference],
        share: Share,
        families: Sequence[ColumnFamily] = (),
        worked: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._worked = worked
        self._families = families
        self._share = share
        self._handed_out = 0
        self._whole_chain = references
        self._chain: Sequence[Reference] = ()
        self._files_ahead = _REMOTE_FILES_AHEAD if files.storage.remote else _FILES_AHEAD
        self._last_appended: Reference | None = None
        self.failed: Reference | None = None

    @property
    def appended(self) -> bool:
        return self.failed is not None and self._last_appended is self.failed

    def batches(self) -> Iterator[tuple[Reference, pa.RecordBatch]]:
        """The entries, each batch with the reference that it is of; of a list of tables the first of its references.

        Raises:
            LaminaError: `file.*` naming the file, `engine.cancelled`, `storage.*`.
        """
        for tables, references in groupby(self._whole_chain, _tables_of):
            self._chain = [*references]
            yield from self._of_sections() if tables is None else self._of_tables()

    def _of_tables(self) -> Iterator[tuple[Reference, pa.RecordBatch]]:
        """The entries of a base that is a list of tables."""
        self._share.take(OPEN_BYTES)
        reader = TableReader(self._files, self._chain, self._worked)
        try:
            for batch in reader.entries(self._families):
                yield self._chain[0], batch
                del batch
        except LaminaError:
            self.failed = reader.failed
            raise
        finally:
            self._share.close()
            self._handed_out = 0

    def _of_sections(self) -> Iterator[tuple[Reference, pa.RecordBatch]]:
        decoding = _Threads(_THREADS, "lamina-restore-decode")
        fetching = _Threads(self._files_ahead, "lamina-restore-fetch")
        ended = False
        try:
            yield from self._ordered(fetching, decoding)
            ended = True
        finally:
            for threads in (fetching, decoding):
                # at the end nothing waits any more but the ends of local copies, which belong to what was read
                threads.end(cancel=not ended)
            self._share.close()
            self._handed_out = 0

    def _ordered(self, fetching: _Threads, decoding: _Threads) -> Iterator[tuple[Reference, pa.RecordBatch]]:
        fetched: deque[Future[pa.NativeFile]] = deque()
        decoded: deque[_Decoding] = deque()
        requested = 0
        for index, reference in enumerate(self._chain):
            if requested == index and not self._share.try_take(self._cost(reference)):
                # nothing is being read, and what is decoded goes out before anybody waits
                while decoded:
                    yield from self._taken(decoded)
                self._share.take(self._cost(reference))
            requested = self._fetch_ahead(fetching, fetched, index, requested)
            section = fetched.popleft()
            while decoded and not section.done():
                yield from self._taken(decoded)
            where = self._files.place(reference)
            undecoded = self._messages(section, reference, where)
            while True:
                try:
                    message = next(undecoded, None)
                except LaminaError:
                    # everything before what is broken is whole and goes out first
                    while decoded:
                        yield from self._taken(decoded)
                    self.failed = reference
                    raise
                if message is None:
                    break
                schema, body = message
                size = max(body.body.size, decoded_bytes(body))
                while not self._share.try_take(size):
                    if not decoded:
                        self._share.take(size)
                        break
                    yield from self._taken(decoded)
                batch = decoding.do(size <= _SMALL_BYTES, self._decode, body, schema, reference, where)
                decoded.append(_Decoding(reference, size, batch))
                del message, body, batch
                if len(decoded) >= _BATCHES_AHEAD:
                    yield from self._taken(decoded)
            del section, undecoded
            self._share.give(self._cost(reference))
        while decoded:
            yield from self._taken(decoded)

    def _cost(self, reference: Reference) -> int:
        """What reading a section takes while it goes on."""
        return self._files.reading_bytes(reference)

    def _decode(self, body: Any, schema: pa.Schema, reference: Reference, where: str) -> pa.RecordBatch:
        return selected(decode(body, schema, where), reference.union, self._families, where)

    @staticmethod
    def _messages(section: Future[pa.NativeFile], reference: Reference, where: str) -> Iterator[tuple[pa.Schema, Any]]:
        schema, undecoded = messages(section.result(), reference.length, where)
        for message in undecoded:
            yield schema, message

    def _taken(self, decoded: deque[_Decoding]) -> Iterator[tuple[Reference, pa.RecordBatch]]:
        """The next batch; once it was taken the one before it is no longer used."""
        first = decoded.popleft()
        batch = first.batch.result()
        if has_appends(batch):
            self._last_appended = first.reference
        yield first.reference, batch
        del batch
        self._share.give(self._handed_out)
        self._handed_out = first.size

    def _fetch_ahead(
        self, fetching: _Threads, fetched: deque[Future[pa.NativeFile]], index: int, requested: int
    ) -> int:
        """Starts reading from reference `index` on; `requested` references were started before."""
        ahead = sum(reference.length for reference in self._chain[index + 1 : requested])
        while requested < len(self._chain) and len(fetched) < self._files_ahead:
            reference = self._chain[requested]
            if requested > index and (
                ahead + reference.length > _BYTES_AHEAD or not self._share.try_take(self._cost(reference))
            ):
                break
            ahead += reference.length
            small = not self._files.storage.remote and reference.length <= _SMALL_BYTES
            fetched.append(fetching.do(small, self._files.open_section, reference, None if small else fetching.pool))
            requested += 1
        return requested


def _tables_of(reference: Reference) -> tuple[UnionMember | None] | None:
    """Of which list of tables a reference is, a chain having one at most; None of a section."""
    return (reference.union,) if reference.kind == FILE else None


class _Threads:
    """Threads that are started for the first call that is worth one."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    @property
    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix=self._name)
        return self._pool

    def do(self, here: bool, call: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Calls in this thread or in one of these; what went wrong is told by the result."""
        if not here:
            return self.pool.submit(call, *arguments)
        done: Future[_T] = Future()
        try:
            try:
                done.set_result(call(*arguments))
            except Exception as error:
                done.set_exception(error)
            return done
        finally:
            # an error keeps this frame, and in a circle with it what was read would stay for a while
            del done, arguments

    def end(self, cancel: bool) -> None:
        """Waits for what is under way; what has not begun is not done where `cancel` says so."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=cancel)
