"""Runs the Spark driver as a child process: starts it, hears its events, freezes and kills its JVM, ends all of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.components import SystemClock
from lamina.demo.orders import Orders, Point
from lamina.demo.places import Places

_CLOCK = SystemClock()
_FROZEN_WITHIN_S = 5.0
_ENDED_WITHIN_S = 10.0
_SILENT_FOR_S = 300.0
_SHOWN_LINES = 15


class DriverFailed(Exception):
    """The driver ended before it was told to; the message says why and shows the end of its log."""


class Child:
    """A driver with its JVM and the engine: one process group, so that none of them is missed.

    The group is not the terminal's: Ctrl-C reaches only the demo, which then ends the group. Its standard input is
    the driver's lifeline: should the demo vanish, the group ends too.
    """

    def __init__(
        self, places: Places, provider: str, mode: str, start: int, point: Point | None, expected: bool
    ) -> None:
        places.temporary.mkdir(exist_ok=True)
        self._log = places.log(start)
        self.jvm: int | None = None
        self._closed = False
        read, write = os.pipe()
        orders = Orders(str(places.root), provider, mode, write, point, expected)
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "lamina.demo.driver", orders.to_json()],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=places.temporary,
                    env=_environment(places.temporary),
                    pass_fds=[write],
                    start_new_session=True,
                )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._events = read

    def events(self) -> Iterator[dict[str, Any]]:
        """The driver's events until it ends.

        Raises:
            DriverFailed: it reported a failure, ended without saying that it was done, or has hung.
        """
        done = False
        for line in self._lines():
            event = json.loads(line)
            if event["kind"] == "failed":
                raise DriverFailed("\n".join(event["message"].splitlines()[:_SHOWN_LINES]))
            if event["kind"] == "started":
                self.jvm = event["jvm"]
            done = done or event["kind"] == "done"
            yield event
        if not done:
            raise DriverFailed(f"the Spark driver ended unexpectedly. The end of its log:\n{self._log_end()}")

    def freeze(self) -> None:
        """Stops the JVM where it is; returns when it stands still."""
        self._signal(signal.SIGSTOP)
        deadline = _CLOCK.monotonic() + _FROZEN_WITHIN_S
        while _state(self.jvm) not in ("T", "") and _CLOCK.monotonic() < deadline:
            _pause(0.001)

    def thaw(self) -> None:
        """Lets a frozen JVM go on."""
        self._signal(signal.SIGCONT)

    def kill_jvm(self) -> None:
        """Kills the JVM with SIGKILL, and ends what is left: the driver that has lost its JVM, and the engine."""
        self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Ends all processes of the group and returns when none is left; safe to call again."""
        if self._closed:
            return
        self._closed = True
        os.close(self._events)
        with contextlib.suppress(ProcessLookupError):
            if self.jvm is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                os.kill(self.jvm, signal.SIGKILL)
        self._process.kill()
        # The engine ends by itself, since its JVM is gone, and removes its sockets; it gets the time to.
        self._await_members()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        self._await_members()  # who was just killed takes a moment to end

    def _await_members(self) -> None:
        deadline = _CLOCK.monotonic() + _ENDED_WITHIN_S
        while _members(self._process.pid) and _CLOCK.monotonic() < deadline:
            _pause(0.01)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while True:
            if not select.select([self._events], [], [], _SILENT_FOR_S)[0]:
                if self.jvm is not None:
                    self._signal(signal.SIGQUIT)  # the JVM prints its threads to the log
                    _pause(1)
                raise DriverFailed(f"no batch began or ended for {_SILENT_FOR_S:.0f} s; see the threads in {self._log}")
            data = os.read(self._events, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def _signal(self, number: int) -> None:
        if self.jvm is None:
            raise DriverFailed("the Spark driver has not started its JVM")
        os.kill(self.jvm, number)

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _environment(temporary: Path) -> dict[str, str]:
    """Everything temporary goes below the run's directory, also what a killed JVM leaves behind."""
    options = f'-XX:-UsePerfData "-Djava.io.tmpdir={temporary}"'  # the performance data would stay in /tmp
    inherited = os.environ.get("JAVA_TOOL_OPTIONS", "")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path),  # it starts elsewhere
        "TMPDIR": str(temporary),
        "JAVA_TOOL_OPTIONS": f"{inherited} {options}".strip(),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }


def _members(group: int) -> bool:
    """Whether the process group has a process that is not a zombie."""
    if not os.path.isdir("/proc/self"):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if len(fields) > 2 and int(fields[2]) == group and fields[0] not in ("Z", "X"):
                return True
    return False


def _state(process: int | None) -> str:
    fields = _stat(process) if process is not None else []
    return fields[0] if fields else ""


def _stat(process: int) -> list[str]:
    """State, parent, process group, … of a process; empty where there is no such process or no /proc."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return []
    return text[text.rindex(")") + 2 :].split()
