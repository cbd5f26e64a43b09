"""Sixteen restores at once from S3, each of a section of 256 MiB: the process stays within its budget of memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

from benchmarks.slow_s3 import hadoop_keys
from lamina import store
from lamina.components import RandomIds, SystemClock
from lamina.format import SCHEMA, ColumnFamily, Count
from lamina.settings import PREFIX, Settings
from lamina.storage import Storage
from lamina.store import (
    CheckpointState,
    CommitRequest,
    StoreConf,
    StoreId,
    Version,
)
from lamina.store.factory import make_store

MIB = 1 << 20
BUDGET = 256 * MIB
ROWS = 32_768
BATCHES = 80
RESTORES = 16

_EMPTY_LISTING = b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>'


class FileServer(BaseHTTPRequestHandler):
    """A directory as S3, for readers: objects and ranges of them. moto reads a whole object for each range."""

    protocol_version = "HTTP/1.1"
    root: Path

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.root / unquote(urlsplit(self.path).path).lstrip("/")
        if "list-type" in self.path:
            self._send(200, {"Content-Length": str(len(_EMPTY_LISTING))})
            self.wfile.write(_EMPTY_LISTING)
        elif not path.is_file():
            self._send(404, {"Content-Length": "0"})
        else:
            size = path.stat().st_size
            asked = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=")
            first, _, last = asked.partition("-")
            start = int(first) if first else max(0, size - int(last))
            end = min(int(last), size - 1) if first and last else size - 1
            length = end + 1 - start
            headers = {"Content-Length": str(length), "ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            partial = "Range" in self.headers
            self._send(206 if partial else 200, {**headers, "Content-Range": f"bytes {start}-{end}/{size}"})
            if body:
                with open(path, "rb") as file:
                    file.seek(start)
                    shutil.copyfileobj(_Range(file, length), self.wfile, MIB)

    def _send(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class _Range:
    def __init__(self, file: object, length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(min(size, self._left))  # type: ignore[attr-defined]
        self._left -= len(data)
        return data


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    handler = type("Files", (FileServer,), {"root": tmp_path})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def texts(width: int) -> pa.Array:
    data = pa.py_buffer(os.urandom(width * ROWS))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), ROWS, [None, data]).cast(pa.binary())


def written(root: Path) -> str:
    """The attempt of a version that is one large section of rows of 100 bytes."""
    storage = Storage(str(root))
    state = CheckpointState.open(storage, run_id="r", read_only=False, clock=SystemClock(), ids=RandomIds())
    settings = Settings.parse({PREFIX + "compression.codec": "uncompressed"})
    opened = make_store(
        state,
        StoreId(str(root), 0, 0, "default"),
        StoreConf(settings, 2, "4.3.0", 100),
        clock=SystemClock(),
        ids=RandomIds(),
    )
    begun = opened.begin(Version(0), task_attempt=0, load_empty=False, force_snapshot=False, have=True)
    rows = ROWS * BATCHES
    counts = {0: Count(rows, rows * 100)}
    request = CommitRequest(begun.attempt, 1, Version(0), counts, (ColumnFamily(0, "default"),), 1, 0)
    zeros, ones = pa.array([0] * ROWS, pa.uint16()), pa.array([1] * ROWS, pa.uint8())
    batches = (pa.RecordBatch.from_arrays([zeros, ones, texts(24), texts(76)], schema=SCHEMA) for _ in range(BATCHES))
    opened.commit(request, {"increment": batches})
    return begun.attempt


PROGRAM = """
    import json, re, sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    from lamina.components import RandomIds, SystemClock
    from lamina.settings import Settings
    from lamina.storage import LocalCache, Storage
    from lamina.store import CheckpointState, StoreConf, StoreId, Version
    from lamina.store.factory import make_store
    from lamina.store.memory.budget import MemoryBudget

    hadoop, attempt, copies, bound, restores, rows = json.loads(sys.argv[1])
    kept = LocalCache(copies, 1 << 30, lambda path: path.endswith(".lam"))
    storage = Storage("s3a://bucket/state", hadoop, cache=kept)
    state = CheckpointState.open(storage, run_id="r", read_only=True, clock=SystemClock(), ids=RandomIds())
    budget = MemoryBudget(bound)

    def restored(_):
        store = make_store(state, StoreId("s3a://bucket", 0, 0, "default"), StoreConf(Settings(), 2, "4.3.0", 100),
                          clock=SystemClock(), ids=RandomIds())
        load = store.load(Version(1, attempt), have=None, read_only=True, share=budget.share())
        return sum(batch.num_rows for batch in load.batches)

    with ThreadPoolExecutor(restores) as pool:
        assert list(pool.map(restored, range(restores))) == [rows] * restores
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps([int(peak[1]) * 1024, budget.stats()]))
"""


def test_sixteen_restores_at_once_stay_within_the_budget(tmp_path: Path, endpoint: str) -> None:
    attempt = written(tmp_path / "bucket" / "state")
    asked = [hadoop_keys(endpoint), attempt, str(tmp_path / "copies"), BUDGET, RESTORES, ROWS * BATCHES]
    for _source in ("the storage", "local copies"):
        answer = subprocess.check_output(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(asked)],
            text=True,
            timeout=1800,
            env={
                "PYTHONPATH": str(Path(store.__file__).parents[2]),
                "MALLOC_ARENA_MAX": "2",
                "PATH": os.environ["PATH"],
            },
        )
        peak, budget = json.loads(answer)
        assert budget["waits"] > 0
        assert budget["held_bytes"] == 0
        assert peak <= BUDGET + 150 * MIB
