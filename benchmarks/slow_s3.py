"""moto's S3 server behind a network that is as slow as one between machines: each request waits, each connection has
so many bytes a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import s3fs
from moto.s3 import models
from moto.s3.models import FakeKey
from moto.server import ThreadedMotoServer

KEYS = {"key": "id", "secret": "secret"}
_CHUNK = 1 << 20
_LATE_S = 0.02


class WholeKey(FakeKey):
    """moto's own objects are read and copied as a whole for each range, which would be what restores wait for."""

    _whole: bytes | None = None

    @property
    def value(self) -> bytes:
        whole = self._whole
        if whole is None:
            whole = self._whole = super().value
        return whole

    @value.setter
    def value(self, new_value: bytes) -> None:
        FakeKey.value.fset(self, new_value)  # type: ignore[attr-defined]
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

    async def serve() -> None:
        # the loop alone does not keep a task that waits
        tasks: set[asyncio.Task[None]] = set()

        def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_Connection(latency_s, bytes_per_s, carried).serve(port, reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


class _Connection:
    """One client's connection, and the one to the server behind it."""

    def __init__(self, latency_s: float, bytes_per_s: float, carried: Any) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._carried = carried
        self._answered = True
        """Whether the bytes that passed last were the server's: then the client's next ones begin a request."""
        self._free = 0.0
        """When the connection has carried what it was given."""

    async def serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, server = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK)
        await asyncio.gather(
            self._pass_on(reader, server, self._request), self._pass_on(upstream, writer, self._answer)
        )
        for one in (writer, server):
            one.close()

    async def _request(self, _: int) -> None:
        if self._answered:
            self._answered = False
            await asyncio.sleep(self._latency_s)

    async def _answer(self, size: int) -> None:
        self._answered = True
        self._carried.value += size  # nobody else writes it
        # what a sleep took too long is made up for, so that the bandwidth is what it should be
        self._free = max(self._free, time.monotonic() - _LATE_S) + size / self._bytes_per_s
        await asyncio.sleep(self._free - time.monotonic())

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, wait: Callable[[int], Any]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await wait(len(data))
                target.write(data)
                await target.drain()
        with contextlib.suppress(OSError):
            target.write_eof()
