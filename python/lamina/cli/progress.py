"""A bar for commands that read much, and a Ctrl-C that ends them at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

_SHOW_CURSOR = b"\x1b[?25h\r\n"
"""What the progress bar would write at its end."""


@contextmanager
def interrupt_ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process, which only reads, or deletes what it may.

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


@contextmanager
def progress_bar(what: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, to be called with what is done and how much there is.

    It goes to standard error, so that output can be piped.
    """
    console = Console(stderr=True)
    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn(what), BarColumn(), *counts)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
