"""Log objects that an earlier build wrote, as tests/unit/format/test_golden_files.py has files before them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lamina.format import log_object
from lamina.format.log_object import LogIndex
from lamina.format.paths import commit_of, directory_and_name
from lamina.store.direct.open import open_store
from lamina.store.model import Version
from lamina.testing.expect import fails_with
from tests.golden import decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "logs"
STATE = GOLDEN / "state"
EXPECTED: dict[str, dict[str, str]] = json.loads((GOLDEN / "expected.json").read_text())
LOGS = sorted(path.name for path in (STATE / "_lamina" / "log").glob("*.log"))


def test_there_are_objects_of_many_stores_and_one_that_lacks_a_part() -> None:
    numbers = [
        [part["number"] for part in decoder.LogObject(STATE / "_lamina" / "log" / name).manifest["parts"]]
        for name in LOGS
    ]
    assert len(LOGS) >= 6
    assert any(len(parts) == 3 for parts in numbers)
    assert any(parts != list(range(len(parts))) for parts in numbers)


@pytest.mark.parametrize("name", LOGS)
def test_the_independent_decoder_accepts_every_golden_object(name: str) -> None:
    path = STATE / "_lamina" / "log" / name
    found = log_object.verify(path.read_bytes(), name.removesuffix(".log"), name)
    manifest = decoder.LogObject(path).manifest
    assert found.to_json() == manifest
    assert LogIndex.from_json({**manifest, "unknown": 1}) == found


@pytest.mark.parametrize("path", EXPECTED)
def test_the_independent_decoder_restores_every_golden_version(path: str) -> None:
    directory, name = directory_and_name(path)
    rows = {key.hex(): value.hex() for (_, key), value in decoder.state(STATE / directory, name).items()}
    assert rows == EXPECTED[path]


@pytest.mark.parametrize("path", EXPECTED)
def test_lamina_restores_every_golden_version(path: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "moved")
    directory, name = directory_and_name(path)
    operator, partition = map(int, directory.split("/"))
    store = open_store(str(tmp_path / "moved"), operator, partition, writable=True)
    parsed = commit_of(name)
    assert parsed is not None
    store.restore(Version(parsed.attempt.version, str(parsed.attempt)))
    assert {key.hex(): value.hex() for key, value in store.scan() if isinstance(value, bytes)} == EXPECTED[path]


def test_a_golden_object_that_is_changed_is_noticed_by_both_readers(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "moved")
    path = list(EXPECTED)[-2]
    directory, name = directory_and_name(path)
    parsed = commit_of(name)
    assert parsed is not None
    log = parsed.attempt.container.rpartition("-")[0]
    file = tmp_path / "moved" / "state" / "_lamina" / "log" / f"{log}.log"
    [part] = [one for one in decoder.LogObject(file).manifest["parts"] if one["attempt"] == str(parsed.attempt)]
    data = bytearray(file.read_bytes())
    data[part["offset"] + part["length"] // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(decoder.Damaged):
        decoder.state(tmp_path / "moved" / "state" / directory, name)
    operator, partition = map(int, directory.split("/"))
    with fails_with("file.damaged", "file.identity"):
        open_store(str(tmp_path / "moved"), operator, partition)
