"""A client of the wire in plain Python: starts a real engine, calls its control side, and speaks its data protocol."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from py4j.protocol import escape_new_line, unescape_new_line

from lamina._version import __version__
from lamina.format import SCHEMA

SOURCES = Path(__file__).resolve().parents[3] / "python"
HELD = os.pathsep.join([str(Path(__file__).with_name("held_hook")), str(SOURCES)])
"""A Python path for an engine whose publications wait at gates."""
PREAMBLE = b"LMNW" + struct.pack("<HH", 1, 0)
PREFIX = "spark.sql.streaming.stateStore.lamina."

ANSWER_S = 120
"""How long an answer may take on a busy machine."""

_request_ids = itertools.count(1)


class Refused(Exception):
    """The engine answered an error."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(f"[{error['kind']}] {error['message']}")
        self.kind = error["kind"]
        self.message = error["message"]


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["ok"]:
        raise Refused(answer["error"])
    return answer


class Engine:
    """A running engine process and its control side."""

    def __init__(
        self,
        directory: Path,
        *,
        start: Mapping[str, Any] | None = None,
        process: Mapping[str, str] | None = None,
        python_path: str | None = None,
        python: str = sys.executable,
        arguments: Iterable[str] = ("-m", "lamina.engine"),
        environment: Mapping[str, str] | None = None,
        starter: Iterable[str] = (),
    ) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.token = secrets.token_hex(32)
        self.process = subprocess.Popen(
            [*starter, python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": python_path or str(SOURCES), **(environment or {})},
        )
        line = {
            "token": self.token,
            "directory": str(directory),
            "shim_version": __version__,
            "protocol": 1,
            "jvm_pid": os.getpid(),
            "process": dict(process or {}),
            **(start or {}),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        self.answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        self._control: Control | None = None

    @property
    def control(self) -> Control:
        if self._control is None:
            self._control = Control(checked(self.answer)["py4j_port"], self.token)
        return self._control

    def call(self, method: str, *arguments: Any) -> dict[str, Any]:
        return self.control.call(method, *arguments)

    def connect(self, token: str | None = None) -> Data:
        return Data(self.answer["socket"], token or self.token)

    def end(self, timeout: float = 20) -> int:
        """Ends standard input, as the end of the JVM does, and waits."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self._control is not None:
            self._control.close()
        self.process.stdin.close()
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Control:
    """One Py4J connection, spoken as the JVM's library does: calls on the entry point, with texts and integers."""

    def __init__(self, port: int, token: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rwb")
        self.accepted = self._line(f"A\n{token}\ne\n") == "!yv"

    def call(self, method: str, *arguments: Any) -> dict[str, Any]:
        parts = "".join(self._argument(argument) for argument in arguments)
        answer = self._line(f"c\nt\n{method}\n{parts}e\n")
        assert answer.startswith("!ys"), answer
        return checked(json.loads(unescape_new_line(answer[3:])))

    def _argument(self, value: Any) -> str:
        if isinstance(value, int):
            return f"L{value}\n"
        text = value if isinstance(value, str) else json.dumps(value)
        return f"s{escape_new_line(text)}\n"

    def _line(self, text: str) -> str:
        self._file.write(text.encode())
        self._file.flush()
        return self._file.readline().decode().rstrip("\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class _Whole:
    """A file whose end is never the end of a stream."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the engine closed the connection inside a stream")
        return data

    def close(self) -> None:
        pass


class Data:
    """One data connection."""

    def __init__(self, path: str, token: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.socket.sendall(PREAMBLE + token.encode())
        self._file = self.socket.makefile("rb")

    def greeted(self) -> bool:
        return self._file.read(8) == PREAMBLE

    def readable(self, timeout: float) -> bool:
        return bool(select.select([self.socket], [], [], timeout)[0])

    def send(self, header: Mapping[str, Any], sections: Iterable[Iterable[pa.RecordBatch]] = ()) -> int:
        full = {"id": next(_request_ids), "deadline_ms": 0, **header}
        self.send_raw(json.dumps(full).encode())
        for batches in sections:
            self.send_section(batches)
        return int(full["id"])

    def send_raw(self, body: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def send_section(self, batches: Iterable[pa.RecordBatch]) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self.socket.sendall(sink.getvalue())

    def header(self) -> dict[str, Any]:
        """The next response's header; raises where it is an error, ConnectionError where there is none."""
        return checked(self.raw_header())

    def raw_header(self) -> dict[str, Any]:
        """The next response's header, also where it is an error."""
        length = self._file.read(4)
        if len(length) < 4:
            raise ConnectionError("the engine closed the connection")
        found: dict[str, Any] = json.loads(self._file.read(struct.unpack("<I", length)[0]))
        return found

    def stream(self) -> list[pa.RecordBatch]:
        """The batches of a response; ConnectionError where its end mark is missing, which Arrow would not mind."""
        with pa.ipc.open_stream(pa.PythonFile(_Whole(self._file), mode="r")) as reader:
            return list(reader)

    def closed(self) -> bool:
        """Waits for the end of the connection."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def request(self, header: Mapping[str, Any], sections: Iterable[Iterable[pa.RecordBatch]] = ()) -> dict[str, Any]:
        self.send(header, sections)
        return self.header()

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def entries(rows: Iterable[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    """A record batch of (column family, op, key, value)."""
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


class Store:
    """A store that is open in an engine, used as the shim uses it."""

    def __init__(
        self,
        engine: Engine,
        url: str,
        *,
        settings: Mapping[str, str] | None = None,
        hadoop: Mapping[str, str] | None = None,
        run_id: str = "run",
        read_only: bool = False,
        format_version: int = 2,
        partition: int = 0,
        name: str = "default",
    ) -> None:
        self.engine = engine
        self.opened = engine.call(
            "openStore",
            {
                "store": {"operator": 0, "partition": partition, "name": name},
                "url": url,
                "settings": {PREFIX + name: value for name, value in (settings or {}).items()},
                "hadoop": dict(hadoop or {}),
                "run_id": run_id,
                "read_only": read_only,
                "format_version": format_version,
                "minVersionsToRetain": 2,
                "spark": "4.3.0",
            },
        )
        self.handle: int = self.opened["handle"]
        self.directory = Path(url.removeprefix("file:")) / "0" / str(partition) / ("" if name == "default" else name)

    def begin(self, version: int, attempt: str | None, **options: Any) -> dict[str, Any]:
        argument = {"version": version, "attempt": attempt, "task_attempt": 1, "load_empty": False}
        return self.engine.call("begin", self.handle, {**argument, "force_snapshot": False, "have": True, **options})

    def commit_header(self, version: int, begun: Mapping[str, Any], count: int, **more: Any) -> dict[str, Any]:
        """The header of the commit of `version` that has only an increment."""
        base = None if begun["base_attempt"] is None else {"version": version - 1, "attempt": begun["base_attempt"]}
        return {
            "op": "commit",
            "handle": self.handle,
            "attempt": begun["attempt"],
            "version": version,
            "base": base,
            "sections": ["increment"],
            "rows": {"increment": count},
            "counts": {"0": {"rows": count, "bytes": 0}},
            "column_families": [],
            "next_column_family": 1,
            "task_attempt": 1,
            **more,
        }

    def commit(self, data: Data, version: int, base: str | None, batch: pa.RecordBatch) -> str:
        """Commits `batch` as `version`; gives the attempt's id."""
        begun = self.begin(version - 1, base)
        data.request(self.commit_header(version, begun, batch.num_rows), [[batch]])
        return str(begun["attempt"])

    def load(self, data: Data, version: int, attempt: str | None) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        """The header of a load, and its entries."""
        header = {"op": "load", "handle": self.handle, "version": version, "attempt": attempt}
        answer = data.request({**header, "have": None, "read_only": True})
        return answer, [row for batch in data.stream() for row in zip(*(c.to_pylist() for c in batch), strict=True)]


def greeted(engine: Engine) -> Data:
    """A connection that is served."""
    data = engine.connect()
    data.socket.settimeout(ANSWER_S)
    assert data.greeted()
    return data
