"""Log objects that are damaged, gone, foreign or newer under a query: it names the object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.format import log_object
from lamina.format.container import FORMAT_VERSION
from lamina.settings import PREFIX
from tests.spark.streams import BEHIND_BARRIER, Streams
from tests.spark.test_changelog import TASK, log
from tests.spark.test_damaged_tables import BATCHES, Stopped, cut, flipped, missing, put, resealed

FROM_LOG = {PREFIX + "backend": "heap", PREFIX + "heap.handOverMs": "0"}


def of_a_newer_format(path: Path) -> None:
    """As a later lamina would write it."""
    index = log_object.verify(path.read_bytes(), path.stem, str(path))
    path.write_bytes(resealed(path, index.to_json(), FORMAT_VERSION + 1))


@pytest.mark.parametrize("conf", [TASK, BEHIND_BARRIER], ids=["task", "executor"])
def test_a_query_names_an_object_that_it_cannot_use_and_goes_on_when_that_is_put_back(
    streams: Streams, conf: dict[str, str]
) -> None:
    query = Stopped(streams, {**conf, **FROM_LOG})
    query.feed()
    first, *_, last = sorted(log(streams.checkpoint()), key=lambda path: path.stat().st_mtime_ns)
    cases: list[tuple[Callable[[Path], None], str]] = [
        (missing, "file.missing"),
        (flipped, "file.damaged"),
        (cut, "file.damaged"),
        (put(first), "file.identity"),
        (of_a_newer_format, "file.version"),
    ]
    for broken, kind in cases:
        whole = last.read_bytes()
        broken(last)
        message = query.failure()
        assert f"[{kind}]" in message, message
        assert last.stem in message, message
        last.write_bytes(whole)
    query.check(BATCHES)
    query.go_on()
    query.check(BATCHES + 1)
