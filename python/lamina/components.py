"""What a store gets from outside: time and ids, passed in so that tests can replay.

No other module of the package asks the machine for time or randomness.
"""

from __future__ import annotations

import secrets
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Time, as a store sees it."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    def processor(self) -> float:
        """Seconds that the calling thread has had of a processor; only differences mean something."""
        ...


class Ids(Protocol):
    """Identifiers that no other process makes."""

    def hex128(self) -> str:
        """32 lower-case hexadecimal digits."""
        ...

    def uuid(self) -> str:
        """A random UUID in its usual text form."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def processor(self) -> float:
        return time.thread_time()


class RandomIds:
    """Random identifiers from the operating system."""

    def hex128(self) -> str:
        return secrets.token_hex(16)

    def uuid(self) -> str:
        return str(uuid.uuid4())
