"""Draws the figures: one look for all benchmarks, small PNG files.

matplotlib is imported where something is drawn: tables and summaries do without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.statistics import Spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, STATELESS, TITLES, TUNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    STATELESS: "#d0d0d0", FLOOR: "#9a9a9a", HDFS: "#d98c3f", ROCKSDB: "#5b8db8", TUNED: "#2f5f8a", LAMINA: "#2a7f4f",
}  # fmt: skip


def grouped_bars(
    path: Path, groups: Mapping[str, Mapping[str, Spread]], *, title: str, unit: str, logarithmic: bool = False
) -> None:
    """One group of bars for each cell, one bar for each variant, whiskers from the least to the greatest round."""
    present = [variant for variant in TITLES if any(variant in group for group in groups.values())]
    figure, axes = _empty()
    width = 0.8 / len(present)
    for position, variant in enumerate(present):
        for place, group in enumerate(groups.values()):
            if variant not in group:
                continue
            bar = group[variant]
            x = place + (position - (len(present) - 1) / 2) * width
            axes.bar(
                x, bar["median"], width * 0.92, color=COLOURS[variant], label=TITLES[variant] if place == 0 else None
            )
            whisker = [[bar["median"] - bar["low"]], [bar["high"] - bar["median"]]]
            axes.errorbar(x, bar["median"], yerr=whisker, color="#222222", linewidth=0.8, capsize=2)
            axes.annotate(_short(bar["median"]), (x, bar["high"]), ha="center", va="bottom", fontsize=7)
    if logarithmic:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: _short(value))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(bottom=min(bar["low"] for group in groups.values() for bar in group.values()) / 2)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
    axes.set_ylabel(unit)
    _finish(figure, axes, path, title)


_COLOURS = 10
"""Of matplotlib's palette, which begins anew after them."""


def lines(
    path: Path, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x: str, y: str
) -> None:
    """One line for each named series; of more than there are colours, the rest are dashed."""
    figure, axes = _empty()
    for number, (name, (xs, ys)) in enumerate(series.items()):
        axes.plot(xs, ys, "-" if number < _COLOURS else "--", label=name, linewidth=1.2)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    _finish(figure, axes, path, title)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _empty() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), dpi=110)
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes, path: Path, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
