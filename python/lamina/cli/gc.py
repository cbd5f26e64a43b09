"""`lamina gc`: deletes what no retained version needs, and explains each file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from lamina.checkpoint import StoreSelection, logged_stores
from lamina.cli.access import HadoopKeys, Roots, storage
from lamina.cli.progress import interrupt_ends_at_once, progress_bar
from lamina.cli.wording import (
    count_text,
    duration_text,
    number_text,
    plain_console,
    plain_table,
    short_name,
    show,
    size_text,
    store_name,
)
from lamina.store.admin.collect import CollectedStore, collect_stores
from lamina.store.model import DELETE, KEEP, WAIT, Verdict

_MANY = 60
"""More files than this are cut; `--json` has them all."""

_STYLES = {DELETE: "red", WAIT: "yellow", KEEP: "green"}


def gc(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, only say what would be deleted.")] = False,
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    hadoop: HadoopKeys = None,
    root: Roots = None,
    details: Annotated[bool, typer.Option("--details", help="Explain the files that are kept, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every file, as one JSON object.")] = False,
) -> None:
    """Deletes the files that no retained version needs any more.

    \b
    A running query does this by itself; gc is for one that was stopped, and
    to see why a file is there. A file is
      [green]kept[/]     a retained version needs it, or Spark's log is older,
      [yellow]waiting[/]  nothing needs it; readers may, for retention.minAgeMs,
      [red]deleted[/]  nothing has needed it for longer than that.

    \b
    Retained is what the query was last run with, and every version in
    Spark's commit log. It may run beside the query; once a new run of the
    query has started, it deletes nothing in the stores that it comes to.

    Exit code 1 where a store could not be collected: something of it is
    damaged, or cannot be read or deleted.

    \b
    Examples:
      lamina gc /data/checkpoints/flights --dry-run
      lamina gc /data/checkpoints/flights --operator 0 --partition 3 --details --dry-run
      lamina gc s3a://bucket/flights
      lamina gc s3a://bucket/flights --dry-run --json | jq '.stores[].files[] | select(.action == "delete")'
      lamina gc s3a://bucket/flights --dry-run --hadoop fs.s3a.endpoint=http://minio:9000
      lamina gc s3a://bucket/flights --dry-run --root s3a://fast-bucket/lamina-log
    """
    with interrupt_ends_at_once():
        found = logged_stores(storage(checkpoint, hadoop, root), StoreSelection(operator, partition, store))
        with progress_bar("collecting") as progress:
            outcomes = collect_stores(found, dry_run=dry_run, progress=progress)
    if as_json:
        json.dump(_to_json(found.url, outcomes, dry_run), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(plain_console(), _parts(outcomes, details=details, dry_run=dry_run))
    if any(map(_needs_repair, outcomes)):
        raise typer.Exit(1)


def _parts(outcomes: Sequence[CollectedStore], *, details: bool, dry_run: bool) -> list[RenderableType]:
    table = plain_table("store", ">version", ">kept", ">waiting", ">to delete" if dry_run else ">deleted")
    explained = plain_table("store", "file", ">size", ">age", "", "why")
    verdicts: list[tuple[str, Verdict]] = []
    notes: list[Text] = []
    for outcome in outcomes:
        name = store_name(outcome.identity)
        collected = outcome.collected
        counts = collected.metrics() if collected else {}
        cells = []
        for action in (KEEP, WAIT, DELETE):
            files = counts.get(f"{action}_files", 0)
            cells.append(f"{number_text(files)} ({size_text(counts[f'{action}_bytes'])})" if files else "-")
        table.add_row(name, "-" if outcome.version is None else str(outcome.version), *cells)
        if outcome.problem:
            notes.append(Text(f"{name}  not collected: {outcome.problem}", style="red"))
        elif collected is not None and collected.stopped:
            style = "red" if collected.needs_repair else "yellow"
            notes.append(Text(f"{name}  nothing is deleted: {collected.stopped}", style=style))
        if collected is not None:
            verdicts += [(name, verdict) for verdict in collected.verdicts if details or verdict.action != KEEP]
    verdicts.sort(key=lambda found: ((DELETE, WAIT, KEEP).index(found[1].action), found[0]))
    words = {DELETE: "delete" if dry_run else "deleted", WAIT: "wait", KEEP: "keep"}
    for name, verdict in verdicts[:_MANY]:
        word = Text(words[verdict.action], style=_STYLES[verdict.action])
        age = duration_text(verdict.age_ms)
        explained.add_row(name, short_name(verdict.path), size_text(verdict.size), age, word, _why(verdict))
    parts: list[RenderableType] = [table]
    if verdicts:
        parts.append(explained)
    if len(verdicts) > _MANY:
        parts.append(Text(f"{_MANY} of {number_text(len(verdicts))} files; --json shows all", style="dim"))
    return [*parts, *notes, _summary(outcomes, dry_run=dry_run)]


def _needs_repair(outcome: CollectedStore) -> bool:
    return outcome.problem is not None or (outcome.collected is not None and outcome.collected.needs_repair)


def _why(verdict: Verdict) -> str:
    name, found, rest = verdict.reason.partition(" refers to it")
    return f"{short_name(name)}{found}{rest}" if found else verdict.reason


def _summary(outcomes: Sequence[CollectedStore], *, dry_run: bool) -> Text:
    gone = [verdict for outcome in outcomes if outcome.collected for verdict in outcome.collected.deleted]
    size = size_text(sum(verdict.size for verdict in gone))
    files = f"{count_text('file', len(gone))}, {size},"
    if dry_run:
        return Text(f"{files} would be deleted; nothing was.")
    return Text(f"{files} {'was' if len(gone) == 1 else 'were'} deleted.")


def _to_json(url: str, outcomes: Sequence[CollectedStore], dry_run: bool) -> dict[str, Any]:
    return {
        "checkpoint": url,
        "dry_run": dry_run,
        "stores": [
            {
                "operator": outcome.identity.operator,
                "partition": outcome.identity.partition,
                "name": outcome.identity.name,
                "version": outcome.version,
                "problem": outcome.problem,
                "stopped": outcome.collected.stopped if outcome.collected else None,
                "files": [
                    {
                        "file": verdict.path,
                        "kind": verdict.kind,
                        "bytes": verdict.size,
                        "age_ms": verdict.age_ms,
                        "action": verdict.action,
                        "reason": verdict.reason,
                    }
                    for verdict in (outcome.collected.verdicts if outcome.collected else ())
                ],
            }
            for outcome in outcomes
        ],
    }
