"""Looks at the claims of a checkpoint's runs, which all share who asked before one began.

Without ids in Spark's log each commit asks whether a newer run is there, and claims stay for ever: one listing answers
all stores that ask while another one goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

from lamina.checkpoint import QueryRun, claims_of
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.storage import Storage

_WAIT_S = 5.0
"""A listing that takes longer, or hangs, keeps nobody else waiting: they list by themselves."""


class Claims:
    """The claims of one checkpoint. Thread-safe.

    Args:
        state: rooted at the directory `state` of the checkpoint.
    """

    def __init__(self, state: Storage) -> None:
        self._state = state
        self._lock = threading.Lock()
        # a thread that asks while it lists, as where a model has another store go on meanwhile, has its turn
        self._listing = threading.RLock()
        self._next: Future[Sequence[QueryRun]] | None = None
        """The answer of a listing that has not begun."""
        self._known: tuple[Sequence[str], Sequence[QueryRun]] = ((), ())

    @classmethod
    def of(cls, state: Storage) -> Claims:
        """The ones that all users of a storage share."""
        return state.shared(cls, cls)

    def now(self) -> Sequence[QueryRun]:
        """Every claim in order, by a listing that begins after this is called.

        Raises:
            LaminaError: `storage.*`.
        """
        with self._lock:
            answer, mine = self._next, self._next is None
            if answer is None:
                answer = self._next = Future()
        if mine:
            self._list(answer)
            return answer.result()
        wait([answer], _WAIT_S)
        if answer.done():
            try:
                return answer.result()
            except LaminaError:
                # one request that failed says little of the next
                pass
        return self._read()

    def _list(self, answer: Future[Sequence[QueryRun]]) -> None:
        """Lists them when the listing before is over, for all who have asked until then."""
        has_turn = self._listing.acquire(timeout=_WAIT_S)
        try:
            with self._lock:
                # a run that claims from here on may be missed, so that whoever asks now waits for the next one
                self._next = None
            answer.set_result(self._read())
        except BaseException as error:
            answer.set_exception(error)
        finally:
            if has_turn:
                self._listing.release()

    def _read(self) -> Sequence[QueryRun]:
        names = [entry.name for entry in self._state.list(paths.RUNS)]
        known, claims = self._known
        if names != known:
            claims = claims_of(names)
            self._known = names, claims
        return claims
