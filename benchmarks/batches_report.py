"""What the pages and the README say of the batches of an aggregation."""

from __future__ import annotations

from typing import Any

from benchmarks import aggregation, batches
from benchmarks.markdown import BARS, durabilities, header, table, verdict
from benchmarks.variants import TITLES


def aggregation_section(result: dict[str, Any]) -> str:
    """Times of a batch, growth, garbage collection and bytes."""
    parts = ["## Batch time of an aggregation\n", header(result)]
    parts.append(
        "Count, max and sum per key; keys of 40 bytes, values of 32, update mode, a sink that drops the rows, "
        "`local[2]`, two shuffle partitions. *CPU* is the processor time of a batch, in all processes. *kB written* is "
        "what the commits of a batch wrote, *kB compacted* what the maintenance process wrote meanwhile.\n"
    )
    parts.append("![trigger](benchmarks/aggregation.png)\n")
    parts.append(table(BARS, aggregation_bars(result)))
    for name, cell in result["cells"].items():
        parts += [f"### {name} keys/rows a batch\n", table(*aggregation.table_of(cell)), aggregation.ran(cell) + "\n"]
    set_up = [f"- {TITLES[name]}: {batches.set_up(name)}" for name in batches.BUILT_IN]
    return "\n".join([*parts, durabilities(result), "Settings, beside Spark's defaults:\n", *set_up, ""])


def aggregation_bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar with what was measured."""
    return [[bar.what, bar.bar, bar.measured, verdict(bar.met)] for bar in aggregation.bars(result)]


def readme_figures(aggregated: dict[str, Any], restored: dict[str, Any] | None) -> str:
    """What the README shows: the trigger of a batch, `addBatch` within it, and restore, beside the built-in stores."""

    def cell(found: dict[str, Any], variant: str) -> str:
        if variant not in found["trigger_ms"]:
            return ""
        return f"{found['trigger_ms'][variant]['median']:.0f} ({found['add_batch_ms'][variant]['median']:.0f}) ms"

    rows = [
        [f"a batch, {name.replace('/', ' keys, ')} rows", *(cell(found, variant) for variant in batches.ORDER)]
        for name, found in aggregated["cells"].items()
    ]
    of_restores = ""
    if restored is not None:
        of_restores = f"Restores: {restored['date']}, commit {restored['commit']}. "
        for state, found in restored["states"].items():
            took = found["restore_s"]
            shown = (f"{took[variant]['median']:.1f} s" if variant in took else "" for variant in batches.ORDER)
            rows.append([f"restore of {restored['keys']:,} keys, JVM {state}", *shown])
    return (
        table(["medians", *(TITLES[variant] for variant in batches.ORDER)], rows)
        + f"\nOf a batch the trigger, and `addBatch` in it. {header(aggregated)[:-1]} "
        f"Commit {aggregated['commit']}. {of_restores}Spread, ratios, bytes and targets: "
        "[benchmarks](docs/benchmarks.md); `make bench-quick` measures your machine in three minutes.\n"
    )
