"""What a restart reads from S3 beside its local copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lamina
from tests.s3_server import S3Server


def test_a_restart_on_the_same_machine_reads_no_byte_of_the_state_from_s3(directory: Path) -> None:
    settings = {"storage_cache_directory": str(directory), "storage_cache_max_bytes": "1g"}
    with S3Server() as server:
        path = f"s3a://{server.bucket}/query"
        store = lamina.open_store(path, writable=True, hadoop=server.hadoop, **settings)
        for version in range(6):
            for number in range(50):
                store.put(b"key %d" % number, b"value %d of %d" % (number, version))
            store.commit()
        server.proxy.forget()
        restarted = lamina.open_store(path, hadoop=server.hadoop, **settings)
        assert restarted.get(b"key 7") == b"value 7 of 5"
        assert state_read(server) == set()
        # beside listings: whose checkpoint it is, some bytes that every start must ask the storage for
        assert [r.path.rpartition("/state/")[2] for r in server.proxy.requests if r.operation == "GET"] == [
            "_lamina/checkpoint"
        ]
        server.proxy.forget()
        elsewhere = lamina.open_store(
            path, hadoop=server.hadoop, storage_cache_directory=str(directory / "other"), storage_cache_max_bytes="1g"
        )
        assert elsewhere.get(b"key 7") == b"value 7 of 5"
        assert sum(request.sent for request in server.proxy.requests if request.path.endswith(".lam")) > 0


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"compaction_mode": "full", "compaction_full_interval": 3}, {".lam"}),
        ({"compaction_mode": "rolling", "compaction_rolling_parts": 2}, {".lam"}),
        ({"compaction_mode": "background"}, {".lam", ".seg"}),
    ],
    ids=["full", "rolling", "background"],
)
def test_a_restart_reads_no_byte_of_what_an_earlier_start_on_this_machine_read(
    directory: Path, settings: dict[str, object], files: set[str]
) -> None:
    """Increments of a mebibyte beside snapshots and rewrites of several, and segments: none is too large to stay."""
    here = {"storage_cache_directory": str(directory), "storage_cache_max_bytes": "1g"}
    with S3Server() as server:
        path = f"s3a://{server.bucket}/query"
        elsewhere = lamina.open_store(
            path, writable=True, hadoop=server.hadoop, storage_cache_max_bytes="0", **settings
        )
        for version in range(6):
            for number in range(version % 2, 12, 2):
                elsewhere.put(b"%d" % number, os.urandom(200_000))
            elsewhere.commit()
            elsewhere.compact()
        server.proxy.forget()
        started = lamina.open_store(path, hadoop=server.hadoop, **here)
        assert dict(started.scan()) == dict(elsewhere.scan())
        assert state_read(server) == files
        server.proxy.forget()
        restarted = lamina.open_store(path, hadoop=server.hadoop, **here)
        assert dict(restarted.scan()) == dict(elsewhere.scan())
        assert state_read(server) == set()


def state_read(server: S3Server) -> set[str]:
    """The kinds of files of the state that were read."""
    kinds = {Path(request.path).suffix for request in server.proxy.requests if request.method == "GET"}
    return kinds & {".lam", ".seg"}
