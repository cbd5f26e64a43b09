"""Files of one store: reads manifests and sections through the storage, and verifies all that it hands out."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa

from lamina.checkpoint import QueryRun
from lamina.errors import LaminaError
from lamina.format import container, paths
from lamina.format.attempt_id import GROUP, AttemptId
from lamina.format.blocks import CHECKSUM_BYTES
from lamina.format.container import COMMIT, Contents, Footer, Manifest
from lamina.format.entries import decode, messages
from lamina.format.log_object import PartId
from lamina.format.manifest import (
    FILE,
    ColumnFamily,
    CommitManifest,
    Reference,
    Section,
    SegmentManifest,
    StoreIdentity,
)
from lamina.format.paths import SegmentName, TableListName
from lamina.format.table_list import TableListManifest
from lamina.storage import Listed, Storage, all_of, trusted
from lamina.storage.backend import PIECE_BYTES, ranges
from lamina.storage.local import PIECE_BYTES as LOCAL_PIECE_BYTES
from lamina.store.files.locator import CommitLocation, Locator, attempt_of, attempts_in, is_part
from lamina.store.files.log_parts import LogObjects, Needless
from lamina.store.files.part_of_log import PartOfLog
from lamina.store.files.roots import check_roots
from lamina.store.files.section_reader import SectionFile, verified
from lamina.store.files.selection import selected

_TAIL_BYTES = 64 << 10
"""What is read first of a file to see its manifest; most manifests fit."""

_WHOLE_BYTES = 256 << 10
"""A file that holds at most this much beside the wanted section is read whole, in one request."""

FILE_PIECE_BYTES = 4 << 20
"""What is in memory at once of a file of which every byte is verified."""

_IN_MEMORY_BYTES = 16 << 20
"""Sections above this size are not held in memory."""

_ASKED_AT_ONCE = 16

MAX_LIST_BYTES = 1 << 30
"""No list of tables is larger."""

_HEADER_BYTES = container.HEADER.size

_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""What says nothing of the file that was to be opened."""

_Found = TypeVar("_Found")

Files = Storage | PartOfLog
"""What files are read with."""


@dataclass(frozen=True)
class Opened:
    """A verified manifest of a commit, where it is, and the size of its file."""

    manifest: CommitManifest
    location: CommitLocation
    size: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.location.name

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """What the version consists of, newest first, with this file's own sections named."""
        return tuple(one if one.path is not None else self.placed(one) for one in self.manifest.references)

    def placed(self, reference: Reference) -> Reference:
        """A reference to a section of this file, named; another one as it is."""
        return reference.placed(self.location.name, self.size)

    def footprint(self) -> list[str]:
        """The files in the store's directory that the version needs, its own first."""
        names = {reference.path or "" for reference in self.references if reference.root is None}
        return [self.name, *sorted(names - {self.name})]


