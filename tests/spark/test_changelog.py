"""Queries whose stores commit into one log object, for which a batch waits and no task does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from lamina.format import log_object
from lamina.format.log_object import Part
from lamina.spark.configure import FILE_MANAGER_KEY
from tests.s3_server import S3Server, Trouble
from tests.spark.streams import BEHIND_BARRIER, HDFS, LAMINA, Run, Streams
from tests.spark.test_backends import FROM_FILES, HEAP, PREFIX, feed_pairs, pairs, totals
from tests.spark.test_restarts import Answers, rows, unload_all

TASK = {PREFIX + "changelog.enabled": "true"}
EXECUTOR = BEHIND_BARRIER
UNLOADED = {**EXECUTOR, "spark.sql.streaming.stateStore.unloadOnCommit": "true"}
OFF = {PREFIX + "changelog.enabled": "false"}


def log(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.glob("state/_lamina/log/*.log"))


def logged(checkpoint: Path) -> list[Sequence[Part]]:
    """What each log object holds, whoever wrote it."""
    return [log_object.verify(path.read_bytes(), path.stem, str(path)).parts for path in log(checkpoint)]


def objects(checkpoint: Path) -> list[str]:
    return [path.stem for path in log(checkpoint)]


def commits(checkpoint: Path) -> Counter[str]:
    """How many commits that Spark's log names are in log objects, and how many are files, the first ones left out."""
    text = "".join(path.read_text() for path in checkpoint.glob("commits/[0-9]*"))
    later = [version for version in re.findall(r"L1\.([0-9]+)\.[0-9]+\.o\.", text) if version != "1"]
    return Counter(files=len(later), parts=text.count(".g."))


def of_log(run: Run) -> dict[str, int]:
    """What the progress of a run says of log objects."""
    names = ("Objects", "Commits", "Bytes", "EarlyBytes", "QueuedMs", "QueueDepth", "Attempts", "Failures")
    times = ("UploadMs", "UploadP50Ms", "UploadP99Ms")
    return {name: run.metric(f"laminaLog{name}") for name in (*names, *times, "Hedges", "HedgesWon")}


def feed_totals(streams: Streams, batch: int) -> None:
    """A batch of `totals`."""
    streams.feed("s", rows(batch))


@pytest.mark.parametrize("conf", [TASK, EXECUTOR, UNLOADED], ids=["task", "executor", "unloaded"])
def test_a_join_gives_what_it_gives_on_a_built_in_provider(streams: Streams, conf: dict[str, str]) -> None:
    found, wanted = [], []
    for number in range(3):
        for batch in range(3 * number, 3 * number + 3):
            feed_pairs(streams, batch)
        run = streams.run(pairs, LAMINA, conf=conf)
        found += run.all_rows
        wanted += streams.run(pairs, HDFS).all_rows
        unload_all(streams.spark)
    assert found == wanted
    assert len(found) > 100
    checkpoint = streams.checkpoint(LAMINA)
    assert commits(checkpoint)["files"] == 0
    assert commits(checkpoint)["parts"] > 0
    if conf is EXECUTOR:
        # eight stores of two partitions, and a batch without rows behind each of the others
        assert len(objects(checkpoint)) <= 1.5 * len(list(checkpoint.glob("commits/[0-9]*")))


@pytest.mark.parametrize("conf", [TASK, EXECUTOR], ids=["task", "executor"])
@pytest.mark.parametrize(
    ("query", "mode", "feed"),
    [(totals, "complete", feed_totals), (pairs, "append", feed_pairs)],
    ids=["totals", "pairs"],
)
def test_progress_says_what_became_durable_in_the_log(
    streams: Streams,
    query: Callable[[dict[str, DataFrame]], DataFrame],
    mode: str,
    feed: Callable[[Streams, int], None],
    conf: dict[str, str],
) -> None:
    """Also that of a join, of which Spark drops what some stores say."""
    for batch in range(8):
        feed(streams, batch)
    run = streams.run(query, LAMINA, mode=mode, conf={**conf, PREFIX + "changelog.hedging.enabled": "false"})
    found = of_log(run)
    checkpoint = streams.checkpoint(LAMINA)
    parts = commits(checkpoint)["parts"]
    # a run that ends does not report what became durable behind its last batch
    assert parts / 2 < found["Commits"] <= parts
    assert 0 < found["Objects"] <= len(objects(checkpoint))
    assert found["Commits"] * 500 < found["Bytes"] <= sum(path.stat().st_size for path in log(checkpoint))
    assert found["Attempts"] >= found["Objects"]
    assert found["Failures"] == 0
    assert found["UploadP50Ms"] <= found["UploadP99Ms"]
    assert found["UploadMs"] <= found["UploadP99Ms"]
    assert found["Hedges"] == found["HedgesWon"] == 0
    # each has room for all commits of a batch, and may not wait for all of them
    assert 0 <= found["EarlyBytes"] <= found["Bytes"]


