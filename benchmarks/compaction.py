"""What compaction costs and gives: `python -m benchmarks.compaction`.

One store of the engine's own classes, without Spark, over many versions: compaction in the background, in full every
few versions, rolling, and none. Per mode: bytes of commits and bytes of segments apart, files that a version consists
of, bytes on storage beside the live state, files there that a collection keeps for older versions only, time of a
commit, time to restore the newest version. Background compaction runs in a process of its own, as it does beside a
query. Then the resident memory of that process while it merges a large state.

Two loads: under `light` the retained versions change a fifth of the keys, under `heavy` each key twice.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure, machine
from benchmarks.compaction_child import INTERVAL_S
from benchmarks.rounds import RESULTS, progress, run_child, turns, write_result
from benchmarks.statistics import median_interval, ratios

CHILD = "benchmarks.compaction_child"
BACKGROUND, FULL, ROLLING, NONE = "background", "full", "rolling", "none"
MODES = {
    BACKGROUND: "background",
    FULL: "full, every 10 versions",
    ROLLING: "rolling, 16 parts",
    NONE: "no compaction",
}
BYTES_BAR, MEMORY_BAR_MIB, COMMIT_BAR = 2.5, 256, 1.1
COMMITS = {
    "commit_p99_to_none": "commit p99 to none",
    "commit_p95_to_none_early": "commit p95 to none while its chain is short",
}

BESIDE = "files that are kept, but neither of the newest version nor the one of a retained version"


@dataclass(frozen=True)
class Load:
    """A store's life: keys there are, rows changed by a version, versions, and those of them that are retained."""

    keys: int
    rows: int
    versions: int
    retained: int = 100


LOADS = {"light": Load(1_000_000, 2_000, 500), "heavy": Load(100_000, 2_000, 500)}
MEMORY, QUICK_MEMORY = (400_000, 4_000_000, 16_000_000), (400_000,)
QUICK = {"light": Load(200_000, 500, 120), "heavy": Load(20_000, 500, 120)}


def run(name: str, load: Load, memory_keys: Sequence[int], rounds: int) -> dict[str, Any]:
    """Every mode in turn, in a fresh process, then the memory of merging."""
    answers: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for number, mode in turns(list(MODES), rounds):
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as directory:
            request = {"action": "life", "mode": mode, "directory": directory, **asdict(load)}
            answers[mode].append(run_child(CHILD, request, timeout=1800))
        progress(f"round {number + 1}: {MODES[mode]}: {answers[mode][-1]['commit_ms_median']:.1f} ms a commit")
    memory = []
    for keys in memory_keys:
        with tempfile.TemporaryDirectory(prefix="lamina-benchmark-") as directory:
            merged = run_child(CHILD, {"action": "memory", "keys": keys, "directory": directory}, timeout=1800)
        memory.append({**merged, "keys": keys})
        progress(f"a merge of {keys:,} keys: {merged['peak_bytes'] / 2**20:.0f} MiB")
    return {
        "benchmark": "compaction",
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "rounds": rounds,
        "interval_s": INTERVAL_S,
        **asdict(load),
        "modes": {mode: _summary(found, load) for mode, found in answers.items()},
        "commit_p99_to_none": ratios(
            [answer["commit_ms_p99"] for answer in answers[BACKGROUND]],
            [answer["commit_ms_p99"] for answer in answers[NONE]],
        ),
        "commit_p95_to_none_early": ratios(
            [answer["commit_ms_p95"] for answer in answers[BACKGROUND]],
            [answer["commit_ms_p95_early"] for answer in answers[NONE]],
        ),
        "memory": memory,
        "same_state": len({answer["digest"] for found in answers.values() for answer in found}) == 1,
    }


def _summary(answers: list[dict[str, Any]], load: Load) -> dict[str, Any]:
    """The figures of one mode. Counts depend on when the background process was ready: those of the worst round."""

    def over_bar(answer: dict[str, Any]) -> int:
        return sum(count > 2 + math.log2(version) for version, count in enumerate(answer["files_per_version"], start=1))

    written = max(answers, key=lambda answer: answer["segment_bytes"])
    stored = max(answers, key=lambda answer: answer["stored_bytes"] - answer["retained_increment_bytes"])
    beside = max(answers, key=lambda answer: answer["stored_files_beside"])
    files = max(answers, key=over_bar)["files_per_version"]
    return {
        "commit_bytes": written["commit_bytes"],
        "segment_bytes": written["segment_bytes"],
        "segments": written["segments"],
        "write_amplification": (written["commit_bytes"] + written["segment_bytes"]) / written["increment_bytes"],
        "entries_rewritten": written["segment_rows"] / (load.versions * load.rows),
        "files_median": statistics.median(files),
        "files_most": max(max(answer["files_per_version"]) for answer in answers),
        "files_last": max(answer["files_per_version"][-1] for answer in answers),
        "files_over_bar": max(map(over_bar, answers)),
        "files_curve": files,
        "chain_bytes": max(answer["chain_bytes"] for answer in answers),
        "stored_bytes": stored["stored_bytes"],
        "stored_files": beside["stored_files"],
        "stored_files_beside": beside["stored_files_beside"],
        "retained_increment_bytes": stored["retained_increment_bytes"],
        "live_bytes": stored["live_bytes"],
        "commit_ms": median_interval([answer["commit_ms_median"] for answer in answers]),
        "commit_ms_p99": median_interval([answer["commit_ms_p99"] for answer in answers]),
        "restore_s": median_interval([answer["restore_s"] for answer in answers]),
    }


