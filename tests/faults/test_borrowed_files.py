"""Versions that stand on files of another checkpoint's store: read, and checked against the store that is named."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.checkpoint import read_identity
from lamina.components import SystemClock
from lamina.format.container import Footer, verify
from lamina.format.entries import PUT
from lamina.format.manifest import CommitManifest, StoreIdentity
from lamina.storage import Storage
from lamina.store import Version
from lamina.store.check.checker import StoreChecker
from lamina.store.direct.open import open_store
from lamina.testing.expect import fails_with
from tests.faults.test_files import state_of
from tests.s3_server import S3Server
from tests.sealed import sealed, with_base
from tests.unit.store.writing import Query, names

HOW = ["by url", "by path", "copied"]
"""How a reference says where the file of the other store is: where it was written, or in the directory of this one."""


class Borrowing:
    """A store whose newest version stands on a file of another checkpoint's store, where that is or copied.

    What the store itself wrote there is gone, and had other values.
    """

    def __init__(self, directory: Path, how: str) -> None:
        lender = open_store(str(directory / "lender"), 1, 2, "left", writable=True)
        copied = how == "copied"
        self.borrower = str(directory / "borrower")
        self.roots = {} if copied else {"storage_roots": (directory / "lender").as_uri()}
        borrower = open_store(self.borrower, writable=True)
        for store, value in ((lender, b"lent"), (borrower, b"mine")):
            for number in range(3):
                store.put(b"key %d" % number, value)
            store.commit()
        borrower.put(b"key 2", b"both")
        borrower.commit()
        self.expected = {b"key 0": b"lent", b"key 1": b"lent", b"key 2": b"both"}
        own = directory / "borrower" / "state" / "0" / "0"
        self.newest = next(own.glob("2_*.lam"))
        next(own.glob("1_*.lam")).unlink()
        self.file = next((directory / "lender").rglob("1_*.lam"))
        lent = verify(self.file.read_bytes(), self.file.name)
        assert isinstance(lent, CommitManifest)
        reference = lent.references[0].placed(self.file.name, self.file.stat().st_size)
        root = {"by url": self.file.parent.as_uri(), "by path": "../lender/state/1/2/left"}.get(how)
        self.reference = replace(reference, root=root)
        if copied:
            self.file = Path(shutil.copy(self.file, own))

    def stand_on(self, origin: StoreIdentity) -> None:
        """Names `origin` as the store that wrote the file."""
        data = self.newest.read_bytes()
        end = Footer.parse(data, len(data), "")
        found = verify(data, "")
        assert isinstance(found, CommitManifest)
        references = (found.references[0], replace(self.reference, origin=origin))
        value = replace(found, references=references).to_json()
        self.newest.write_bytes(sealed(data[: end.manifest_offset], value))

    def problems(self) -> list[str]:
        """What fsck finds in the newest version that the lender's file is part of."""
        storage = Storage(self.borrower + "/state", roots=[*self.roots.values()])
        known = read_identity(storage)
        assert known is not None
        identity = StoreIdentity(known.uuid, 0, 0, "default")
        check = StoreChecker(storage, identity, {2: None}, clock=SystemClock()).check()
        return [problem.kind for problem in check.problems if 2 in problem.versions]


@pytest.mark.parametrize("how", HOW)
def test_a_file_of_another_store_is_used_where_a_reference_names_that_store_as_its_origin(
    tmp_path: Path, how: str
) -> None:
    borrowing = Borrowing(tmp_path, how)
    borrowing.stand_on(borrowing.reference.origin)
    store = open_store(borrowing.borrower, writable=True, **borrowing.roots)
    assert state_of(store) == borrowing.expected
    store.put(b"further", b"1")
    store.commit()
    assert state_of(open_store(borrowing.borrower, **borrowing.roots)) == {**borrowing.expected, b"further": b"1"}
    assert borrowing.problems() == []


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "other", [{"operator": 0}, {"partition": 0}, {"name": "default"}, {"checkpoint": "another"}], ids=str
)
def test_a_file_that_is_not_of_the_origin_that_a_reference_names_is_detected(
    tmp_path: Path, how: str, other: dict[str, Any]
) -> None:
    borrowing = Borrowing(tmp_path, how)
    borrowing.stand_on(replace(borrowing.reference.origin, **other))
    with fails_with("file.identity") as caught:
        open_store(borrowing.borrower, **borrowing.roots)
    assert str(borrowing.file) in caught.error.message
    assert borrowing.problems() == ["file.identity"]


