"""Spark's commit log as it is followed beside a running query, by work on many stores that takes long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lamina.checkpoint.batch_logs import CommitEntry
from lamina.checkpoint.logs import CheckpointLogs
from lamina.checkpoint.operators import OperatorMetadata
from lamina.components import Clock
from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity

_READ_AFTER_S = 60.0
"""A query that runs names other versions by then, and may soon collect those that it named before."""


@dataclass(frozen=True)
class LoggedStore:
    """One store.

    Args:
        named: versions in Spark's commit log, with their attempts (None under checkpoint format v1).
        problems: what the log says wrongly.
    """

    identity: StoreIdentity
    named: dict[int, str | None]
    problems: Sequence[str]


class FollowedLog:
    """The versions of stores in the log, as of a minute ago at most. Thread-safe.

    Args:
        operators: the stateful operators.
        entries: the log as it was read just now.
    """

    def __init__(
        self,
        logs: CheckpointLogs,
        operators: Sequence[OperatorMetadata],
        entries: Sequence[CommitEntry],
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._operators = {operator.operator: operator for operator in operators}
        self._clock = clock
        self._reading = threading.Lock()
        self._entries = entries
        self._read_at = clock.monotonic()

    def store(self, identity: StoreIdentity) -> LoggedStore:
        """A store with the versions that the log names.

        Raises:
            LaminaError: `file.*` naming an entry.
        """
        with self._reading:
            now = self._clock.monotonic()
            if now - self._read_at >= _READ_AFTER_S:
                self._read_at = now
                try:
                    self._entries = self._logs.commits()
                except LaminaError as error:
                    # what is known goes on to be for another minute
                    if not error.kind.startswith("storage."):
                        raise
            entries = self._entries
        operator = self._operators[identity.operator]
        return LoggedStore(identity, *self._logs.named_versions(operator, identity.partition, identity.name, entries))
