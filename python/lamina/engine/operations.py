"""The operations of the data side: commit, outcomes, load, replay, feed and ping."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lamina.engine.data import Exchange, Operation
from lamina.engine.framing import FEED_SCHEMA
from lamina.engine.outcomes import Outcomes
from lamina.engine.publications import MOST_HELD_BYTES, Publications
from lamina.engine.sessions import Sessions, StoreHandle, field, version_of
from lamina.errors import LaminaError
from lamina.format import SCHEMA
from lamina.store import Load
from lamina.store.memory.budget import MemoryBudget, Share

_FEEDS_SHARE = 4
"""The part of the engine's memory that change feeds have for themselves: their readers may be slow, or stop."""


class Memory:
    """The engine's memory for requests: one budget for restores and uploads, and one for change feeds."""

    def __init__(self, max_bytes: int) -> None:
        self.requests_bytes = max_bytes - max_bytes // _FEEDS_SHARE
        self._requests = MemoryBudget(self.requests_bytes)
        self._feeds = MemoryBudget(max_bytes // _FEEDS_SHARE)

    def stats(self) -> dict[str, Any]:
        """The figures of both budgets."""
        return {"requests": self._requests.stats(), "feeds": self._feeds.stats()}

    def share(self, exchange: Exchange, *, feed: bool = False) -> Share:
        """What a request takes; it waits no longer once the request was stopped."""
        # the reader of a feed may stop for long: others do not wait for it
        share = self._feeds.share(waits=False) if feed else self._requests.share()
        exchange.on_stop(share.cancel)
        return share


def operations(
    sessions: Sessions, memory: Memory, publications: Publications, clock: Callable[[], float]
) -> Mapping[str, Operation]:
    """The operations by name; `clock` tells seconds."""
    outcomes_of_jvm = Outcomes()

    @contextmanager
    def opened(exchange: Exchange) -> Iterator[StoreHandle]:
        opened = sessions.get(exchange.header.get("handle"))
        with opened.in_storage(float("inf") if exchange.deadline is None else exchange.deadline):
            yield opened

    def commit(exchange: Exchange) -> None:
        stream, share = outcomes_of_jvm.current, memory.share(exchange)
        with opened(exchange) as handle:
            wanted = handle.begin_commit(exchange.header) if "begin" in exchange.header else None
            if wanted is not None:
                exchange.skip_sections()
                exchange.answer({"begun": wanted})
                return
            # where a publication is as quick as a message, a second message would be the slower way
            waits = stream is not None and not handle.store.is_prompt
            accepted = handle.accept(exchange.header, exchange.sections(), share, MOST_HELD_BYTES if waits else 0)
            taken = accepted.held_bytes and publications.take(handle.storage, accepted.held_bytes, share)
            if stream is None or not taken:
                # who holds a connection until it is durable may keep those from coming that it would wait for
                accepted.seal()
                exchange.answer({"accepted": accepted.attempt, "durable": handle.durable(accepted)})
                return
        try:
            request = exchange.accept({"accepted": accepted.attempt}, stream, accepted.hurry)
        except BaseException:
            publications.give(handle.storage, taken)
            share.close()
            raise

        def publish() -> dict[str, Any]:
            with handle.in_storage(request.deadline):
                return handle.durable(accepted)

        if accepted.when_told is None:
            publications.submit(request, handle.storage, publish, share, taken)
        else:
            publications.follow(
                request, handle.storage, lambda: handle.durable(accepted), share, taken, accepted.when_told
            )

    def outcomes(exchange: Exchange) -> None:
        # current before the answer: a commit that is sent after it is told on this stream
        stream = outcomes_of_jvm.opened()
        try:
            exchange.answer({})
        except BaseException:
            stream.close()
            raise
        exchange.stream_of_outcomes = stream

    def load(exchange: Exchange) -> None:
        have = field(exchange.header, "have", dict, type(None))
        version = version_of(exchange.header)
        read_only = field(exchange.header, "read_only", bool)
        with opened(exchange) as handle:
            base = None if have is None else version_of(have)
            share, in_place = memory.share(exchange), exchange.header.get("in_place") is True
            began = clock()
            load = handle.store.load(version, have=base, read_only=read_only, share=share, in_place=in_place)
            _send(exchange, handle, load)
            sessions.note_load(load.replayed_bytes, clock() - began)

    def replay(exchange: Exchange) -> None:
        snapshot = version_of(exchange.header, "snapshot_version", "snapshot_attempt")
        with opened(exchange) as handle:
            _send(exchange, handle, handle.store.replay(snapshot, version_of(exchange.header), memory.share(exchange)))

    def feed(exchange: Exchange) -> None:
        end = version_of(exchange.header, "end_version", "end_attempt")
        family = field(exchange.header, "cf", int, type(None))
        start, share = field(exchange.header, "start_version", int), memory.share(exchange, feed=True)
        with opened(exchange) as handle:
            changes = handle.store.feed(start, end, family, share)
            with _closing(changes.batches) as batches:
                exchange.answer({"column_families": [family.to_json() for family in changes.column_families]})
                exchange.stream(FEED_SCHEMA, batches)

    def ping(exchange: Exchange) -> None:
        exchange.answer({})

    return {"commit": commit, "outcomes": outcomes, "load": load, "replay": replay, "feed": feed, "ping": ping}


@contextmanager
def _closing(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Ends what makes `batches`, so that its memory is free, whoever keeps the error that broke off the response."""
    try:
        yield batches
    finally:
        if isinstance(batches, Generator):
            batches.close()


def _send(exchange: Exchange, handle: StoreHandle, load: Load) -> None:
    try:
        _answer(exchange, load)
    except BaseException as error:
        if load.in_place is not None:
            if isinstance(error, LaminaError) and error.kind != "engine.cancelled":
                # who asked hears of it when the rows end, and may just be opening what the header named
                handle.hand_out(load.in_place.directory)
            else:
                # who asked has gone, or throws the load away; a database that is open has its files
                shutil.rmtree(load.in_place.directory, ignore_errors=True)
        raise


def _answer(exchange: Exchange, load: Load) -> None:
    with _closing(load.batches) as batches:
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
                "replayed_bytes": load.replayed_bytes,
                "in_place": None if load.in_place is None else load.in_place.to_json(),
            }
        )
        exchange.stream(SCHEMA, batches)
