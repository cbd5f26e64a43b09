"""The operations of the data side: commit, load, replay, feed and ping, each on an open store."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.engine.data import Exchange, Operation
from lamina.engine.framing import FEED_SCHEMA
from lamina.engine.sessions import OpenStore, Sessions, field, version_of
from lamina.format import SCHEMA
from lamina.store import Load


def operations(sessions: Sessions) -> Mapping[str, Operation]:
    """The operations by name."""

    def opened(exchange: Exchange) -> OpenStore:
        return sessions.get(exchange.header.get("handle"))

    def commit(exchange: Exchange) -> None:
        exchange.answer(opened(exchange).commit(exchange.header, exchange.sections()))

    def load(exchange: Exchange) -> None:
        have = field(exchange.header, "have", dict, type(None))
        version = version_of(exchange.header)
        read_only = field(exchange.header, "read_only", bool)
        store = opened(exchange).store
        _send(exchange, store.load(version, have=None if have is None else version_of(have), read_only=read_only))

    def replay(exchange: Exchange) -> None:
        snapshot = version_of(exchange.header, "snapshot_version", "snapshot_attempt")
        _send(exchange, opened(exchange).store.replay(snapshot, version_of(exchange.header)))

    def feed(exchange: Exchange) -> None:
        end = version_of(exchange.header, "end_version", "end_attempt")
        family = field(exchange.header, "cf", int, type(None))
        changes = opened(exchange).store.feed(field(exchange.header, "start_version", int), end, family)
        exchange.answer({"column_families": [family.to_json() for family in changes.column_families]})
        exchange.stream(FEED_SCHEMA, changes.batches)

    def ping(exchange: Exchange) -> None:
        exchange.answer({})

    return {"commit": commit, "load": load, "replay": replay, "feed": feed, "ping": ping}


def _send(exchange: Exchange, load: Load) -> None:
    exchange.answer(
        {
            "attempt": load.attempt,
            "version": load.version,
            "start": load.start,
            "rows": load.rows,
            "counts": {str(family): count.to_json() for family, count in load.counts.items()},
            "column_families": [family.to_json() for family in load.column_families],
            "next_column_family": load.next_column_family,
            "bytes_read": load.bytes_read,
            "files": load.files,
        }
    )
    exchange.stream(SCHEMA, load.batches)
