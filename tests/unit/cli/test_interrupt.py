"""Commands that are interrupted: they end at once, and leave no temporary files, whoever makes some meanwhile."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk

PYTHON = Path(__file__).resolve().parents[3] / "python"
PROGRAM = """
import os, signal, sys, tempfile, threading, time
from lamina.cli.progress import interrupt_ends_at_once

# a run in the background has interrupts ignored, one of nohup the end of its terminal, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

over = threading.Event()

def wait():
    # not in one call: Python may have taken a signal down just before it, and nothing would end it
    while True:
        time.sleep(0.05)

def make():
    for _ in range(20_000):  # an end, whatever becomes of the command
        if over.is_set():
            return
        try:
            directory = tempfile.mkdtemp(prefix="lamina-tables-")
            open(os.path.join(directory, "1.sst"), "w").close()
        except OSError:
            pass

with interrupt_ends_at_once():
    threads = [threading.Thread(target=make, daemon=True) for _ in range(3)]
    if sys.argv[1] == "idle":
        print("up", flush=True)
        wait()
    for thread in threads:
        thread.start()
    while len(os.listdir(tempfile.gettempdir())) < 20:
        pass
    print("up", flush=True)
    if sys.argv[1] == "wait":
        wait()
    over.set()
    for thread in threads:
        thread.join()
"""


@contextmanager
def command(directory: Path, how: str = "wait") -> Iterator[subprocess.Popen[bytes]]:
    """A command that waits, with temporary files below a directory."""
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(directory)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, how], env=environment, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            yield child
        finally:
            child.kill()


def run_to_its_end(directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(directory)}
    subprocess.run([sys.executable, "-c", PROGRAM, "end"], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_temporary_files(tmp_path: Path, number: int) -> None:
    with command(tmp_path) as child:
        assert list(tmp_path.iterdir())
        child.send_signal(number)
        assert child.wait(timeout=60) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_ends_leaves_none_either(tmp_path: Path) -> None:
    run_to_its_end(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["inspect", "gc"])
def test_what_needs_no_temporary_files_goes_on_where_there_is_no_room_for_them(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    query = QueryOnDisk(tmp_path / "checkpoint", 2)
    query.run(2)
    monkeypatch.setattr(tempfile, "gettempdir", full)
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    outcome = lamina(command, query.directory)
    assert (outcome.code, outcome.err) == (0, "")
    # and who needs them is told so
    outcome = lamina("fsck", query.directory)
    assert outcome.code == 1
    assert "set TMPDIR" in outcome.out + outcome.err


def test_what_a_killed_command_left_goes_with_the_next_one(tmp_path: Path) -> None:
    with command(tmp_path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
    (left,) = tmp_path.iterdir()
    run_to_its_end(tmp_path)
    # it might be one that has only just made it
    assert list(tmp_path.iterdir()) == [left]
    os.utime(left, (0, 0))
    run_to_its_end(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_command_uses_stays_however_old_it_is(tmp_path: Path) -> None:
    with command(tmp_path, "idle") as child:
        (used,) = tmp_path.iterdir()
        os.utime(used, (0, 0))
        run_to_its_end(tmp_path)
        assert list(tmp_path.iterdir()) == [used]
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=60)
    assert list(tmp_path.iterdir()) == []
