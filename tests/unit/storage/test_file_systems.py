"""What stays of file systems whose access is another one each time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from lamina.storage import Storage, file_systems
from lamina.storage.file_systems import MOST_KEPT


def opened(number: int) -> Storage:
    keys = {
        "endpoint": "http://127.0.0.1:9",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": "AK",
        "secret.key": "s",
        "session.token": f"token {number}",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    return Storage("s3a://bucket/state", {f"fs.s3a.{name}": value for name, value in keys.items()})


def file_system(storage: Storage) -> Any:
    found: Any = storage._backend
    return found._filesystem


def test_of_file_systems_whose_token_has_gone_on_only_the_latest_stay() -> None:
    """A query that is restarted each hour in executors that live on has another one each time, of 13 MB."""
    file_systems.forget_all()
    used = opened(0)
    first = weakref.ref(file_system(used))
    others = [weakref.ref(file_system(opened(number))) for number in range(1, 2 * MOST_KEPT)]
    gc.collect()
    alive = [one() is not None for one in others]
    assert sum(alive) <= MOST_KEPT + 1
    assert alive[-MOST_KEPT:] == [True] * MOST_KEPT
    # and one that is used, however old
    assert first() is file_system(used)


def test_whoever_opens_a_place_with_the_same_access_shares_its_file_system_and_client() -> None:
    first, second, other = opened(1), opened(1), opened(2)
    assert file_system(first) is file_system(second)
    assert file_system(first) is not file_system(other)
    clients: list[Any] = [storage._backend for storage in (first, second)]
    assert clients[0]._client is clients[1]._client
