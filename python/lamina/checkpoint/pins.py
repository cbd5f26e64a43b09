"""Pins: what other checkpoints need of this one, `state/_lamina/pins/<id>`, as docs/spec/files.md says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina._version import __version__
from lamina.checkpoint.reading import damaged, member
from lamina.checkpoint.sealed import read_sealed, sealed_bytes
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.attempt_id import AttemptId
from lamina.format.manifest import StoreIdentity
from lamina.storage import Storage, is_temporary

_FORMAT = 1
_MOST_BYTES = 256 << 20
"""A pin of 100,000 stores has 15 MB."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


@dataclass(frozen=True)
class Pin:
    """Attempts of the stores of this checkpoint that a clone or a savepoint refers to.

    Args:
        id: its name, which its maker chooses and nobody else uses.
        checkpoint: uuid of the checkpoint that refers to them.
        url: where that one is, for people.
        attempts: by store (operator, partition, name).
    """

    id: str
    checkpoint: str
    url: str
    created_ms: int
    attempts: Mapping[tuple[int, int, str], tuple[str, ...]]

    def of(self, store: StoreIdentity) -> tuple[str, ...]:
        """The attempts of one store."""
        return self.attempts.get((store.operator, store.partition, store.name), ())


def write_pin(state: Storage, pin: Pin) -> None:
    """Makes a pin. Whoever calls it looks afterwards that all that it names is there, and refers to it only then.

    Args:
        state: rooted at the directory `state` of the checkpoint that is referred to.
    Raises:
        LaminaError: `store.state` where another pin has the id; `attempt-id.unknown`; `storage.*`.
    """
    for attempt in itertools.chain(*pin.attempts.values()):
        AttemptId.parse(attempt)
    stores = [
        {"operator": operator, "partition": partition, "name": name, "attempts": sorted(attempts)}
        for (operator, partition, name), attempts in sorted(pin.attempts.items())
    ]
    values = {
        "checkpoint": pin.checkpoint,
        "created_by": f"lamina {__version__}",
        "created_ms": pin.created_ms,
        "format": _FORMAT,
        "stores": stores,
        "url": pin.url,
    }
    path = _path(pin.id)
    data = sealed_bytes(values)
    if not state.publish_if_absent(path, data) and bytes(state.read(path)) != data:
        raise LaminaError.from_kind("store.state", f"{state.location(path)} is another pin: choose another id")


def remove_pin(state: Storage, pin_id: str) -> None:
    """Takes a pin away; what it held may be collected after the minimum age."""
    state.delete_many([_path(pin_id)])


def pin_names(state: Storage) -> list[str]:
    """The ids of the pins that are there, sorted."""
    return sorted(entry.name for entry in state.list(paths.PINS) if not is_temporary(entry.name))


def read_pin(state: Storage, pin_id: str) -> Pin | None:
    """One pin; None where it was taken away.

    Raises:
        LaminaError: `file.damaged`, `file.version`, `attempt-id.unknown`, `storage.*`.
    """
    path = f"{paths.PINS}/{pin_id}"
    where = state.location(path)
    values = read_sealed(state, path, _MOST_BYTES, _FORMAT)
    if values is None:
        return None
    return Pin(
        pin_id,
        member(where, values, "checkpoint", str),
        member(where, values, "url", str, ""),
        member(where, values, "created_ms", int, 0),
        _stores(where, member(where, values, "stores", list)),
    )


def read_pins(state: Storage) -> list[Pin]:
    """All pins. A file in their directory that is none is damaged: what it holds must not be taken for free.

    Raises:
        LaminaError: `file.damaged`, `file.version`, `attempt-id.unknown`, `storage.*`.
    """
    found = (read_pin(state, name) for name in pin_names(state))
    return [pin for pin in found if pin is not None]


def _stores(where: str, values: list[Any]) -> dict[tuple[int, int, str], tuple[str, ...]]:
    stores = dict(_store(where, value) for value in values)
    if len(stores) != len(values):
        damaged(where, "has a store twice")
    return stores


def _store(where: str, value: Any) -> tuple[tuple[int, int, str], tuple[str, ...]]:
    if not isinstance(value, dict):
        damaged(where, f"a store should be a JSON object, found {value!r}")
    operator, partition = member(where, value, "operator", int), member(where, value, "partition", int)
    attempts = member(where, value, "attempts", list)
    for attempt in attempts:
        if not isinstance(attempt, str):
            damaged(where, f"an attempt should be text, found {attempt!r}")
        AttemptId.parse(attempt)
    return (operator, partition, member(where, value, "name", str)), tuple(attempts)


def _path(pin_id: str) -> str:
    if not _ID.fullmatch(pin_id) or is_temporary(pin_id) or set(pin_id) == {"."}:
        raise LaminaError.from_kind("store.unsupported", f"{pin_id!r} cannot be the id of a pin")
    return f"{paths.PINS}/{pin_id}"
