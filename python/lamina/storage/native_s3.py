"""S3 through obstore, whose requests cost a fraction of s3fs's processor time and wait for no event loop.

Small writes, reads, looks and listings go through it. s3fs does what obstore cannot: uploads in parts that are aborted
when they fail, deletions that name each object that was refused, copies of an object to itself. s3fs is also asked
where the storage gives obstore an answer that is not simply done, not there, denied or out of order.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import re
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

import obstore
import pyarrow as pa
from fsspec.asyn import sync
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from lamina.storage.backend import Listed, by_ranges, ranges
from lamina.storage.native_client import NativeClient
from lamina.storage.remote import RANGE_BYTES
from lamina.storage.s3 import S3Backend, busy, spaced_tries

_PUT_BYTES = 1 << 20
"""Larger objects are sent by s3fs: obstore's time-out for an answer runs while the body is sent."""

_AT_ONCE = 8
"""Requests of one read that run side by side."""

_OUT_OF_ORDER = re.compile(
    r"Error performing \S+ \S+ in .*(status code: 5\d\d|HTTP error(?!: request or response body error))"
)
"""In what obstore says of a server or a connection that failed in all tries; a listing that breaks off has none, and of
a refusal whose answer breaks off there was one try. The second word is the URL, in which a key may have any words."""

_ELSEWHERE = re.compile(
    r"Error performing \S+ \S+ in .*(redirect|AuthorizationHeaderMalformed|PermanentRedirect)", re.S
)
"""In what obstore says of a bucket in another region."""

_Result = TypeVar("_Result")


class NativeS3Backend(S3Backend):
    """As `S3Backend`, with requests of `client` where it can make them."""

    def __init__(self, filesystem: Any, root: str, client: NativeClient) -> None:
        super().__init__(filesystem, root)
        self._client = client

    def _pipe(self, target: str, data: bytes) -> None:
        otherwise = super()._pipe
        if len(data) > _PUT_BYTES:
            otherwise(target, data)
            return
        key = _key_of(target)
        self._ask(lambda store: obstore.put(store, key, data, use_multipart=False), lambda: otherwise(target, data))

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        otherwise = super().publish_if_absent
        if len(data) > _PUT_BYTES:
            return otherwise(path, data)
        key = _key_of(self._path(path))

        def create(store: S3Store) -> bool | None:
            try:
                obstore.put(store, key, data, mode="create")
            except AlreadyExistsError:
                return None
            return True

        for _ in spaced_tries():
            written = self._ask(create, lambda: otherwise(path, data))
            if written is not None:
                return written
            # something is there, or another write of it is in progress, which may yet fail
            try:
                return bytes(self.read(path)) == data
            except FileNotFoundError:
                continue
        raise busy()

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        otherwise = super().read_range
        if length <= 0:
            return otherwise(path, offset, length)
        key = _key_of(self._path(path))
        pieces = list(ranges(offset, length, RANGE_BYTES))

        def read(store: S3Store) -> pa.Buffer:
            if len(pieces) == 1:
                return pa.py_buffer(obstore.get_range(store, key, start=offset, length=length))
            return pa.py_buffer(b"".join(sync(self._filesystem.loop, self._pieces, store, key, pieces)))

        return self._ask(read, lambda: otherwise(path, offset, length))

    async def _pieces(self, store: S3Store, key: str, pieces: Sequence[tuple[int, int]]) -> list[Any]:
        """The pieces in order; as many requests at once as there are places, of which one is taken."""
        others = sum(self._client.connections.acquire(blocking=False) for _ in range(min(len(pieces), _AT_ONCE) - 1))
        places = asyncio.Semaphore(1 + others)

        async def piece(start: int, length: int) -> Any:
            async with places:
                return await obstore.get_range_async(store, key, start=start, length=length)

        tasks = [asyncio.ensure_future(piece(start, length)) for start, length in pieces]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for _ in range(others):
                self._client.connections.release()

    def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
        """In one request, where fewer than half of all places are taken by such; by ranges otherwise, and what it broke
        off with."""
        client, key, position = self._client, _key_of(self._path(path)), 0
        if client.usable and client.streams.acquire(blocking=False):
            try:
                with client.connections:
                    answer = obstore.get(client.store, key, options={"range": (0, length)})
                    # a chunk is in memory three times: as it came, as it is handed out, and the one before it
                    for chunk in answer.stream(min_chunk_size=piece // 4):
                        position += len(chunk)
                        yield pa.py_buffer(chunk)
                return
            except (BaseError, OSError, ValueError) as error:
                if not position:
                    self._judge(error)
            finally:
                client.streams.release()
        yield from by_ranges(partial(self.read_range, path), position, length, piece)

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        otherwise = super().read_tail
        key = _key_of(self._path(path))

        def read(store: S3Store) -> tuple[pa.Buffer, int]:
            answer = obstore.get(store, key, options={"range": {"suffix": length}})
            return pa.py_buffer(answer.bytes()), int(answer.meta["size"])

        return self._ask(read, lambda: otherwise(path, length))

    def list(self, directory: str) -> Sequence[Listed]:
        otherwise = super().list
        prefix = _key_of(self._path(directory))

        def listed(store: S3Store) -> Sequence[Listed]:
            return [
                Listed(posixpath.basename(found["path"]), found["size"], int(found["last_modified"].timestamp() * 1000))
                for found in obstore.list_with_delimiter(store, prefix)["objects"]
                # an object of the directory's own name stands for the directory itself
                if found["path"] != prefix
            ]

        try:
            return self._ask(listed, lambda: otherwise(directory))
        except FileNotFoundError:
            # no such bucket
            return []

    def size(self, path: str) -> int:
        otherwise = super().size
        key = _key_of(self._path(path))
        return self._ask(lambda store: int(obstore.head(store, key)["size"]), lambda: otherwise(path))

    def _ask(self, request: Callable[[S3Store], _Result], otherwise: Callable[[], _Result]) -> _Result:
        """What `request` gives, or `otherwise` where the client cannot be used for it."""
        client = self._client
        if not client.usable:
            return otherwise()
        try:
            with client.connections:
                return request(client.store)
        except (BaseError, FileNotFoundError, ValueError) as error:
            self._judge(error)
        return otherwise()

    def _judge(self, error: BaseException) -> None:
        """Raises what an error of the client certainly means; otherwise s3fs is to be asked."""
        sentence = _sentence(error)
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, sentence) from None
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            raise PermissionError(errno.EACCES, sentence) from None
        if _OUT_OF_ORDER.search(sentence):
            raise OSError(errno.EIO, sentence) from None
        self._client.moved = self._client.moved or _ELSEWHERE.search(sentence) is not None


def _key_of(target: str) -> str:
    return target.partition("/")[2]


def _sentence(error: BaseException) -> str:
    """What obstore says, without the structure of its error that follows."""
    return str(error).partition("\n\nDebug source")[0]
