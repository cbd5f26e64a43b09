"""The hook of the kill campaign: kills a process at a named point of the engine or of its maintenance process.

Python imports this module at its start, since the campaign puts its directory on PYTHONPATH; it does something only in
the two processes of lamina, where it puts a backend between a store and its storage. The campaign writes what to kill
and where into `<orders>/current.json`; whichever process gets there first takes the order by renaming the file.

It can also take one promise away (LAMINA_KILL_BROKEN), so that the campaign can show that it would notice.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tests.kill.points import (
    ACCEPTED,
    COLLECTION,
    COMPACTION,
    NO_LINEAGE_CHECK,
    PUBLICATION,
    PUBLICATION_BEFORE_DATA,
    RESTORE,
    TABLES,
)

LATE_S = 3.0
TOLD_AFTER_S = 2.0
RESTORES = ("lamina-restore", "lamina-tables")
"""How the threads are called that read for a restore; of tables also those for a materialization."""
MERGES = ("compaction-pending", "num-running-compactions")
"""RocksDB's properties that say that it merges, or is about to."""
T = TypeVar("T")


def role_of(command: Sequence[str]) -> str | None:
    """Which process of lamina a command line starts."""
    for role, module in (("engine", "lamina.engine"), ("maintenance", "lamina.engine.maintenance")):
        if list(command[1:3]) == ["-m", module]:
            return role
    return None


class Orders:
    """Orders to kill, as one process of lamina sees them."""

    def __init__(self, directory: str, role: str) -> None:
        self._current = os.path.join(directory, "current.json")
        self._directory = directory
        self.role = role

    def reach(self, point: str) -> None:
        """Carries out the order for `point`, if there is one."""
        try:
            with open(self._current) as file:
                order = json.load(file)
            victim = self._victim(order) if order["point"] == point else None
            # whoever is gone meanwhile is not killed, and not counted
            if victim is None or not os.path.exists(f"/proc/{victim}"):
                return
            os.rename(self._current, os.path.join(self._directory, f"taken-{order['id']}.json"))
        except (FileNotFoundError, ValueError):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def _victim(self, order: dict[str, Any]) -> int | None:
        engine = os.getpid() if self.role == "engine" else os.getppid()
        if order["victim"] == "engine":
            return engine
        if order["victim"] == "maintenance":
            return os.getpid() if self.role == "maintenance" else _child(engine)
        return int(order["driver"]) if order["victim"] == "driver" else _parent(engine)


