"""`lamina inspect` for people: rich tables that stay readable from 80 columns on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lamina.checkpoint import ColumnFamilyMeaning, OperatorSurvey
from lamina.cli.unmerged import unmerged
from lamina.cli.wording import count_text, number_text, plain_table, short_name, size_text, store_name, time_text
from lamina.format.manifest import Reference
from lamina.store.admin.store_survey import (
    COMMITTED,
    SUPERSEDED,
    UNCOMMITTED,
    StoreSurvey,
    VersionDetails,
    VersionSurvey,
)
from lamina.store.admin.survey import CheckpointSurvey, LogWriter

_STATUS_STYLES = {COMMITTED: "green", UNCOMMITTED: "yellow", SUPERSEDED: "dim"}
_UNCOMMITTED, _SUPERSEDED = ">uncom-\nmitted", ">super-\nseded"
_MANY = 40
"""More rows than this are cut to the last ones; `--json` has them all."""


def tables(found: CheckpointSurvey, *, details: bool, wide: bool) -> Iterator[RenderableType]:
    """Everything that is printed, in order.

    Args:
        details: whether versions, chain and files of each store are shown.
        wide: whether there is room for more than the columns that fit into 80 characters.
    """
    yield _summary(found)
    if found.operators:
        yield _operators(found)
    if found.stores:
        yield _stores(found.stores, wide)
    if details:
        for store in found.stores:
            yield Text(f"\nstore {store_name(store.identity)}", style="bold")
            operator = next(entry for entry in found.operators if entry.metadata.operator == store.identity.operator)
            yield _families(operator, store.identity.name)
            yield _versions(store, wide)
            if store.details and store.details.chain:
                yield _chain(store.details)
            if store.files:
                yield _files(store)
        for operator in () if found.stores else found.operators:
            for name in operator.families:
                yield Text(f"\noperator {operator.metadata.operator}, stores {name}", style="bold")
                yield _families(operator, name)
    for problem in found.problems:
        yield Text(problem, style="red")


def _summary(found: CheckpointSurvey) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows: list[tuple[str, str]] = [
        ("checkpoint", found.url),
        ("query", found.query),
        ("batches", _batches(found)),
    ]
    if found.watermark_ms:
        rows.append(("watermark", time_text(found.watermark_ms)))
    rows.append(("state store", _provider(found)))
    if found.identity:
        rows.append(("identity", f"{found.identity.uuid}, made by {found.identity.created_by}"))
    if found.runs:
        newest = found.runs[-1]
        rows.append(("runs", f"{len(found.runs)}, the newest {newest.id} (epoch {newest.epoch})"))
    if found.log.oldest_ms is not None:
        size, oldest = size_text(found.log.bytes), time_text(found.log.oldest_ms)
        rows.append(("log", f"{number_text(found.log.objects)} objects, {size}, the oldest of {oldest}"))
    for url, objects, place_size in found.log.places:
        rows.append(("", f"{number_text(objects)} of them, {size_text(place_size)}, in {url}"))
    rows += [row for writer in found.log.writers for row in _process(writer)]
    known = [store for store in found.stores if store.details]
    if known:
        stored, newest = (sum(sizes) for sizes in zip(*((one.size, one.newest_size) for one in known), strict=True))
        times = f", {stored / newest:.2f} times what the newest versions need" if newest else ""
        rows.append(("space", f"{size_text(stored)}{times}"))
        rows.append(("not merged", _unmerged(found.stores)))
    for name, value in rows:
        table.add_row(name, value)
    return Padding(table, (1, 0, 1, 1))


def _process(writer: LogWriter) -> Iterator[tuple[str, str]]:
    """What the newest object of a process says, in lines."""
    kinds = writer.figures
    uploads, merges, loads = (kinds.get(kind, {}) for kind in ("uploads", "merges", "loads"))
    text = f"{count_text('commit', writer.commits)} in its object of {time_text(writer.published_ms)}"
    if before := uploads.get("uploads", 0):
        text += (
            f"; {count_text('upload', before)} before it{_bytes(uploads)}, half of late in {uploads.get('p50_ms', 0)} "
            f"ms, 99 % in {uploads.get('p99_ms', 0)} ms"
        )
    others = [
        ("again", "tried again"),
        ("failed", "failed"),
        ("hedges", f"hedged, {number_text(uploads.get('hedges_won', 0))} of them won"),
        ("queued", "waiting"),
    ]
    text += "".join(f"; {number_text(uploads[name])} {what}" for name, what in others if uploads.get(name))
    yield "process", text
    done = []
    if merges.get("merges") or merges.get("failed"):
        failed = f", {number_text(merges['failed'])} failed" if merges.get("failed") else ""
        done.append(
            f"{count_text('merge', merges.get('merges', 0))} in {merges.get('merge_ms', 0) / 1000:.1f} s{failed}"
        )
    if loads.get("loads"):
        replayed = size_text(loads.get("replayed_bytes", 0))
        seconds = loads.get("load_ms", 0) / 1000
        done.append(f"{count_text('load', loads['loads'])} in {seconds:.1f} s, {replayed} replayed")
    if done:
        yield "", "; ".join(done)


def _bytes(uploads: Mapping[str, int]) -> str:
    """Those of uploads, and of which before a batch was over; objects of earlier releases do not say."""
    if "bytes" not in uploads:
        return ""
    early = uploads.get("early_bytes", 0)
    return f", {size_text(uploads['bytes'])}" + (
        f" ({size_text(early)} of it before a batch was over)" if early else ""
    )


def _unmerged(stores: Sequence[StoreSurvey]) -> str:
    found = unmerged(stores)
    commits = count_text("commit", found.increments)
    text = f"{commits}, {size_text(found.bytes)} to replay at a restart" if found.increments else "no commit"
    if found.in_log:
        text += f"; {number_text(found.in_log)} of them in the log"
    if found.increments and len(stores) > 1:
        text += f"; {number_text(found.most)} of one store at most"
    return text + (f"; {count_text('store', found.unknown)} could not be read" if found.unknown else "")


def _batches(found: CheckpointSurvey) -> str:
    if not found.committed:
        return "none committed" if found.planned else "none yet"
    text = f"{found.committed[-1]} is the newest committed"
    unfinished = [batch for batch in found.planned if batch > found.committed[-1]]
    return f"{text}; {unfinished[-1]} is planned and not committed" if unfinished else text


def _provider(found: CheckpointSurvey) -> str:
    if found.provider is None and found.identity is None:
        return "not known before the first batch"
    name = (found.provider or "").rpartition(".")[2]
    version = f"checkpoint format v{found.format_version}" if found.format_version else "no batch committed yet"
    if found.is_lamina:
        return f"lamina, {version}"
    if not found.operators:
        return "the query keeps no state"
    return f"{name}, {version}; lamina does not keep this state, only Spark's logs are shown"


def _operators(found: CheckpointSurvey) -> Table:
    table = plain_table("operator", "name", "stores", ">partitions", ">rows", ">state", ">size")
    for operator in found.operators:
        number = operator.metadata.operator
        stores = [store for store in found.stores if store.identity.operator == number]
        known = [store.details for store in stores if store.details]
        names = [store.name for store in operator.metadata.stores]
        table.add_row(
            str(number),
            operator.metadata.name,
            names[0] if len(names) == 1 else str(len(names)),
            str(operator.partitions),
            number_text(sum(details.rows for details in known)) if stores else "",
            size_text(sum(details.state_bytes for details in known)) if stores else "",
            size_text(sum(store.size for store in stores)) if stores else "",
        )
    return table


def _stores(stores: Sequence[StoreSurvey], wide: bool) -> Table:
    more = (">not merged", ">files", ">temporary") if wide else ()
    table = plain_table("store", ">version", ">rows", ">state", ">chain", ">size", *more, _UNCOMMITTED, _SUPERSEDED, "")
    for store in stores:
        details = store.details
        kinds = [file.kind for file in store.files]
        table.add_row(
            store_name(store.identity),
            "-" if store.version is None else str(store.version),
            number_text(details.rows) if details else "?" if store.problems else "0",
            size_text(details.state_bytes) if details else "",
            str(len(details.chain)) if details else "",
            size_text(store.size),
            *((_increments(store), str(len(kinds)), str(kinds.count("temporary") or "")) if wide else ()),
            str(store.count(UNCOMMITTED) or ""),
            str(store.count(SUPERSEDED) or ""),
            Text("✗", style="red") if store.problems else Text("✓", style="green"),
        )
    return table


def _increments(store: StoreSurvey) -> str:
    found = unmerged([store])
    return f"{number_text(found.increments)} ({size_text(found.bytes)})" if found.increments else ""


def _families(operator: OperatorSurvey, store: str) -> RenderableType:
    families = operator.families.get(store, ())
    if not families:
        return Text("")
    table = plain_table("column family", "key", "value", "encoder", "")
    for family in families:
        encoder = (family.schema.encoder or {}).get("keyStateEncoderType", "").replace("StateEncoderSpec", "")
        table.add_row(
            family.schema.name,
            _columns(family.schema.key_schema),
            _columns(family.schema.value_schema),
            encoder.removesuffix("Key"),
            _flags(family),
        )
    return table


def _flags(family: ColumnFamilyMeaning) -> str:
    kind = family.variable.kind.removesuffix("State").lower() if family.variable else ""
    flags = [kind, "multi-value" if family.multi_value else "", "ttl" if family.ttl else ""]
    flags.append("internal" if family.internal else "")
    return " ".join(flag for flag in flags if flag)


def _columns(schema: object) -> str:
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    names = [str(field.get("name")) for field in fields]
    shown = ", ".join(names[:6])
    return f"{shown}, … ({len(names)})" if len(names) > 6 else shown


def _versions(store: StoreSurvey, wide: bool) -> RenderableType:
    if not store.versions:
        return Text(" no version is stored" + ("" if store.version is None else "; the store is empty"), style="dim")
    more = (">base", ">state", ">epoch", ">task", "published") if wide else ()
    table = plain_table(">version", "status", "kind", ">changes", ">rows", ">size", ">chain", "attempt", *more)
    shown = store.versions[-_MANY:]
    for version in shown:
        _add_version(table, version, wide)
    if len(shown) < len(store.versions):
        table.caption = f"the last {len(shown)} of {len(store.versions)}; --json shows all"
    return table


def _add_version(table: Table, version: VersionSurvey, wide: bool) -> None:
    details = version.details
    number, status = str(version.version), Text(version.status, style=_STATUS_STYLES[version.status])
    size, published = size_text(version.size), time_text(version.modified_ms)
    # the random part tells attempts apart
    attempt = version.attempt.rpartition(".")[2][:8]
    if details is None:
        more = ("", "", str(version.epoch), "", published) if wide else ()
        table.add_row(number, status, "?", "", "", size, "", attempt, *more)
        return
    base = "-" if details.base is None else str(details.base)
    more = (
        (base, size_text(details.state_bytes), str(version.epoch), str(details.task_attempt), published) if wide else ()
    )
    table.add_row(
        number,
        status,
        details.kind,
        number_text(details.changes),
        number_text(details.rows),
        size,
        str(len(details.chain)),
        attempt,
        *more,
    )


def _chain(details: VersionDetails) -> Table:
    table = plain_table("chain", ">from", ">to", ">rows", ">bytes", "file")
    for reference in details.chain[:_MANY]:
        table.add_row(
            reference.kind
            if reference.part is None
            else f"{reference.kind} {reference.part.part}/{reference.part.parts}",
            str(reference.start),
            str(reference.end),
            number_text(reference.rows),
            size_text(reference.length),
            _file(reference),
        )
    if len(details.chain) > _MANY:
        table.caption = f"the newest {_MANY} of {len(details.chain)}; --json shows all"
    return table


def _file(reference: Reference) -> str:
    name = short_name(reference.path or "")
    return name if reference.root is None else f"{reference.root}/{name}"


def _files(store: StoreSurvey) -> Table:
    table = plain_table("file", "kind", ">size", "published", "used")
    shown = store.files[-_MANY:]
    for file in shown:
        table.add_row(
            short_name(file.name),
            file.kind,
            size_text(file.size),
            time_text(file.modified_ms),
            "yes" if file.used else "",
        )
    if len(shown) < len(store.files):
        table.caption = f"the last {len(shown)} of {len(store.files)}; --json shows all"
    return table
