"""Times of log objects that do not go together are refused, all of them at once."""

from __future__ import annotations

import pytest

from lamina.settings import PREFIX, Settings
from lamina.store.changelog.changelog import check_times
from lamina.testing.expect import fails_with

LONG = {"changelog.batchDelayMs": "20000"}
PATIENT = {"retention.minAgeMs": "86400000"}
BARRIER = {"durability.level": "executor"}


def settings(*given: dict[str, str]) -> Settings:
    return Settings.parse({PREFIX + name: value for one in given for name, value in one.items()})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((LONG,), {"retention.minAgeMs"}),
        ((LONG, BARRIER), {"retention.minAgeMs", "changelog.barrierTimeoutMs"}),
        ((LONG, BARRIER, PATIENT), {"changelog.barrierTimeoutMs"}),
    ],
)
def test_what_is_too_short_is_named_at_once(given: tuple[dict[str, str], ...], told: set[str]) -> None:
    with fails_with("settings.invalid") as caught:
        check_times(settings(*given))
    lower, raise_ = caught.error.message.split(": lower them, or raise ")
    assert "20 times" in lower and "changelog.batchDelayMs" in lower
    assert {name for name in ("retention.minAgeMs", "changelog.barrierTimeoutMs") if name in raise_} == told


def test_what_goes_together_is_taken() -> None:
    check_times(settings(BARRIER))
    check_times(settings(LONG, BARRIER, PATIENT, {"changelog.barrierTimeoutMs": "3600000"}))
    check_times(settings(LONG, PATIENT))
