"""S3 for real: both clients against moto's server, with throttling, slow answers, cut connections and lost answers."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import botocore.loaders
import pytest

from lamina.checkpoint import Pin, read_pin, write_pin
from lamina.format.paths import TableListName, parse_name
from lamina.storage import Storage, file_systems, s3
from lamina.store import Version
from lamina.testing.expect import fails_with
from tests.s3_server import NATIVE, S3Server, Trouble
from tests.unit.store.aging import compact
from tests.unit.store.writing import Query, rows_of

PART = 32 << 20
"""The largest object that is sent in one request."""


@pytest.fixture(scope="module", params=["native", "s3fs"] if NATIVE else ["s3fs"])
def module_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with S3Server(native=request.param == "native") as server:
        yield server


@pytest.fixture
def storage(server: S3Server) -> Storage:
    return server.storage()


def blocks(count: int) -> Iterator[bytes]:
    """Mebibytes, each with other bytes."""
    for number in range(count):
        yield bytes([number % 251]) * (1 << 20)


def test_throttled_requests_are_tried_again(server: S3Server, storage: Storage) -> None:
    storage.publish("d/f", b"x")
    for operation in ("PUT", "GET", "HEAD", "GET list-type", "POST delete"):
        server.proxy.inject(Trouble(operation, status=503, times=2))
    storage.publish("d/g", b"hello")
    assert bytes(storage.read("d/g")) == b"hello"
    assert len(storage.list("d")) == 2
    storage.delete_many(["d/f"])
    assert [entry.name for entry in storage.list("d")] == ["g"]


def test_a_stamp_renews_the_time_of_an_object_and_sends_none_of_its_bytes(server: S3Server, storage: Storage) -> None:
    storage.publish("d/f", blocks(1))
    bucket, key = storage._backend._key("d/f")
    connection = storage._backend._filesystem
    before = connection.call_s3("head_object", Bucket=bucket, Key=key)["LastModified"]
    written = b"".join(blocks(1))
    server.proxy.forget()
    while connection.call_s3("head_object", Bucket=bucket, Key=key)["LastModified"] == before:
        assert storage.stamp("d/f")
    assert bytes(storage.read("d/f")) == written
    assert [entry.name for entry in storage.list("d")] == ["f"]


def test_what_is_read_whole_takes_a_request_however_large_it_might_be(server: S3Server, storage: Storage) -> None:
    pin = Pin("a-pin", "a-uuid", "s3a://bucket/clone", 1_790_000_000_000, {})
    write_pin(storage, pin)
    query = Query(storage, backend="rocksdb", rocksdb__materializeEvery=2)
    store = query.open()
    list_ = compact(query, store, query.run_batches(store, Version(0), 2)[-1])
    name = parse_name(list_)
    assert isinstance(name, TableListName)
    server.proxy.forget()
    assert read_pin(storage, "a-pin") == pin
    assert store._files.open_table_list(name)[0].list == name.id
    assert [request.operation for request in server.proxy.requests] == ["GET", "GET"]


def test_an_internal_error_of_the_storage_is_tried_again(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", status=500, code="InternalError"))
    storage.publish("d/f", b"hello")
    server.proxy.inject(Trouble("GET", status=500, code="InternalError"))
    assert bytes(storage.read("d/f")) == b"hello"


def test_a_storage_that_goes_on_throttling_is_an_error_that_says_so(server: S3Server) -> None:
    storage = server.storage(hadoop={"fs.s3a.attempts.maximum": "1"})
    server.proxy.inject(Trouble("PUT", status=503, times=5))
    with fails_with("storage.failed") as caught:
        storage.publish("d/f", b"x")
    assert "d/f" in caught.error.message
    server.proxy.troubles.clear()
    assert not storage.exists("d/f")


def test_slow_answers_are_waited_for(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", delay=1.0))
    server.proxy.inject(Trouble("GET", delay=1.0))
    storage.publish("f", b"hello")
    assert bytes(storage.read("f")) == b"hello"
    assert server.proxy.count("PUT") == 1


def test_an_answer_that_takes_longer_than_the_time_out_is_asked_for_again(server: S3Server) -> None:
    storage = server.storage(hadoop={"fs.s3a.connection.timeout": "5s"})
    server.proxy.inject(Trouble("PUT", delay=20.0))
    storage.publish("f", b"hello")
    assert server.proxy.count("PUT") >= 2
    assert bytes(storage.read("f")) == b"hello"


def test_a_connection_cut_in_the_middle_of_an_upload_is_uploaded_again(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", cut=True, times=2))
    storage.publish("f", b"x" * (8 << 20))
    assert bytes(storage.read("f")) == b"x" * (8 << 20)


def test_nothing_is_seen_of_an_upload_whose_connections_are_all_cut(server: S3Server) -> None:
    storage = server.storage(hadoop={"fs.s3a.attempts.maximum": "1"})
    trouble = server.proxy.inject(Trouble("PUT", cut=True, times=1000))
    with fails_with("storage.failed"):
        storage.publish("d/f", b"x" * (8 << 20))
    trouble.times = 0
    assert not storage.exists("d/f")
    assert list(storage.list("d")) == []


def test_a_body_that_breaks_off_while_it_is_read_is_read_again(server: S3Server, storage: Storage) -> None:
    storage.publish("f", blocks(20))
    server.proxy.inject(Trouble("GET", cut_answer=True, times=2))
    assert bytes(storage.read("f")) == b"".join(blocks(20))
    server.proxy.inject(Trouble("GET", cut_answer=True))
    assert bytes(storage.read_range("f", 5, 1000)) == b"\0" * 1000


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(404, "NoSuchKey", "file.missing"), (403, "AccessDenied", "storage.denied")]
)
def test_a_refusal_that_breaks_off_is_asked_for_again(
    server: S3Server, storage: Storage, status: int, code: str, kind: str
) -> None:
    for read in (lambda: storage.read_tail("f", 9), lambda: storage.read_range("f", 0, 9)):
        server.proxy.inject(Trouble("GET", status=status, code=code, cut_answer=True))
        server.proxy.inject(Trouble("GET", status=status, code=code))
        with fails_with(kind):
            read()
    assert server.proxy.count("GET") == 4
    assert not any(trouble.times for trouble in server.proxy.troubles)


def test_a_conditional_write_whose_refusal_breaks_off_knows_whose_the_object_is(
    server: S3Server, storage: Storage
) -> None:
    storage.publish("f", b"another's")
    server.proxy.inject(Trouble("PUT", status=412, code="PreconditionFailed", cut_answer=True))
    assert not storage.publish_if_absent("f", b"mine")
    assert bytes(storage.read("f")) == b"another's"


def test_a_listing_that_breaks_off_is_asked_for_again(server: S3Server, storage: Storage) -> None:
    storage.publish("d/f", b"hello")
    server.proxy.inject(Trouble("GET list-type", cut_answer=True))
    assert [entry.name for entry in storage.list("d")] == ["f"]


def test_a_publication_whose_answer_was_lost_is_there_once_and_whole(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", lose=True))
    storage.publish("f", b"hello")
    assert bytes(storage.read("f")) == b"hello"


def test_a_large_object_is_uploaded_in_parts_and_read_in_ranges(server: S3Server, storage: Storage) -> None:
    size = 3 * (PART >> 20) + 1
    assert storage.publish("large", blocks(size)) == size << 20
    assert server.proxy.count("PUT uploadId partNumber") == 13
    assert server.unfinished_uploads() == 0
    server.proxy.forget()
    assert bytes(storage.read("large")) == b"".join(blocks(size))
    assert server.proxy.count("GET") == 25


def test_parts_of_an_upload_are_sent_side_by_side_and_joined_in_order(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT uploadId partNumber", part="1", until=3))
    size = 3 * (PART >> 20) + 1
    storage.publish("large", blocks(size))
    numbers = [request.query["partNumber"] for request in server.proxy.requests if "partNumber" in request.query]
    assert numbers.index(["1"]) >= 3
    assert bytes(storage.read("large")) == b"".join(blocks(size))


class Block(bytearray):
    """A chunk of which one can see whether anybody still has it."""


def test_an_upload_in_parts_lets_go_of_what_it_has_sent(storage: Storage) -> None:
    made: list[weakref.ref[Block]] = []
    held: list[int] = []

    def chunks() -> Iterator[Block]:
        for number in range(PART // (1 << 20) + 40):
            block = Block(1 << 20)
            made.append(weakref.ref(block))
            yield block
            del block
            if number > PART // (1 << 20) + 1:
                held.append(sum(reference() is not None for reference in made))

    storage.publish("large", chunks())
    assert max(held) <= 2


def test_ranges_of_a_large_object_are_read_side_by_side_and_joined_in_order(server: S3Server, storage: Storage) -> None:
    storage.publish("f", blocks(20))
    server.proxy.forget()
    server.proxy.inject(Trouble("GET", until=3))
    assert bytes(storage.read("f", 20 << 20)) == b"".join(blocks(20))
    assert len(server.proxy.requests) == 5


def test_no_more_connections_are_used_than_are_allowed(server: S3Server) -> None:
    with S3Server(server.native) as own:
        storage = own.storage(hadoop={"fs.s3a.connection.maximum": "2"})
        storage.publish("large", blocks(20))
        own.proxy.most_at_once = 0
        for _ in range(8):
            own.proxy.inject(Trouble("GET", delay=0.1))
        readers = [threading.Thread(target=storage.read, args=("large", 20 << 20)) for _ in range(8)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert own.proxy.most_at_once == 2


def test_an_object_whose_size_is_known_is_one_request(server: S3Server, storage: Storage) -> None:
    storage.publish("f", b"hello")
    server.proxy.forget()
    assert bytes(storage.read("f", 5)) == b"hello"
    assert [request.operation for request in server.proxy.requests] == ["GET"]


def test_a_restore_asks_once_for_each_small_file(server: S3Server, storage: Storage) -> None:
    query = Query(storage)
    version = query.run_batches(query.open(), Version(0), 5)[-1]
    load = query.open(read_only=True).load(version, have=None, read_only=True)
    server.proxy.forget()
    assert rows_of(load) == query.states[version.attempt]
    assert [request.operation for request in server.proxy.requests] == ["GET"] * 5


@pytest.mark.parametrize(("length", "tail"), [(3, b"llo"), (5, b"hello"), (9, b"hello")])
def test_the_tail_of_an_object_and_its_size_are_one_request(
    server: S3Server, storage: Storage, length: int, tail: bytes
) -> None:
    storage.publish("f", b"hello")
    server.proxy.forget()
    data, size = storage.read_tail("f", length)
    assert (bytes(data), size) == (tail, 5)
    assert [request.operation for request in server.proxy.requests] == ["GET"]


@pytest.mark.parametrize("code", ["InvalidRange", "NotImplemented"])
def test_a_server_that_refuses_ranges_from_the_end_is_asked_for_others(
    server: S3Server, storage: Storage, code: str
) -> None:
    storage.publish("f", b"hello")
    server.proxy.inject(Trouble("GET", status=416 if code == "InvalidRange" else 501, code=code))
    data, size = storage.read_tail("f", 3)
    assert (bytes(data), size) == (b"llo", 5)


@pytest.mark.parametrize("trouble", [{"cut_answer": True}, {"status": 503}, {"lose": True}])
def test_a_tail_that_breaks_off_is_read_again(server: S3Server, storage: Storage, trouble: dict[str, object]) -> None:
    storage.publish("f", b"h" * 100_000)
    server.proxy.inject(Trouble("GET", **trouble))  # type: ignore[arg-type]
    data, size = storage.read_tail("f", 70_000)
    assert (bytes(data), size) == (b"h" * 70_000, 100_000)


@pytest.mark.parametrize("trouble", [{"status": 503}, {"cut": True}, {"lose": True}])
@pytest.mark.parametrize("operation", ["POST uploads", "PUT uploadId partNumber"])
def test_a_part_that_fails_is_sent_again(
    server: S3Server, storage: Storage, operation: str, trouble: dict[str, object]
) -> None:
    server.proxy.inject(Trouble(operation, **trouble))  # type: ignore[arg-type]
    size = (PART >> 20) + 1
    storage.publish("large", blocks(size))
    assert storage.size("large") == size << 20
    assert bytes(storage.read_range("large", PART, 1 << 20)) == list(blocks(size))[-1]


@pytest.mark.parametrize("operation", ["PUT uploadId partNumber", "POST uploadId"])
def test_an_upload_in_parts_that_fails_is_aborted_and_never_seen(server: S3Server, operation: str) -> None:
    storage = server.storage()
    unfinished = server.unfinished_uploads()
    server.proxy.inject(Trouble(operation, status=403, code="AccessDenied"))
    with fails_with("storage.denied"):
        storage.publish("large", blocks((PART >> 20) + 1))
    assert not storage.exists("large")
    assert server.unfinished_uploads() == unfinished
    assert server.proxy.count("DELETE uploadId") == 1


def test_an_upload_in_parts_whose_source_fails_is_aborted(server: S3Server, storage: Storage) -> None:
    unfinished = server.unfinished_uploads()

    def source() -> Iterator[bytes]:
        yield from blocks(2 * (PART >> 20) + 1)
        raise ConnectionResetError("the sender went away")

    with pytest.raises(ConnectionResetError):
        storage.publish("large", source())
    assert server.unfinished_uploads() == unfinished
    assert not storage.exists("large")


def test_a_conditional_write_asks_the_storage_and_not_a_look_before(server: S3Server, storage: Storage) -> None:
    assert storage.publish_if_absent("f", b"first")
    assert [request.operation for request in server.proxy.requests] == ["PUT"]
    assert not storage.publish_if_absent("f", b"second")
    assert bytes(storage.read("f")) == b"first"


@pytest.fixture
def client_of_an_old_botocore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients whose PutObject has no `If-None-Match`, as before botocore 1.35.2: s3fs drops the condition for them."""
    loader = botocore.loaders.Loader()
    model = loader.load_service_model("s3", "service-2")
    del model["shapes"]["PutObjectRequest"]["members"]["IfNoneMatch"]
    directory = tmp_path / "s3" / loader.determine_latest_version("s3", "service-2")
    directory.mkdir(parents=True)
    (directory / "service-2.json.gz").write_bytes(gzip.compress(json.dumps(model).encode()))
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    file_systems.forget_all()
    yield
    file_systems.forget_all()


