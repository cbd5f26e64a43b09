"""The statistics that every benchmark prints: medians, spread, and ratios with a bootstrap interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import TypedDict

RESAMPLES = 10_000
CONFIDENCE = 0.95


class Spread(TypedDict):
    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest value."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def median_interval(values: Sequence[float]) -> Spread:
    """Median with its 95 % percentile-bootstrap interval; the same values give the same interval."""
    source = random.Random(20240229)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Spread(median=statistics.median(values), low=medians[tail], high=medians[-1 - tail])


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Median and interval of the ratio of each round: rounds are paired since they ran next to each other."""
    return median_interval([n / d for n, d in zip(numerators, denominators, strict=True)])
