"""How the commands write names, numbers and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lamina.format.manifest import StoreIdentity

_IN_LOG = re.compile(r"(.*\.g\.)([0-9a-f]{32})(-\d+\.)([0-9a-f]{32})\.lam", re.ASCII)
"""The name of a commit in a log object: the object's id, the number of the part, the random part."""


def short_name(name: str) -> str:
    """A file name with its random parts cut, so that it fits: `42_L1.42.3.o.-.9f3c0a5b….lam`."""
    in_log = _IN_LOG.fullmatch(name)
    if in_log is not None:
        return f"{in_log[1]}{in_log[2][:8]}…{in_log[3]}{in_log[4][:8]}….lam"
    stem, dot, extension = name.rpartition(".")
    head, separator, random = stem.rpartition(".") if ".-." in stem else stem.rpartition("_")
    return f"{head}{separator}{random[:8]}…{dot}{extension}" if len(random) == 32 else name


def plain_console() -> Console:
    """Where commands print: names and paths are shown as they are, whatever brackets they have."""
    return Console(highlight=False, markup=False)


def plain_table(*columns: str) -> Table:
    """A table; a column that begins with > is aligned to the right."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    for column in columns:
        right = column.startswith(">")
        # text may be folded, numbers never
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def show(console: Console, parts: Iterable[RenderableType]) -> None:
    """Prints tables, and sentences that no terminal's width breaks, so that a path in one is copied whole."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def store_name(identity: StoreIdentity) -> str:
    """A store as people name it: operator, partition, name."""
    return f"{identity.operator}/{identity.partition}/{identity.name}"


def number_text(value: int) -> str:
    """With thousands apart."""
    return f"{value:,}"


def count_text(what: str, count: int) -> str:
    """So many of something, with an s but for one of it."""
    return f"{number_text(count)} {what}{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def time_text(ms: int) -> str:
    """A time in ms since 1970."""
    try:
        return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def duration_text(ms: int) -> str:
    """How long, in the two largest units."""
    seconds = max(0, ms) // 1000
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"
