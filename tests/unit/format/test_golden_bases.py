"""Files of format 3 that an earlier build wrote, as tests/unit/format/test_golden_files.py has those before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.format.container import BASES, verify
from lamina.format.manifest import FILE, CommitManifest
from lamina.format.paths import CommitName, parse_name
from lamina.storage import Storage
from lamina.store.direct.open import open_store
from lamina.store.files.store_files import StoreFiles
from lamina.store.model import Version
from lamina.testing.expect import fails_with
from tests.golden import decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "format-3"
NEW = GOLDEN / "new" / "state" / "0"
EXPECTED: dict[str, dict[str, str]] = json.loads((GOLDEN / "expected.json").read_text())
FILES = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.suffix in (".lam", ".seg"))
ON_TABLES = next((NEW / "3").glob("*.lam"))


@pytest.mark.parametrize("name", FILES)
def test_the_independent_decoder_accepts_every_golden_file(name: str) -> None:
    file = decoder.File(GOLDEN / name)
    found = verify((GOLDEN / name).read_bytes(), name)
    assert found.to_json() == file.manifest
    assert type(found).from_json({**file.manifest, "unknown": 1}) == found


def test_the_golden_files_have_every_kind_of_base() -> None:
    manifests = [decoder.File(GOLDEN / name).manifest for name in FILES]
    references = [one for manifest in manifests for one in manifest.get("references", ())]
    members = [one for one in references if "union" in one]
    assert {one["kind"] for one in members} >= {"increment", "run", "rewrite"}
    assert {json.dumps(one["filter"]) for one in members} == {
        "null", '{"partition": 0, "partitions": 3}', '{"partition": 2, "partitions": 3}'
    }  # fmt: skip
    assert {json.dumps(one["families"]) for one in members} == {"null", '{"0": 4}'}
    assert {one["root"] for one in members} == {"../old/state/0/0", "../old/state/0/1"}
    assert sum(one["kind"] == FILE for one in references) == 2


@pytest.mark.parametrize("name", EXPECTED)
def test_the_independent_decoder_restores_every_golden_version(name: str) -> None:
    path = NEW / name
    rows = {key.hex(): value.hex() for (_, key), value in decoder.state(path.parent, path.name).items()}
    assert rows == EXPECTED[name]
    assert decoder.File(path).manifest["references"][-1]["union"]["chains"] == 2


@pytest.mark.parametrize("name", EXPECTED)
def test_lamina_restores_every_golden_version(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "moved")
    checkpoint, old = str(tmp_path / "moved" / "new"), str(tmp_path / "moved" / "old")
    partition, file = name.split("/")
    store: Any = open_store(checkpoint, 0, int(partition), writable=True, storage_roots=old)
    parsed = parse_name(file)
    assert isinstance(parsed, CommitName)
    store.restore(Version(parsed.version, str(parsed.attempt)))
    assert {key.hex(): value.hex() for key, value in store.scan()} == EXPECTED[name]
    store.put(b"further", b"1")
    store.commit()
    again = open_store(checkpoint, 0, int(partition), storage_roots=old)
    assert {key.hex(): value.hex() for key, value in again.scan()} == {**EXPECTED[name], b"further".hex(): "31"}


def test_partitions_share_no_key() -> None:
    """Of three partitions two are there; the whole is the first store."""
    whole, first, third = ({**EXPECTED[name]} for name in EXPECTED if "/11_" in name)
    assert not first.keys() & third.keys()
    assert 0 < len(first) + len(third) < len(whole)
    assert {**first, **third}.items() <= whole.items()


def test_the_golden_tables_are_verified(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "new", tmp_path / "new")
    directory = tmp_path / "new" / "state" / "0" / "3"
    contents = decoder.whole_files(directory, ON_TABLES.name)
    manifest = verify(ON_TABLES.read_bytes(), "")
    assert isinstance(manifest, CommitManifest)
    files = StoreFiles(Storage(str(tmp_path / "new" / "state")), manifest.store)
    for reference, content in zip(manifest.references, contents, strict=True):
        assert b"".join(map(bytes, files.read_file(reference))) == content
        (directory / str(reference.path)).write_bytes(content[:-1] + b"?")
        with pytest.raises(decoder.Damaged):
            decoder.whole_files(directory, ON_TABLES.name)
        with fails_with("file.damaged"):
            list(files.read_file(reference))
        (directory / str(reference.path)).write_bytes(content)
    with fails_with("store.unsupported"):
        open_store(str(tmp_path / "new"), 0, 3)


def test_all_of_them_have_format_3() -> None:
    new = [name for name in FILES if name.startswith("new")]
    assert len(new) == len(EXPECTED) + 1
    assert {(GOLDEN / name).read_bytes()[-12] for name in new} == {BASES}