@pytest.mark.parametrize("how", ["by url", "by path"])
def test_a_place_that_no_setting_names_is_not_read(tmp_path: Path, how: str) -> None:
    borrowing = Borrowing(tmp_path, how)
    borrowing.stand_on(borrowing.reference.origin)
    for roots in (
        {},
        {"storage_roots": (tmp_path / "lend").as_uri()},
        {"storage_roots": "s3a://bucket/x, file:/other"},
    ):
        with fails_with("file.identity") as caught:
            open_store(borrowing.borrower, **roots)
        assert "storage.roots" in caught.error.message
    assert state_of(open_store(borrowing.borrower, **borrowing.roots)) == borrowing.expected


def test_checkpoints_that_refer_to_one_another_may_be_moved_together(tmp_path: Path) -> None:
    borrowing = Borrowing(tmp_path / "old", "by path")
    borrowing.stand_on(borrowing.reference.origin)
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved, lender = str(tmp_path / "new" / "borrower"), (tmp_path / "new" / "lender").as_uri()
    with fails_with("file.identity") as caught:
        open_store(moved, **borrowing.roots)
    assert f"{tmp_path}/new/lender/state/1/2/left" in caught.error.message
    store = open_store(moved, writable=True, storage_roots=lender)
    assert state_of(store) == borrowing.expected
    store.put(b"further", b"1")
    store.commit()
    shutil.copytree(tmp_path / "new", tmp_path / "copy")
    shutil.rmtree(tmp_path / "new")
    copy = open_store(str(tmp_path / "copy" / "borrower"), storage_roots=(tmp_path / "copy" / "lender").as_uri())
    assert state_of(copy) == {**borrowing.expected, b"further": b"1"}


@pytest.mark.parametrize("scheme", ["memory", "s3a"])
def test_checkpoints_that_refer_to_one_another_may_be_copied_to_an_object_store(tmp_path: Path, scheme: str) -> None:
    borrowing = Borrowing(tmp_path, "by path")
    borrowing.stand_on(borrowing.reference.origin)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(S3Server()) if scheme == "s3a" else None
        parent = f"s3a://{server.bucket}/a/b" if server else f"memory://{tmp_path.name}/a/b"
        hadoop = server.hadoop if server else {}
        to = Storage(parent, hadoop)
        for file in tmp_path.rglob("*"):
            if file.is_file():
                to.publish(str(file.relative_to(tmp_path)), file.read_bytes())
        for allowed in (f"{parent}/lender", parent):
            store = open_store(f"{parent}/borrower", hadoop=hadoop, storage_roots=allowed)
            assert state_of(store) == borrowing.expected
        with fails_with("file.identity"):
            open_store(f"{parent}/borrower", hadoop=hadoop, storage_roots=f"{parent}/lend")


def test_a_path_to_another_store_of_the_same_checkpoint_needs_no_setting(tmp_path: Path) -> None:
    borrowing = Borrowing(tmp_path, "by path")
    shutil.copytree(tmp_path / "lender" / "state" / "1", tmp_path / "borrower" / "state" / "1")
    borrowing.reference = replace(borrowing.reference, root="state/1/2/left")
    borrowing.stand_on(borrowing.reference.origin)
    shutil.rmtree(tmp_path / "lender")
    assert state_of(open_store(borrowing.borrower)) == borrowing.expected


OWN = {
    "by path": ("state/0/0", "{}"),
    "by path, from above": ("../borrower/state/0/0", "{}"),
    "by a path within": ("state", "0/0/{}"),
    "by url": ("file:{directory}/borrower/state/0/0", "{}"),
    "by another url": ("file://localhost{directory}/borrower/state/0/0/", "{}"),
    "by absolute path": ("{directory}/borrower/state/0/0", "{}"),
    "from the root of all": ("/", "{within}/borrower/state/0/0/{}"),
}


@pytest.mark.parametrize("how", OWN)
def test_a_root_that_leads_to_the_own_directory_is_refused(tmp_path: Path, how: str) -> None:
    """What a root leads to is not kept by this store's collector, but by pins."""
    root, path = OWN[how]
    borrowing = Borrowing(tmp_path, "copied")
    root = root.format(directory=tmp_path)
    path = path.format(borrowing.file.name, within=str(tmp_path)[1:])
    borrowing.reference = replace(borrowing.reference, root=root, path=path)
    borrowing.stand_on(borrowing.reference.origin)
    with fails_with("file.damaged") as caught:
        open_store(borrowing.borrower, writable=True)
    assert borrowing.newest.name in caught.error.message
    assert "root" in caught.error.message
    assert borrowing.problems() == ["file.damaged"]


