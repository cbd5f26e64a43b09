"""How the command ends: exit codes, one red sentence, a clean Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lamina import __version__
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk

PYTHON = Path(__file__).parent.parent.parent.parent / "python"


def test_the_module_runs_as_the_command() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "lamina.cli", "--version"],
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == f"lamina {__version__}\n"


def test_an_error_is_one_sentence_on_standard_error(lamina: Lamina, tmp_path: Path) -> None:
    outcome = lamina("inspect", tmp_path / "[no] such")
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"{tmp_path}/[no] such is not the checkpoint of a streaming query")


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "x", "--partition", "-1"], ["nothing"], []])
def test_wrong_usage_exits_with_2(lamina: Lamina, arguments: list[str]) -> None:
    assert lamina(*arguments).code == 2


@pytest.mark.parametrize("command", ["inspect", "fsck", "gc", "demo", "doctor"])
def test_help_has_examples(lamina: Lamina, command: str) -> None:
    outcome = lamina(command, "--help")
    assert outcome.code == 0
    assert "Examples:" in outcome.out
    assert f"lamina {command}" in outcome.out


@pytest.mark.parametrize(
    ("command", "bar", "counted", "found"),
    [
        ("inspect", b"reading stores", rb"2/2", b"stateStoreSave"),
        ("fsck", b"checking", rb"(\d[\d.]*)/\1 kB", b"every retained version is whole"),
        ("gc", b"collecting", rb"2/2", b"were deleted"),
    ],
)
def test_an_error_is_red_and_a_bar_shows_how_far_it_is_on_a_terminal(
    tmp_path: Path, command: str, bar: bytes, counted: bytes, found: bytes
) -> None:
    QueryOnDisk(tmp_path / "checkpoint").run(2)
    fine = in_terminal(command, str(tmp_path / "checkpoint"))
    assert bar in fine
    assert re.search(counted, re.sub(rb"\x1b\[[\d;?]*[a-zA-Z]", b"", fine))
    assert found in fine
    assert b"\x1b[31m" in in_terminal(command, str(tmp_path / "nothing"))


@pytest.mark.parametrize("command", ["inspect", "fsck", "gc"])
def test_the_bar_is_not_in_the_output(lamina: Lamina, tmp_path: Path, command: str) -> None:
    QueryOnDisk(tmp_path / "checkpoint").run(2)
    outcome = lamina(command, tmp_path / "checkpoint")
    assert outcome.err == ""
    assert not re.search("reading stores|checking|collecting", outcome.out)


def test_ctrl_c_ends_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    query = QueryOnDisk(tmp_path / "checkpoint", 1)
    query.run(1)
    # so many stores that the command is still reading them when the interrupt comes
    planned = query.directory / "offsets/0"
    pinned = '"spark.sql.shuffle.partitions":"%d"'
    assert pinned % 2 in planned.read_text()
    planned.write_text(planned.read_text().replace(pinned % 2, pinned % 200_000))
    with Terminal("inspect", str(query.directory)) as terminal:
        terminal.read_until(b"0/200000")
        terminal.press(b"\x03")
        written = terminal.read_until(None)
    assert terminal.code == 130
    assert b"Traceback" not in written


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TERM": "xterm-256color", "COLUMNS": "100"}
        environment.pop("NO_COLOR", None)
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            # A test run in the background of a shell has interrupts ignored, and children inherit that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [sys.executable, "-m", "lamina.cli", *arguments], environment)
        self.code: int | None = None

    def read_until(self, text: bytes | None) -> bytes:
        """What the command writes, up to `text` or to its end."""
        written = b""
        while text is None or text not in written:
            try:
                chunk = os.read(self._terminal, 65536)
            except OSError:
                chunk = b""  # Linux ends a terminal whose last writer is gone with an error
            if not chunk:
                break
            written += chunk
        return written

    def press(self, keys: bytes) -> None:
        """Types `keys`."""
        os.write(self._terminal, keys)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._terminal)
        _, status = os.waitpid(self._process, 0)
        self.code = os.waitstatus_to_exitcode(status)


def in_terminal(*arguments: str) -> bytes:
    """What the command writes to a terminal."""
    with Terminal(*arguments) as terminal:
        return terminal.read_until(None)
