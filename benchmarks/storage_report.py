"""What the page of results says of storage: restores from each place, and what fsync costs."""

from __future__ import annotations

from typing import Any

from benchmarks import restore_places
from benchmarks.markdown import header, table, verdict


def restore_places_section(result: dict[str, Any]) -> str:
    """Restores by size, chain and place."""
    parts = ["## Restore by size, chain and place\n", header(result)]
    parts.append(
        "A snapshot of all keys, and changes of a quarter of them in 1, 20 or 200 increments that nothing merged, in "
        "two partitions; in a JVM that has restored another chain from the same storage before. *disk*: local files "
        "that are not in the page cache. *s3*: moto's server, which shares the two cores, behind "
        f"{restore_places.LATENCY_S * 1000:.0f} ms of latency a request and "
        f"{restore_places.BYTES_PER_S / 1e6:.0f} MB/s a connection. *copies*: the same with the local copies of a run "
        "before. The yardstick is the larger of the time that the bytes take one reader, on the disk or with one "
        "connection, and 100 ns a row; several connections may beat it, round trips come on top. "
        f"Targets: {restore_places.BAR:g} of the yardstick, and {restore_places.BAR_RATIO:g} of the better built-in "
        "store's time, which were run from disk with 20 increments. *Engine MB*: its greatest resident memory. "
        f"{result['rounds']} rounds, medians and ranges.\n"
    )
    rows = [
        [*row, ", ".join(verdict(met) for met in restore_places.met(cell))]
        for row, cell in zip(restore_places.rows_of(result), result["cells"], strict=True)
    ]
    parts.append(table([*restore_places.HEADS, "targets"], rows))
    return "\n".join(parts)


def fsync_section(result: dict[str, Any]) -> str:
    """A commit with and without fsync."""
    parts = ["## fsync\n", header(result)]
    parts.append(
        f"A commit of {result['rows']:,} rows to local files with `storage.fsync.enabled` off and on, "
        f"{result['commits']} of each in turns.\n"
    )
    rows = [
        [name, *(f"{found[figure]:.1f} ms" for figure in ("median", "p99", "max"))]
        for name, found in result["commit_ms"].items()
    ]
    parts.append(table(["fsync", "median", "p99", "most"], rows))
    ratio = result["ratio_on_to_off"]
    parts.append(f"On to off: {ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f}).\n")
    return "\n".join(parts)
