"""The engine process: puts its parts together, and ends with the JVM that started it."""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lamina._version import __version__
from lamina.components import Clock, Ids, RandomIds, SystemClock
from lamina.engine.control import Control, ControlServer
from lamina.engine.cycles import collect_seldom
from lamina.engine.data import DataServer
from lamina.engine.directories import Directories
from lamina.engine.framing import PROTOCOL, TOKEN_BYTES
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.operations import Memory, operations
from lamina.engine.publications import Publications
from lamina.engine.requests import Requests
from lamina.engine.sessions import Sessions
from lamina.errors import EngineError
from lamina.settings import Settings
from lamina.storage import Jvm
from lamina.store.memory.budget import default_bytes

log = logging.getLogger(__name__)

_LAST_UPLOADS_S = 3.0
"""The JVM waits for 5 seconds until it ends the engine by force, and the maintenance process has 1.5 of them."""

_SWITCH_INTERVAL_S = 0.0005
"""A commit that arrives while another thread runs Python code waits at most this long for the interpreter."""


class EngineProcess:
    """Everything that lives as long as the engine.

    1. The end of standard input is the end of the JVM, and of the engine. Log objects of commits that were accepted are
       published, within seconds: tasks have ended on them, and their batch may still become whole. Whatever else is in
       progress is given up. Files are published whole or not at all, so nothing of it needs to be finished.
    2. SIGTERM and `shutdown` do the same. SIGINT and SIGHUP go to a whole terminal and are the JVM's to answer.
    3. The maintenance process sees the end of its own standard input however the engine ends.
    """

    def __init__(self, start: Mapping[str, Any], clock: Clock | None = None, ids: Ids | None = None) -> None:
        clock, ids = clock or SystemClock(), ids or RandomIds()
        token, directory, conf = start.get("token"), start.get("directory"), start.get("process", {})
        if not (isinstance(token, str) and len(token) == TOKEN_BYTES and isinstance(directory, str)):
            raise EngineError("engine.start", f"a start line needs a token of {TOKEN_BYTES} characters and a directory")
        settings = Settings.parse(conf)
        # The shim forwards these lines to Spark's log at the level that they start with.
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        socket = start.get("hadoop_socket")
        jvm = Jvm(socket, token) if isinstance(socket, str) else None
        self._directories = Directories(directory, None if jvm is None else jvm.socket)
        self._end, self._ending = os.pipe()
        try:
            # databases that are read in place go with the engine, however it ends
            tempfile.tempdir = directory = self._directories.working(settings.engine_local_directory)
            self._requests = Requests(clock.monotonic)
            silence_s = settings.engine_request_timeout_ms / 1000
            self._maintenance = MaintenanceQueue(clock, directory, silence_s, settings.engine_maintenance_workers, jvm)
            self._sessions = Sessions(settings, self._maintenance, clock, ids, jvm)
            self._memory = Memory(settings.engine_memory_bytes or default_bytes())
            self._publications = Publications(self._requests, settings.engine_connections, self._memory.requests_bytes)
            self._data = DataServer(
                self._directories.socket_path,
                token,
                operations(self._sessions, self._memory, self._publications, clock.monotonic),
                self._requests,
                settings.engine_connections,
            )
            self._control = ControlServer(
                Control(self._sessions, self._requests, self._maintenance, self.stats, self.end), token
            )
        except BaseException:
            self._directories.remove()
            raise

    def started(self) -> dict[str, Any]:
        """Starts serving; returns the answer to the start line."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        self._data.start()
        self._maintenance.start()
        collect_seldom()
        return {
            "ok": True,
            "py4j_port": self._control.port,
            "socket": self._directories.socket_path,
            "pid": os.getpid(),
            "engine_version": __version__,
            "protocol": PROTOCOL,
        }

    def run(self) -> None:
        """Returns when the engine has to end, with nothing left behind."""
        threading.Thread(target=self._directories.sweep, name="lamina-sweep", daemon=True).start()
        stdin = sys.stdin.fileno()
        while True:
            ready, _, _ = select.select([stdin, self._end], [], [])
            if self._end in ready or not os.read(stdin, 4096):
                break
        self._maintenance.kill()
        try:
            left = self._sessions.finish(_LAST_UPLOADS_S)
            if left:
                log.warning("%d commits that were accepted are not durable: their batch is run again", left)
        except Exception:
            log.exception("commits that were accepted may not be durable")
        self._maintenance.close()
        self._directories.remove()
        # Threads may be in the middle of a request for a JVM that is no more; nobody waits for them.
        sys.stderr.flush()
        os._exit(0)

    def end(self) -> None:
        """Makes `run` return; from any thread or a signal handler."""
        os.write(self._ending, b"\0")

    def stats(self) -> dict[str, Any]:
        """Memory, requests, connections, stores and maintenance."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "pid": os.getpid(),
            "memory": {
                "resident_bytes": _resident_bytes(),
                "peak_resident_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
                "arrow_bytes": pa.total_allocated_bytes(),
                "budget": self._memory.stats(),
            },
            "cpu_ms": round((usage.ru_utime + usage.ru_stime) * 1000),
            "requests": self._requests.stats(),
            "data": self._data.stats(),
            "publications": self._publications.stats(),
            "stores": self._sessions.stats(),
            "maintenance": self._maintenance.stats(),
        }


def _resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say (no /proc)."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None
