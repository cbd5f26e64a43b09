"""What a user gets wrong is answered with a sentence of ours, and nothing is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.spark.programs import run_program
from tests.spark.streams import LAMINA, Streams

PREFIX = "spark.sql.streaming.stateStore.lamina."


def rows(batch: int) -> list[dict[str, Any]]:
    return [{"t": "2024-01-01T00:00:00Z", "k": f"key {n % 7}", "v": n} for n in range(batch * 10, batch * 10 + 10)]


def totals(frames: dict[str, DataFrame]) -> DataFrame:
    return frames["s"].groupBy("k").agg(f.count("*").alias("n"))


def failure(streams: Streams, conf: dict[str, str]) -> str:
    """The message with which a query fails."""
    with pytest.raises(StreamingQueryException) as raised:
        streams.run(totals, LAMINA, mode="complete", conf=conf)
    return str(raised.value)


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({PREFIX + "compaction.mod": "full"}, ["settings.unknown", "compaction.mode"]),
        ({PREFIX + "compaction.mode": "sometimes"}, ["settings.invalid", "compaction.mode"]),
        ({PREFIX + "heap.handOverMs": "soon"}, ["settings.invalid", "heap.handOverMs"]),
        ({PREFIX + "heap.maxBytes": "2g"}, ["settings.conflict", "'1g'", "'2g'"]),
        ({PREFIX + "engine.python": "/no/such/python"}, ["settings.conflict", "engine.python"]),
    ],
    ids=["unknown key", "unknown value", "no number", "other cap", "other python"],
)
def test_a_wrong_setting_is_named_and_the_query_goes_on_when_it_is_right(
    streams: Streams, conf: dict[str, str], says: list[str]
) -> None:
    streams.feed("s", rows(0))
    streams.run(totals, LAMINA, mode="complete")
    streams.feed("s", rows(1))
    message = failure(streams, conf)
    for words in says:
        assert words in message
    run = streams.run(totals, LAMINA, mode="complete")
    assert len(run.batches[1]) == 7


def test_a_setting_of_the_whole_jvm_can_be_corrected_until_a_store_has_opened(tmp_path: Path) -> None:
    ends = json.loads(run_program("first_setting_query.py", str(tmp_path)).splitlines()[-1])
    unknown, too_small, right, other, again = ends
    assert "settings.unknown" in unknown
    assert "settings.invalid" in too_small
    assert right == "ok"
    assert "settings.conflict" in other and "not set" in other and "'1g'" in other
    assert again == "ok"


def test_a_missing_state_file_is_named(streams: Streams) -> None:
    streams.feed("s", rows(0))
    streams.run(totals, LAMINA, mode="complete", conf={PREFIX + "heap.handOverMs": "0"})
    lost = sorted((streams.checkpoint() / "state" / "0").rglob("*.lam"))
    for path in lost:
        path.rename(path.with_suffix(".away"))
    streams.feed("s", rows(1))
    message = failure(streams, {})
    assert "file.missing" in message
    assert any(path.name in message for path in lost)
    for path in lost:
        path.with_suffix(".away").rename(path)
    run = streams.run(totals, LAMINA, mode="complete")
    assert len(run.batches[1]) == 7


def test_damage_is_told_in_one_sentence_where_a_query_with_foreach_batch_is_stopped_while_it_fails(
    tmp_path: Path,
) -> None:
    *terminal, last = run_program("damaged_query.py", str(tmp_path)).splitlines()
    files = [path.name for path in (tmp_path / "checkpoint" / "state").rglob("*.lam")]
    exception = json.loads(last)
    assert exception is not None, "\n".join(terminal)
    for shown in (exception, "\n".join(terminal)):
        assert any(re.search(rf"\[file\.damaged\] [^\n]*{re.escape(name)} is damaged: ", shown) for name in files)
        assert "StackOverflowError" not in shown
    # no stack trace of the JVM: the sentence, and where in the user's function it happened
    assert "\tat " not in exception and len(exception.splitlines()) < 40
    # Spark logs each task's error with a stack trace; that of an overflow has a thousand lines
    assert len(terminal) < 800
