"""The slow S3 of benchmarks: what comes through it is what was put, and is counted; and what was removed is gone."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.slow_s3 import SlowS3, WholeKey
from lamina.storage import Storage
from lamina.testing.expect import fails_with
from tests.s3_server import AUTHORIZATION

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIZES = [1, 70_000, 3 << 20, 9 << 20]


def test_what_comes_through_is_what_was_put_and_what_was_removed_is_gone(tmp_path: Path) -> None:
    objects = [os.urandom(size) for size in SIZES]
    for number, content in enumerate(objects):
        Path(tmp_path, str(number)).write_bytes(content)
    with SlowS3(0.001, 1e9) as server:
        storage = Storage(server.put(tmp_path, "folder"), server.settings)
        carried = server.carried

        def read(number: int) -> bytes:
            _left_early(server)
            return b"".join(storage.stream(str(number), SIZES[number], 1 << 20))

        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(read, [*range(len(SIZES))] * 4)] == objects * 4
        assert server.carried - carried >= 4 * sum(SIZES)
        published = b"published" * 300_000
        assert storage.publish("other", [published]) == len(published)
        assert bytes(storage.read_range("other", 9, 9)) == b"published"
        server.remove("folder")
        with fails_with("file.missing"):
            storage.size("0")
        assert not [key for key in WholeKey.instances_tracked if str(key.name).startswith("folder/")]


def _left_early(server: SlowS3) -> None:
    """A client that asks for an object and does not wait for all of it."""
    endpoint = urlsplit(server.settings["fs.s3a.endpoint"])
    assert endpoint.hostname is not None
    headers = f"Host: {endpoint.netloc}\r\nAuthorization: {AUTHORIZATION}\r\n\r\n"
    with socket.create_connection((endpoint.hostname, endpoint.port or 80), 60) as client:
        client.sendall(f"GET /{server.bucket}/folder/3 HTTP/1.1\r\n{headers}".encode())
        assert client.recv(15) == b"HTTP/1.1 200 OK"
