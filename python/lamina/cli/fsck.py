"""`lamina fsck`: whether every retained version of every store is whole."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from lamina.cli.access import HadoopKeys, storage
from lamina.cli.inspect_survey import Selection
from lamina.cli.progress import interrupt_ends_at_once, progress_bar
from lamina.cli.targets import Target, Targets, targets
from lamina.cli.wording import number_text, plain_table, show, size_text, store_name
from lamina.components import SystemClock
from lamina.store.check.checker import Problem, StoreCheck, StoreChecker

_CONCURRENT_STORES = 8


def fsck(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    hadoop: HadoopKeys = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only manifests, references and sizes; no contents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Checks that every retained version of every store is whole. It only reads.

    \b
    Retained are the versions in Spark's commit log, and older ones that
    retention.minVersionAgeMs keeps, as the query was last run. It checks
      of each version   the manifest, the lineage, that the references add up,
                        by merging its files, that it has the rows it says,
      of each file      every checksum.

    It may run beside the query: a file collected meanwhile is no damage.

    Exit code 1 on damage.

    \b
    Examples:
      lamina fsck /data/checkpoints/flights
      lamina fsck s3a://bucket/flights --quick
      lamina fsck /data/checkpoints/flights --json | jq '.stores[].problems[]'
      lamina fsck s3a://bucket/flights --hadoop fs.s3a.endpoint=http://minio:9000
    """
    with interrupt_ends_at_once():
        found = targets(storage(checkpoint, hadoop), Selection(operator, partition, store))
        with progress_bar("checking", in_bytes=True) as progress:
            checks = _checked(found, contents=not quick, progress=progress)
    problems = {id(target): _problems(target, check) for target, check in zip(found.stores, checks, strict=True)}
    if as_json:
        json.dump(_to_json(found, checks, problems), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        show(Console(highlight=False), _parts(found, checks, problems, quick=quick))
    if any(problems.values()):
        raise typer.Exit(1)


def _checked(found: Targets, *, contents: bool, progress: Callable[[int, int], None]) -> list[StoreCheck]:
    lock = threading.Lock()
    done = total = 0

    def read(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    def plan(count: int) -> None:
        nonlocal total
        with lock:
            total += count
            progress(done, total)

    def one(target: Target) -> StoreCheck:
        checker = StoreChecker(
            found.state,
            target.identity,
            target.named,
            still_named=found.named_now,
            clock=SystemClock(),
            read=read,
            plan=plan,
            contents=contents,
        )
        return checker.check()

    with ThreadPoolExecutor(_CONCURRENT_STORES) as pool:
        return list(pool.map(one, found.stores))


def _problems(target: Target, check: StoreCheck) -> list[Problem]:
    return [*(Problem("file.damaged", (), text) for text in target.problems), *check.problems]


def _parts(
    found: Targets, checks: Sequence[StoreCheck], problems: dict[int, list[Problem]], *, quick: bool
) -> list[RenderableType]:
    table = plain_table("store", ">versions", ">damaged", ">files", ">size", ">rows", ">not needed", "")
    parts: list[RenderableType] = [table]
    for target, check in zip(found.stores, checks, strict=True):
        orphans = sum(count for count, _ in check.orphans.values())
        table.add_row(
            store_name(check.identity),
            _ranges(check.whole + check.damaged),
            Text(_ranges(check.damaged), style="red"),
            number_text(check.files),
            size_text(check.bytes),
            "" if check.rows is None else number_text(check.rows),
            f"{number_text(orphans)} ({size_text(sum(size for _, size in check.orphans.values()))})" if orphans else "",
            Text("✗", style="red") if problems[id(target)] else Text("✓", style="green"),
        )
    for target, check in zip(found.stores, checks, strict=True):
        for problem in problems[id(target)]:
            parts.append(Text(f"{store_name(check.identity)}  {_about(problem)}", style="red"))
    parts.append(_verdict(checks, problems, quick=quick))
    return parts


def _about(problem: Problem) -> str:
    versions = f"; version{'s' * (len(problem.versions) > 1)} {_ranges(problem.versions)}" if problem.versions else ""
    return f"[{problem.kind}] {problem.message}{versions}"


def _verdict(checks: Sequence[StoreCheck], problems: dict[int, list[Problem]], *, quick: bool) -> Text:
    files, size = sum(check.files for check in checks), sum(check.bytes for check in checks)
    what = f"{number_text(len(checks))} stores, {number_text(files)} files, {size_text(size)}"
    if not any(problems.values()):
        how = "looked at" if quick else "verified"
        return Text(f"{what} {how}: every retained version is whole.", style="green")
    damaged = sum(bool(found) for found in problems.values())
    return Text(
        f"{what} checked: {damaged} of the stores {'is' if damaged == 1 else 'are'} damaged. Put the named files back "
        "from a copy, or restart the query from a batch whose versions are whole in all stores (docs: operations).",
        style="red",
    )


def _ranges(versions: Sequence[int]) -> str:
    """Versions as ranges: 1-5, 7."""
    parts: list[list[int]] = []
    for version in sorted(versions):
        if parts and version == parts[-1][-1] + 1:
            parts[-1][1:] = [version]
        else:
            parts.append([version])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _to_json(found: Targets, checks: Sequence[StoreCheck], problems: dict[int, list[Problem]]) -> dict[str, Any]:
    return {
        "checkpoint": found.url,
        "damaged": any(problems.values()),
        "stores": [
            {
                "operator": check.identity.operator,
                "partition": check.identity.partition,
                "name": check.identity.name,
                "whole": list(check.whole),
                "damaged": list(check.damaged),
                "collected_meanwhile": list(check.collected),
                "files": check.files,
                "bytes": check.bytes,
                "rows": check.rows,
                "not_needed": {
                    kind: {"files": count, "bytes": size} for kind, (count, size) in sorted(check.orphans.items())
                },
                "problems": [
                    {"kind": problem.kind, "versions": list(problem.versions), "message": problem.message}
                    for problem in problems[id(target)]
                ],
            }
            for target, check in zip(found.stores, checks, strict=True)
        ],
    }
