"""What the pages say of one store: the cost of a row, restores, fsync, memory, and compaction."""

from __future__ import annotations

from typing import Any

from benchmarks import compaction, memory, micro, restore, restore_places
from benchmarks.markdown import BARS, around, durabilities, header, table, verdict
from benchmarks.statistics import Spread
from benchmarks.variants import FLOOR, HDFS, LAMINA, ROCKSDB, TITLES, told


def _loads(result: dict[str, Any]) -> str:
    load = result["load"]
    return f"{result['rounds']} rounds, load average before the runs {load['low']}-{load['high']}. "


def micro_section(result: dict[str, Any]) -> str:
    """Nanoseconds a row."""
    parts = ["## One row\n", header(result)]
    parts.append(
        f"Thread CPU time in ns a row at {result['keys']:,} keys, {result['batch']:,} rows a transaction: the store "
        "that an operator calls, the bare table in it (without lock, checks, codecs and rows for Spark), and a "
        "`HashMap` of copied rows. Puts include opening the store and the commit: collecting the change set, building "
        "its messages, ending the transaction, reclaiming. What the engine does with the messages is left out. "
        f"Durability: {told(result['durability'])}.\n"
    )
    parts.append("![ns a row](benchmarks/micro.png)\n")
    rows = [
        [
            name,
            *(around(found["cpu_ns"][subject], 0) for subject in (LAMINA, micro.TABLE, FLOOR)),
            around(found["ratio"]),
        ]
        for name, found in result["operations"].items()
    ]
    parts.append(table(["operation", "store", "bare table", "HashMap", "store to HashMap"], rows))
    same = "are the same" if result["same_digest"] else "**differ**"
    parts.append(f"{_loads(result)}The rows at the end {same}.\n")
    parts.append(table(BARS, micro_bars(result)))
    return "\n".join(parts)


def micro_bars(result: dict[str, Any]) -> list[list[str]]:
    """The one bar with what was measured."""
    slowest = max(result["operations"][name]["cpu_ns"][LAMINA]["median"] for name in ("insert", "update"))
    bar = micro.PUT_BAR_NS
    return [["put, amortised with commit", f"≤ {bar} ns", f"{slowest:.0f} ns", verdict(slowest <= bar)]]


def restore_section(result: dict[str, Any]) -> str:
    """Seconds to come back."""
    parts = ["## Restore\n", header(result)]
    parts.append(
        f"{result['keys']:,} keys in a snapshot and {result['increments']} increments of {result['rows']:,} rows with "
        "10 % deletes and 10 % list appends, two partitions, files evicted from the page cache; from the providers' "
        "`init` to the end of the first full batch, less the median of the batches after it. *Fresh* starts the JVM's "
        "classes and the engine too; *running* is a JVM that has restored a small chain before. The built-in heap "
        "store has no lists; its chain has puts instead. Every store restores the same chain: lamina merges nothing "
        "here, and the built-in stores write no later snapshot. *Files* are those that the restored version consists "
        "of in a partition, a built-in store's snapshot counted as one. The processor time is that of the first batch, "
        "in which the store comes back; *in the kernel* is memory that is touched for the first time, and sockets.\n"
    )
    parts.append("![restore](benchmarks/restore.png)\n")
    for state, found in result["states"].items():
        rows = [
            [
                TITLES[variant],
                around(found["restore_s"][variant]),
                f"{found['steady_ms'][variant]:.0f}",
                f"{found['scan_s'][variant]['median']:.2f}",
                f"{result['chain_bytes'][variant] / 1e6:.0f}",
                restore.between(result["chain_files"][variant]),
            ]
            for variant in (HDFS, ROCKSDB, LAMINA)
            if variant in found["restore_s"]
        ]
        parts.append(table([f"JVM {state}", "restore s", "batch after, ms", "full scan s", "MB", "files"], rows))
        used = found["processor_ms"]
        rows = [[TITLES[v], *(f"{used[v][who]:.0f}" for who in restore.USERS)] for v in TITLES if v in used]
        parts.append(table([f"JVM {state}: processor time of the first batch, ms", *restore.USERS], rows))
    if all(state in result["states"] for state in restore.STATES):
        parts.append(_cold_start(*(result["states"][state]["processor_ms"][LAMINA] for state in restore.STATES)))
    same = "equal in all stores" if result["same_digest"] else "**different**"
    parts.append(f"{_loads(result)}Digests of the full scans: {same}.\n")
    parts.append(durabilities(result))
    parts.append(table(BARS, restore_bars(result)))
    return "\n".join(parts)