@pytest.mark.usefixtures("client_of_an_old_botocore")
def test_a_client_that_knows_no_conditional_write_is_refused(server: S3Server) -> None:
    with fails_with("storage.scheme") as caught:
        server.storage()
    assert "pip install 's3fs>=2024.12.0' 'botocore>=1.35.2'" in caught.error.message
    assert server.proxy.requests == []


def test_a_conditional_write_whose_answer_was_lost_knows_its_own_object(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", lose=True))
    assert storage.publish_if_absent("f", b"mine")
    assert server.proxy.count("PUT") == 2
    server.proxy.inject(Trouble("PUT", lose=True))
    assert not storage.publish_if_absent("f", b"another")
    assert bytes(storage.read("f")) == b"mine"


def test_a_conditional_write_that_meets_another_in_progress_is_tried_again(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", status=409, code="ConditionalRequestConflict", times=2))
    assert storage.publish_if_absent("f", b"mine")
    server.proxy.inject(Trouble("PUT", status=409, code="ConditionalRequestConflict"))
    assert not storage.publish_if_absent("f", b"other")


class Pauses:
    """Takes down how long somebody wants to wait, and lets him go on."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, seconds: float) -> None:
        self.asked.append(seconds)


def test_one_that_meets_others_without_end_waits_longer_each_time_and_says_so(
    server: S3Server, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses()
    monkeypatch.setattr(s3, "_pause", pauses)
    server.proxy.inject(Trouble("PUT", status=409, code="ConditionalRequestConflict", times=10))
    with fails_with("storage.failed") as caught:
        storage.publish_if_absent("f", b"mine")
    assert "other writers of the same object" in str(caught.error.__cause__)
    assert len(pauses.asked) == 9
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(pauses.asked))


def test_of_many_conditional_writes_under_throttling_exactly_one_wins(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", status=503, times=4))
    server.proxy.inject(Trouble("PUT", lose=True, times=4))
    won: list[int] = []
    barrier = threading.Barrier(8)

    def publish(number: int) -> None:
        barrier.wait()
        if storage.publish_if_absent("f", b"writer %d" % number):
            won.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert bytes(storage.read("f")) == b"writer %d" % won[0]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"fs.s3a.encryption.algorithm": "SSE-S3"}, "AES256"),
        ({"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "a-key"}, "aws:kms"),
    ],
    ids=["SSE-S3", "SSE-KMS"],
)
def test_small_and_large_objects_are_encrypted_by_the_storage_where_that_is_set(
    server: S3Server, keys: dict[str, str], asked: str
) -> None:
    folder = asked.replace(":", "-")
    storage = server.storage(folder, keys)
    storage.publish("small", b"x")
    storage.publish("large", blocks((PART >> 20) + 1))
    storage.publish_if_absent("absent", b"x")
    for name in ("small", "large", "absent"):
        headers = server.headers(f"/{server.bucket}/{folder}/{name}")
        assert headers["x-amz-server-side-encryption"] == asked, name
    assert bytes(storage.read("small")) == b"x"


def test_a_refused_access_is_denied_and_not_tried_again(server: S3Server, storage: Storage) -> None:
    server.proxy.inject(Trouble("PUT", status=403, code="AccessDenied"))
    with fails_with("storage.denied") as caught:
        storage.publish("d/f", b"x")
    assert "d/f" in caught.error.message
    assert server.proxy.count("PUT") == 1


def test_a_bucket_that_is_not_there_is_named(server: S3Server) -> None:
    with fails_with("storage.failed") as caught:
        Storage("s3a://no-such-bucket/x", server.hadoop).publish("f", b"x")
    assert "s3a://no-such-bucket/x/f" in caught.error.message


def test_an_object_that_the_storage_refuses_to_delete_is_an_error(server: S3Server, storage: Storage) -> None:
    storage.publish("d/a", b"x")
    refusal = (
        '<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Error><Key>d/a</Key>'
        "<Code>{}</Code><Message>injected</Message></Error></DeleteResult>"
    )
    server.proxy.inject(Trouble("POST delete", body=refusal.format("AccessDenied")))
    with fails_with("storage.denied") as caught:
        storage.delete_many(["d/a", "d/b"])
    assert "1 of 2 objects were not deleted; d/a: AccessDenied" in caught.error.message
    server.proxy.inject(Trouble("POST delete", body=refusal.format("InternalError")))
    with fails_with("storage.failed"):
        storage.delete_many(["d/a"])


def test_more_objects_than_one_request_takes_are_deleted(server: S3Server, storage: Storage) -> None:
    storage.publish("d/a", b"x")
    storage.delete_many([f"d/{number}" for number in range(1500)] + ["d/a"])
    assert server.proxy.count("POST delete") == 2
    assert list(storage.list("d")) == []


def test_a_look_at_what_is_not_there_is_one_request(server: S3Server, storage: Storage) -> None:
    assert not storage.exists("d/f")
    assert len(server.proxy.requests) == 1
