"""Log objects in another bucket than the checkpoint: both are reached with the same keys, and no batch costs more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.format.paths import is_immutable
from lamina.settings import NONE
from lamina.storage import LocalCache, Storage
from lamina.testing.expect import fails_with
from tests.s3_server import S3Server, Trouble
from tests.unit.store.aging import MIN_AGE_MS
from tests.unit.store.grouped import Grouped, collected, materialized
from tests.unit.store.writing import Query, rows_of

FAST = "fast-bucket"
PATH = f"s3a://{FAST}/log"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        server.direct("PUT", f"/{FAST}")
        yield server


def storage(server: S3Server, name: str, copies: Path | None = None) -> Storage:
    cache = LocalCache(str(copies), 64 << 20, is_immutable) if copies else None
    return Storage(f"s3a://{server.bucket}/{name}/state", server.hadoop, cache=cache, roots=[PATH])


def requests(server: S3Server) -> Counter[tuple[str, str]]:
    """What was asked of which bucket since the last call."""
    found = Counter(
        (request.operation, "fast" if request.path.startswith(f"/{FAST}") else "own")
        for request in server.proxy.requests
    )
    server.proxy.requests.clear()
    return found


def test_a_batch_and_a_restore_cost_as_many_requests_as_without(server: S3Server) -> None:
    costs = {}
    for path in (NONE, PATH):
        name = f"costs-{path == NONE}"
        run = Grouped(Query(storage(server, name)), path)
        stores, versions = run.begun(2)
        versions = run.batch(stores, versions, 0)
        requests(server)
        for number in (1, 2, 3):
            versions = run.batch(stores, versions, number)
        batches = requests(server)
        reader = Query(storage(server, name), run="reader")
        for partition, version in enumerate(versions):
            load = reader.open(partition, read_only=True).load(version, have=None, read_only=True)
            assert rows_of(load) == run.query.states[version.attempt]
        costs[path] = batches, requests(server)
    own, fast = costs[NONE], costs[PATH]
    assert sum(own[0].values()) == sum(fast[0].values())
    assert fast[0]["PUT", "fast"] == own[0]["PUT", "own"] == 3
    # a process that has not heard of places looks in vain once, lists the log, and reads the file that it finds there
    more = sum(fast[1].values()) - sum(own[1].values())
    assert 0 < more <= 4, (own[1], fast[1])


def test_copies_of_objects_of_another_bucket_are_kept(server: S3Server, tmp_path: Path) -> None:
    run = Grouped(Query(storage(server, "copied", tmp_path / "copies")), PATH)
    (store,), versions = run.begun()
    for number in range(3):
        versions = run.batch([store], versions, number)
    requests(server)
    load = Query(storage(server, "copied", tmp_path / "copies")).open().load(versions[0], have=None, read_only=True)
    assert rows_of(load) == run.query.states[versions[0].attempt]
    assert requests(server)["GET", "fast"] == 0


def test_objects_go_in_both_buckets_and_a_bucket_that_refuses_stops_that(server: S3Server) -> None:
    query = Query(storage(server, "collected"), min_versions=2)
    run = Grouped(query, PATH)
    (store,), versions = run.begun()
    for number in range(4):
        versions = run.batch([store], versions, number)
    requests(server)
    materialized(store, versions[0])
    for number in range(4):
        versions = run.batch([store], versions, number)
    collected(run, store, versions[0])
    query.clock.advance(MIN_AGE_MS + 60_000)  # type: ignore[attr-defined]
    trouble = Trouble("GET list-type", path=f"/{FAST}", status=403, code="AccessDenied", times=10)
    server.proxy.troubles.append(trouble)
    found = store.collect(versions[0], dry_run=False)
    assert found.stopped is not None
    assert PATH in found.stopped
    trouble.times = 0
    query.clock.advance(60_000)  # type: ignore[attr-defined]
    requests(server)
    collected(run, store, versions[0])
    assert requests(server)["POST delete", "fast"] == 1
    load = Query(storage(server, "collected")).open().load(versions[0], have=None, read_only=True)
    assert rows_of(load) == query.states[versions[0].attempt]


def test_a_bucket_that_cannot_be_written_is_refused(server: S3Server) -> None:
    server.proxy.troubles.append(Trouble("PUT", path=f"/{FAST}", status=403, code="AccessDenied", times=10))
    try:
        with fails_with("settings.invalid") as caught:
            Grouped(Query(storage(server, "refused")), PATH)
        assert PATH in caught.error.message
    finally:
        server.proxy.troubles.clear()
