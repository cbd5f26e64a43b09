"""The commands on a checkpoint in S3, for real: against moto's server, reached by Hadoop's keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lamina.cli.access import storage
from lamina.storage import Storage
from tests.s3_server import S3Server
from tests.unit.cli.conftest import Lamina
from tests.unit.cli.query_on_disk import QueryOnDisk


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def keys(server: S3Server) -> list[str]:
    """The options with which the commands reach the server."""
    return [argument for key, value in server.hadoop.items() for argument in ("--hadoop", f"{key}={value}")]


@pytest.fixture
def bucket(server: S3Server, query: QueryOnDisk) -> Storage:
    """A checkpoint in the bucket: three versions, and an attempt that lost."""
    query.run(1)
    query.plan()
    query.execute()
    query.finish(query.execute(task_attempt=1))
    query.run(1)
    bucket = server.storage()
    for path in query.directory.rglob("*"):
        if path.is_file():
            bucket.publish(str(path.relative_to(query.directory)), path.read_bytes())
    return bucket


def objects(bucket: Storage) -> set[str]:
    return {entry.name for partition in (0, 1) for entry in bucket.list(f"state/0/{partition}")}


def test_the_commands_reach_a_checkpoint_by_hadoops_keys(lamina: Lamina, bucket: Storage, keys: list[str]) -> None:
    before = objects(bucket)
    outcome = lamina("fsck", bucket.url, *keys)
    assert outcome.code == 0, outcome.err
    assert "every retained version is whole" in outcome.out
    outcome = lamina("inspect", bucket.url, *keys, "--json")
    assert outcome.code == 0, outcome.err
    assert [store["version"] for store in json.loads(outcome.out)["stores"]] == [3, 3]
    outcome = lamina("gc", bucket.url, "--dry-run", *keys, "--json")
    assert outcome.code == 0, outcome.err
    actions = [[file["action"] for file in store["files"]] for store in json.loads(outcome.out)["stores"]]
    assert [sorted(store) for store in actions] == [["keep", "keep", "keep", "wait"]] * 2
    assert objects(bucket) == before


def test_damage_in_s3_exits_with_1_and_is_named(
    lamina: Lamina, bucket: Storage, keys: list[str], query: QueryOnDisk
) -> None:
    name = f"state/0/1/{query.file(query.attempts[1][1], 1).name}"
    data = bytearray(bytes(bucket.read(name)))
    data[40] ^= 1
    bucket.publish(name, bytes(data))
    outcome = lamina("fsck", bucket.url, *keys, "--json")
    assert outcome.code == 1, outcome.err
    first, second = json.loads(outcome.out)["stores"]
    assert (first["damaged"], second["damaged"]) == ([], [2, 3])
    assert all(f"{bucket.url}/{name}" in problem["message"] for problem in second["problems"])


@pytest.mark.parametrize("command", ["inspect", "fsck", "gc"])
def test_keys_may_be_written_as_spark_writes_them(
    lamina: Lamina, bucket: Storage, keys: list[str], command: str
) -> None:
    sparks = [key.replace("fs.s3a.", "spark.hadoop.fs.s3a.") for key in keys]
    assert lamina(command, bucket.url, *sparks).code == 0


@pytest.mark.parametrize("command", ["inspect", "fsck", "gc"])
@pytest.mark.parametrize("given", ["fs.s3a.endpoint", "=http://localhost:9000", ""])
def test_an_option_that_is_no_key_and_value_is_wrong_usage(lamina: Lamina, command: str, given: str) -> None:
    outcome = lamina(command, "s3a://bucket/flights", "--hadoop", given)
    assert outcome.code == 2
    assert f"'{given}' is not KEY=VALUE, such as fs.s3a.endpoint=http" in " ".join(outcome.err.split())


def test_a_value_may_hold_the_sign_and_of_two_for_one_key_the_last_counts() -> None:
    given = ["fs.s3a.secret.key=a=b==", "fs.s3a.endpoint=one", "fs.s3a.endpoint=two"]
    assert storage("/data/flights", given)._hadoop == {"fs.s3a.secret.key": "a=b==", "fs.s3a.endpoint": "two"}
