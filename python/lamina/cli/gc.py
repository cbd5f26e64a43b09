"""`lamina gc`: deletes what no retained version needs, and explains each file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from lamina.checkpoint import read_claims
from lamina.cli.access import HadoopKeys, storage
from lamina.cli.inspect_survey import Selection
from lamina.cli.progress import interrupt_ends_at_once, progress_bar
from lamina.cli.targets import Target, Targets, targets
from lamina.cli.wording import duration_text, number_text, plain_table, short_name, show, size_text, store_name
from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.store.collection.collector import Collector
from lamina.store.collection.retention import Retention
from lamina.store.files.store_files import StoreFiles
from lamina.store.model import DELETE, KEEP, WAIT, Collected, Verdict, Version
from lamina.store.versions.checkpoint_state import Standing
from lamina.store.versions.resolution import Versions, is_empty

_CONCURRENT_STORES = 8
_MANY = 60
"""More files than this are cut; `--json` has them all."""

_STYLES = {DELETE: "red", WAIT: "yellow", KEEP: "green"}


@dataclass(frozen=True)
class _Outcome:
    """What became of one store; `problem` where its files could not be judged, and so none was deleted."""

    target: Target
    version: int | None
    collected: Collected | None
    problem: str | None = None


def gc(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, only say what would be deleted.")] = False,
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    hadoop: HadoopKeys = None,
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

    \b
    Examples:
      lamina gc /data/checkpoints/flights --dry-run
      lamina gc /data/checkpoints/flights --operator 0 --partition 3 --details --dry-run
      lamina gc s3a://bucket/flights --json | jq '.stores[].files[] | select(.action == "delete")'
      lamina gc s3a://bucket/flights --dry-run --hadoop fs.s3a.endpoint=http://minio:9000
    """
    with interrupt_ends_at_once():
        found = targets(storage(checkpoint, hadoop), Selection(operator, partition, store))
        with progress_bar("collecting") as progress:
            outcomes = _collected(found, dry_run, progress)
    if as_json:
        json.dump(_to_json(found, outcomes, dry_run), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        show(Console(highlight=False), _parts(outcomes, details=details, dry_run=dry_run))
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(1)


def _collected(found: Targets, dry_run: bool, progress: Callable[[int, int], None]) -> list[_Outcome]:
    progress(0, len(found.stores))
    with ThreadPoolExecutor(_CONCURRENT_STORES) as pool:
        futures = [pool.submit(_collect, found, target, dry_run) for target in found.stores]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(futures))
        return [future.result() for future in futures]


def _collect(found: Targets, target: Target, dry_run: bool) -> _Outcome:
    version = max(target.named, default=None)
    if version is None:
        return _Outcome(target, None, Collected((), dry_run, "Spark has committed no batch yet"))
    files = StoreFiles(found.state, target.identity)
    versions = Versions(files)
    try:
        attempt = versions.locate(Version(version, target.named[version]))
        if attempt is None or is_empty(attempt):
            return _Outcome(target, version, Collected((), dry_run, "the store is empty"))
        newest = versions.open(attempt, Version(version, attempt)).manifest
        # what Spark can go back to stays, whatever the query was last run with
        retention = Retention.recorded(newest).at_least(version - min(target.named))
        # a run that started since the log was read may stand on an older batch
        standing = Standing.of(found.runs[-1].id, {*read_claims(found.state), *found.runs}) if found.runs else None
        collector = Collector(files, versions, retention, SystemClock())
        collected = collector.collect(Version(version, attempt), standing, dry_run=dry_run or standing is None)
        return _Outcome(target, version, collected)
    except LaminaError as error:
        return _Outcome(target, version, None, error.message)


def _parts(outcomes: Sequence[_Outcome], *, details: bool, dry_run: bool) -> list[RenderableType]:
    table = plain_table(
        "store", ">version", ">kept", ">", ">waiting", ">", ">to delete" if dry_run else ">deleted", ">"
    )
    explained = plain_table("store", "file", ">size", ">age", "", "why")
    verdicts: list[tuple[str, Verdict]] = []
    notes: list[Text] = []
    for outcome in outcomes:
        name = store_name(outcome.target.identity)
        collected = outcome.collected
        counts = collected.metrics() if collected else {}
        cells = []
        for action in (KEEP, WAIT, DELETE):
            files = counts.get(f"{action}_files", 0)
            cells += [number_text(files) if files else "-", size_text(counts[f"{action}_bytes"]) if files else ""]
        table.add_row(name, "-" if outcome.version is None else str(outcome.version), *cells)
        if outcome.problem:
            notes.append(Text(f"{name}  nothing is deleted: {outcome.problem}", style="red"))
        elif collected is not None and collected.stopped:
            notes.append(Text(f"{name}  nothing is deleted: {collected.stopped}", style="yellow"))
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


def _why(verdict: Verdict) -> str:
    name, found, rest = verdict.reason.partition(" refers to it")
    return f"{short_name(name)}{found}{rest}" if found else verdict.reason


def _summary(outcomes: Sequence[_Outcome], *, dry_run: bool) -> Text:
    gone = [verdict for outcome in outcomes if outcome.collected for verdict in outcome.collected.deleted]
    size = size_text(sum(verdict.size for verdict in gone))
    files = f"{number_text(len(gone))} file{'' if len(gone) == 1 else 's'}, {size},"
    if dry_run:
        return Text(f"{files} would be deleted; nothing was.")
    return Text(f"{files} {'was' if len(gone) == 1 else 'were'} deleted.")


def _to_json(found: Targets, outcomes: Sequence[_Outcome], dry_run: bool) -> dict[str, Any]:
    return {
        "checkpoint": found.url,
        "dry_run": dry_run,
        "stores": [
            {
                "operator": outcome.target.identity.operator,
                "partition": outcome.target.identity.partition,
                "name": outcome.target.identity.name,
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
