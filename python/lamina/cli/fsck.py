"""`lamina fsck`: whether every retained version of every store is whole."""

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
from lamina.cli.wording import count_text, number_text, plain_console, plain_table, show, size_text, store_name
from lamina.store.admin.check import check_log, check_stores
from lamina.store.check.log_checker import NEEDS, OBJECT, PART, TEMPORARY
from lamina.store.check.report import NEWER, LogCheck, Problem, StoreCheck, is_damage

_NOT_NEEDED = {OBJECT: "object", PART: "part of another object", NEEDS: "needs file", TEMPORARY: "temporary file"}


def fsck(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of the checkpoint (file, s3a, gs, abfss, hdfs).")],
    operator: Annotated[int | None, typer.Option(min=0, help="Only this stateful operator.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    store: Annotated[str | None, typer.Option(help="Only stores of this name, such as default.")] = None,
    hadoop: HadoopKeys = None,
    root: Roots = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only manifests, references and sizes; no contents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Checks that every retained version of every store is whole. It only reads.

    \b
    Retained are the versions in Spark's commit log, older ones that
    retention.minVersionAgeMs keeps, as the query was last run, and those
    that another checkpoint has pinned. It checks
      of each version   the manifest, the lineage, that the references add up,
                        by merging its files, that it has the rows it says,
      of each file      every checksum; of log objects every byte.

    Files of other checkpoints that a version needs are checked where
    --root names those; whether they are pinned there is looked at, too.
    Where they cannot be read, the check of all other files goes on.

    It may run beside the query: a file collected meanwhile is no damage.
    What is not needed is unknown (?, null) of a store of which a version
    could not be read, or none is retained.

    Exit code 1 on damage, and where files were not read.

    \b
    Examples:
      lamina fsck /data/checkpoints/flights
      lamina fsck s3a://bucket/flights --quick
      lamina fsck /data/checkpoints/flights --json | jq '.stores[].problems[]'
      lamina fsck /data/checkpoints/clone --root /data/checkpoints/flights
      lamina fsck s3a://bucket/flights --hadoop fs.s3a.endpoint=http://minio:9000
      lamina fsck s3a://bucket/flights --root s3a://fast-bucket/lamina-log
    """
    with interrupt_ends_at_once():
        found = logged_stores(storage(checkpoint, hadoop, root), StoreSelection(operator, partition, store))
        with progress_bar("checking", in_bytes=True) as progress:
            checks = check_stores(found, contents=not quick, progress=progress)
        with progress_bar("checking log objects") as progress:
            log = check_log(found, checks, contents=not quick, progress=progress)
    if as_json:
        json.dump(_to_json(found.url, checks, log), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(plain_console(), _parts(checks, log, quick=quick))
    if log.problems or any(check.problems for check in checks):
        raise typer.Exit(1)


def _parts(checks: Sequence[StoreCheck], log: LogCheck, *, quick: bool) -> list[RenderableType]:
    table = plain_table("store", ">versions", ">damaged", ">files", ">size", ">rows", ">not needed", "")
    parts: list[RenderableType] = [table]
    for check in checks:
        table.add_row(
            store_name(check.identity),
            _ranges(check.whole + check.damaged),
            Text(_ranges(check.damaged), style="red"),
            number_text(check.files),
            size_text(check.bytes),
            "" if check.rows is None else number_text(check.rows),
            _orphans_text(check),
            Text("✗", style="red") if check.problems else Text("✓", style="green"),
        )
    for check in checks:
        for problem in check.problems:
            parts.append(Text(f"{store_name(check.identity)}  {_about(problem)}", style="red"))
        for warning in check.warnings:
            parts.append(Text(f"{store_name(check.identity)}  {warning}", style="yellow"))
    parts += [Text(f"log  {_about(problem)}", style="red") for problem in log.problems]
    parts += [Text(f"log  {warning}", style="yellow") for warning in log.warnings]
    if log.objects or log.not_needed:
        parts.append(Text(_log_text(log)))
    parts.append(_verdict(checks, log, quick=quick))
    return parts


def _orphans_text(check: StoreCheck) -> str:
    if not check.knows_needs:
        return "?"
    count = sum(count for count, _ in check.orphans.values())
    return f"{number_text(count)} ({size_text(sum(size for _, size in check.orphans.values()))})" if count else ""


def _log_text(log: LogCheck) -> str:
    text = f"log: {count_text('object', log.objects)} ({size_text(log.bytes)}) with commits of these stores"
    left = [f"{count_text(_NOT_NEEDED[kind], count)} ({size_text(size)})" for kind, (count, size) in _sorted(log)]
    return f"{text}; not needed: {', '.join(left)}" if left else text


def _sorted(log: LogCheck) -> list[tuple[str, tuple[int, int]]]:
    return sorted(log.not_needed.items())


def _about(problem: Problem) -> str:
    versions = f"; version{'s' * (len(problem.versions) > 1)} {_ranges(problem.versions)}" if problem.versions else ""
    return f"[{problem.kind}] {problem.message}{versions}"


def _verdict(checks: Sequence[StoreCheck], log: LogCheck, *, quick: bool) -> Text:
    files, size = sum(check.files for check in checks), sum(check.bytes for check in checks)
    what = f"{number_text(len(checks))} stores, {number_text(files)} files, {size_text(size)}"
    damaged, in_log = sum(map(_is_damaged, checks)), len(_damages(log))
    if not damaged and in_log:
        return Text(
            f"{what} checked: what was read of them is whole, and {count_text('log object', in_log)} of theirs "
            f"{'is' if in_log == 1 else 'are'} damaged. Put the named files back from a copy (docs: operations).",
            style="red",
        )
    left = {problem.kind for problem in (*log.problems, *(one for check in checks for one in check.problems))}
    if not damaged and left and left <= {*NEWER}:
        return Text(
            f"{what} checked: what was read is whole. The rest says that a newer release wrote it: check it with the "
            "newest lamina; where that does not know it either, it is damaged.",
            style="red",
        )
    if not damaged and left:
        return Text(
            f"{what} checked: what was read is whole. Other checkpoints whose files are to be read have to be named by "
            "--root, and their storage has to answer.",
            style="red",
        )
    if checks and not damaged and not any(check.whole for check in checks):
        return Text(
            f"{what}: Spark's commit log names no version of theirs, so that there was nothing to check. Where the "
            "query has committed batches before, its log is lost: put the directory commits back.",
            style="yellow",
        )
    if not damaged:
        how = "looked at" if quick else "verified"
        return Text(f"{what} {how}: every retained version is whole.", style="green")
    return Text(
        f"{what} checked: {damaged} of the stores {'is' if damaged == 1 else 'are'} damaged. Put the named files back "
        "from a copy, or restart the query from a batch whose versions are whole in all stores (docs: operations).",
        style="red",
    )


def _damages(check: StoreCheck | LogCheck) -> list[Problem]:
    return [problem for problem in check.problems if is_damage(problem.kind)]


def _is_damaged(check: StoreCheck | LogCheck) -> bool:
    return bool(_damages(check))


def _ranges(versions: Sequence[int]) -> str:
    """Versions as ranges: 1-5, 7."""
    parts: list[list[int]] = []
    for version in sorted(versions):
        if parts and version == parts[-1][-1] + 1:
            parts[-1][1:] = [version]
        else:
            parts.append([version])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _to_json(url: str, checks: Sequence[StoreCheck], log: LogCheck) -> dict[str, Any]:
    return {
        "checkpoint": url,
        "damaged": any(map(_is_damaged, checks)) or _is_damaged(log),
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
                }
                if check.knows_needs
                else None,
                "problems": _problems(check),
                "warnings": list(check.warnings),
            }
            for check in checks
        ],
        "log": {
            "objects": log.objects,
            "bytes": log.bytes,
            "not_needed": {kind: {"number": count, "bytes": size} for kind, (count, size) in _sorted(log)},
            "problems": _problems(log),
            "warnings": list(log.warnings),
        },
    }


def _problems(check: StoreCheck | LogCheck) -> list[dict[str, Any]]:
    return [
        {"kind": problem.kind, "versions": list(problem.versions), "message": problem.message}
        for problem in check.problems
    ]
