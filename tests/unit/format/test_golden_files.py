"""Files that an earlier build wrote: read by lamina, and by a decoder that knows only the specification."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.format import paths
from lamina.format.container import verify
from lamina.format.paths import CommitName, SegmentName, parse_name
from lamina.store.direct.open import open_store
from lamina.store.model import Version
from tests.golden import decoder

GOLDEN = Path(__file__).parents[2] / "golden"
STORES = {form: GOLDEN / form / "state" / "0" / "0" for form in ("format-1", "format-2")}
EXPECTED: dict[str, dict[str, Any]] = {
    form: json.loads((GOLDEN / form / "expected.json").read_text()) for form in STORES
}
FILES = sorted((form, path.name) for form, store in STORES.items() for path in store.iterdir())
VERSIONS = [(form, name) for form, names in EXPECTED.items() for name in names]


def elements(value: bytes) -> list[str]:
    found = []
    while value:
        length = int.from_bytes(value[:4], "little")
        found.append(value[4 : 4 + length].hex())
        value = value[4 + length :]
    return found


@pytest.mark.parametrize(("form", "name"), FILES)
def test_the_independent_decoder_accepts_every_golden_file(form: str, name: str) -> None:
    file = decoder.File(STORES[form] / name)
    parsed = parse_name(name)
    if isinstance(parsed, CommitName):
        assert file.manifest["attempt"] == str(parsed.attempt)
    else:
        assert isinstance(parsed, SegmentName)
        assert file.manifest["segment"] == parsed.id


@pytest.mark.parametrize(("form", "name"), VERSIONS)
def test_the_independent_decoder_restores_every_golden_version(form: str, name: str) -> None:
    store = STORES[form]
    families = {family["name"]: family["id"] for family in decoder.File(store / name).manifest["column_families"]}
    found: dict[str, dict[str, Any]] = {"default": {}, "lists": {}}
    rows = decoder.state(store, name)
    for (family, key), value in rows.items():
        if family == families["default"]:
            found["default"][key.hex()] = value.hex()
        else:
            found["lists"][key.hex()] = elements(value)
    assert found == EXPECTED[form][name]


@pytest.mark.parametrize(("form", "name"), VERSIONS)
def test_lamina_restores_every_golden_version(form: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / form / "state", tmp_path / "state")
    store = open_store(str(tmp_path), writable=True)
    parsed = parse_name(name)
    assert isinstance(parsed, CommitName)
    store.restore(Version(parsed.version, str(parsed.attempt)))
    for family, rows in EXPECTED[form][name].items():
        found = {
            key.hex(): [element.hex() for element in value] if isinstance(value, list) else value.hex()
            for key, value in store.scan(family)
        }
        assert found == rows


def test_the_golden_files_hold_every_kind_of_section_and_reference() -> None:
    files = [decoder.File(STORES[form] / name) for form, name in FILES]
    manifests = [file.manifest for file in files]
    sections = {section["name"] for manifest in manifests for section in manifest["sections"]}
    kinds = {reference["kind"] for manifest in manifests for reference in manifest.get("references", ())}
    ops = {row[1] for file in files for rows in file.sections.values() for row in rows}
    assert sections == kinds == {"increment", "snapshot", "run", "rewrite"}
    assert ops == {1, 2, 3}


def test_the_hash_of_keys_is_the_one_that_files_name() -> None:
    """The same figures as in the shim's TableProperties.scala: what it writes is what the specification says."""
    keys = (b"", b"a", b"twelve bytes", b"x" * 100)
    hashes = [number - (1 << 64) if number >> 63 else number for number in map(decoder.fold_1, keys)]
    assert hashes == [-7439127429289781049, -1093194412166744295, -7230302100138640279, -3241748939359587446]
    parts = [[decoder.part_of(key, number, "fold-1") for number in (1, 3, 16, 256)] for key in keys]
    assert parts == [[0, 1, 9, 152], [0, 2, 15, 240], [0, 1, 9, 155], [0, 2, 13, 211]]


def test_a_manifest_survives_the_way_through_json() -> None:
    for form, name in FILES:
        manifest = decoder.File(STORES[form] / name).manifest
        parsed = verify((STORES[form] / name).read_bytes(), name)
        assert parsed.to_json() == manifest
        assert type(parsed).from_json({**manifest, "unknown": 1}) == parsed


def test_the_golden_checkpoint_has_the_layout_of_the_specification() -> None:
    state = json.loads((GOLDEN / "format-1" / "state" / paths.CHECKPOINT).read_text())
    assert state["format"] == 1
    runs = sorted(path.name for path in (GOLDEN / "format-1" / "state" / paths.RUNS).iterdir())
    assert [parsed[0] for name in runs if (parsed := paths.parse_run(name))] == [1, 2, 3, 4]
