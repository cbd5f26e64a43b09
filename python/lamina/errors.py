"""The errors of lamina: one root, classes by what a handler would do, and an append-only list of kinds.

A kind is the stable interface of an error; it crosses the wire and is the same in Scala (`LaminaError`). Message
text is for people and may change.
"""

from __future__ import annotations

import errno

KINDS: tuple[str, ...] = (
    "settings.unknown",
    "settings.invalid",
    "settings.conflict",
    "version.spark",
    "version.engine",
    "engine.start",
    "engine.dependency",
    "engine.lost",
    "engine.protocol",
    "engine.deadline",
    "engine.cancelled",
    "storage.scheme",
    "storage.denied",
    "storage.failed",
    "file.missing",
    "file.damaged",
    "file.version",
    "file.identity",
    "attempt-id.unknown",
    "state.not-retained",
    "state.superseded",
    "state.base",
    "memory.cap",
    "store.closed",
    "store.stamp",
    "store.state",
    "store.unsupported",
    "row.too-large",
    "internal",
)
"""Every kind, in the order in which they were added. Append only."""


UNREADABLE = frozenset({errno.EIO, errno.ESTALE})
"""What the system says of a local file that it cannot read, while it reads others: a bad sector, a lost handle."""


class LaminaError(Exception):
    """An error of lamina.

    Args:
        kind: one of `KINDS`.
        message: what happened, to which file, version and store, and what to do about it.
    """

    def __init__(self, kind: str, message: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of lamina error")
        super().__init__(f"[{kind}] {message}")
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.kind, self.message))

    @staticmethod
    def from_kind(kind: str, message: str) -> LaminaError:
        """The error of the class that handles `kind`; an unknown kind (of a newer peer) becomes `internal`."""
        if kind not in KINDS:
            return LaminaError("internal", f"{kind}: {message}")
        return _CLASSES.get(kind.split(".", 1)[0], LaminaError)(kind, message)

    @staticmethod
    def from_exception(error: BaseException) -> LaminaError:
        """`error` itself if it is one of ours; anything else becomes `internal` with its type and text."""
        if isinstance(error, LaminaError):
            return error
        return LaminaError("internal", f"{type(error).__name__}: {error}")


class SettingsError(LaminaError):
    """A setting has to be changed by the user."""


class VersionError(LaminaError):
    """Two parts do not fit together; one of them has to be upgraded."""


class EngineError(LaminaError):
    """The engine process or the way to it failed; a retry of the task may succeed."""


class StorageError(LaminaError):
    """The storage refused or failed; a retry may succeed once it answers."""


class FileError(LaminaError):
    """A file of a checkpoint is missing, damaged, or of a kind that this release cannot read."""


class StateError(LaminaError):
    """A request does not fit the state: a version that is not there, a closed store, a cap that was reached."""


_CLASSES: dict[str, type[LaminaError]] = {
    "settings": SettingsError,
    "version": VersionError,
    "engine": EngineError,
    "storage": StorageError,
    "file": FileError,
    "attempt-id": FileError,
    "state": StateError,
    "memory": StateError,
    "store": StateError,
    "row": StateError,
}
