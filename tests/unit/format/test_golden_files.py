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
from lamina.store.model import Version
from lamina.store.plain import open_store
from tests.golden import decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "format-1"
STORE = GOLDEN / "state" / "0" / "0"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
FILES = sorted(path.name for path in STORE.iterdir())


def elements(value: bytes) -> list[str]:
    found = []
    while value:
        length = int.from_bytes(value[:4], "little")
        found.append(value[4 : 4 + length].hex())
        value = value[4 + length :]
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_independent_decoder_accepts_every_golden_file(name: str) -> None:
    file = decoder.File(STORE / name)
    parsed = parse_name(name)
    if isinstance(parsed, CommitName):
        assert file.manifest["attempt"] == str(parsed.attempt)
    else:
        assert isinstance(parsed, SegmentName)
        assert file.manifest["segment"] == parsed.id


@pytest.mark.parametrize("name", EXPECTED)
def test_the_independent_decoder_restores_every_golden_version(name: str) -> None:
    families = {family["name"]: family["id"] for family in decoder.File(STORE / name).manifest["column_families"]}
    found: dict[str, dict[str, Any]] = {"default": {}, "lists": {}}
    rows = decoder.state(STORE, name)
    for (family, key), value in rows.items():
        if family == families["default"]:
            found["default"][key.hex()] = value.hex()
        else:
            found["lists"][key.hex()] = elements(value)
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_lamina_restores_every_golden_version(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "state", tmp_path / "state")
    store = open_store(str(tmp_path))
    parsed = parse_name(name)
    assert isinstance(parsed, CommitName)
    store.restore(Version(parsed.version, str(parsed.attempt)))
    for family, rows in EXPECTED[name].items():
        found = {
            key.hex(): [element.hex() for element in value] if isinstance(value, list) else value.hex()
            for key, value in store.scan(family)
        }
        assert found == rows


def test_the_golden_files_hold_every_kind_of_section_and_reference() -> None:
    manifests = [decoder.File(STORE / name).manifest for name in FILES]
    sections = {section["name"] for manifest in manifests for section in manifest["sections"]}
    kinds = {reference["kind"] for manifest in manifests for reference in manifest.get("references", ())}
    ops = {row[1] for name in FILES for rows in decoder.File(STORE / name).sections.values() for row in rows}
    assert sections == kinds == {"increment", "snapshot", "run"}
    assert ops == {1, 2, 3}


def test_a_manifest_survives_the_way_through_json() -> None:
    for name in FILES:
        manifest = decoder.File(STORE / name).manifest
        parsed = verify((STORE / name).read_bytes(), name)
        assert parsed.to_json() == manifest
        assert type(parsed).from_json({**manifest, "unknown": 1}) == parsed


def test_the_golden_checkpoint_has_the_layout_of_the_specification() -> None:
    state = json.loads((GOLDEN / "state" / paths.CHECKPOINT).read_text())
    assert state["format"] == 1
    runs = sorted(path.name for path in (GOLDEN / "state" / paths.RUNS).iterdir())
    assert [parsed[0] for name in runs if (parsed := paths.parse_run(name))] == [1, 2, 3, 4]
