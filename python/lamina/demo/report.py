"""What a person sees of the demo: sentences, a progress bar per query, and a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lamina.demo.figures import Figures


class Report:
    """Prints while the demo runs."""

    def __init__(self, console: Console, operators: Mapping[str, str]) -> None:
        """`operators` names the stateful operator of each query."""
        self._console = console
        self._operators = dict(operators)
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._bars: dict[str, Any] = {}

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=not self._console.is_terminal)

    def start_bars(self, batches: int) -> None:
        width = max(len(query) for query in self._operators)
        for query, operator in self._operators.items():
            label = f"{query:<{width}}  [dim]{operator}[/dim]"
            self._bars[query] = self._progress.add_task(label, total=batches)
        if self._console.is_terminal:
            self._progress.start()

    def advance(self, query: str, batches: int) -> None:
        """`batches` batches of `query` are committed."""
        self._progress.update(self._bars[query], completed=batches)

    def stop_bars(self) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def table(self, figures: Mapping[str, Figures], provider: str) -> None:
        """The table of figures, with what its columns mean."""
        table = Table(
            title=f"State in {provider}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        table.add_column("query")
        for column in ("batches", "state\nrows", "state\nMiB", "KiB a\nbatch", "of the\nstate", "commit\np50 ms",
                       "commit\np99 ms", "restore\nms"):  # fmt: skip
            table.add_column(column, justify="right", no_wrap=True)
        for query, of in figures.items():
            table.add_row(
                f"{query}\n[dim]{self._operators[query]}[/dim]",
                f"{of.batches}",
                f"{of.state_rows:,}",
                f"{of.state_bytes / 2**20:,.1f}",
                f"{of.written_bytes / 2**10:,.0f}",
                f"{of.written_bytes / of.state_bytes:.0%}" if of.state_bytes else "-",
                _number(of.commit_percentile(50)),
                _number(of.commit_percentile(99)),
                _number(of.restore_median_ms),
            )
        self._console.print(table)
        self._console.print(
            "State rows and size are the largest after a batch, size as the provider reports it. KiB a batch is what "
            "was written to the state directory, on average. Commit and restore times are sums over the stores of "
            "a query (two; the join has eight). Commit includes the wait for durable files, restore that for the "
            "engine's start.",
            style="dim",
            highlight=False,
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
