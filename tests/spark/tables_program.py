"""Runs of a query on tables of RocksDB in a JVM of their own, whose engine's Python has modules of the test's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from lamina.settings import PREFIX
from tests.spark.conftest import shim_jar
from tests.spark.programs import run_program

FUNCTIONS = """
def many_tables(options):
    options.set_level_zero_file_num_compaction_trigger(1000)
    return options

def fails(options):
    raise RuntimeError("no such disk")

def nothing(options):
    options.set_max_bytes_for_level_multiplier(5.0)

def forgets(options):
    import rocksdict
    options.set_compaction_style(rocksdict.DBCompactionStyle.fifo())
    return options
"""
"""What `rocksdb.optionsFactory` may name."""


class Program:
    """Runs of a query in JVMs of their own, whose engine's Python has the functions, and may lack rocksdict."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "modules").mkdir()
        (path / "modules" / "tuning.py").write_text(FUNCTIONS, encoding="utf-8")
        self.absent = path / "modules" / "rocksdict.py"
        self.python = path / "python"
        self.python.write_text(
            f'#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH="{path / "modules"}{os.pathsep}$PYTHONPATH" '
            f'exec "{sys.executable}" "$@"\n',
            encoding="utf-8",
        )
        self.python.chmod(0o755)

    def take_rocksdict_away(self) -> None:
        """Until `absent` is unlinked."""
        self.absent.write_text("raise ImportError(\"No module named 'rocksdict'\")\n", encoding="utf-8")

    def run(self, runs: list[dict[str, Any]], scheme: str = "", **session: str) -> list[dict[str, Any]]:
        """How each of the runs ends."""
        argument = {
            "jar": session.pop("jar", shim_jar()),
            "path": str(self.path),
            "scheme": scheme,
            "runs": runs,
            "session": {PREFIX + "engine.python": str(self.python), **session},
        }
        ends: list[dict[str, Any]] = json.loads(run_program("tables_query.py", json.dumps(argument)).splitlines()[-1])
        return ends


def right(end: dict[str, Any], *batches: int) -> bool:
    """Whether a run had these batches with right answers, and no failure."""
    assert end["failure"] is None, end["failure"]
    return end["right"] == list(batches) and end["wrong"] == []
