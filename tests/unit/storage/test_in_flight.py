"""Calls to a storage of which several are in flight: in their order, no more at once, and none when nobody waits."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from lamina.storage import Storage, all_of, in_flight

MOST = 4


class Far(Storage):
    """A storage that says that it is remote."""

    remote = True

    def __init__(self) -> None:
        super().__init__(f"memory://far/{uuid.uuid4()}")


class Calls:
    """Notes which calls were begun, and how many were under way together."""

    def __init__(self, goes_on: Callable[[int], bool] = lambda _: True) -> None:
        self.begun: list[int] = []
        self.most = self._under_way = 0
        self._goes_on = goes_on
        self._lock = threading.Lock()

    def __call__(self, number: int) -> int:
        with self._lock:
            self.begun.append(number)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        threading.Event().wait(0.01)
        with self._lock:
            self._under_way -= 1
        if not self._goes_on(number):
            raise OSError(number)
        return number * number


@pytest.mark.parametrize("taken_later", [True, False])
def test_results_come_in_their_order_also_when_they_are_taken_after_all_calls(taken_later: bool) -> None:
    calls = Calls(lambda number: number != 7)
    begun = in_flight(Far(), calls, range(20), MOST)
    found: list[int | str] = []
    for result in list(begun) if taken_later else begun:
        try:
            found.append(result())
        except OSError as error:
            found.append(str(error))
    assert found == [number * number if number != 7 else "7" for number in range(20)]
    assert 1 < calls.most <= MOST


def test_who_stops_early_has_no_further_calls_made() -> None:
    calls = Calls()
    begun = in_flight(Far(), calls, range(100), MOST)
    assert next(begun)() == 0
    begun.close()
    made = len(calls.begun)
    assert made <= 2 * MOST
    threading.Event().wait(0.1)
    assert len(calls.begun) == made


def test_the_first_error_is_raised_and_a_local_storage_is_asked_for_one_after_the_other() -> None:
    calls = Calls(lambda number: number < 3)
    with pytest.raises(OSError, match="3"):
        all_of(Far(), calls, range(100), MOST)
    assert len(calls.begun) <= 3 + 2 * MOST
    local = Calls()
    assert all_of(Storage(f"memory://near/{uuid.uuid4()}"), local, range(5), MOST) == [0, 1, 4, 9, 16]
    assert local.most == 1
