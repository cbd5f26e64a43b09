"""The errors: the same kinds in Scala and Python, and the class that each kind becomes."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from lamina import errors
from lamina.errors import KINDS, LaminaError

ROOT = Path(__file__).resolve().parents[2]
SCALA = ROOT / "jvm-shim/src/main/scala/org/apache/spark/sql/lamina/errors/LaminaError.scala"


def test_scala_and_python_list_the_same_kinds_in_the_same_order() -> None:
    source = SCALA.read_text()
    constants = dict(re.findall(r'val (\w+) = "([a-z.-]+)"', source))
    listed = re.search(r"val kinds: Seq\[String\] = Seq\(([\w\s,]+)\)", source)
    assert listed is not None
    assert tuple(constants[name] for name in re.findall(r"\w+", listed[1])) == KINDS
    assert set(constants.values()) == set(KINDS)


def test_the_guide_says_of_each_kind_what_to_do() -> None:
    table = (ROOT / "docs/guide/index.md").read_text().split("| kind | what to do |")[1]
    named = [kind for row in table.splitlines() if "|" in row for kind in re.findall(r"`([\w.-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_each_kind_keeps_kind_and_message_and_names_the_kind(kind: str) -> None:
    error = LaminaError.from_kind(kind, "what happened")
    assert (error.kind, error.message, str(error)) == (kind, "what happened", f"[{kind}] what happened")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.kind, copy.message) == (type(error), kind, "what happened")


@pytest.mark.parametrize(
    ("kind", "error_class"),
    [
        ("settings.unknown", errors.SettingsError),
        ("version.engine", errors.VersionError),
        ("engine.lost", errors.EngineError),
        ("storage.denied", errors.StorageError),
        ("file.damaged", errors.FileError),
        ("attempt-id.unknown", errors.FileError),
        ("state.base", errors.StateError),
        ("memory.cap", errors.StateError),
        ("store.closed", errors.StateError),
        ("internal", LaminaError),
    ],
)
def test_a_kind_becomes_the_class_of_what_a_handler_would_do(kind: str, error_class: type[LaminaError]) -> None:
    assert type(LaminaError.from_kind(kind, "")) is error_class


def test_a_kind_of_a_newer_peer_becomes_internal_and_is_still_named() -> None:
    error = LaminaError.from_kind("file.haunted", "boo")
    assert error.kind == "internal"
    assert "file.haunted" in error.message


def test_a_kind_that_is_not_listed_cannot_be_raised_by_us() -> None:
    with pytest.raises(ValueError, match=r"file\.haunted"):
        LaminaError("file.haunted", "boo")


def test_an_error_of_another_library_becomes_internal_with_its_type() -> None:
    error = LaminaError.from_exception(KeyError("x"))
    assert error.kind == "internal"
    assert "KeyError" in error.message