def _parent(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def _child(process: int) -> int | None:
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and _parent(int(entry)) == process:
                return int(entry)
        except OSError:
            continue
    return None


def install(orders: Orders, broken: str | None) -> None:
    """Puts the backend of the campaign under every storage that this process opens."""
    import pyarrow as pa

    from lamina.storage import Backend, Listed, storage

    class KilledBackend(Backend):
        def __init__(self, inner: Backend) -> None:
            self._inner = inner
            self.remote = inner.remote
            self.has_copies = inner.has_copies

        def publish(self, path: str, chunks: Iterable[Any]) -> int:
            before, during, after = PUBLICATION if path.endswith((".lam", ".log")) else COMPACTION
            if broken == PUBLICATION_BEFORE_DATA and path.endswith(".lam"):
                return self._late(path, b"".join(bytes(chunk) for chunk in chunks))
            orders.reach(before)
            size = self._inner.publish(path, interrupted(chunks, during))
            orders.reach(after)
            return size

        def _late(self, path: str, data: bytes) -> int:
            def write() -> None:
                time.sleep(LATE_S)
                self._inner.publish(path, [data])

            threading.Thread(target=write, daemon=True).start()
            return len(data)

        def publish_if_absent(self, path: str, data: bytes) -> bool:
            return self._inner.publish_if_absent(path, data)

        def read(self, path: str, size: int | None = None) -> pa.Buffer:
            return self._read(lambda: self._inner.read(path, size))

        def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
            return self._read(lambda: self._inner.read_range(path, offset, length))

        def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
            yield from self._each(self._inner.read_pieces(path, offset, length, size))

        def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
            yield from self._each(self._inner.stream(path, length, piece))

        def _each(self, pieces: Generator[pa.Buffer, None, None]) -> Generator[pa.Buffer, None, None]:
            try:
                while (piece := self._read(lambda: next(pieces, None))) is not None:
                    yield piece
            finally:
                pieces.close()

        def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
            return self._read(lambda: self._inner.read_tail(path, length))

        def _read(self, read: Callable[[], T]) -> T:
            if threading.current_thread().name.startswith(RESTORES):
                orders.reach(RESTORE)
            return read()

        def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
            return self._read(lambda: self._inner.link(path, target, room))

        def list(self, directory: str) -> Sequence[Listed]:
            return self._inner.list(directory)

        def delete_many(self, paths: Sequence[str]) -> None:
            half = (len(paths) + 1) // 2
            self._inner.delete_many(paths[:half])
            orders.reach(COLLECTION)
            self._inner.delete_many(paths[half:])

        def stamp(self, path: str) -> bool:
            return self._inner.stamp(path)

        def keep(self, path: str, source: str) -> None:
            self._inner.keep(path, source)

        def forget(self, path: str) -> bool:
            return self._inner.forget(path)

        def size(self, path: str) -> int:
            return self._inner.size(path)

    def interrupted(chunks: Iterable[Any], point: str) -> Iterator[Any]:
        for number, chunk in enumerate(chunks):
            if number == 1:
                orders.reach(point)
            yield chunk

    opened = storage.open_backend

    def open_backend(*arguments: Any, **named: Any) -> Backend:
        return KilledBackend(opened(*arguments, **named))

    storage.open_backend = open_backend
    reach_in_tables(orders)
    reach_in_groups(orders)
    if orders.role == "engine":
        reach_in_restores(orders)
    if broken == NO_LINEAGE_CHECK:
        forget_the_lineage()


def reach_in_tables(orders: Orders) -> None:
    """Puts the points of `backend` `rocksdb` into what it does on the local disk."""
    from lamina.store.tables.database import Database
    from lamina.store.tables.local import LocalTables

    ingest, settle, link = Database.ingest, Database.settle, LocalTables._link
    ingested, merged, linked = TABLES

    def killed_ingest(self: Database, run: Iterator[Any]) -> int:
        rows = ingest(self, run)
        orders.reach(ingested)
        return rows

    def killed_settle(self: Database, worked: Callable[[], None]) -> None:
        if any(self._db.property_int_value(f"rocksdb.{one}") for one in MERGES):
            orders.reach(merged)
        settle(self, worked)

    def killed_link(self: LocalTables, source: str, target: str, *, has_room: bool = False) -> None:
        link(self, source, target, has_room=has_room)
        orders.reach(linked)

    Database.ingest = killed_ingest  # type: ignore[method-assign]
    Database.settle = killed_settle  # type: ignore[method-assign]
    LocalTables._link = killed_link  # type: ignore[method-assign]


def reach_in_restores(orders: Orders) -> None:
    """Small sections of local files are read by the thread that sends them, which has no name of its own."""
    from lamina.store.restore.stream import Sections

    batches = Sections.batches

    def killed_batches(self: Sections) -> Iterator[Any]:
        for found in batches(self):
            orders.reach(RESTORE)
            yield found

    Sections.batches = killed_batches  # type: ignore[method-assign]


def reach_in_groups(orders: Orders) -> None:
    """Puts the point between a commit that has its place in a log object and the group's end. Processes tell one
    another sooner what stores need: the campaign ends before they would."""
    from lamina.store.changelog.groups import Groups
    from lamina.store.files import log_parts

    log_parts.TOLD_AFTER_S = TOLD_AFTER_S

    fill = Groups.fill

    def killed_fill(self: Groups, group: Any, *arguments: Any) -> None:
        fill(self, group, *arguments)
        if not group.sealed:
            orders.reach(ACCEPTED)

    Groups.fill = killed_fill  # type: ignore[method-assign, assignment]


def forget_the_lineage() -> None:
    """Of several attempts of a version the first that was published is taken, whichever Spark's log names.

    A commit whose base is not the one that its caller names would be refused; that check goes, too.
    """
    from dataclasses import replace

    from lamina.store import CommitRequest
    from lamina.store.files.locator import attempt_of
    from lamina.store.versions.resolution import Versions, is_empty

    read = CommitRequest.from_header
    CommitRequest.from_header = staticmethod(lambda header: replace(read(header), base=None))  # type: ignore[method-assign]

    located = Versions.locate

    def locate(self: Versions, version: Any) -> str | None:
        attempt = located(self, version)
        if attempt is None or is_empty(attempt):
            return attempt
        listing = sorted(self._files.list(), key=lambda entry: (entry.modified_ms, entry.name))
        found = (one for one in map(attempt_of, (entry.name for entry in listing)) if one is not None)
        return next((str(one) for one in found if one.version == version.version), attempt)

    Versions.locate = locate  # type: ignore[method-assign]


_directory = os.environ.get("LAMINA_KILL_ORDERS")
_role = role_of(sys.orig_argv)
if _directory and _role:
    install(Orders(_directory, _role), os.environ.get("LAMINA_KILL_BROKEN"))
