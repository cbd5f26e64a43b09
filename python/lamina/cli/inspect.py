"""`lamina inspect`: what a checkpoint holds."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lamina.checkpoint import StoreSelection
from lamina.cli.access import HadoopKeys, Roots, storage
from lamina.cli.inspect_json import to_json
from lamina.cli.inspect_tables import tables
from lamina.cli.progress import interrupt_ends_at_once, progress_bar
from lamina.cli.wording import plain_console, show
from lamina.storage import Storage
from lamina.store.admin.survey import CheckpointSurvey, survey

_WIDE = 120
"""Columns of a terminal from which on tables have all their columns."""


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    hadoop: HadoopKeys = None,
    root: Roots = None,
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
      lamina inspect s3a://bucket/flights --hadoop fs.s3a.endpoint=http://minio:9000
      lamina inspect s3a://bucket/flights --root s3a://fast-bucket/lamina-log
    """
    selection = StoreSelection(operator, partition, store)
    with interrupt_ends_at_once():
        opened = storage(checkpoint, hadoop, root)
        found = _with_progress(opened, selection, details=details)
        if not details and len(found.stores) == 1:
            found, details = _with_progress(opened, selection, details=True), True
    if as_json:
        json.dump(to_json(found), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        console = plain_console()
        show(console, tables(found, details=details, wide=console.width >= _WIDE))
    if found.problems:
        raise typer.Exit(1)


def _with_progress(opened: Storage, selection: StoreSelection, *, details: bool) -> CheckpointSurvey:
    """The survey, with a bar on a terminal; the bar goes to standard error, so that output can be piped."""
    with progress_bar("reading stores") as progress:
        return survey(opened, selection, details=details, progress=progress)
