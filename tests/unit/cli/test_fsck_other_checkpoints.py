"""`lamina fsck` follows references into other checkpoints, and pins by which other checkpoints refer to this one."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import Pin, write_pin
from lamina.format.blocks import half_sha256
from lamina.format.container import verify
from lamina.format.manifest import FILE, CommitManifest, Count, Reference, UnionMember
from lamina.storage import Storage
from lamina.storage.local import LocalBackend
from tests.sealed import flippable, sealed, with_base
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk


class Clone:
    """A query whose second version in partition 0 stands on the first one of another query's."""

    def __init__(self, directory: Path) -> None:
        self.other = QueryOnDisk(directory / "other")
        self.other.run(3)
        self.query = QueryOnDisk(directory / "clone")
        self.query.run(2)
        self.lent = self.other.file(self.other.attempts[0][0])
        manifest = verify(self.lent.read_bytes(), "")
        assert isinstance(manifest, CommitManifest)
        reference = manifest.references[0].placed(self.lent.name, self.lent.stat().st_size)
        self.reference = replace(reference, root="../other/state/0/0")
        self.newest = self.query.file(self.query.attempts[1][0])
        self.stand_on(self.reference)

    def stand_on(self, *base: Reference) -> None:
        self.newest.write_bytes(with_base(self.newest.read_bytes(), base))

    @property
    def uuid(self) -> str:
        return str(json.loads((self.query.directory / "state/_lamina/checkpoint").read_text())["uuid"])

    def pin(self, attempt: str, *, checkpoint: str | None = None, partition: int = 0, name: str = "clone") -> None:
        pin = Pin(name, checkpoint or self.uuid, "file:/clone", 1, {(0, partition, "default"): (attempt,)})
        write_pin(Storage(str(self.other.directory / "state")), pin)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def first_store(lamina: Lamina, checkpoint: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """What fsck says about partition 0."""
    outcome = lamina("fsck", checkpoint, "--json", *options)
    assert outcome.code == code, outcome.err or outcome.out
    found = json.loads(outcome.out)["stores"][0]
    assert isinstance(found, dict)
    return found


def test_files_of_another_checkpoint_are_verified_where_it_is_named(lamina: Lamina, clone: Clone) -> None:
    found = first_store(lamina, clone.query.directory, "--root", clone.other.directory)
    assert (found["whole"], found["problems"], found["rows"], found["files"]) == ([1, 2], [], 20, 3)
    whole = clone.lent.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in flippable(len(whole), 41)]
    for content in (*damaged, whole[:-1], whole + b"x", clone.other.file(clone.other.attempts[1][0]).read_bytes()):
        clone.lent.write_bytes(content)
        found = first_store(lamina, clone.query.directory, "--root", clone.other.directory, code=1)
        assert (found["whole"], found["damaged"]) == ([1], [2])
        assert all(str(clone.lent) in problem["message"] for problem in found["problems"])
    clone.lent.unlink()
    for options in ([], ["--quick"]):
        found = first_store(lamina, clone.query.directory, "--root", clone.other.directory, *options, code=1)
        assert [(one["kind"], one["versions"]) for one in found["problems"]] == [("file.missing", [2])]
        assert str(clone.lent) in found["problems"][0]["message"]


def test_whole_files_of_another_checkpoint_are_verified(lamina: Lamina, clone: Clone) -> None:
    content = b"a table" * 100
    table = clone.lent.with_name("0" * 32 + ".sst")
    table.write_bytes(content)
    sized = {"size": len(content), "length": len(content), "offset": 0, "rows": 0}
    clone.stand_on(replace(clone.reference, path=table.name, kind=FILE, sha256=half_sha256(content).hex(), **sized))
    options = "--root", clone.other.directory
    assert first_store(lamina, clone.query.directory, *options)["whole"] == [1, 2]
    for changed in (content[:-1], content + b"x", content[:-1] + b"x", b"x" + content[1:]):
        table.write_bytes(changed)
        found = first_store(lamina, clone.query.directory, *options, code=1)
        assert [(one["kind"], one["versions"]) for one in found["problems"]] == [("file.damaged", [2])]
        assert str(table) in found["problems"][0]["message"]


def test_files_that_may_not_be_read_are_named_and_their_versions_are_not_called_whole(
    lamina: Lamina, clone: Clone
) -> None:
    elsewhere = clone.other.directory.with_name("elsewhere")
    for options in ((), ("--quick",), ("--root", elsewhere)):
        found = first_store(lamina, clone.query.directory, *options, code=1)
        assert (found["whole"], found["damaged"], found["rows"]) == ([1], [], None)
        (problem,) = found["problems"]
        assert (problem["kind"], problem["versions"]) == ("file.unread", [2])
        assert clone.lent.name in problem["message"]
        assert f"{clone.other.directory}/state/0/0" in problem["message"]
    outcome = lamina("fsck", clone.query.directory)
    assert outcome.code == 1
    assert "what was read is whole" in outcome.out
    assert "are damaged" not in outcome.out


