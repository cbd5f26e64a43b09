"""Expecting errors of lamina by kind, without a test framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lamina.errors import LaminaError


class Caught:
    """The error that was caught."""

    error: LaminaError


@contextmanager
def fails_with(*kinds: str) -> Iterator[Caught]:
    """Passes where the block raises a `LaminaError` of one of `kinds`, and fails otherwise."""
    caught = Caught()
    try:
        yield caught
    except LaminaError as error:
        if error.kind not in kinds:
            raise AssertionError(f"expected {' or '.join(kinds)}, got {error}") from error
        caught.error = error
    else:
        raise AssertionError(f"expected {' or '.join(kinds)}, and nothing was raised")
