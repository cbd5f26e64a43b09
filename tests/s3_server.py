"""moto's S3 server on loopback, and a proxy before it that counts requests and makes them fail as real ones do."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from moto.s3 import models
from moto.server import ThreadedMotoServer

from benchmarks.slow_s3 import WholeKey, hadoop_keys
from lamina.storage import Storage
from lamina.storage.s3 import S3Backend

AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request"
_HOP_BY_HOP = {"connection", "transfer-encoding", "expect", "keep-alive"}
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'


@dataclass(frozen=True)
class Request:
    """One request as the proxy saw it; `sent` is how many bytes of body its answer had. Names of headers are small."""

    method: str
    path: str
    query: dict[str, list[str]]
    sent: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        """The method, with what tells S3's operations of one method apart."""
        names = [name for name in ("uploadId", "uploads", "partNumber", "delete", "list-type") if name in self.query]
        return " ".join([self.method, *names])


@dataclass
class Trouble:
    """What happens to the next `times` requests whose operation is `operation` and whose path holds `path`.

    `status` and `code`: this error instead of an answer. `cut`: the connection ends in the middle of the request's
    body. `lose`: the request is carried out, and the connection ends without an answer. `cut_answer`: half of the
    answer's body is sent. `delay`: seconds before the answer. `until`: the request is carried out once there were
    so many others of its operation. `body`: this answer instead of the server's. `part`: only that part of an upload.
    `before`: called before the request is carried out.
    """

    operation: str
    path: str = ""
    status: int = 0
    code: str = "SlowDown"
    cut: bool = False
    lose: bool = False
    cut_answer: bool = False
    delay: float = 0.0
    until: int = 0
    body: str | None = None
    part: str | None = None
    before: Callable[[], object] | None = None
    times: int = 1

    def meets(self, request: Request) -> bool:
        if self.part is not None and request.query.get("partNumber") != [self.part]:
            return False
        return self.times > 0 and self.operation in ("*", request.operation) and self.path in request.path


EVERYDAY = (
    Trouble("*", status=503),
    Trouble("*", delay=0.3),
    Trouble("*", lose=True),
    Trouble("*", status=500, code="InternalError"),
    Trouble("*", cut_answer=True),
)
"""Troubles that one request in many meets on a busy day."""