class Failing:
    """Calls of the other checkpoint's storage fail after the first `passed` ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, error: type[OSError]) -> None:
        self.passed = self.failed = 0
        path_of = LocalBackend._path

        def path(backend: LocalBackend, path: str) -> str:
            found = path_of(backend, path)
            if found.startswith(f"{directory}/"):
                self.passed -= 1
                if self.passed < 0:
                    self.failed += 1
                    raise error(13, "not now", found)
            return found

        monkeypatch.setattr(LocalBackend, "_path", path)


@pytest.mark.parametrize("error", [PermissionError, TimeoutError])
def test_a_storage_of_another_checkpoint_that_fails_leaves_its_files_unread_and_all_others_are_checked(
    lamina: Lamina, clone: Clone, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    clone.pin(clone.other.attempts[0][0])
    failing = Failing(monkeypatch, clone.other.directory, error)
    arguments = "fsck", clone.query.directory, "--json", "--root", clone.other.directory
    unread = 0
    for passed in itertools.count():
        failing.passed, failing.failed = passed, 0
        outcome = lamina(*arguments)
        assert not outcome.err
        first, second = json.loads(outcome.out)["stores"]
        assert (second["whole"], second["problems"], second["rows"]) == ([1, 2], [], 20)
        if not failing.failed:
            break
        if not first["problems"]:
            # only the pins were left to be read
            assert (outcome.code, first["whole"]) == (0, [1, 2])
            assert "not now" in first["warnings"][0]
            continue
        unread += 1
        assert (outcome.code, first["whole"], first["damaged"], first["rows"]) == (1, [1], [], None)
        (problem,) = first["problems"]
        assert (problem["kind"], problem["versions"]) == ("file.unread", [2])
        assert str(clone.lent) in problem["message"]
    # its size, its contents, and what is counted
    assert unread >= 3


def test_files_that_cannot_be_read_for_one_reason_are_one_problem(
    lamina: Lamina, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = clone.other.file(clone.other.attempts[1][0])
    manifest = verify(newer.read_bytes(), "")
    assert isinstance(manifest, CommitManifest)
    (second, _) = (one.placed(newer.name, newer.stat().st_size) for one in manifest.references)
    chain = (replace(one, union=UnionMember(0, 1, 1, None, None)) for one in (second, clone.reference))
    clone.stand_on(*(replace(one, root=clone.reference.root) for one in chain))
    Failing(monkeypatch, clone.other.directory, PermissionError)
    (problem,) = first_store(lamina, clone.query.directory, "--root", clone.other.directory, code=1)["problems"]
    assert problem["message"].startswith(f"{newer.name}, {clone.lent.name} not checked: could not look up ")


def test_the_other_checkpoint_may_be_named_as_one_sees_it(
    lamina: Lamina, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone.query.directory)
    for root in ("../other", clone.other.directory.as_uri(), "../other/state/0"):
        assert first_store(lamina, Path("."), "--root", root)["whole"] == [1, 2]


def test_a_pin_that_is_missing_in_the_other_checkpoint_is_named(lamina: Lamina, clone: Clone) -> None:
    options = "--root", clone.other.directory
    (warning,) = first_store(lamina, clone.query.directory, *options)["warnings"]
    assert f"{clone.other.directory}/state/_lamina/pins" in warning
    assert clone.uuid in warning
    assert clone.lent.name in warning
    assert warning in " ".join(lamina("fsck", clone.query.directory, *options).out.split())
    first, second = clone.other.attempts[0][0], clone.other.attempts[1][1]
    clone.pin(first, checkpoint="another", name="of-another")
    clone.pin(second, partition=1, name="of-another-store")
    clone.pin(second, name="of-what-is-not-there")
    assert first_store(lamina, clone.query.directory, *options)["warnings"] == [warning]
    # what the third version stands on is the first one's file, too
    clone.pin(clone.other.attempts[2][0], name="clone")
    assert first_store(lamina, clone.query.directory, *options)["warnings"] == []


@pytest.mark.parametrize("root", ["state/0/1", "../other/state/0/1", "file:{}/state/0/1"])
def test_a_pin_that_is_missing_for_another_store_of_the_same_checkpoint_is_named(
    lamina: Lamina, clone: Clone, root: str
) -> None:
    lent = clone.other.file(clone.other.attempts[1][1], 1)
    manifest = verify(lent.read_bytes(), "")
    assert isinstance(manifest, CommitManifest)
    member, root = UnionMember(0, 1, 2, None, None), root.format(clone.other.directory)
    chain = (reference.placed(lent.name, lent.stat().st_size) for reference in manifest.references)
    newest = clone.other.file(clone.other.attempts[2][0])
    base = [replace(reference, root=root, union=member) for reference in chain]
    newest.write_bytes(with_base(newest.read_bytes(), base))
    found = first_store(lamina, clone.other.directory)
    assert (found["whole"], found["problems"]) == ([1, 2, 3], [])
    (warning,) = found["warnings"]
    assert f"{clone.other.directory}/state/_lamina/pins" in warning
    assert lent.name in warning
    uuid = manifest.store.checkpoint
    clone.pin(clone.other.attempts[0][0], checkpoint=uuid, name="of-another-store")
    clone.pin(clone.other.attempts[1][1], partition=1, name="of-another-checkpoint")
    assert first_store(lamina, clone.other.directory)["warnings"] == [warning]
    clone.pin(clone.other.attempts[2][1], checkpoint=uuid, partition=1, name="own")
    assert first_store(lamina, clone.other.directory)["warnings"] == []


def test_a_pin_that_may_not_be_looked_for_is_a_warning(lamina: Lamina, clone: Clone) -> None:
    clone.pin(clone.other.attempts[0][0])
    options = "--root", clone.other.directory / "state" / "0" / "0"
    found = first_store(lamina, clone.query.directory, *options)
    assert found["whole"] == [1, 2]
    (warning,) = found["warnings"]
    assert "is not known" in warning
    assert "storage.roots" in warning


@pytest.fixture
def pinned(tmp_path: Path) -> Clone:
    """The other query has gone on: of its versions Spark's log has the newest two, each whole by itself, and one is
    pinned that nobody retains."""
    clone = Clone(tmp_path)
    clone.other = QueryOnDisk(tmp_path / "on", min_versions=1, compaction__mode="full", compaction__fullInterval=1)
    clone.other.run(5)
    clone.other.forget(2)
    clone.lent = clone.other.file(clone.other.attempts[1][0])
    clone.pin(clone.other.attempts[1][0])
    return clone


def test_versions_that_are_pinned_are_checked_and_their_files_are_needed(lamina: Lamina, pinned: Clone) -> None:
    found = first_store(lamina, pinned.other.directory)
    assert (found["whole"], found["files"], found["rows"]) == ([2, 4, 5], 3, 50)
    assert found["not_needed"]["commit"]["files"] == 2
    whole = pinned.lent.read_bytes()
    for at in flippable(len(whole), 41):
        pinned.lent.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = first_store(lamina, pinned.other.directory, code=1)
        assert (found["whole"], found["damaged"]) == ([4, 5], [2])
        assert all(str(pinned.lent) in problem["message"] for problem in found["problems"])
    pinned.lent.unlink()
    found = first_store(lamina, pinned.other.directory, "--quick", code=1)
    (problem,) = found["problems"]
    assert (problem["kind"], problem["versions"]) == ("file.missing", [2])
    assert "pin clone of file:/clone needs it" in problem["message"]


def test_a_pinned_version_that_counts_wrongly_is_found(lamina: Lamina, pinned: Clone) -> None:
    data = pinned.lent.read_bytes()
    manifest = verify(data, "")
    assert isinstance(manifest, CommitManifest)
    wrong = replace(manifest, counts={0: Count(19, 1)}).to_json()
    end = data.rindex(b"\x28\xb5\x2f\xfd")
    pinned.lent.write_bytes(sealed(data[:end], wrong))
    found = first_store(lamina, pinned.other.directory, code=1)
    assert [(one["kind"], one["versions"]) for one in found["problems"]] == [("state.counts", [2])]


def test_a_pin_that_cannot_be_read_is_a_problem_and_the_versions_are_checked(lamina: Lamina, pinned: Clone) -> None:
    pin = pinned.other.directory / "state" / "_lamina" / "pins" / "clone"
    pin.write_bytes(pin.read_bytes()[:-1])
    found = first_store(lamina, pinned.other.directory, code=1)
    assert [one["kind"] for one in found["problems"]] == ["file.damaged"]
    assert str(pin) in found["problems"][0]["message"]
    assert found["whole"] == [4, 5]
    pinned.other.file(pinned.other.attempts[4][0]).unlink()
    assert first_store(lamina, pinned.other.directory, code=1)["damaged"] == [5]
