"""The command `lamina`: its subcommands, and how errors and usage errors end it.

Exit codes: 0 fine, 1 an error (one red sentence; with `--json` an object `error` besides) or something found wrong,
2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from lamina._version import __version__
from lamina.cli.demo import demo
from lamina.cli.doctor import doctor
from lamina.cli.fsck import fsck
from lamina.cli.gc import gc
from lamina.cli.inspect import inspect
from lamina.errors import LaminaError

app = typer.Typer(
    name="lamina",
    help="Incremental, verifiable, movable state for Spark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(inspect)
app.command()(fsck)
app.command()(gc)
app.command()(demo)
app.command()(doctor)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"lamina {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Runs the command line; gives the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # names may have what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=list(arguments), prog_name="lamina")
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    except LaminaError as error:
        # not as markup: messages quote paths and settings, which may hold brackets
        Console(stderr=True, highlight=False).print(Text(error.message, style="red"), soft_wrap=True)
        if "--json" in arguments:
            # who reads it hears why there is nothing else
            typer.echo(json.dumps({"error": {"kind": error.kind, "message": error.message}}))
        return 1
    return 0
