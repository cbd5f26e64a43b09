"""S3A through a JVM without Spark, on moto's server: what a key of identity leads to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from benchmarks.hadoop_jars import hadoop_aws_jars
from lamina.storage import Jvm, Storage
from lamina.storage.jvm import JvmBackend
from lamina.testing.expect import fails_with
from lamina.testing.storage_conformance import StorageConformance
from tests.hadoop.conftest import serving
from tests.s3_server import S3Server, Trouble


@pytest.fixture(scope="module")
def jvm() -> Iterator[Jvm]:
    with serving(*hadoop_aws_jars()) as jvm:
        yield jvm


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def opened(jvm: Jvm, server: S3Server, directory: str = "") -> Storage:
    url = f"s3a://{server.bucket}/{directory or uuid.uuid4()}"
    return Storage(url, backend=JvmBackend(jvm, url, server.hadoop))


class TestS3A(StorageConformance):
    """The conformance suite of storages."""

    @pytest.fixture(autouse=True)
    def _storage(self, jvm: Jvm, server: S3Server) -> None:
        self.storage = opened(jvm, server)

    def setup_method(self) -> None:
        """The storage is made by the fixture, which has the JVM."""


def test_an_object_that_another_machine_publishes_at_the_last_moment_is_not_replaced(
    jvm: Jvm, server: S3Server
) -> None:
    mine, theirs = opened(jvm, server, "late"), server.storage("late")
    server.proxy.inject(Trouble("PUT", path="late/d/f", before=lambda: theirs.publish("d/f", b"theirs")))
    assert not mine.publish_if_absent("d/f", b"mine")
    assert bytes(mine.read("d/f")) == b"theirs"
    assert [entry.name for entry in mine.list("d")] == ["f"]


def test_who_gets_no_answer_to_a_conditional_write_knows_that_it_wrote(jvm: Jvm, server: S3Server) -> None:
    storage = opened(jvm, server, "lost")
    trouble = server.proxy.inject(Trouble("PUT", path="lost/d/f", lose=True))
    assert storage.publish_if_absent("d/f", b"mine")
    assert trouble.times == 0
    assert bytes(storage.read("d/f")) == b"mine"


def test_a_conditional_write_that_is_refused_says_so_and_leaves_nothing(jvm: Jvm, server: S3Server) -> None:
    storage = opened(jvm, server, "denied")
    server.proxy.inject(Trouble("PUT", path="denied/d/f", status=403, code="AccessDenied"))
    with fails_with("storage.denied", "denied/d/f"):
        storage.publish_if_absent("d/f", b"mine")
    assert list(storage.list("d")) == []