@dataclass
class FaultyProxy:
    """Passes HTTP requests on to a server at `port` of this machine; each `every`-th one meets an everyday trouble."""

    port: int
    every: int = 0
    taken: int = 0
    met: int = 0
    under_way: int = 0
    most_at_once: int = 0
    requests: list[Request] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    conditional: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._ended = threading.Event()
        self._answered = threading.Condition(self.lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def inject(self, trouble: Trouble) -> Trouble:
        with self.lock:
            self.troubles.append(trouble)
        return trouble

    def take(self, request: Request) -> Trouble | None:
        with self.lock:
            self.taken += 1
            found = next((trouble for trouble in self.troubles if trouble.meets(request)), None)
            if found is not None:
                found.times -= 1
            elif self.every and self.taken % self.every == 0:
                self.met += 1
                found = EVERYDAY[self.met % len(EVERYDAY)]
            return found

    def count(self, operation: str, path: str = "") -> int:
        """Requests of an operation on paths that hold `path`."""
        with self.lock:
            return sum(request.operation == operation and path in request.path for request in self.requests)

    def forget(self) -> None:
        """Forgets the requests so far."""
        with self.lock:
            self.requests.clear()

    def begin(self) -> None:
        with self.lock:
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)

    def record(self, request: Request) -> None:
        with self.lock:
            self.requests.append(request)
            self._answered.notify_all()

    def end(self) -> None:
        """A request is about to be answered: its client may send the next one before the answer is written."""
        with self.lock:
            self.under_way -= 1

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def wait_for(self, operation: str, times: int) -> None:
        """Waits until there were so many requests of an operation; not for ever, so that the test fails."""
        with self.lock:
            self._answered.wait_for(
                lambda: sum(request.operation == operation for request in self.requests) >= times, 30
            )

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def serve(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, parts.path, parse_qs(parts.query, keep_blank_values=True), headers=headers)
            trouble = proxy.take(request) or Trouble("")
            proxy.begin()
            length = int(self.headers.get("Content-Length") or 0)
            if trouble.cut:
                self.rfile.read(length // 2)
                self.record(request, 0)
                proxy.end()
                self.break_off()
                return
            body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
            if trouble.status:
                answer = _ERROR.format(code=trouble.code).encode()
                self.record(request, 0)
                proxy.end()
                self.answer(trouble.status, [("Content-Type", "application/xml")], answer, trouble)
                return
            if trouble.until:
                proxy.wait_for(request.operation, trouble.until)
            if trouble.before is not None:
                trouble.before()
            upstream = http.client.HTTPConnection("127.0.0.1", proxy.port)
            # moto looks and writes in two steps, and S3 in one
            with proxy.conditional if "if-none-match" in headers else contextlib.nullcontext():
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
                    headers["Content-Length"] = str(len(body))
                    upstream.request(self.command, self.path, body, headers)
                    response = upstream.getresponse()
                    answer = response.read() if trouble.body is None else trouble.body.encode()
                finally:
                    upstream.close()
            self.record(request, 0 if self.command == "HEAD" else len(answer))
            if trouble.delay:
                proxy.wait(trouble.delay)
            proxy.end()
            if trouble.lose:
                self.break_off()
            else:
                self.answer(response.status, response.getheaders(), answer, trouble)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

        def _chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body

        def record(self, request: Request, sent: int) -> None:
            proxy.record(replace(request, sent=sent))

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, trouble: Trouble) -> None:
            self.send_response_only(status)
            for name, value in headers:
                # the answer to HEAD says the object's length and has no body
                if name.lower() not in _HOP_BY_HOP and (self.command == "HEAD" or name.lower() != "content-length"):
                    self.send_header(name, value)
            if self.command == "HEAD":
                self.end_headers()
                return
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body[: len(body) // 2] if trouble.cut_answer else body)
            except OSError:
                return  # the client gave up waiting
            if trouble.cut_answer:
                self.break_off()

        def break_off(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


NATIVE = importlib.util.find_spec("obstore") is not None
"""Whether the native client is installed: there is none for Python 3.10."""


def through_s3fs(storage: Storage) -> Storage:
    """The same storage with all requests through s3fs."""
    opened = storage._backend
    assert isinstance(opened, S3Backend)
    return Storage(storage.url, storage._hadoop, backend=S3Backend(opened._filesystem, opened._root))


class S3Server:
    """moto's S3 behind a proxy, with one bucket; a context manager.

    Args:
        native: whether the storages make their small requests through obstore, where this Python has it.
    """

    def __init__(self, native: bool = True) -> None:
        self.native = native and NATIVE
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        models.FakeKey = WholeKey  # type: ignore[misc]
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.proxy = FaultyProxy(self._server.get_host_and_port()[1])
        self.bucket = f"lamina-{uuid.uuid4().hex}"
        self.direct("PUT", f"/{self.bucket}")

    @property
    def hadoop(self) -> dict[str, str]:
        """The Hadoop keys with which S3A, and lamina, reach the server."""
        return hadoop_keys(self.proxy.url)

    def storage(self, path: str = "", hadoop: dict[str, str] | None = None) -> Storage:
        """A storage below a directory of the bucket."""
        keys = {**self.hadoop, **(hadoop or {})}
        storage = Storage(f"s3a://{self.bucket}/{path or uuid.uuid4()}", keys)
        return storage if self.native else through_s3fs(storage)

    def direct(self, method: str, path: str) -> bytes:
        """The body of an answer of the server itself, past the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port)
        try:
            connection.request(method, path, headers={"Authorization": AUTHORIZATION})
            return connection.getresponse().read()
        finally:
            connection.close()

    def headers(self, path: str) -> dict[str, str]:
        """The headers of the server's own answer to HEAD, past the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port)
        try:
            connection.request("HEAD", path, headers={"Authorization": AUTHORIZATION})
            return {name.lower(): value for name, value in connection.getresponse().getheaders()}
        finally:
            connection.close()

    def unfinished_uploads(self) -> int:
        """Uploads in parts that were neither completed nor aborted: they cost money, and nobody sees them."""
        return self.direct("GET", f"/{self.bucket}?uploads").count(b"<UploadId>")

    def close(self) -> None:
        self.proxy.close()
        self._server.stop()

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class OnS3Server:
    """What makes a conformance suite one of storages on moto's server."""

    server: ClassVar[S3Server]
    native: ClassVar[bool] = True

    @classmethod
    def setup_class(cls) -> None:
        cls.server = S3Server(cls.native)

    @classmethod
    def teardown_class(cls) -> None:
        cls.server.close()

    def new_storage(self) -> Storage:
        return self.server.storage()
