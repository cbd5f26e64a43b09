"""moto's S3 server behind a network that is as slow as one between machines: each request waits, each connection has
so many bytes a second."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import multiprocessing
import os
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import s3fs
from moto.s3 import models
from moto.s3.models import FakeKey
from moto.server import ThreadedMotoServer

KEYS = {"key": "id", "secret": "secret"}
_CHUNK = 1 << 20
_BUFFER_BYTES = 4 << 20
_LATE_S = 0.02


class WholeKey(FakeKey):
    """moto's own objects are read from a file, and copied as a whole for each range, which would be what restores wait
    for: they share the processors."""

    instances_tracked: ClassVar[list[WholeKey]]
    """moto's own list of them."""
    _whole: bytes | None = None

    @property
    def value(self) -> bytes:
        whole = self._whole
        return super().value if whole is None else whole

    @value.setter
    def value(self, new_value: bytes) -> None:
        FakeKey.value.fset(self, new_value)  # type: ignore[attr-defined]
        # one that is in no bucket is a part of an upload
        self._whole = None if self.bucket_name is None else bytes(new_value)

    def dispose(self, garbage: bool = False) -> None:
        """Gives its memory back."""
        super().dispose(garbage)
        self._whole = None


def hadoop_keys(endpoint: str) -> dict[str, str]:
    """The Hadoop keys with which S3A, and lamina, reach moto's server."""
    return {
        "fs.s3a.access.key": KEYS["key"],
        "fs.s3a.secret.key": KEYS["secret"],
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
    }


class SlowS3:
    """One bucket; a context manager.

    Args:
        latency_s: before the first byte of a request gets through.
        bytes_per_s: what one connection carries of answers.
    """

    bucket = "lamina"
    url = f"s3a://{bucket}"

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        models.FakeKey = WholeKey  # type: ignore[misc]
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        port = self._server.get_host_and_port()[1]
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        self._carried = spawn.Value("Q", 0)
        arguments = (port, latency_s, bytes_per_s, there, self._carried)
        self._network = spawn.Process(target=_network, args=arguments, daemon=True)
        self._network.start()
        there.close()
        self._slow = f"http://127.0.0.1:{here.recv()}"
        self._direct = s3fs.S3FileSystem(**KEYS, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
        self._direct.mkdir(self.bucket)

    def put(self, folder: Path, name: str) -> str:
        """Copies a folder past the slow network; its URL."""
        self._direct.put(str(folder), f"{self.bucket}/{name}", recursive=True)
        return f"{self.url}/{name}"

    def remove(self, name: str) -> None:
        """Removes a folder again: the server has it in memory."""
        self._direct.rm(f"{self.bucket}/{name}", recursive=True)
        # moto has disposed of them, and keeps them in its list until it is reset
        WholeKey.instances_tracked = [key for key in WholeKey.instances_tracked if not key.disposed]

    @property
    def carried(self) -> int:
        """Bytes of all answers so far that came through the slow network."""
        return int(self._carried.value)

    @property
    def settings(self) -> dict[str, str]:
        """What a running session sets so that lamina reaches the server through the slow network."""
        return hadoop_keys(self._slow)

    def __enter__(self) -> SlowS3:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._network.terminate()
        self._network.join()
        self._server.stop()


def _network(port: int, latency_s: float, bytes_per_s: float, parent: Connection, carried: Any) -> None:
    """Passes on connections to `port` until it is terminated."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        # those that are accepted have it from there
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        parent.send(listening.getsockname()[1])
        while True:
            client, _ = listening.accept()
            connection = _Connection(client, port, latency_s, bytes_per_s, carried)
            threading.Thread(target=connection.serve, daemon=True).start()


class _Connection:
    """One client's connection, and the one to the server behind it.

    Answers go from socket to socket within the kernel: the processors are shared with the server, and with who is
    measured.
    """

    def __init__(self, client: socket.socket, port: int, latency_s: float, bytes_per_s: float, carried: Any) -> None:
        self._client = client
        self._port = port
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._carried = carried
        self._answered = True
        """Whether the bytes that passed last were the server's: then the client's next ones begin a request."""

    def serve(self) -> None:
        there, here = os.pipe()
        with contextlib.suppress(PermissionError):
            # users have a bound of what all their pipes hold
            fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, _CHUNK)
        try:
            with self._client, socket.socket() as server:
                # what the server sends while a chunk is on its way goes on in one piece
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                for one in (self._client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.connect(("127.0.0.1", self._port))
                requests = threading.Thread(target=self._requests, args=(server,), daemon=True)
                requests.start()
                self._answers(server, there, here)
                requests.join()
        finally:
            os.close(there)
            os.close(here)

    def _requests(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(_CHUNK):
                if self._answered:
                    self._answered = False
                    time.sleep(self._latency_s)
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, there: int, here: int) -> None:
        """Each byte when the connection has had the time for it."""
        free = 0.0
        with contextlib.suppress(OSError):
            while size := os.splice(server.fileno(), here, _CHUNK):
                self._answered = True
                with self._carried.get_lock():
                    self._carried.value += size
                # what a sleep took too long is made up for, so that the bandwidth is what it should be
                free = max(free, time.monotonic() - _LATE_S) + size / self._bytes_per_s
                time.sleep(max(0.0, free - time.monotonic()))
                while size:
                    size -= os.splice(there, self._client.fileno(), size)
        # who still sends is not read any more
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
