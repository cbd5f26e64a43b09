"""What the state machine draws, and what it keeps: attempts and executors."""

import hashlib
from dataclasses import dataclass, field

from hypothesis import strategies as st

from lamina.format.entries import DELETE, PUT
from lamina.store import Begin, Store, Version
from lamina.testing.faults import Effect, Fault, FaultyBackend, Moment
from lamina.testing.rows import (
    LISTS_FAMILY,
    VALUES_FAMILY,
    Changes,
    Position,
    Rows,
)

MIN_AGE_MS = 600_000
MIN_VERSIONS = 3
START_MS = 1_790_000_000_000
DIRECTORY = "0/0"
SLOW_MS = 700_000
"""A slow call takes longer than the minimum age."""

KEYS = st.sampled_from([b"", b"a", b"b", b"a\xff", b"\x00"])
LARGE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(128))
"""Does not compress, so that a file with it is not merged with the small ones above it."""
VALUES = st.one_of(st.binary(max_size=4), st.just(LARGE))
CHANGES = st.tuples(
    st.tuples(st.sampled_from([VALUES_FAMILY, LISTS_FAMILY]), KEYS), st.sampled_from([PUT, PUT, PUT, DELETE]), VALUES
)
Batch = tuple[tuple[Position, int, bytes], int]
BATCHES = st.lists(st.tuples(CHANGES, st.integers(0, 1)), min_size=1, max_size=2)
"""Changes, each a batch of its own, and the numbers of the executors that commit them."""
MOMENTS = st.sampled_from(list(Moment))
CALLS = st.integers(0, 7) | st.integers(0, 15)
"""At which of an attempt's storage calls something happens: of most there are no more than six, and one more for each
manifest of another attempt and for each segment that they look at."""
DELAYS = st.sampled_from([1_000, SLOW_MS, SLOW_MS])
MORE_CALLS = st.integers(0, 3) | st.integers(0, 15)
"""As `CALLS`, of restores, compactions and collections, which read a file for each version."""

READS = st.builds(
    lambda effect, call: Fault(effect=effect, skip=call), st.sampled_from([Effect.FAIL, Effect.CRASH]), MORE_CALLS
) | st.builds(
    lambda operation, call: Fault(operation, effect=Effect.TRUNCATE, skip=call),
    st.sampled_from(["read", "read_range", "read_tail"]),
    st.integers(0, 3),
)
"""Faults of a restore: of any call, or a read that gives less than there is."""

OPENINGS = st.builds(
    Fault,
    effect=st.sampled_from([Effect.FAIL, Effect.CRASH, Effect.DELAY, Effect.DELAY]),
    moment=MOMENTS,
    skip=st.integers(0, 5),
    delay_ms=st.just(SLOW_MS),
)
"""What befalls the first executor of a run while it opens its store, in four calls, or six of a new checkpoint."""


@dataclass
class Executor:
    """A process with the store open; `rows` is its table, of version `have`."""

    backend: FaultyBackend
    store: Store
    run: int
    have: Version = field(default_factory=lambda: Version(0))
    rows: Rows = field(default_factory=dict)


@dataclass
class Attempt:
    """An attempt that was begun, and the rows that it makes of its base's."""

    executor: Executor
    base: Version
    begun: Begin
    changes: Changes
    rows: Rows
    number: int
    forced: bool = False

    @property
    def version(self) -> Version:
        return Version(self.base.version + 1, self.begun.attempt)
