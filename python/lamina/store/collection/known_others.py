"""What is known of others of one checkpoint, runs and pins: one look at them is shared by its stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lamina.checkpoint import Pin, QueryRun, read_pins
from lamina.components import Clock
from lamina.store.model import judged_ms
from lamina.store.versions.checkpoint_state import CheckpointState, Standing

RECENT_S = 60.0
"""How old a look may be that only saves work: as long as Spark's interval of maintenance is by default."""


class KnownOthers:
    """How one run stands among the others of its checkpoint, and what other checkpoints need of it. Thread-safe.

    A look at the runs from before spares collections of a run that is not the newest one any more. It never allows a
    deletion: a newer run may have started since, and may have been rewound to what this one does not retain. Pins may
    be known from before: they name what is retained when they are made, and that is not deleted for the minimum age.
    """

    def __init__(self, checkpoint: CheckpointState, clock: Clock) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._looking = threading.Lock()
        self._known: Standing | None = None
        self._looked = 0.0
        self._pins: Sequence[Pin] = ()
        self._looked_at_pins: float | None = None

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

    def pins(self, min_age_ms: int) -> Sequence[Pin]:
        """The pins, as they were a minute ago at most, or half the minimum age, if that is shorter.

        Raises:
            LaminaError: `file.damaged`, `file.version`, `storage.*`.
        """
        with self._looking:
            began = self._clock.monotonic()
            lasts_s = min(RECENT_S, judged_ms(min_age_ms) / 2000)
            if self._looked_at_pins is None or began - self._looked_at_pins >= lasts_s:
                self._pins = read_pins(self._checkpoint.storage)
                self._looked_at_pins = began
            return self._pins

    def _look(self) -> Standing | None:
        if self._known is None or self._known.newer is None:
            began = self._clock.monotonic()
            self._known = self._checkpoint.standing()
            self._looked = began
        return self._known


def newer_run(run: QueryRun) -> str:
    """Why nothing is deleted where a newer run is known."""
    return f"a newer run of the query is known: {run}"
