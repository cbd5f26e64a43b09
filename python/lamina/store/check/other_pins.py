"""Pins of other checkpoints: whether they hold what a store refers to there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

from lamina.checkpoint import Pin, read_pins
from lamina.errors import FileError, LaminaError
from lamina.format import paths
from lamina.format.manifest import Reference, StoreIdentity
from lamina.storage import Storage
from lamina.store.files.store_files import StoreFiles


class OtherPins:
    """The pins of the checkpoints that stores of one checkpoint refer to, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, Sequence[Pin]] = {}

    def missing(self, files: StoreFiles, references: Iterable[Reference]) -> list[str]:
        """A sentence for each store elsewhere whose collector may delete what is referred to.

        Args:
            files: of the store that refers to them.
        """
        needed: dict[tuple[str, StoreIdentity], set[str]] = {}
        for reference in references:
            state, name = _state_and_name(files.place(reference), reference.origin)
            # a file that was copied to a place of its own has no collector
            if state:
                needed.setdefault((state, reference.origin), set()).add(name)
        sentences = (
            self._missing(files, state, origin, names)
            for (state, origin), names in sorted(needed.items(), key=lambda item: str(item[0]))
        )
        return [sentence for sentence in sentences if sentence]

    def _missing(self, files: StoreFiles, state: str, origin: StoreIdentity, names: set[str]) -> str:
        where = f"{state}/{paths.PINS}"
        try:
            storage = files.storage.named(state)
            left = names - self._held(storage, origin, files.identity.checkpoint)
        except LaminaError as error:
            return f"whether {where} holds what this store refers to there is not known: {error.message}"
        if not left:
            return ""
        return (
            f"{where} has no pin of checkpoint {files.identity.checkpoint} that holds {', '.join(sorted(left))} of "
            f"{origin}: a collection there may delete what this store refers to"
        )

    def _held(self, storage: Storage, origin: StoreIdentity, checkpoint: str) -> set[str]:
        """The files of `origin` that pins of `checkpoint` hold."""
        with self._lock:
            if storage.url not in self._read:
                self._read[storage.url] = read_pins(storage)
            pins = self._read[storage.url]
        there = StoreFiles(storage, origin)
        held: set[str] = set()
        for attempt in {attempt for pin in pins if pin.checkpoint == checkpoint for attempt in pin.of(origin)}:
            # of one that is broken nothing is sure to stay; a check of that checkpoint names it
            with contextlib.suppress(FileError):
                held.update(there.open_commit(attempt).footprint())
        return held


def _state_and_name(place: str, origin: StoreIdentity) -> tuple[str, str]:
    """The directory `state` that a file of a store lies in, and its name; "" where it is in no directory of its own."""
    directory, name = paths.directory_and_name(place)
    own = f"/{paths.store_directory(origin.operator, origin.partition, origin.name)}"
    return directory[: -len(own)] if directory.endswith(own) else "", name
