"""Attempt ids and the names of files: what is printed is parsed back, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.format import paths
from lamina.format.attempt_id import AttemptId
from lamina.format.paths import CommitName, SegmentName, parse_name
from lamina.testing.expect import fails_with

HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
NUMBERS = st.integers(0, 2**63)
RANDOM = "9f3c0a5be1d24c6f8a7b6c5d4e3f2a1b"


@given(NUMBERS, NUMBERS, HEX)
def test_the_id_of_a_file_is_parsed_back(version: int, epoch: int, random: str) -> None:
    attempt = AttemptId.for_file(version, epoch, random)
    assert AttemptId.parse(str(attempt)) == attempt
    assert parse_name(str(CommitName(attempt))) == CommitName(attempt)


@given(NUMBERS, st.text("abc019_-", min_size=1, max_size=64), HEX)
def test_the_id_of_a_commit_in_a_group_is_parsed_back(epoch: int, container: str, random: str) -> None:
    attempt = AttemptId(7, epoch, "g", container, random)
    assert AttemptId.parse(str(attempt)) == attempt


@given(NUMBERS, HEX)
def test_the_id_of_an_empty_store_is_parsed_back(epoch: int, random: str) -> None:
    attempt = AttemptId(0, epoch, "e", "-", random)
    assert AttemptId.parse(str(attempt)) == attempt


@given(NUMBERS, NUMBERS, HEX)
def test_the_name_of_a_segment_is_parsed_back(start: int, end: int, id: str) -> None:
    assert parse_name(str(SegmentName(start, end, id))) == SegmentName(start, end, id)


@given(NUMBERS, st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1))
def test_the_claim_of_a_run_is_parsed_back(epoch: int, run: str) -> None:
    directory, name = paths.directory_and_name(paths.run_path(epoch, run))
    assert directory == paths.RUNS
    assert paths.parse_run(name) == (epoch, run)


def test_the_example_of_the_specification_is_an_id() -> None:
    text = f"L1.42.3.o.-.{RANDOM}"
    assert AttemptId.parse(text) == AttemptId(42, 3, "o", "-", RANDOM)
    assert str(CommitName(AttemptId.parse(text))) == f"42_{text}.lam"


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"L2.42.3.o.-.{RANDOM}",
        f"L1.042.3.o.-.{RANDOM}",
        f"L1.42.03.o.-.{RANDOM}",
        f"L1.42.3.x.-.{RANDOM}",
        f"L1.42.3.o.group.{RANDOM}",
        f"L1.42.3.g.{'a' * 65}.{RANDOM}",
        f"L1.42.3.g.UPPER.{RANDOM}",
        f"L1.42.3.e.-.{RANDOM}",
        f"L1.42.3.o.-.{RANDOM.upper()}",
        f"L1.42.3.o.-.{RANDOM}0",
        f"L1.42.3.o.-.{RANDOM}\n",
        f" L1.42.3.o.-.{RANDOM}",
        f"L1.٤٢.3.o.-.{RANDOM}",
        "2e1b7a52-6f1e-4a53-93ac-0f4c9a3a8f07",
    ],
)
def test_an_id_outside_the_grammar_is_refused_by_name(text: str) -> None:
    with fails_with("attempt-id.unknown") as caught:
        AttemptId.parse(text)
    assert repr(text) in caught.error.message


@pytest.mark.parametrize(
    "name",
    [
        "42.lam",
        f"41_L1.42.3.o.-.{RANDOM}.lam",
        f"42_L2.42.3.o.-.{RANDOM}.lam",
        f"42_L1.42.3.g.group.{RANDOM}.lam",
        f"0_L1.0.3.e.-.{RANDOM}.lam",
        f".42_L1.42.3.o.-.{RANDOM}.lam.1-1.tmp",
        "1-2_zz.seg",
        f"1-2_{RANDOM}.seg.crc",
        "metadata",
    ],
)
def test_a_name_that_is_not_ours_is_not_parsed(name: str) -> None:
    assert parse_name(name) is None


def test_the_store_default_has_no_folder_of_its_own() -> None:
    assert paths.store_directory(3, 1, "default") == "3/1"
    assert paths.store_directory(3, 1, "left-keyToNumValues") == "3/1/left-keyToNumValues"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_store_name_that_is_no_folder_is_refused(name: str) -> None:
    with fails_with("store.unsupported"):
        paths.store_directory(0, 0, name)
