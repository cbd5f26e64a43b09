"""What is known of the runs of one checkpoint: one look at them is shared by its stores."""

from __future__ import annotations

import threading

from lamina.checkpoint import QueryRun
from lamina.components import Clock
from lamina.store.versions.checkpoint_state import CheckpointState, Standing

RECENT_S = 60.0
"""How old a look may be that only saves work: as long as Spark's interval of maintenance is by default."""


class KnownRuns:
    """How one run stands among the others of its checkpoint. Thread-safe.

    A look of before spares collections of a run that is not the newest one any more. It never allows a deletion: a
    newer run may have started since, and may have been rewound to what this one does not retain.
    """

    def __init__(self, checkpoint: CheckpointState, clock: Clock) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._looking = threading.Lock()
        self._known: Standing | None = None
        self._looked = 0.0

    def recently(self) -> Standing | None:
        """As it was a minute ago at most; None for readers. Whoever comes while somebody looks waits for that look.

        Raises:
            LaminaError: `storage.*`.
        """
        with self._looking:
            if self._known is not None and self._clock.monotonic() - self._looked < RECENT_S:
                return self._known
            return self._look()

    def now(self) -> Standing | None:
        """As it is now. A newer run that is known stays one, so that nobody looks any more.

        Raises:
            LaminaError: `storage.*`.
        """
        with self._looking:
            return self._look()

    def _look(self) -> Standing | None:
        if self._known is None or self._known.newer is None:
            began = self._clock.monotonic()
            self._known = self._checkpoint.standing()
            self._looked = began
        return self._known


def newer_run(run: QueryRun) -> str:
    """Why nothing is deleted where a newer run is known."""
    return f"a newer run of the query is known: {run}"
