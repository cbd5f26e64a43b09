"""Lists of tables that an earlier build wrote, as tests/unit/format/test_golden_files.py has files before them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lamina.format.container import verify
from lamina.format.paths import CommitName, TableListName, parse_name
from lamina.format.table_list import TableListManifest
from lamina.store.direct.open import open_store
from lamina.store.model import Version
from lamina.testing.expect import fails_with
from tests.golden import decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "tables"
STORE = GOLDEN / "state" / "0" / "0"
EXPECTED: dict[str, dict[str, str]] = json.loads((GOLDEN / "expected.json").read_text())
LISTS = sorted(path.name for path in STORE.glob("*.rdb"))


def test_there_are_lists_that_go_on_from_others() -> None:
    manifests = [decoder.File(STORE / name).manifest for name in LISTS]
    assert len(manifests) >= 3
    assert any(table["version"] < manifest["version"] for manifest in manifests for table in manifest["tables"])


@pytest.mark.parametrize("name", LISTS)
def test_the_independent_decoder_accepts_every_golden_list(name: str) -> None:
    file = decoder.File(STORE / name)
    assert isinstance(parse_name(name), TableListName)
    found = verify((STORE / name).read_bytes(), name)
    assert isinstance(found, TableListManifest)
    assert found.to_json() == file.manifest
    assert TableListManifest.from_json({**file.manifest, "unknown": 1}) == found


@pytest.mark.parametrize("name", EXPECTED)
def test_the_independent_decoder_restores_every_golden_version(name: str) -> None:
    rows = {key.hex(): value.hex() for (_, key), value in decoder.state(STORE, name).items()}
    assert rows == EXPECTED[name]


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
@pytest.mark.parametrize("name", EXPECTED)
def test_lamina_restores_every_golden_version_in_each_backend(name: str, backend: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "moved")
    store = open_store(str(tmp_path / "moved"), 0, 0, writable=True, backend=backend)
    parsed = parse_name(name)
    assert isinstance(parsed, CommitName)
    store.restore(Version(parsed.version, str(parsed.attempt)))
    assert {key.hex(): value.hex() for key, value in store.scan() if isinstance(value, bytes)} == EXPECTED[name]


@pytest.mark.parametrize("which", [".rdb", ".sst"])
def test_a_golden_file_that_is_changed_is_noticed_by_both_readers(which: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "moved")
    name = list(EXPECTED)[-1]
    manifest = decoder.File(STORE / name).manifest
    path = next(one["path"] for one in manifest["references"] if str(one["path"]).endswith(which))
    file = tmp_path / "moved" / "state" / "0" / "0" / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(decoder.Damaged):
        decoder.state(file.parent, name)
    # without what leads around it
    for other in file.parent.iterdir():
        if other.name not in {name, *(one["path"] for one in manifest["references"])}:
            other.unlink()
    with fails_with("file.damaged", "file.identity", "file.missing"):
        open_store(str(tmp_path / "moved"), 0, 0, backend="rocksdb")
