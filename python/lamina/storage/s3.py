"""S3 and what speaks its protocol, through s3fs: conditional writes, uploads in parts, errors of parts of a request.

Retries with back-off are botocore's (`standard` mode: throttling, 5xx, connections that break or stay silent), and
s3fs's for a body that breaks off while it is read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from fsspec.asyn import sync

from lamina.storage.conditional import refused
from lamina.storage.remote import FsspecBackend

_TRIES = 10
_FIRST_PAUSE_S = 0.01
"""Tries of a conditional write that the storage refuses since another one is in progress, and the pause after the
first; each of the next is twice as long, all together are five seconds."""

_pause = threading.Event()

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
"""Of an upload in parts, 10,000 at most. With the part that is gathered they are what an upload may have in memory."""

_DELETE_AT_ONCE = 1000
"""The protocol's limit of keys in one request."""

_COPY_BYTES = 5 << 30
"""The protocol's limit of an object that is copied in one request."""


class S3Backend(FsspecBackend):
    """Objects below `root` (bucket and prefix) of an s3fs file system.

    Raises:
        LaminaError: `storage.scheme` where the client does not know `If-None-Match`.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        # s3fs passes on only what the client knows
        puts = filesystem.s3.meta.service_model.operation_model("PutObject")
        if "IfNoneMatch" not in puts.input_shape.members:
            raise refused("s3", "botocore")

    def _upload_parts(self, target: str, chunks: Iterable[Any]) -> int:
        bucket, _, key = target.partition("/")
        upload = {"Bucket": bucket, "Key": key}
        upload["UploadId"] = self._filesystem.call_s3("create_multipart_upload", **upload)["UploadId"]
        try:
            parts, size = self._send_parts(upload, chunks)
            self._filesystem.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(Exception):
                self._filesystem.call_s3("abort_multipart_upload", **upload)
            raise
        return size

    def _send_parts(self, upload: Mapping[str, str], chunks: Iterable[Any]) -> tuple[list[dict[str, Any]], int]:
        """The parts in order as the storage wants to hear of them, and the size of all."""
        size = 0
        sent: list[dict[str, Any]] = []
        under_way: deque[concurrent.futures.Future[Any]] = deque()

        def arrived() -> None:
            sent.append({"PartNumber": len(sent) + 1, "ETag": under_way.popleft().result()["ETag"]})

        try:
            for number, part in enumerate(_parts(chunks), 1):
                if len(under_way) == _PARTS_AT_ONCE:
                    arrived()
                size += len(part)
                request = self._filesystem._call_s3("upload_part", **upload, PartNumber=number, Body=part)
                under_way.append(asyncio.run_coroutine_threadsafe(request, self._filesystem.loop))
            while under_way:
                arrived()
        finally:
            # a part that arrives after the upload was aborted may stay
            concurrent.futures.wait(under_way)
        return sent, size

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        for _ in spaced_tries():
            try:
                return super().publish_if_absent(path, data)
            except OSError as error:
                if _code(error) == "PreconditionFailed":
                    return self._holds(path, data)
                if _code(error) != "ConditionalRequestConflict":
                    raise
        raise busy()

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        """In one request: the answer to one for a tail says how long the object is."""
        bucket, key = self._key(path)
        answered = False

        async def tail() -> tuple[pa.Buffer, int]:
            nonlocal answered
            answer = await self._filesystem._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes=-{length}")
            answered = True
            async with answer["Body"] as body:
                data = await body.read()
            # a server that knows no ranges answers with the whole object
            size = int(answer["ContentRange"].rpartition("/")[2]) if "ContentRange" in answer else len(data)
            return pa.py_buffer(data[max(0, len(data) - length) :]), size

        try:
            found: tuple[pa.Buffer, int] = sync(self._filesystem.loop, tail)
        except Exception as error:
            # an empty object has no range, some servers refuse those that begin at the end, and s3fs reads a body that
            # broke off again only in its own requests
            if answered or _code(error) in ("InvalidRange", "InvalidArgument", "NotImplemented", "416", "501"):
                return super().read_tail(path, length)
            raise
        return found

    def delete_many(self, paths: Sequence[str]) -> None:
        """As the contract says; s3fs's own does not look at the keys that the storage refused to delete."""
        for start in range(0, len(paths), _DELETE_AT_ONCE):
            keys = [self._key(path) for path in paths[start : start + _DELETE_AT_ONCE]]
            answer = self._filesystem.call_s3(
                "delete_objects",
                Bucket=keys[0][0],
                Delete={"Objects": [{"Key": key} for _, key in keys], "Quiet": True},
            )
            refused = [entry for entry in answer.get("Errors", []) if entry.get("Code") != "NoSuchKey"]
            if refused:
                first = refused[0]
                kind = PermissionError if first.get("Code") == "AccessDenied" else OSError
                raise kind(
                    errno.EACCES if kind is PermissionError else errno.EIO,
                    f"{len(refused)} of {len(keys)} objects were not deleted; {first.get('Key')}: "
                    f"{first.get('Code')}: {first.get('Message')}",
                )

    def stamp(self, path: str) -> bool:
        bucket, key = self._key(path)
        if self.size(path) > _COPY_BYTES:
            return False
        # an object may be copied to itself where something about it is replaced
        self._filesystem.call_s3(
            "copy_object",
            Bucket=bucket,
            Key=key,
            CopySource={"Bucket": bucket, "Key": key},
            MetadataDirective="REPLACE",
        )
        return True

    def size(self, path: str) -> int:
        bucket, key = self._key(path)
        return int(self._filesystem.call_s3("head_object", Bucket=bucket, Key=key)["ContentLength"])

    def _key(self, path: str) -> tuple[str, str]:
        bucket, _, key = self._path(path).partition("/")
        return bucket, key


def spaced_tries() -> Iterator[int]:
    """The numbers of the tries of a conditional write, with a pause before each but the first."""
    for number in range(_TRIES):
        if number:
            _pause.wait(_FIRST_PAUSE_S * 2 ** (number - 1))
        yield number


def busy() -> OSError:
    """The error of a conditional write all of whose tries met another one."""
    return OSError(errno.EBUSY, "other writers of the same object did not come to an end")


def _parts(chunks: Iterable[Any]) -> Iterator[bytearray]:
    part = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            taken = view[: _PART_BYTES - len(part)]
            part += taken
            view = view[len(taken) :]
            if len(part) == _PART_BYTES:
                yield part
                part = bytearray()
    if part:
        yield part


def _code(error: BaseException) -> str | None:
    """The storage's own name of an error that s3fs translated."""
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    code = response.get("Error", {}).get("Code")
    return None if code is None else str(code)
