"""What the engine remembers of requests that have ended."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from lamina.engine.requests import Requests
from lamina.errors import FileError, LaminaError


class Batch:
    """What a restore has read ahead."""


def restore(read: list[Any]) -> None:
    batch = Batch()
    read.append(weakref.ref(batch))
    raise FileError("file.damaged", "a file is damaged")


def test_why_a_response_broke_off_is_remembered_without_what_was_read_ahead() -> None:
    requests = Requests(lambda: 0.0)
    read: list[Any] = []
    connection: Any = None
    with requests.started(connection, {"id": 1, "op": "load"}) as request:
        request.claim()
        try:
            restore(read)
        except LaminaError as error:
            request.broken = error
    del request
    gc.collect()
    found = requests.broken(1)
    assert found is not None
    assert (found.kind, found.message) == ("file.damaged", "a file is damaged")
    assert read[0]() is None
    requests.close()
