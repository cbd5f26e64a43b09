"""What a person sees while the demo runs: bars that move in a terminal, and none in a file."""

from __future__ import annotations

import io

from rich.console import Console

from lamina.demo.report import Report


def shown(terminal: bool) -> str:
    """What a run of 20 batches, of which one query has done 7, writes."""
    written = io.StringIO()
    report = Report(Console(file=written, force_terminal=terminal, width=100), {"delays": "windows", "joined": "join"})
    report.say("The feed: so many flights.")
    report.start_bars(20)
    report.advance("delays", 7)
    report.stop_bars()
    return written.getvalue()


def test_a_terminal_shows_a_bar_for_each_query_with_the_batches_that_are_done() -> None:
    last = shown(terminal=True)
    for words in ("delays", "windows", "joined", "7/20", "0/20", "batches", "━"):
        assert words in last


def test_a_file_gets_the_sentences_and_no_bars() -> None:
    assert shown(terminal=False) == "The feed: so many flights.\n"