def test_progress_says_what_uploads_waited_for_and_what_a_restart_reads(streams: Streams) -> None:
    """Small objects, one upload at once, and one that hangs: others beside it make it durable all the same."""
    for batch in range(8):
        feed_pairs(streams, batch)
        feed_totals(streams, batch)
    one_at_once = {**HEAP, **FROM_FILES, **TASK, PREFIX + "changelog.upload.inFlight": "1"}
    with S3Server() as server:
        conf = {
            **server.hadoop,
            **one_at_once,
            PREFIX + "changelog.path": f"s3a://{server.bucket}/log",
            PREFIX + "changelog.maxObjectBytes": "4096",
        }
        server.proxy.inject(Trouble("PUT", ".log", delay=0.05, times=25))
        # a second attempt of one before might be the first that hangs
        server.proxy.inject(Trouble("PUT", ".log", delay=600, times=2))
        run = streams.run(pairs, LAMINA, conf=conf)
        found = of_log(run)
        assert 0 < found["EarlyBytes"] <= found["Bytes"]
        assert found["QueueDepth"] > 0 and found["QueuedMs"] > 0
        assert 0 < found["HedgesWon"] <= found["Hedges"]
        assert found["Attempts"] >= found["Objects"] + found["HedgesWon"]
        assert found["Failures"] == 0
        assert run.metric("laminaReloads") == run.metric("laminaReplayedBytes") == 0

        unload_all(streams.spark)
        feed_pairs(streams, 8)
        restarted = streams.run(pairs, LAMINA, conf=conf)
        assert restarted.metric("laminaReloads") > 0
        assert restarted.metric("laminaLoadMs") > 0
        assert restarted.metric("laminaReplayedBytes") > 0
        unload_all(streams.spark)
    assert sorted(run.all_rows + restarted.all_rows) == streams.run(pairs, HDFS).all_rows

    # the only store's commit waits for the one before
    alone = {**one_at_once, "spark.sql.shuffle.partitions": "1"}
    found = of_log(streams.run(totals, LAMINA, mode="complete", checkpoint="alone", conf=alone))
    assert found["Objects"] > 0
    assert found["QueueDepth"] == found["EarlyBytes"] == 0


def test_it_is_switched_at_each_restart(streams: Streams) -> None:
    answers, batch, kinds = Answers(), 0, []
    for number, conf in enumerate((OFF, TASK, EXECUTOR, OFF, EXECUTOR, TASK)):
        for _ in range(2):
            streams.feed("s", rows(batch))
            batch += 1
        before = commits(streams.checkpoint(LAMINA))
        streams.run(totals, LAMINA, mode="complete", conf=conf, each_batch=answers)
        kinds.append(sorted((commits(streams.checkpoint(LAMINA)) - before).elements()))
        if number >= 3:
            unload_all(streams.spark)
    assert [set(kind) for kind in kinds] == [{"files"}, {"parts"}, {"parts"}, {"files"}, {"parts"}, {"parts"}]
    assert sorted(answers.batches) == list(range(batch))
    answers.check()


def test_log_objects_move_at_restarts(streams: Streams, tmp_path: Path) -> None:
    """To a place of their own, back, to another one, and without the changelog."""
    places = [tmp_path / "fast", tmp_path / "other"]
    roots = {PREFIX + "storage.roots": ",".join(map(str, places))}
    fast, other = ({PREFIX + "changelog.path": str(place)} for place in places)
    answers, batch, lie = Answers(), 0, []
    runs = (EXECUTOR, {**EXECUTOR, **fast}, EXECUTOR, {**EXECUTOR, **other}, {**TASK, **fast}, OFF)
    for number, conf in enumerate(runs):
        for _ in range(2):
            streams.feed("s", rows(batch))
            batch += 1
        before = [objects(streams.checkpoint(LAMINA)), *(sorted(place.rglob("*.log")) for place in places)]
        streams.run(totals, LAMINA, mode="complete", conf={**conf, **roots}, each_batch=answers)
        after = [objects(streams.checkpoint(LAMINA)), *(sorted(place.rglob("*.log")) for place in places)]
        lie.append([bool(set(found) - set(old)) for old, found in zip(before, after, strict=True)])
        if number % 2:
            unload_all(streams.spark)
    here, at_fast, at_other, nowhere = ([True, False, False], [False, True, False], [False, False, True], [False] * 3)
    assert lie == [here, at_fast, here, at_other, at_fast, nowhere]
    assert sorted(answers.batches) == list(range(batch))
    answers.check()


def test_a_place_that_no_setting_names_is_not_read(streams: Streams, tmp_path: Path) -> None:
    streams.feed("s", rows(0))
    streams.feed("s", rows(1))
    place = {PREFIX + "changelog.path": str(tmp_path / "fast")}
    streams.run(totals, LAMINA, mode="complete", conf={**TASK, **place})
    unload_all(streams.spark)
    streams.feed("s", rows(2))
    with pytest.raises(Exception, match=r"storage\.roots does not name"):
        streams.run(totals, LAMINA, mode="complete", conf=TASK)
    with pytest.raises(Exception, match="which is in the checkpoint"):
        inside = {PREFIX + "changelog.path": f"{streams.checkpoint(LAMINA)}/log"}
        streams.run(totals, LAMINA, mode="complete", conf={**TASK, **inside})
    found = streams.run(totals, LAMINA, mode="complete", conf={**TASK, **place})
    assert len(found.all_rows) > 0


def test_without_the_barrier_batches_are_refused_that_would_wait_for_nobody(streams: Streams) -> None:
    streams.feed("s", rows(0))
    conf = {name: value for name, value in EXECUTOR.items() if name != FILE_MANAGER_KEY}
    with pytest.raises(Exception, match="nothing keeps Spark from committing a batch before it is durable"):
        streams.run(totals, LAMINA, mode="complete", conf=conf)
