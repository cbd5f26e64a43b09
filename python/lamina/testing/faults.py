"""A storage with faults: failures, lost answers, delays, torn objects, crashes, listings in another order.

Faults are set per operation and path, or drawn from a seed; the same seed and the same calls give the same faults.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import pyarrow as pa

from lamina.storage import Backend, Listed
from lamina.storage.temporary import temporary_name

_Result = TypeVar("_Result")


class Crashed(BaseException):
    """The process died at a storage call. No `Exception`, so that nothing of the code under test handles it."""


class Effect(Enum):
    """What a fault does to a call."""

    FAIL = "fail"
    """`OSError`; with `after`, the call was applied and its answer is lost."""
    CRASH = "crash"
    """`Crashed`, now and at every later call of this backend: the process is dead, the objects stay."""
    DELAY = "delay"
    """The call takes `delay_ms` longer."""
    TRUNCATE = "truncate"
    """Only the first half of the bytes is written, or read, and the call succeeds: what the contract rules out."""


class Moment(Enum):
    """When a failure or a crash happens."""

    BEFORE = "before"
    HALF_WAY = "half-way"
    """A publication leaves its temporary name behind, a deletion has deleted the first half; others: as `BEFORE`."""
    AFTER = "after"


@dataclass
class Fault:
    """Befalls calls of `operation` (a method's name, or "*") on paths that contain `path`.

    The first `skip` such calls pass, the next `times` are hit. `after` is short for `moment=Moment.AFTER`. `errno` is
    what the `OSError` of a failure says.
    """

    operation: str = "*"
    path: str = ""
    after: bool = False
    times: int = 1
    effect: Effect = Effect.FAIL
    moment: Moment = Moment.BEFORE
    skip: int = 0
    delay_ms: int = 1_000
    errno: int | None = None

    def __post_init__(self) -> None:
        if self.after:
            self.moment = Moment.AFTER

    def hits(self, operation: str, path: str) -> bool:
        """Whether this call is befallen; counts it."""
        if self.times <= 0 or self.operation not in ("*", operation) or self.path not in path:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class RandomFaults:
    """Faults drawn for each call: `rates` gives the share of calls, between 0 and 1, that each fault befalls.

    The same seed draws the same faults for the same sequence of calls. The faults' own `skip` and `times` do not count.
    """

    def __init__(self, seed: int, rates: Mapping[float, Fault] | Sequence[tuple[float, Fault]]) -> None:
        self._seed = seed
        self._rates = list(rates.items()) if isinstance(rates, Mapping) else list(rates)
        self._calls = 0

    def draw(self, operation: str, path: str) -> Fault | None:
        """The fault of the next call, if any."""
        self._calls += 1
        drawn = _draw(self._seed, str(self._calls))
        for rate, fault in self._rates:
            if fault.operation in ("*", operation) and fault.path in path:
                if drawn < rate:
                    return fault
                drawn -= rate
        return None


class FaultyBackend(Backend):
    """Passes calls on to `inner`, unless a fault befalls them; `calls` lists (operation, path).

    It is no directory of local files, so that each read is a call.

    Args:
        random: faults beside those that are injected.
        shuffle: a seed; listings come in an order drawn from it, another one each time.
        wait: called with the milliseconds of a delay; the default really waits. `ManualClock.advance` fits.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        random: RandomFaults | None = None,
        shuffle: int | None = None,
        wait: Callable[[int], None] | None = None,
    ) -> None:
        self._inner = inner
        self._random = random
        self._shuffle = shuffle
        self._wait = wait or _wait
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.crashed = False

    def inject(self, fault: Fault) -> None:
        """Sets a fault; of several that fit, the first one that was set befalls a call."""
        with self._lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Removes all faults, random ones too; a crashed process stays dead."""
        with self._lock:
            self._faults.clear()
            self._random = None

    def _call(
        self,
        operation: str,
        path: str,
        call: Callable[[], _Result],
        half: Callable[[], object] = lambda: None,
        truncated: Callable[[], _Result] | None = None,
    ) -> _Result:
        with self._lock:
            if self.crashed:
                raise Crashed(f"{operation} of {path} by a process that is dead")
            self.calls.append((operation, path))
            fault = next((fault for fault in self._faults if fault.hits(operation, path)), None)
            if fault is None and self._random is not None:
                fault = self._random.draw(operation, path)
            if fault is not None and fault.effect is Effect.CRASH:
                self.crashed = True
        if fault is None:
            return call()
        if fault.effect is Effect.DELAY:
            self._wait(fault.delay_ms)
            return call()
        if fault.effect is Effect.TRUNCATE:
            return call() if truncated is None else truncated()
        if fault.moment is Moment.HALF_WAY:
            half()
        elif fault.moment is Moment.AFTER:
            call()
        message = f"injected {fault.effect.value} {fault.moment.value} {operation} of {path}"
        if fault.effect is Effect.CRASH:
            raise Crashed(message)
        raise OSError(message) if fault.errno is None else OSError(fault.errno, message)

    def publish(self, path: str, chunks: Iterable[Any]) -> int:
        def truncated() -> int:
            data = b"".join(bytes(chunk) for chunk in chunks)
            self._inner.publish(path, [data[: len(data) // 2]])
            return len(data)

        return self._call(
            "publish",
            path,
            lambda: self._inner.publish(path, chunks),
            lambda: self._cut_off(path, b"".join(bytes(chunk) for chunk in chunks)),
            truncated,
        )

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        return self._call(
            "publish_if_absent",
            path,
            lambda: self._inner.publish_if_absent(path, data),
            lambda: self._cut_off(path, data),
            lambda: self._inner.publish_if_absent(path, data[: len(data) // 2]),
        )

    def _cut_off(self, path: str, data: bytes) -> None:
        directory, _, name = path.rpartition("/")
        self._inner.publish(f"{directory}/{temporary_name(name, 1, len(self.calls))}", [data[: len(data) // 2]])

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        return self._call(
            "read",
            path,
            lambda: self._inner.read(path, size),
            truncated=lambda: _first_half(self._inner.read(path, size)),
        )

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self._call(
            "read_range",
            path,
            lambda: self._inner.read_range(path, offset, length),
            truncated=lambda: _first_half(self._inner.read_range(path, offset, length)),
        )

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        def truncated() -> tuple[pa.Buffer, int]:
            tail, size = self._inner.read_tail(path, length)
            return _first_half(tail), size

        return self._call("read_tail", path, lambda: self._inner.read_tail(path, length), truncated=truncated)

    def list(self, directory: str) -> Sequence[Listed]:
        found = self._call("list", directory, lambda: self._inner.list(directory))
        if self._shuffle is None:
            return found
        seed, call = self._shuffle, len(self.calls)
        return sorted(found, key=lambda entry: _draw(seed, f"{call} {entry.name}"))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._call(
            "delete_many",
            paths[0] if paths else "",
            lambda: self._inner.delete_many(paths),
            lambda: self._inner.delete_many(paths[: (len(paths) + 1) // 2]),
        )

    def stamp(self, path: str) -> bool:
        return self._call("stamp", path, lambda: self._inner.stamp(path))

    def size(self, path: str) -> int:
        return self._call("size", path, lambda: self._inner.size(path))


def _first_half(data: pa.Buffer) -> pa.Buffer:
    return data.slice(0, data.size // 2)


def _draw(seed: int, what: str) -> float:
    """A number in [0, 1) that only the arguments decide."""
    return int.from_bytes(hashlib.sha256(f"{seed} {what}".encode()).digest()[:6], "big") / (1 << 48)


def _wait(milliseconds: int) -> None:
    threading.Event().wait(milliseconds / 1000)
