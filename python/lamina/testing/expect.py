"""Expecting errors of lamina by kind, without a test framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lamina.errors import KINDS, LaminaError


class Caught:
    """The error that was caught."""

    error: LaminaError


@contextmanager
def fails_with(*expected: str) -> Iterator[Caught]:
    """Passes where the block raises a `LaminaError` of one of the kinds that are expected, and fails otherwise; what is
    no kind its message has to contain."""
    kinds = [one for one in expected if one in KINDS]
    texts = [one for one in expected if one not in KINDS]
    caught = Caught()
    try:
        yield caught
    except LaminaError as error:
        if error.kind not in kinds:
            raise AssertionError(f"expected {' or '.join(kinds)}, got {error}") from error
        absent = [text for text in texts if text not in error.message]
        if absent:
            raise AssertionError(f"expected {' and '.join(absent)} in {error}") from error
        caught.error = error
    else:
        raise AssertionError(f"expected {' or '.join(kinds)}, and nothing was raised")
