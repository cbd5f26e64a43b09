"""Pins: what is written is read back, and a file that is none is never taken for nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lamina.checkpoint import Pin, pin_names, read_pin, read_pins, remove_pin, sealed_bytes, write_pin
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage
from lamina.testing.damage import mutants
from lamina.testing.expect import fails_with

NUMBERS = itertools.count()
ATTEMPT = f"L1.7.2.o.-.{'0a' * 16}"
PIN = Pin(
    "clone-1",
    "a-uuid",
    "s3a://bucket/clone",
    1_790_000_000_000,
    {(0, 0, "default"): (ATTEMPT,), (0, 1, "left-keyToNumValues"): (ATTEMPT, f"L1.8.2.o.-.{'0b' * 16}")},
)


@pytest.fixture
def state() -> Storage:
    return Storage(f"memory://pins/{next(NUMBERS)}")


def test_a_pin_is_read_as_it_was_written_until_it_is_removed(state: Storage) -> None:
    other = replace(PIN, id="savepoint_2", attempts={})
    assert read_pins(state) == []
    write_pin(state, PIN)
    write_pin(state, other)
    assert read_pins(state) == [PIN, other]
    remove_pin(state, "clone-1")
    assert pin_names(state) == ["savepoint_2"]
    assert read_pin(state, "clone-1") is None
    remove_pin(state, "clone-1")


def test_a_pin_says_what_it_holds_of_each_store() -> None:
    def of(partition: int, name: str) -> tuple[str, ...]:
        return PIN.of(StoreIdentity("this", 0, partition, name))

    assert of(0, "default") == (ATTEMPT,)
    assert len(of(1, "left-keyToNumValues")) == 2
    assert of(1, "default") == ()


def test_a_pin_is_made_again_after_a_lost_answer_and_never_replaced(state: Storage) -> None:
    write_pin(state, PIN)
    write_pin(state, PIN)
    with fails_with("store.state") as caught:
        write_pin(state, replace(PIN, url="elsewhere"))
    assert "clone-1" in caught.error.message
    assert read_pins(state) == [PIN]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 129, "ä", "a b"])
def test_an_id_that_is_no_plain_name_is_refused(state: Storage, name: str) -> None:
    with fails_with("store.unsupported"):
        write_pin(state, replace(PIN, id=name))
    with fails_with("store.unsupported"):
        remove_pin(state, name)


def test_every_change_of_a_pin_is_detected(state: Storage) -> None:
    write_pin(state, PIN)
    path = "_lamina/pins/clone-1"
    for what, changed in mutants(bytes(state.read(path))):
        state.publish(path, [changed])
        with fails_with("file.damaged", "file.version") as caught:
            read_pins(state)
        assert "clone-1" in caught.error.message, what


@pytest.mark.parametrize(
    ("stores", "kind"),
    [
        ("none", "file.damaged"),
        ([1], "file.damaged"),
        ([{"operator": 0, "partition": 0, "name": "default"}], "file.damaged"),
        ([{"operator": "0", "partition": 0, "name": "default", "attempts": []}], "file.damaged"),
        ([{"operator": 0, "partition": 0, "name": "default", "attempts": [7]}], "file.damaged"),
        ([{"operator": 0, "partition": 0, "name": "default", "attempts": ["L2.7"]}], "attempt-id.unknown"),
        ([{"operator": 0, "partition": 0, "name": "default", "attempts": []}] * 2, "file.damaged"),
    ],
)
def test_a_pin_of_another_shape_is_refused(state: Storage, stores: object, kind: str) -> None:
    values = {"checkpoint": "u", "created_ms": 1, "format": 1, "stores": stores, "url": ""}
    state.publish("_lamina/pins/x", [sealed_bytes(values)])
    with fails_with(kind):
        read_pins(state)


def test_a_pin_that_nobody_could_read_is_not_made(state: Storage) -> None:
    with fails_with("attempt-id.unknown"):
        write_pin(state, replace(PIN, attempts={(0, 0, "default"): ("L2.7",)}))
    assert pin_names(state) == []
