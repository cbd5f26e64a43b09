"""`lamina fsck` where tables of RocksDB cannot be opened: it checks what it can, and says what it did not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.format.paths import TableListName, TableName, parse_name
from tests.unit.cli.query_on_disk import QueryOnDisk

BACKEND = {"backend": "rocksdb", "rocksdb__materializeEvery": 2}
HOOK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "rocksdict":
            raise ModuleNotFoundError("No module named 'rocksdict'")

sys.meta_path.insert(0, Absent())
"""


def fsck(directory: Path, site: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the command in a process that has no rocksdict."""
    (site / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "lamina.cli", "fsck", str(directory), *options],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "300", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def of_partition_0(directory: Path, site: Path, code: int = 0) -> dict[str, Any]:
    exit_code, text = fsck(directory, site, "--json")
    assert exit_code == code, text
    store = json.loads(text)["stores"][0]
    assert isinstance(store, dict)
    return store


@pytest.fixture
def query(tmp_path: Path) -> QueryOnDisk:
    """Versions 1 and 2 are increments; 3 stands on a list of tables that was made of those."""
    query = QueryOnDisk(tmp_path / "checkpoint", **BACKEND)
    query.run(2)
    query.materialize()
    query.run(1)
    return query


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    return directory


def named(query: QueryOnDisk, kind: type) -> Path:
    """The only file of a class in partition 0."""
    directory = query.directory / "state" / "0" / "0"
    (path,) = (path for path in directory.iterdir() if isinstance(parse_name(path.name), kind))
    return path


def test_a_whole_checkpoint_is_whole_and_what_was_not_counted_is_told(query: QueryOnDisk, site: Path) -> None:
    store = of_partition_0(query.directory, site)
    # three commits, a list and its table
    assert (store["whole"], store["problems"], store["files"], store["rows"]) == ([1, 2, 3], [], 5, None)
    (warning,) = store["warnings"]
    assert "versions 3 were not counted" in warning and "rocksdict>=0.3.29,<0.4" in warning
    code, text = fsck(query.directory, site)
    assert code == 0
    assert "versions 3 were not counted" in text


@pytest.mark.parametrize("kind", [TableListName, TableName])
def test_damage_is_found_all_the_same(query: QueryOnDisk, site: Path, kind: type) -> None:
    path = named(query, kind)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    store = of_partition_0(query.directory, site, code=1)
    assert store["damaged"] == [3]
    (problem,) = store["problems"]
    assert problem["kind"] == "file.damaged" and path.name in problem["message"]
