"""A store that Python uses directly: get, put, scan, commit and restore, without Spark, over the same files.

For tools, tests and notebooks. Keys and values are bytes; a column family whose values are lists is made by `append`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format.entries import APPEND, DELETE, MAX_FAMILY_ID, MAX_ROW_BYTES, PUT
from lamina.format.manifest import INCREMENT, REWRITE, SNAPSHOT, ColumnFamily, Count
from lamina.storage import Storage
from lamina.store.collection.retention import Retention
from lamina.store.direct.rows import (
    DEFAULT_FAMILY,
    FAMILY_OF_BYTES,
    Value,
    applied,
    batches_of,
    changed_in,
    check_counts,
    encoded_element,
    in_part,
    newest_first,
    part_of,
    shown,
)
from lamina.store.factory import make_store
from lamina.store.materialization.materializer import Compacted
from lamina.store.model import Collected, CommitRequest, StoreConf, StoreId, Version
from lamina.store.protocol import Store
from lamina.store.restore.detours import TakenNextTime
from lamina.store.versions.checkpoint_state import CheckpointState
from lamina.store.versions.query_log import QueryLog

_TASK = 0
MIN_VERSIONS = "min_versions"


class DirectStore:
    """The state of one version, in memory, and the changes of one open transaction.

    Args:
        query: Spark's logs beside the store; None where there are none to look for.
        inherited: which of the numbers of retention are those that the newest version records.
    """

    def __init__(
        self,
        storage: Storage,
        store_id: StoreId,
        conf: StoreConf,
        clock: Clock,
        ids: Ids,
        query: QueryLog | None = None,
        *,
        writable: bool,
        inherited: Collection[str] = (),
    ) -> None:
        self._writable = writable
        self._storage = storage
        self._store_id = store_id
        self._conf = conf
        self._clock = clock
        self._ids = ids
        self._inherited = inherited
        self._tasks = _TASK
        if writable and query is not None:
            query.refuse_writing()
        self._log = query
        self._is_query = query is not None and query.is_there
        self._run = False
        store = self._opened(self._conf, read_only=True)
        newest = self._tip(store)
        self._load(store, newest, newest)

    def _opened(self, conf: StoreConf, *, read_only: bool) -> Store:
        state = CheckpointState.open(
            self._storage, run_id=self._ids.uuid(), read_only=read_only, clock=self._clock, ids=self._ids
        )
        if self._is_query and state.uuid is None and self._named():
            raise LaminaError.from_kind(
                "store.unsupported", f"{self._store_id.checkpoint_url} keeps no state in lamina"
            )
        if state.uuid is None and self._log is not None and not self._is_query and not self._writable:
            raise LaminaError.from_kind(
                "file.missing",
                f"{self._store_id.checkpoint_url} has no state of lamina: give the directory of a checkpoint, or make "
                "a store there with writable=True",
            )
        return make_store(state, self._store_id, conf, clock=self._clock, ids=self._ids)

    def _start_run(self) -> None:
        """Makes this the newest run, unless it is; the first change to the checkpoint.

        Raises:
            LaminaError: `state.superseded` where another one has committed since this was opened.
        """
        self._require_writing()
        if self._run:
            return
        if self._log is not None:
            self._log.refuse_writing()
        self._require_unchanged()
        self._store = self._opened(self._conf_recorded(), read_only=False)
        # nobody else can commit any more
        self._require_unchanged()
        self._run = True

    def _require_unchanged(self) -> None:
        tip = self._tip(self._store)
        if tip != self._newest:
            raise LaminaError.from_kind(
                "state.superseded",
                f"another writer has committed {tip} of {self._store.identity} since this one was opened: open it anew",
            )

    def _conf_recorded(self) -> StoreConf:
        """The settings, with the retention that the newest version records where none was given."""
        newest = self._store.manifest(self._newest)
        if newest is None or not newest.retention:
            return self._conf
        recorded = Retention.recorded(newest)
        values = {name: getattr(recorded, name.removeprefix("retention_")) for name in self._inherited}
        min_versions = values.pop(MIN_VERSIONS, self._conf.min_versions)
        settings = dataclasses.replace(self._conf.settings, **values)
        return dataclasses.replace(self._conf, settings=settings, min_versions=min_versions)

    def _named(self) -> Mapping[int, str | None]:
        """The versions that Spark's log names; none where there is no query."""
        return self._log.committed() if self._log is not None and self._is_query else {}

    def _tip(self, store: Store) -> Version:
        """The newest version that Spark has committed; without a query, that of the newest run that wrote one."""
        if self._is_query:
            newest, attempt = (0, None) if self._log is None else self._log.newest()
            return _resolved(store, newest) if attempt is None else Version(newest, attempt)
        newest = max(((info.epoch, info.version) for info in store.versions()), default=(0, 0))[1]
        return _resolved(store, newest)

    def _load(self, store: Store, newest: Version, version: Version) -> None:
        """Goes on without a run of its own, from `version`; where it fails or is interrupted nothing has changed."""
        load = store.load(version, have=None, read_only=True)
        try:
            rows = newest_first(load.batches)
        except TakenNextTime:
            load = store.load(version, have=None, read_only=True)
            rows = newest_first(load.batches)
        counts = dict(load.counts)
        check_counts(rows, counts, version)
        families = {family.name: family for family in load.column_families}
        committed_families, located = dict(families), Version(version.version, load.attempt)
        changes: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        unapplied: Mapping[tuple[int, bytes], bytes | None] = {}
        # no call is among these, so no interrupt comes between them
        self._run = False
        self._store = store
        self._newest = newest
        self._rows = rows
        self._unapplied = unapplied
        self._counts = counts
        self._families = families
        self._committed_families = committed_families
        self._next_family = load.next_column_family
        self._version = located
        self._changes = changes

    def _base(self) -> dict[tuple[int, bytes], bytes]:
        """The version's rows; what the last commit changed is put in first, once more where that was interrupted."""
        if self._unapplied:
            changed_in(self._rows, self._unapplied)
            self._unapplied = {}
        return self._rows

    def _require_writing(self) -> None:
        if not self._writable:
            raise LaminaError.from_kind(
                "store.state", f"{self._store.identity} was opened for reading: open it with writable=True to change it"
            )

    # Rows

    @property
    def version(self) -> Version:
        """The version that the open transaction is based on."""
        return self._version

    def get(self, key: bytes, family: str = DEFAULT_FAMILY) -> Value | None:
        """The value of a key as the transaction sees it; a list of elements in a family of lists; None if absent.

        Raises:
            LaminaError: `store.unsupported` where a store that was opened for reading has no such column family.
        """
        known = self._known(family)
        if known is None:
            return None
        value = self._seen((known.id, key))
        return None if value is None else shown(known, value)

    def put(self, key: bytes, value: bytes, family: str = DEFAULT_FAMILY) -> None:
        """Sets the value of a key.

        Raises:
            LaminaError: `row.too-large`.
        """
        _require_bytes(key, value)
        _require_small(key, value)
        self._changes[self._family(family, multi_value=False).id, bytes(key)] = (PUT, bytes(value))

    def append(self, key: bytes, element: bytes, family: str) -> None:
        """Adds an element to the list of a key; the family is made as one of lists by its first append.

        Raises:
            LaminaError: `row.too-large`; of a list that gets too large as a whole the commit raises it.
        """
        _require_bytes(key, element)
        added = encoded_element(element)
        _require_small(key, added)
        position = (self._family(family, multi_value=True).id, bytes(key))
        op, value = self._changes.get(position, (APPEND, b""))
        self._changes[position] = (PUT, added) if op == DELETE else (op, value + added)

    def remove(self, key: bytes, family: str = DEFAULT_FAMILY) -> None:
        """Removes a key that may be there."""
        self._require_writing()
        _require_bytes(key)
        known = self._families.get(family)
        if known is not None:
            self._changes[known.id, bytes(key)] = (DELETE, b"")

    def scan(self, family: str = DEFAULT_FAMILY) -> Iterator[tuple[bytes, Value]]:
        """Keys and values in the order of the keys."""
        return self.prefix_scan(b"", family)

    def prefix_scan(self, prefix: bytes, family: str = DEFAULT_FAMILY) -> Iterator[tuple[bytes, Value]]:
        """Keys that begin with `prefix`, and their values, in the order of the keys.

        Raises:
            LaminaError: as `get`.
        """
        known = self._known(family)
        return iter(()) if known is None else self._scanned(known, prefix)

    def _scanned(self, known: ColumnFamily, prefix: bytes) -> Iterator[tuple[bytes, Value]]:
        keys = {key for number, key in (*self._base(), *self._changes) if number == known.id and key.startswith(prefix)}
        for key in sorted(keys):
            value = self._seen((known.id, key))
            if value is not None:
                yield key, shown(known, value)

    def _known(self, name: str) -> ColumnFamily | None:
        """None where nothing was written to it yet. A writer may be about to, and all have the default one."""
        known = self._families.get(name)
        if known is None and not self._writable and name != DEFAULT_FAMILY:
            raise LaminaError.from_kind(
                "store.unsupported",
                f"{self._version} of {self._store.identity} has no column family {name!r}, but "
                f"{', '.join(sorted(self._families)) or 'none'}",
            )
        return known

    def _seen(self, position: tuple[int, bytes]) -> bytes | None:
        base = self._base().get(position)
        change = self._changes.get(position)
        return base if change is None else applied(base, *change)

    def _family(self, name: str, *, multi_value: bool) -> ColumnFamily:
        self._require_writing()
        family = self._families.get(name)
        if family is None:
            if self._next_family > MAX_FAMILY_ID:
                raise LaminaError.from_kind(
                    "store.unsupported",
                    f"{self._store.identity} cannot create column family {name!r}: all {MAX_FAMILY_ID + 1} ids of its "
                    "lineage are used; write its rows into a store of a new directory",
                )
            family = ColumnFamily(self._next_family, name, {**FAMILY_OF_BYTES, "multi_value": multi_value})
            self._families[name] = family
            self._next_family += 1
        if family.multi_value != multi_value:
            kind = "lists: use append" if family.multi_value else "single values: use put"
            raise LaminaError.from_kind("store.unsupported", f"column family {name!r} holds {kind}")
        return family

    # Versions

    def commit(self, *, snapshot: bool = False) -> Version:
        """Makes the changes durable as the next version.

        Args:
            snapshot: writes the version in full, without a base.
        Raises:
            LaminaError: `state.superseded` where another one has committed since this was opened, `store.state` where
                it was opened for reading, `row.too-large`, `storage.*`; nothing is committed then, but after
                `storage.failed` the next one to open the store may find it.
        """
        self._start_run()
        self._tasks += 1
        # no other process does it for this store
        self._store.stamp_segments()
        begin = self._store.begin(
            self._version, task_attempt=self._tasks, load_empty=False, force_snapshot=snapshot, have=True
        )
        changed = self._changed_rows()
        changes = {position: self._changes[position] for position in changed}
        part = part_of(begin)
        after = changed_in(dict(self._base()), changed) if begin.snapshot or part is not None else {}
        sections = {INCREMENT: batches_of((*position, *change) for position, change in changes.items())}
        rows = {INCREMENT: len(changes)}
        if begin.snapshot:
            sections[SNAPSHOT] = batches_of((*position, PUT, value) for position, value in after.items())
            rows[SNAPSHOT] = len(after)
        if part is not None:
            rewritten = in_part(after, part)
            sections[REWRITE] = batches_of((*position, PUT, value) for position, value in rewritten.items())
            rows[REWRITE] = len(rewritten)
        counts = self._counts_after(changed)
        version = Version(self._version.version + 1, begin.attempt)
        request = CommitRequest(
            begin.attempt,
            version.version,
            self._version,
            counts,
            tuple(self._families.values()),
            self._next_family,
            self._tasks,
            rows,
            part,
        )
        self._store.commit(request, sections)
        self._store.confirm(version)
        changes_after: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        families = dict(self._families)
        # no call is among these, so no interrupt comes between them
        self._unapplied = changed
        self._counts = counts
        self._version = version
        self._changes = changes_after
        self._committed_families = families
        self._base()
        return version

    def abort(self) -> None:
        """Drops the changes since the last commit."""
        self._changes = {}
        self._families = dict(self._committed_families)

    def versions(self) -> list[Version]:
        """The versions that the newest one stands on, and itself, oldest first, as far as their files are kept."""
        present = {info.attempt for info in self._store.versions()}
        return [known for known in reversed(self._store.lineage(self._tip(self._store))) if known.attempt in present]

    def restore(self, version: int | Version) -> None:
        """Makes `version` the base of the next commit, which then replaces what was committed after it.

        Raises:
            LaminaError: `state.not-retained` where the version is not kept, `file.*` where a file of it is damaged.
        """
        wanted = version if isinstance(version, Version) else self._numbered(version)
        store = self._opened(self._conf, read_only=True)
        self._load(store, self._tip(store), wanted)

    def _numbered(self, version: int) -> Version:
        if version == 0:
            return Version(0)
        named = self._named()
        if version in named:
            return Version(version, named[version]) if named[version] else _resolved(self._store, version)
        found = next((known for known in self.versions() if known.version == version), None)
        if found is None:
            raise LaminaError.from_kind(
                "state.not-retained", f"version {version} of {self._store.identity} is not kept"
            )
        return found

    def changes(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The net changes of versions `start` … `end`, both inclusive, as entries with their version."""
        return self._store.feed(start, self._numbered(end), None).batches

    # Maintenance

    def compact(self) -> Compacted | None:
        """Merges files of the current version where it is worth it; the next commit refers to the result."""
        self._start_run()
        self._store.confirm(self._version)
        compacted = self._store.compact()
        if compacted is not None:
            self._store.adopt(compacted.made)
        return compacted

    def collect(self, *, dry_run: bool = False) -> Collected:
        """Deletes files that no kept version needs and that have been so for the minimum age."""
        if not dry_run:
            self._start_run()
            return self._store.collect(self._version, dry_run=False)
        named = self._named()
        conf = self._conf_recorded()
        # what Spark can go back to stays
        least = self._version.version - min(named, default=self._version.version)
        conf = dataclasses.replace(conf, min_versions=max(conf.min_versions, least))
        return self._opened(conf, read_only=True).collect(self._version, dry_run=True)

    def _changed_rows(self) -> dict[tuple[int, bytes], bytes | None]:
        """What the changes that change something make of their rows; None where one is removed."""
        seen = {position: self._seen(position) for position in self._changes}
        for (_, key), value in seen.items():
            if value is not None:
                _require_small(key, value)
        return {position: value for position, value in seen.items() if value != self._base().get(position)}

    def _counts_after(self, changed: Mapping[tuple[int, bytes], bytes | None]) -> dict[int, Count]:
        """Rows and bytes of each column family once its rows are changed so."""
        known = {family.id: self._counts.get(family.id, Count(0, 0)) for family in self._families.values()}
        found = {family: [count.rows, count.bytes] for family, count in known.items()}
        for (family, key), value in changed.items():
            for row, sign in ((self._base().get((family, key)), -1), (value, 1)):
                if row is not None:
                    found[family][0] += sign
                    found[family][1] += sign * (len(key) + len(row))
        return {family: Count(*sums) for family, sums in found.items()}


def _require_bytes(*given: object) -> None:
    """A number would make so many zero bytes, and a text is no key."""
    for one in given:
        if not isinstance(one, bytes | bytearray | memoryview):
            raise TypeError(f"keys and values are bytes, not {type(one).__name__}: {one!r:.80}")


def _require_small(key: bytes, value: bytes) -> None:
    """What no table of Spark's executors would hold is not written."""
    sizes = [memoryview(one).nbytes for one in (key, value)]
    if max(sizes) > MAX_ROW_BYTES:
        raise LaminaError.from_kind(
            "row.too-large",
            f"a key of {sizes[0]:,} bytes ({bytes(key[:40])!r}) and a value of {sizes[1]:,}, a list with all of its "
            f"elements, are above the limit of {MAX_ROW_BYTES:,} for each; keep large objects outside of the state and "
            "a reference to them in it",
        )


def _resolved(store: Store, version: int) -> Version:
    return Version(version, store.resolve(Version(version)))