def bars(result: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Each bar for `background`, what was measured, and whether it is met."""
    found = result["modes"][BACKGROUND]
    versions = result["versions"]
    restored = found["chain_bytes"] / found["live_bytes"]
    most = 2 + math.log2(versions)
    stored = found["stored_bytes"] - found["retained_increment_bytes"]
    share = stored / found["live_bytes"]
    commits = [
        (title, f"≤ {COMMIT_BAR}", f"{result[key]['median']:.2f}", result[key]["median"] <= COMMIT_BAR)
        for key, title in COMMITS.items()
    ]
    beside = found["stored_files_beside"]
    rewritten = found["entries_rewritten"]
    return [
        ("files of the newest version", f"≤ {most:.1f}", f"{found['files_last']}", found["files_last"] <= most),
        (
            "versions with more files than 2 + log2(version)",
            "0",
            f"{found['files_over_bar']} of {versions}",
            found["files_over_bar"] == 0,
        ),
        (BESIDE, "0", f"{beside} of {found['stored_files']}", beside == 0),
        (
            "bytes to restore the newest version, to live state",
            f"≤ {BYTES_BAR}",
            f"{restored:.2f}",
            restored <= BYTES_BAR,
        ),
        (
            "bytes on storage beside retained increments, to live state",
            f"≤ {BYTES_BAR}",
            f"{share:.2f}",
            share <= BYTES_BAR,
        ),
        (
            "times an entry is rewritten",
            f"≤ {math.log2(versions):.1f}",
            f"{rewritten:.2f}",
            rewritten <= math.log2(versions),
        ),
        *commits,
        *_memory_bars(result["memory"]),
    ]


def _memory_bars(merges: list[dict[str, Any]]) -> list[tuple[str, str, str, bool]]:
    found = []
    for merge in merges:
        peak = merge["peak_bytes"] / 2**20
        name = f"memory of the maintenance process, {merge['keys']:,} keys"
        found.append((name, f"≤ {MEMORY_BAR_MIB} MiB", f"{peak:.0f} MiB", peak <= MEMORY_BAR_MIB))
    return found


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    table = Table(
        title=f"{result['keys']:,} keys, {result['rows']:,} rows a version, {result['versions']} versions, "
        f"{result['retained']} retained; {result['rounds']} rounds"
    )
    heads = (
        "",
        "MB commits",
        "MB segments",
        "written/changes",
        "files median",
        "most",
        "MB stored",
        "commit ms",
        "p99",
        "restore s",
    )
    for heading in heads:
        table.add_column(heading, justify="right" if heading else "left")
    for mode, found in result["modes"].items():
        table.add_row(
            MODES[mode],
            f"{found['commit_bytes'] / 1e6:.1f}",
            f"{found['segment_bytes'] / 1e6:.1f}",
            f"{found['write_amplification']:.2f}",
            f"{found['files_median']:.0f}",
            f"{found['files_most']}",
            f"{found['stored_bytes'] / 1e6:.1f}",
            f"{found['commit_ms']['median']:.2f}",
            f"{found['commit_ms_p99']['median']:.2f}",
            f"{found['restore_s']['median']:.3f}",
        )
    console.print(table)
    table = Table(title="bars for background")
    for heading in ("", "bar", "measured", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, bar, value, met in bars(result):
        table.add_row(name, bar, value, "met" if met else "NOT met")
    console.print(table)
    console.print("The state is the same in all modes." if result["same_state"] else "The STATES DIFFER.")


def write(result: dict[str, Any], name: str) -> None:
    """The result, and the figure of it."""
    write_result(name, result)
    versions = list(range(1, result["versions"] + 1))
    compacted = {mode: found for mode, found in result["modes"].items() if mode != NONE}
    series = {MODES[mode]: (versions, found["files_curve"]) for mode, found in compacted.items()}
    title = f"Files that a version consists of ({result['rows']:,} of {result['keys']:,} keys change a version)"
    figure.lines(RESULTS / f"{name}.png", series, title=title, x="version", y="files")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="120 versions, one round, 400,000 keys for the memory")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    given = parser.parse_args()
    for name in given.loads:
        load = (QUICK if given.quick else LOADS)[name]
        result = run(name, load, QUICK_MEMORY if given.quick else MEMORY, 1 if given.quick else 3)
        write(result, f"compaction-{name}" + ("-quick" if given.quick else ""))
        show(result, Console(width=130))


if __name__ == "__main__":
    main()
