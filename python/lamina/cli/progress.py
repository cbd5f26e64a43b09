"""A bar for commands that read much, and a Ctrl-C that ends them at once."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

from lamina.components import SystemClock
from lamina.storage.held import hold, own_directories, unheld

_PREFIX = f"lamina-command-{platform.node()}-"
"""With the machine's name, beyond which a lock may say nothing."""

_JUST_MADE_S = 60.0
"""A directory that is so young may not be held yet."""

_SHOW_CURSOR = b"\x1b[?25h\r\n"
"""What the progress bar would write at its end."""


@contextmanager
def interrupt_ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process, which only reads, or deletes what it may; so do SIGTERM, and SIGHUP unless it is
    ignored. Its temporary files go, and those of commands that were killed before.

    An exception in the middle of a thread pool's own code could leave a lock taken that the exit waits for.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before, temporary, held = tempfile.tempdir, "", -1
    # where no disk has room most commands need none
    with suppress(OSError):
        _remove_left_behind()
        temporary = tempfile.mkdtemp(prefix=_PREFIX)
        held = hold(temporary)
        tempfile.tempdir = temporary

    def end(number: int, _: object) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
        _remove(temporary)
        os._exit(128 + number)

    hung_up = signal.getsignal(signal.SIGHUP)
    ends = [signal.SIGINT, signal.SIGTERM, *([] if hung_up is signal.SIG_IGN else [signal.SIGHUP])]
    handlers = {number: signal.signal(number, end) for number in ends}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        tempfile.tempdir = before
        _remove(temporary)
        if held >= 0:
            os.close(held)


def _remove_left_behind() -> None:
    """Removes the temporary files of commands that were killed: what no process holds, and none has just made."""
    for path in own_directories(tempfile.gettempdir(), _PREFIX):
        # another command may remove it, too
        with suppress(OSError), unheld(path) as is_free:
            if is_free and path.stat().st_mtime + _JUST_MADE_S < SystemClock().now_ms() / 1000:
                _remove(str(path))


def _remove(directory: str) -> None:
    """Removes it, also while other threads make files in it: under another name they find it no more."""
    if not directory:
        return
    gone = f"{directory}.gone"
    with suppress(OSError):
        os.rename(directory, gone)
    # what was being made at that moment comes once more
    for _ in range(5):
        shutil.rmtree(gone, ignore_errors=True)
        if not os.path.exists(gone):
            break


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