def restore_bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar with what was measured."""
    bars = []
    for state, found in result["states"].items():
        took, bar = found["restore_s"][LAMINA], restore.BAR_S
        bars.append([f"restore, JVM {state}", f"≤ {bar} s", around(took), verdict(took["median"] <= bar)])
        if ratio := found.get("ratio_to_better_built_in"):
            what, bar = f"to the better built-in, JVM {state}", restore.BAR_RATIO
            bars.append([f"restore {what}", f"≤ {bar}", around(ratio), verdict(ratio["median"] <= bar)])
    return bars


def _cold_start(fresh: dict[str, float], running: dict[str, float]) -> str:
    """What a restore in a new JVM costs besides the restore."""
    more = {who: (fresh[who] - running[who]) / 1000 for who in fresh}
    return (
        f"A fresh JVM takes {sum(fresh.values()) / 1000:.1f} s of processor time for lamina's first batch, a running "
        f"one {sum(running.values()) / 1000:.1f} s. Of the difference {more['compilers']:.1f} s are the JVM's "
        f"compilers, {more['engine']:.1f} s the start of the engine, {more['maintenance']:.1f} s that of its "
        "maintenance process, and the rest code that is not compiled yet.\n"
    )


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


def memory_section(result: dict[str, Any]) -> str:
    """Bytes a row, pauses, processes."""
    found = result["table"]
    parts = ["## Memory and pauses\n", header(result)]
    parts.append(
        f"The table alone, growing to {result['keys']:,} rows of {found['key_value_bytes']} bytes and then updated by "
        f"{result['updates']} batches of 50,000 random keys; sampled inside and after every transaction. The figure "
        "shows one round.\n"
    )
    parts.append("![memory](benchmarks/memory.png)\n")
    rows = [
        [
            name,
            around(found[key]["overhead"], 1),
            *(f"{found[key][part]['median']:.1f}" for part in memory.PARTS if part != "overhead"),
        ]
        for name, key in memory.SAMPLES.items()
    ]
    heads = ["bytes a row", "beyond key + value", "pages", "of them dead", "index", "undo", "free pages of the pool"]
    parts.append(table(heads, rows))
    empty, full = (memory.mib(found[key]["median"]) for key in ("heap_at_start", "heap_grown"))
    parts.append(f"The Java heap of that JVM: {empty} MiB before the first row, {full} MiB with all.\n")
    rows = [
        [
            f"{int(keys):,} keys",
            _mib(answer["heap_bytes"]),
            *(_mib(answer["resident_bytes"][process]) for process in memory.PROCESSES),
        ]
        for keys, answer in sorted(result["queries"].items(), key=lambda item: int(item[0]))
    ]
    parts.append(
        f"The aggregation query over {result['batches']} batches of 10,000 rows; MiB, resident memory at its peak:\n"
    )
    parts.append(table(["", "heap after a collection", "JVM", "engine", "maintenance"], rows))
    same = "gave the same results" if result["same_digest"] else "**gave different results**"
    parts.append(f"Medians (all rounds); {_loads(result)}All rounds {same}.\n")
    parts.append(durabilities(result))
    parts.append(table(BARS, memory_bars(result)))
    return "\n".join(parts)


def memory_bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar with what was measured."""
    found, queries = result["table"], result["queries"]
    kind, pause = memory.longest_pause(found)
    few, many = sorted(queries, key=int)
    heap = f"Java heap in use at {int(few):,} and {int(many):,} keys (flat: a row takes less than a reference to it)"
    heaps = f"{_mib(queries[few]['heap_bytes'])} and {_mib(queries[many]['heap_bytes'])} MiB"
    flat = verdict(result["heap_a_row"]["median"] < memory.HEAP_BAR)
    targets = [
        _target("average beyond key + value", memory.AVERAGE_BAR, found["average"], "bytes"),
        _target("worst beyond key + value", memory.WORST_BAR, found["worst"]["overhead"], "bytes"),
        _target(f"longest pause inside a transaction, or of reclaim: {kind}", memory.PAUSE_BAR_MS, pause, "ms"),
        [heap, f"< {memory.HEAP_BAR} bytes a row more", heaps, flat],
    ]
    for process in ("engine", "maintenance"):
        most = max((answer["resident_bytes"][process] for answer in queries.values()), key=lambda each: each["median"])
        in_mib = Spread(median=most["median"] / 2**20, low=most["low"] / 2**20, high=most["high"] / 2**20)
        targets.append(_target(f"resident memory of the {process} process", memory.RESIDENT_BAR_MIB, in_mib, "MiB"))
    return targets


def _mib(value: Spread) -> str:
    return f"{memory.mib(value['median'])} ({memory.mib(value['low'])}-{memory.mib(value['high'])})"


def _target(name: str, bar: float, value: Spread, unit: str) -> list[str]:
    return [name, f"≤ {bar} {unit}", f"{around(value, 1)} {unit}", verdict(value["median"] <= bar)]


def compaction_section(result: dict[str, Any]) -> str:
    """What each mode writes, and how its versions restore."""
    parts = [f"## Compaction, {result['name']} load\n", header(result)]
    parts.append(
        f"One store without Spark: {result['keys']:,} keys, {result['rows']:,} random rows a version, "
        f"{result['versions']} versions, {result['retained']} of them retained; {result['rounds']} rounds. *Commits* "
        "and *segments* are bytes written by the one and by the other; the factor is both to the bytes of increments. "
        f"Versions come every {result['interval_s'] * 1000:.0f} ms: while a large merge goes on, a few pass, and the "
        "chain is longer meanwhile. Without compaction each commit's manifest lists one more file than the one before, "
        "so that late commits are slow there: the fair comparison is the one while its chain is short.\n"
    )
    parts.append(f"![files per version](benchmarks/compaction-{result['name']}.png)\n")
    rows = [
        [
            compaction.MODES[mode],
            f"{found['commit_bytes'] / 1e6:.1f}",
            f"{found['segment_bytes'] / 1e6:.1f}",
            f"{found['write_amplification']:.2f}",
            f"{found['files_median']:.0f} / {found['files_most']}",
            f"{found['stored_bytes'] / 1e6:.1f}",
            around(found["commit_ms"]),
            around(found["commit_ms_p99"]),
            around(found["restore_s"], 3),
        ]
        for mode, found in result["modes"].items()
    ]
    heads = ["mode", "commits MB", "segments MB", "factor", "files, median / most", "stored MB"]
    parts.append(table([*heads, "commit ms", "p99", "restore s"], rows))
    parts.append(table(BARS, compaction_bars(result)))
    same = "The state is the same in all modes.\n" if result["same_state"] else "**The states differ.**\n"
    return "\n".join([*parts, same])


def compaction_bars(result: dict[str, Any]) -> list[list[str]]:
    """Each bar of mode `background` with what was measured."""
    return [
        [f"compaction, {result['name']} load: {name}", bar, value, verdict(met)]
        for name, bar, value, met in compaction.bars(result)
    ]
