"""The tables of one store on local disk, each under the name that it has in the store's directory.

What that name stands for never changes, while a database gives its files' names anew after it was restored. So a
directory of a database is made of hard links, and a table that is there need not be fetched again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lamina.format.manifest import Reference
from lamina.format.table_list import Table, TableListManifest
from lamina.storage import trusted
from lamina.storage.local_copies import note_use
from lamina.store.files.store_files import FILE_PIECE_BYTES, StoreFiles
from lamina.store.tables import local_disk
from lamina.store.tables.local_disk import ADVICE_NO_SPACE, require_room
from lamina.store.tables.table_format import require_known_format

_FETCHED_AT_ONCE = 4
_MOST_AT_ONCE = 16
"""Tables that are fetched at once, and where there is memory for more. A table comes through one connection, so what a
storage far away gives is a matter of how many tables are under way."""

FETCH_BYTES = _FETCHED_AT_ONCE * FILE_PIECE_BYTES
"""What fetching has in memory: a piece of each table that is fetched at once."""


class LocalTables:
    """Tables on local disk, in a directory of their own that goes with this object."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self.fetched = 0
        """Bytes that were read from the storage, and not found on this disk."""
        with _local_disk(tempfile.gettempdir()):
            self._directory = tempfile.mkdtemp(prefix="lamina-tables-")
        self.remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    def absent(self, references: Iterable[Reference]) -> list[Reference]:
        """Those of the tables that are not here yet, or are distrusted since somebody met a damaged one."""

        def is_here(path: str) -> bool:
            return os.path.exists(path) and not trusted.is_distrusted(path)

        return [reference for reference in references if not is_here(self._path(reference.path or ""))]

    def fetch(
        self,
        references: Sequence[Reference],
        waits_for: Callable[[Reference], None] = lambda _: None,
        more: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Gets the tables that are not here yet, verified.

        Args:
            waits_for: called with each that is waited for, in their order; the last one is that of an error.
            more: whether so many bytes beyond `FETCH_BYTES` may be had in memory.
        Raises:
            LaminaError: `file.*` naming the file, `storage.*`.
        """
        absent = self.absent(references)
        at_once = _FETCHED_AT_ONCE
        while at_once < min(len(absent), _MOST_AT_ONCE) and more(FILE_PIECE_BYTES):
            at_once += 1
        threads = ThreadPoolExecutor(at_once, thread_name_prefix="lamina-tables")
        try:
            for reference, fetched in [(one, threads.submit(self._fetch, one)) for one in absent]:
                waits_for(reference)
                self.fetched += fetched.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _fetch(self, reference: Reference) -> int:
        """The bytes that were read."""
        path = self._path(reference.path or "")
        temporary = f"{path}.tmp"
        try:
            with _local_disk(self._directory):
                linked = self._files.whole(reference, lambda: self._read(reference, temporary))
                require_known_format(temporary, reference.path or "")
                # a distrusted one: of two links to one file a rename would leave both
                _unlink(path)
                os.rename(temporary, path)
                trusted.acquit(path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if linked:
            return 0
        self._files.keep(reference.root, reference.path or "", reference.sha256, path)
        return reference.length

    def _read(self, reference: Reference, path: str) -> bool:
        """Whether it needed no read: what is there is a link."""
        # of an attempt before this one, which found it damaged
        _unlink(path)
        if self._files.linked(reference, path, self._require_room):
            return True
        self._require_room(reference.length)
        # where the answer to a link was lost, the name is that of the checkpoint's own file
        _unlink(path)
        with open(path, "xb") as target:
            for piece in self._files.read_file(reference):
                target.write(piece)
        return False

    def add(self, directory: str, table: Table) -> None:
        """Keeps a table that a database made in `directory`, and that was published."""
        with _local_disk(self._directory):
            # it was published, and the job had room for it: where there are no links it is a copy all the same
            self._link(os.path.join(directory, table.name), self._path(table.path), has_room=True)
        self._files.keep(None, table.path, table.sha256, self._path(table.path))

    def link(self, path: str, new: str) -> str | None:
        """Keeps a table under another name, too; where it is, None where it is not here any more."""
        if not os.path.exists(self._path(path)):
            return None
        with _local_disk(self._directory):
            self._link(self._path(path), self._path(new))
        return self._path(new)

    @contextlib.contextmanager
    def database(self, manifest: TableListManifest | None) -> Iterator[str]:
        """A directory with the database of a list, whose tables are here, or of nothing; removed afterwards."""
        directory = self.hand_out(manifest)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def hand_out(self, manifest: TableListManifest | None, parent: str | None = None) -> str:
        """A directory with the database of a list, whose tables are here; it is the caller's from now on."""
        with _local_disk(parent or self._directory):
            directory = tempfile.mkdtemp(prefix="lamina-database-", dir=parent)
        try:
            with _local_disk(directory):
                for table in manifest.tables if manifest is not None else ():
                    self._link(self._path(table.path), os.path.join(directory, table.name))
                for name, data in manifest.files.items() if manifest is not None else ():
                    with open(os.path.join(directory, name), "wb") as target:
                        target.write(data)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def keep(self, paths: Iterable[str]) -> None:
        """Removes all tables but these, which are used, and what is left of others."""
        kept = set(paths)
        with _local_disk(self._directory):
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if name in kept:
                    # local copies that are the same file are not evicted as those that nobody has used for longest
                    note_use(path)
                else:
                    os.unlink(path)

    def _link(self, source: str, target: str, *, has_room: bool = False) -> None:
        try:
            os.link(source, target)
        except OSError:
            # a file system without links, or another one
            if not has_room:
                self._require_room(os.stat(source).st_size)
            shutil.copyfile(source, target)

    def _require_room(self, needed: int) -> None:
        require_room(self._files.local_max_bytes, needed)

    def _path(self, path: str) -> str:
        # what another checkpoint has is under the same unique name
        return os.path.join(self._directory, path.rpartition("/")[2])


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def _local_disk(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"tables could not be kept in {directory} on local disk: {error}"
        raise local_disk.failed(error, message, ADVICE_NO_SPACE) from error