class StoreFiles:
    """The directory of one store.

    Args:
        storage: rooted at the directory `state` of the checkpoint.
        identity: which store this is; files of another one are refused.
        local_max_bytes: what working files may take on the local disk, if that is bounded.
        logs: the checkpoint's log objects; by default those that all stores on this `storage` share.
    """

    def __init__(
        self,
        storage: Storage,
        identity: StoreIdentity,
        local_max_bytes: int | None = None,
        logs: LogObjects | None = None,
    ) -> None:
        self.local_max_bytes = local_max_bytes
        self.storage = storage
        self.identity = identity
        self.locator = Locator(identity)
        self.directory = paths.store_directory(identity.operator, identity.partition, identity.name)
        self._roots: dict[str, Storage] = {}
        self._logs = LogObjects.of(storage) if logs is None else logs

    def list(self, newest: str | None = None, progressed: Callable[[], None] = lambda: None) -> Sequence[Listed]:
        """The files of the store, and its commits in log objects, as if each were a file, too.

        Args:
            newest: an attempt that is not to be missed.
            progressed: called now and then where that takes long.
        """
        parts = self._logs.parts_of(self.identity, None if newest is None else AttemptId.parse(newest), progressed)
        return [*self.storage.list(self.directory), *parts]

    def deleting(self, names: Iterable[str]) -> Sequence[str]:
        """The paths of these files; commits in log objects go with their objects."""
        return [self._path(name) for name in sorted(names) if not is_part(name)]

    @property
    def is_heard(self) -> bool:
        """Whether what is known of the store and of others of its log objects was exchanged of late."""
        return not self._logs.is_stale

    def unread_since(self, modified_ms: int) -> str | None:
        """As `LogObjects.unread_since`."""
        return self._logs.unread_since(modified_ms)

    def tell_needs(self, run: QueryRun, confirmed: int, names: Iterable[str], *, dry_run: bool) -> Sequence[Needless]:
        """Says which of the commits in log objects up to a confirmed version are needed; gives what nobody needs.

        Args and result: as those of `LogObjects.tell_needs` and `LogObjects.needless`.
        """
        self._logs.tell_needs(run, self.identity, confirmed, names)
        return self._logs.needless(run, dry_run=dry_run)

    def cut_off_logs(self) -> Sequence[Needless]:
        """As `LogObjects.cut_off`."""
        return self._logs.cut_off()

    def location(self, name: str) -> str:
        """How a file is named to people."""
        files, path = self._at(None, name)
        return files.location(path)

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        files, path = self._at(None, name)
        return files.exists(path)

    def missing(self, names: Sequence[str]) -> set[str]:
        """Those of the files that are not there; on a remote storage asked for at once."""
        found = all_of(self.storage, self.exists, names, _ASKED_AT_ONCE)
        return {name for name, there in zip(names, found, strict=True) if not there}

    def attempts(self) -> Mapping[int, Sequence[AttemptId]]:
        """The attempts whose commits are there, by version."""
        return attempts_in(self.list())

    def has_commit(self, attempt: str) -> bool:
        """Whether the commit of an attempt is there."""
        files, path = self._at(None, self.locator.of(attempt).name)
        return files.exists(path)

    def was_seen(self, attempt: str) -> bool:
        """Whether the commit of an attempt is there, as far as that is known without asking the storage."""
        parsed = AttemptId.parse(attempt)
        return parsed.kind == GROUP and self._logs.was_seen(PartId.of(parsed).log)

    def place_of_commit(self, attempt: str) -> str:
        """How the file of an attempt's commit is named to people."""
        files, path = self._at(None, self.locator.of(attempt).name)
        return files.location(path)

    def publish_commit(self, attempt: str, chunks: Iterable[Any]) -> int:
        """Writes the commit of an attempt, whole and durably; gives its size."""
        return self.storage.publish(self.locator.of(attempt).path, chunks)

    def publish(self, name: str, chunks: Iterable[Any]) -> int:
        """Writes a file whole and durably; gives its size."""
        return self.storage.publish(self._path(name), chunks)

    def stamp(self, name: str) -> bool:
        """Gives a file a new time of publication; False where the storage cannot."""
        return self.storage.stamp(self._path(name))

    def open_commit(self, attempt: str) -> Opened:
        """The manifest of an attempt that wrote something.

        Raises:
            LaminaError: `attempt-id.unknown`, `file.missing`, `file.damaged`, `file.version`, `file.identity`.
        """
        location = self.locator.of(attempt)
        manifest, size = self._open(location.name, CommitManifest.from_json)
        check_roots(manifest.references, self.storage, self.directory, partial(self.place_of_commit, attempt))
        return Opened(manifest, location, size)

    def open_segment(self, name: SegmentName) -> tuple[SegmentManifest, int]:
        """The manifest of a segment of this store, and the size of its file."""
        return self._open(str(name), SegmentManifest.from_json)

    def open_table_list(self, name: TableListName) -> tuple[TableListManifest, int, str]:
        """The manifest of a list of tables of this store, and size and checksum of its file."""
        path = self._path(str(name))
        where = self.storage.location(path)
        # in one request, however far the bound is
        data, _ = self.storage.read_tail(path, MAX_LIST_BYTES)
        manifest = container.verify(data, where)
        if not isinstance(manifest, TableListManifest) or (manifest.list, manifest.store) != (name.id, self.identity):
            raise _foreign(where, container.id_of(manifest), manifest.store, self.identity)
        return manifest, data.size, container.checksum(data)

    def _open(self, name: str, from_json: Callable[[Mapping[str, Any]], _Found]) -> tuple[_Found, int]:
        files, path = self._at(None, name)
        where = files.location(path)

        def opened() -> tuple[_Found, int]:
            value, contents, size = self._manifest(files, path, None)
            _check_identity(path, contents, self.identity, where)
            return container.parse(from_json, value, where), size

        return _without_bad_copy(files, path, opened)

    def read(self, reference: Reference) -> pa.Buffer:
        """The verified bytes of the section that `reference`, whose path is known, refers to.

        Raises:
            LaminaError: `file.missing`, `file.damaged`, `file.version`, `file.identity`, naming the file.
        """
        storage, path = self._place(reference)
        return _without_bad_copy(storage, path, lambda: self._read(storage, path, reference))

    def open_section(self, reference: Reference, ahead: Executor | None = None) -> pa.NativeFile:
        """A file of the section that `read` would give, of which a large one is read and verified block by block.

        Args:
            ahead: reads a large section on while what came of it is used.
        Raises:
            LaminaError: as `read`; of a large section also from reading the file. `store.unsupported` for whole files.
        """
        if reference.kind == FILE:
            raise LaminaError.from_kind(
                "store.unsupported",
                f"{self.place(reference)} is no file of entries: its version stands on it, and only another backend "
                "can restore that",
            )
        if reference.length <= _IN_MEMORY_BYTES:
            return pa.BufferReader(self.read(reference))
        return pa.PythonFile(SectionFile(self._verified(reference), ahead), mode="r")

    def reading_bytes(self, reference: Reference) -> int:
        """What `open_section` and reading it take in memory at most, beside what was read and is used."""
        piece = PIECE_BYTES if self.storage.remote else LOCAL_PIECE_BYTES
        if reference.length > _IN_MEMORY_BYTES:
            # one is used, one is ahead, both are in parts before they are whole, and a batch is made of them
            return 5 * piece
        return (2 if self.storage.remote else 1) * reference.length + _TAIL_BYTES

    def read_file(self, reference: Reference) -> Iterator[pa.Buffer]:
        """The bytes of a whole file, piece by piece; nothing of them is verified before the end.

        Raises:
            LaminaError: `file.missing`, `file.damaged`, naming the file.
        """
        storage, path = self._place(reference)
        digest, size = hashlib.sha256(), 0
        # and one byte more, so that a longer file shows
        with contextlib.closing(storage.stream(path, reference.length + 1, FILE_PIECE_BYTES)) as pieces:
            for piece in pieces:
                digest.update(piece)
                size += piece.size
                yield piece
        self._require(reference, size, digest.digest(), storage.location(path))

    def linked(self, reference: Reference, target: str, room: Callable[[int], None]) -> bool:
        """Gives a whole file a name in a local directory, where this machine has it, and verifies it.

        A copy of a remote file that was verified before, and is trusted, is not read again.

        Args:
            room: called with its size before it is copied from another disk; what it raises goes on.
        Raises:
            LaminaError: `file.damaged`, naming the file.
        """
        storage, path = self._place(reference)
        if not storage.link(path, target, room):
            return False
        if storage.has_copies and trusted.is_trusted(target, reference.sha256):
            return True
        digest, size = hashlib.sha256(), 0
        try:
            with open(target, "rb", buffering=0) as file:
                while piece := file.read(FILE_PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
        except OSError as error:
            if error.errno in _SHORTAGE:
                text = f"{storage.location(path)} could not be read by the name that it has on local disk: {error}"
                raise LaminaError.from_kind("storage.failed", text) from error
            # of a local copy: then it is read from the storage
            raise container.damaged(storage.location(path), f"what this machine has of it: {error}") from error
        self._require(reference, size, digest.digest(), storage.location(path))
        if storage.has_copies:
            trusted.trust(target, reference.sha256)
        return True

    def keep(self, root: str | None, path: str, sha256: str, local: str) -> None:
        """Keeps a local file, which has this checksum and never changes, as the copy of a whole file, where copies are
        kept."""
        storage, place = self._at(root, path)
        if storage.has_copies:
            trusted.trust(local, sha256)
        storage.keep(place, local)

    @staticmethod
    def _require(reference: Reference, size: int, sha256: bytes, where: str) -> None:
        if size != reference.size or sha256[:CHECKSUM_BYTES].hex() != reference.sha256:
            raise container.damaged(where, "it does not fit the checksum that is referred to")

    def whole(self, reference: Reference, read: Callable[[], _Found]) -> _Found:
        """What `read` gives of a file; where it is damaged and was read from a local copy, what the storage itself
        gives."""
        storage, path = self._place(reference)
        return _without_bad_copy(storage, path, read)

    def check_section(self, reference: Reference) -> None:
        """Verifies the section that `reference` refers to.

        Raises:
            LaminaError: as `read`.
        """
        if reference.length <= _IN_MEMORY_BYTES:
            self.read(reference)
        else:
            for _ in self._verified(reference):
                pass

    def _verified(self, reference: Reference) -> Iterator[Any]:
        """The bytes of a section as they come, in runs of blocks that were verified."""
        storage, path = self._place(reference)
        section = _without_bad_copy(storage, path, lambda: self._section_of(storage, path, reference))
        assert reference.size is not None
        pieces = storage.read_pieces(path, section.offset, section.length, reference.size)
        forgotten = False

        def read_again(start: int, length: int) -> pa.Buffer | None:
            nonlocal forgotten
            # one look at the storage tells for all that came from the copy
            forgotten = forgotten or storage.forget(path)
            return storage.read_range(path, section.offset + start, length) if forgotten else None

        where = storage.location(path)
        return verified(section, pieces, read_again, lambda reason: container.damaged(where, reason))

    def _read(self, storage: Files, path: str, reference: Reference) -> pa.Buffer:
        assert reference.size is not None
        where = storage.location(path)
        if reference.size - reference.length <= _WHOLE_BYTES:
            # and one more, so that a longer file shows
            whole = storage.read(path, reference.size + 1)
            _, contents, _ = self._manifest(storage, path, (whole, whole.size))
            section = _section(contents, reference, where)
            data = whole.slice(reference.offset, max(0, min(reference.length, whole.size - reference.offset)))
        else:
            section = self._section_of(storage, path, reference)
            pieces = [*storage.read_pieces(path, reference.offset, reference.length, reference.size)]
            data = pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(pieces))
        container.check_section(data, section, where)
        return data

    def _section_of(self, storage: Files, path: str, reference: Reference) -> Section:
        """What the file itself says of the section that is referred to."""
        where = storage.location(path)
        _, contents, size = self._manifest(storage, path, None)
        if size != reference.size:
            raise container.damaged(where, f"it has {size} bytes where {reference.size} are referred to")
        return _section(contents, reference, where)

    def size(self, reference: Reference) -> int:
        """The size that the file of a reference has.

        Raises:
            LaminaError: `file.missing`, `file.identity` where its place may not be read.
        """
        storage, path = self._place(reference)
        return storage.size(path)

    def verify(self, path: str, read: Callable[[int], None], root: str | None = None) -> tuple[Manifest, str]:
        """Verifies every byte of a file, in bounded memory; gives its manifest, and how it is named to people.

        Args:
            path, root: as in a reference.
            read: called with the bytes read so far of it, piece by piece.
        Raises:
            LaminaError: `file.*`, naming the file.
        """
        storage, path = self._at(root, path)
        where = storage.location(path)
        tail = storage.read_tail(path, _TAIL_BYTES)
        value, contents, size = self._manifest(storage, path, tail)
        if not _is_named(paths.directory_and_name(path)[1], contents):
            raise _foreign(where, contents.id, contents.store, self.identity)
        # a small file is here already, and what is not in its sections was verified
        is_here = tail[0].size == size
        if not is_here:
            header = storage.read_range(path, 0, _HEADER_BYTES)
            container.check_header(header, contents.kind, contents.header_crc, where)
        for section in contents.sections:
            if is_here:
                pieces: Iterator[pa.Buffer] = iter([tail[0].slice(section.offset, section.length)])
            else:
                pieces = _in_place(storage, path, section)
            for run in verified(section, pieces, lambda *_: None, lambda reason: container.damaged(where, reason)):
                read(len(run))
        return container.parse_manifest(value, where), where

    def check_origin(self, where: str, manifest: Manifest, origin: StoreIdentity | None) -> None:
        """Raises `file.identity` where a file was not written by `origin`, by default this store."""
        expected = origin or self.identity
        if manifest.store != expected:
            raise _foreign(where, container.id_of(manifest), manifest.store, expected)

    def entries(
        self,
        reference: Reference,
        families: Sequence[ColumnFamily] = (),
        read: Callable[[], pa.Buffer] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The verified entries of a section that belong to its version, of which only a batch is in memory.

        Args:
            families: of the manifest that has the reference; only a reference to a union needs them.
            read: gives the whole section where that is read already, as `read` does.
        """
        where = self.place(reference)
        section = self.open_section(reference) if read is None else pa.BufferReader(read())
        schema, undecoded = messages(section, reference.length, where)
        for message in undecoded:
            yield selected(decode(message, schema, where), reference.union, families, where)

    def place(self, reference: Reference) -> str:
        """How the file of a reference is named to people."""
        storage, path = self._place(reference)
        return storage.location(path)

    def _place(self, reference: Reference) -> tuple[Files, str]:
        return self._at(reference.root, reference.path or "")

    def _at(self, root: str | None, path: str) -> tuple[Files, str]:
        """What to read a file with, and its path there."""
        attempt = attempt_of(paths.directory_and_name(path)[1])
        if root is None:
            part = None if attempt is None or attempt.kind != GROUP else PartOfLog(self._logs, attempt)
            return self.storage if part is None else part, self._path(path)
        if attempt is not None and attempt.kind == GROUP:
            raise LaminaError.from_kind(
                "store.unsupported", f"{path} of {root} is a part of a log object of another checkpoint"
            )
        if root not in self._roots:
            self._roots[root] = self.storage.named(root)
        return self._roots[root], path

    def _manifest(
        self, storage: Files, path: str, found: tuple[pa.Buffer, int] | None
    ) -> tuple[Mapping[str, Any], Contents, int]:
        """The JSON of a file's manifest, verified, what it says of the file, and the size of the file.

        Args:
            found: the end of the file, and its size, where they were read already.
        """
        where = storage.location(path)
        tail, size = found or storage.read_tail(path, _TAIL_BYTES)
        end = Footer.parse(tail, size, where)
        start = end.manifest_offset - (size - tail.size)
        if start >= 0:
            stored = tail.slice(start, end.stored_length)
        else:
            stored = storage.read_range(path, end.manifest_offset, end.stored_length)
        value = end.manifest(stored, where)
        contents = end.contents(value, where)
        if tail.size == size:
            container.check_whole(tail, contents, end, where)
        return value, contents, size

    def _path(self, name: str) -> str:
        return paths.join(self.directory, name)


def _section(contents: Contents, reference: Reference, where: str) -> Section:
    """The section that is referred to, if this is a file of the store that the reference names."""
    _check_identity(reference.path or "", contents, reference.origin, where)
    section = next((section for section in contents.sections if section.offset == reference.offset), None)
    if section is None or section.sha256 != reference.sha256 or section.length != reference.length:
        raise container.damaged(where, "it does not have the section that is referred to")
    return section


def _check_identity(path: str, contents: Contents, store: StoreIdentity, where: str) -> None:
    """Raises `file.identity` where a file is not what its name says, or was not written by `store`."""
    if not _is_named(paths.directory_and_name(path)[1], contents) or contents.store != store:
        raise _foreign(where, contents.id, contents.store, store)


def _is_named(name: str, contents: Contents) -> bool:
    """Whether a file has the name that its manifest asks for."""
    if contents.kind == COMMIT:
        return str(attempt_of(name)) == contents.id
    parsed = paths.parse_name(name)
    return isinstance(parsed, SegmentName | TableListName) and parsed.id == contents.id


def _foreign(where: str, held: str, store: StoreIdentity, expected: StoreIdentity) -> LaminaError:
    return LaminaError.from_kind(
        "file.identity", f"{where} is not what its name says: it holds {held} of {store}, and {expected} was expected"
    )


def _in_place(storage: Files, path: str, section: Section) -> Iterator[pa.Buffer]:
    """A section in small pieces."""
    for offset, length in ranges(section.offset, section.length, FILE_PIECE_BYTES):
        yield storage.read_range(path, offset, length)


def _without_bad_copy(storage: Files, path: str, read: Callable[[], _Found]) -> _Found:
    """What `read` gives; where the file is damaged and was read from a local copy, what the storage itself gives."""
    try:
        return read()
    except LaminaError as error:
        if error.kind not in ("file.damaged", "file.identity", "file.version") or not storage.forget(path):
            raise
    return read()
