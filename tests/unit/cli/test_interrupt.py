"""Commands that are interrupted: they end at once, and leave no temporary files, whoever makes some meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[3] / "python"
PROGRAM = """
import os, signal, sys, tempfile, threading
from lamina.cli.progress import interrupt_ends_at_once

# a run in the background has interrupts ignored, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

over = threading.Event()

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
    for thread in threads:
        thread.start()
    while len(os.listdir(tempfile.gettempdir())) < 20:
        pass
    print("up", flush=True)
    if sys.argv[1] == "wait":
        signal.pause()
    over.set()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_temporary_files(tmp_path: Path, number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "wait"], env=environment, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            assert list(tmp_path.iterdir())
            child.send_signal(number)
            child.wait(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_ends_leaves_none_either(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM, "end"], env=environment, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
