"""`lamina inspect`: what a checkpoint holds."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lamina.cli.inspect_json import to_json
from lamina.cli.inspect_survey import CheckpointSurvey, Selection, survey
from lamina.cli.inspect_tables import tables
from lamina.storage import Storage

_WIDE = 120
"""Columns of a terminal from which on tables have all their columns."""
_SHOW_CURSOR = b"\x1b[?25h\r\n"
"""What the progress bar would write at its end."""


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    details: Annotated[bool, typer.Option("--details", help="Every version, chain and file of each store.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Shows what a checkpoint holds: operators, stores, versions, files, chains. It only reads.

    \b
    A version is
      [green]committed[/]    in Spark's commit log, or in the lineage of the newest,
      [yellow]uncommitted[/]  newer than the newest committed batch,
      [dim]superseded[/]   any other.

    A single selected store is shown in detail. Problems are printed in red; the exit code is then 1.

    \b
    Examples:
      lamina inspect /data/checkpoints/flights
      lamina inspect s3a://bucket/flights --operator 0 --partition 3
      lamina inspect /data/checkpoints/flights --json | jq '.stores[].rows'
    """
    selection = Selection(operator, partition, store)
    with _interrupt_ends_at_once():
        found = _with_progress(checkpoint, selection, details=details)
        if not details and len(found.stores) == 1:
            found, details = _with_progress(checkpoint, selection, details=True), True
    if as_json:
        json.dump(to_json(found), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False)
        for part in tables(found, details=details, wide=console.width >= _WIDE):
            console.print(part)
    if found.problems:
        raise typer.Exit(1)


@contextmanager
def _interrupt_ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process, which only reads.

    An exception in the middle of a thread pool's own code could leave a lock taken that the exit waits for.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(*_: object) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _with_progress(checkpoint: str, selection: Selection, *, details: bool) -> CheckpointSurvey:
    """The survey, with a bar on a terminal; the bar goes to standard error, so that output can be piped."""
    console = Console(stderr=True)
    columns = (TextColumn("reading stores"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("stores", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return survey(Storage(checkpoint), selection, details=details, progress=progress)