@pytest.mark.parametrize("how", ["by path", "by url"])
def test_a_root_that_leads_below_the_own_directory_is_another_store(tmp_path: Path, how: str) -> None:
    root = {"by path": "state/0/0/left", "by url": (tmp_path / "borrower/state/0/0/left").as_uri()}[how]
    borrowing = Borrowing(tmp_path, "by path")
    (tmp_path / "borrower/state/0/0/left").mkdir()
    shutil.copy(borrowing.file, tmp_path / "borrower/state/0/0/left")
    borrowing.reference = replace(borrowing.reference, root=root)
    borrowing.stand_on(borrowing.reference.origin)
    assert state_of(open_store(borrowing.borrower)) == borrowing.expected


def test_a_commit_that_refers_to_the_own_directory_by_a_root_is_not_written(tmp_path: Path) -> None:
    query = Query(Storage(str(tmp_path / "state")))
    store = query.open()
    base = query.run_batches(store, Version(0), 2)[-1]
    opened = store._versions.remembered(base.attempt)
    assert opened is not None
    references = tuple(replace(one, root=one.path and "state/0/0") for one in opened.manifest.references)
    store._versions.remember(replace(opened, manifest=replace(opened.manifest, references=references)))
    before = names(query.storage)
    with fails_with("file.damaged"):
        query.commit(store, base, {b"k": (PUT, b"v")})
    assert names(query.storage) == before


def test_a_broken_copy_elsewhere_says_nothing_of_the_own_file_of_that_name(tmp_path: Path) -> None:
    own = open_store(str(tmp_path / "own"), writable=True)
    for number in range(2):
        own.put(b"key %d" % number, b"value")
        own.commit()
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    newest, oldest = (next((tmp_path / "own").rglob(f"{number}_*.lam")) for number in (2, 1))
    found = verify(newest.read_bytes(), "")
    assert isinstance(found, CommitManifest)
    base = [replace(reference, root="../copy/state/0/0") for reference in found.references[1:]]
    newest.write_bytes(with_base(newest.read_bytes(), base))
    copied = tmp_path / "copy" / oldest.relative_to(tmp_path / "own")
    copied.write_bytes(copied.read_bytes()[:-1])
    store = open_store(str(tmp_path / "own"), storage_roots=(tmp_path / "copy").as_uri())
    assert state_of(store) == {b"key 0": b"value", b"key 1": b"value"}


@pytest.mark.parametrize(
    "root", ["", ".", "..", "../", "../..", "./a", "a/../b", "../a/../lender", "a//b", "../lender/", "a\\b"]
)
def test_a_root_that_is_not_normal_is_refused(tmp_path: Path, root: str) -> None:
    borrowing = Borrowing(tmp_path, "by path")
    borrowing.reference = replace(borrowing.reference, root=root)
    borrowing.stand_on(borrowing.reference.origin)
    with fails_with("file.damaged") as caught:
        open_store(borrowing.borrower, storage_roots=tmp_path.as_uri())
    assert borrowing.newest.name in caught.error.message


def test_a_root_never_leads_out_of_its_file_system(tmp_path: Path) -> None:
    borrowing = Borrowing(tmp_path, "by path")
    up = len(tmp_path.parts) + 1
    borrowing.reference = replace(borrowing.reference, root="../" * up + "x")
    borrowing.stand_on(borrowing.reference.origin)
    with fails_with("file.identity") as caught:
        open_store(borrowing.borrower, storage_roots="file:/")
    assert "leads nowhere" in caught.error.message


@pytest.mark.parametrize(
    "path", ["../0/{}", "/{}", "./{}", "a//{}", "..", "", "a\\{}", "../../../lender/state/1/2/left/{}"]
)
def test_a_path_that_is_not_normal_is_refused_and_never_read_or_deleted(tmp_path: Path, path: str) -> None:
    borrowing = Borrowing(tmp_path, "copied")
    there = borrowing.file
    borrowing.reference = replace(borrowing.reference, path=path.format(there.name))
    borrowing.stand_on(borrowing.reference.origin)
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    with fails_with("file.damaged") as caught:
        open_store(borrowing.borrower)
    assert borrowing.newest.name in caught.error.message
    assert "file.damaged" in borrowing.problems()
    assert sorted(str(file) for file in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "a//b", "/outside"])
def test_local_files_are_never_outside_of_their_root(tmp_path: Path, path: str) -> None:
    storage = Storage(str(tmp_path / "root"))
    (tmp_path / "outside").write_bytes(b"kept")
    for use in (
        lambda: storage.read(path),
        lambda: storage.publish(path, b"x"),
        lambda: storage.publish_if_absent(path, b"x"),
        lambda: storage.delete_many([path]),
        lambda: storage.list(path),
    ):
        with fails_with("storage.denied"):
            use()
    assert (tmp_path / "outside").read_bytes() == b"kept"
