"""Ctrl-C in the half second in which the command line is still being read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[3] / "python"
PROGRAM = """
import os, signal, sys, time

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["lamina", "--help"]
from lamina.cli.__main__ import main
main()
"""


def test_ctrl_c_ends_a_command_quietly_while_its_modules_are_read() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
