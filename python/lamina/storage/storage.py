"""Storage as the layers above see it: a root URL, relative paths, errors of lamina.

Opens the file system that a URL names, and turns what it raises into `storage.*` and `file.missing`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import fsspec
import pyarrow as pa

from lamina.errors import UNREADABLE, LaminaError
from lamina.storage.backend import Backend, Listed
from lamina.storage.cache import CachingBackend
from lamina.storage.conditional import require_create_mode
from lamina.storage.file_systems import file_system
from lamina.storage.hadoop import PACKAGES, is_below, is_same, resolved, translate
from lamina.storage.jvm import Jvm, JvmBackend
from lamina.storage.local import LocalBackend
from lamina.storage.local_copies import LocalCache
from lamina.storage.remote import FsspecBackend
from lamina.storage.renaming import RENAMING, UNKNOWN_RENAME, RenamingBackend
from lamina.storage.s3 import S3Backend

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Shared = TypeVar("_Shared")


class Storage:
    """Objects below `url`.

    Args:
        url: a directory, as Hadoop or fsspec write it.
        hadoop: Hadoop configuration keys; those for access are used.
        fsync: whether local files are flushed to the disk before they count as written.
        cache: local copies of what is in a remote storage; local files and memory need none.
        jvm: a JVM whose Hadoop file systems are used where fsspec has none.
        backend: used in place of the file system that `url` names (tests).
        roots: other directories whose files may be referred to.
    Raises:
        LaminaError: `storage.scheme` where no file system for the URL is installed, or one too old to write
            conditionally; `storage.denied`, `storage.failed`.
    """

    def __init__(
        self,
        url: str,
        hadoop: Mapping[str, str] | None = None,
        fsync: bool = False,
        *,
        cache: LocalCache | None = None,
        jvm: Jvm | None = None,
        backend: Backend | None = None,
        roots: Sequence[str] = (),
    ) -> None:
        self.url = url.rstrip("/") or "/"
        self._hadoop = dict(hadoop or {})
        self._fsync = fsync
        self._cache = cache
        self._jvm = jvm
        self._roots = tuple(roots)
        self._backend = backend or open_backend(self.url, self._hadoop, fsync, jvm)
        self._remote = self._backend.remote
        self._sharing = threading.Lock()
        self._shared: dict[type[Any], Any] = {}
        if cache is not None and self._remote:
            self._backend = CachingBackend(self._backend, cache, self.url)

    def publish(self, path: str, data: Any) -> int:
        """Writes an object whole and durably, from bytes or an iterable of chunks; gives its size."""
        source = _Source([data] if isinstance(data, (bytes, bytearray, memoryview, pa.Buffer)) else data)
        try:
            return self._call("write", path, lambda: self._backend.publish(path, source))
        except LaminaError:
            if source.error is not None:
                raise source.error from None
            raise

    def publish_if_absent(self, path: str, data: bytes) -> bool:
        """Writes an object unless one is there; whether it was written."""
        return self._call("write", path, lambda: self._backend.publish_if_absent(path, data))

    @property
    def remote(self) -> bool:
        """Whether a read costs a request to another machine."""
        return self._remote

    @property
    def has_copies(self) -> bool:
        """Whether what `link` gives is a local copy, and `keep` makes one."""
        return self._backend.has_copies

    @property
    def is_prompt(self) -> bool:
        """Whether a publication takes about as long as a message to another process: nothing is sent or flushed."""
        return not self._remote and not self._fsync

    @property
    def flushes(self) -> bool:
        """Whether an object may be seen before it is durable: between its name and the flush of its directory."""
        return not self._remote and self._fsync

    def read(self, path: str, size: int | None = None) -> pa.Buffer:
        """The whole object; `file.missing` where there is none, `file.damaged` where the system cannot read it.

        Args:
            size: of the object, where that is known: it may spare a request. What is behind it may be missing then.
        """
        return self._call("read", path, lambda: self._backend.read(path, size))

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        """At most `length` bytes from `offset`; `file.missing` where there is no object."""
        return self._call("read", path, lambda: self._backend.read_range(path, offset, length))

    def read_pieces(self, path: str, offset: int, length: int, size: int) -> Generator[pa.Buffer, None, None]:
        """As `read_range`, piece by piece, of an object of `size` bytes; it stays here whole where copies are kept."""
        return self._told(path, self._backend.read_pieces(path, offset, length, size))

    def stream(self, path: str, length: int, piece: int) -> Generator[pa.Buffer, None, None]:
        """See `Backend.stream`; `file.missing` where there is no object."""
        return self._told(path, self._backend.stream(path, length, piece))

    def _told(self, path: str, pieces: Generator[pa.Buffer, None, None]) -> Generator[pa.Buffer, None, None]:
        """Pieces that are read of an object, with this class's errors."""
        try:
            while (piece := self._call("read", path, lambda: next(pieces, None))) is not None:
                yield piece
        finally:
            pieces.close()

    def read_tail(self, path: str, length: int) -> tuple[pa.Buffer, int]:
        """The last `length` bytes and the size of the object; `file.missing` where there is none."""
        return self._call("read", path, lambda: self._backend.read_tail(path, length))

    def link(self, path: str, target: str, room: Callable[[int], None]) -> bool:
        """See `Backend.link`."""
        return self._backend.link(path, target, room)

    def keep(self, path: str, source: str) -> None:
        """Keeps a local file, which has an object's bytes and never changes, as a local copy where copies are kept."""
        self._backend.keep(path, source)

    def stamp(self, path: str) -> bool:
        """Gives an object a new time of publication; False where the storage cannot."""
        return self._call("stamp", path, lambda: self._backend.stamp(path))

    def list(self, directory: str) -> Sequence[Listed]:
        """The objects directly in `directory`."""
        return self._call("list", directory, lambda: self._backend.list(directory))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Deletes objects that may be there."""
        if paths:
            self._call("delete", paths[0], lambda: self._backend.delete_many(paths))

    def forget(self, path: str) -> bool:
        """Drops a local copy of an object, whose contents turned out wrong; whether they may be those of a copy."""
        return self._backend.forget(path)

    def size(self, path: str) -> int:
        """Size in bytes; `file.missing` where there is no object."""
        return self._call("look up", path, lambda: self._backend.size(path))

    def exists(self, path: str) -> bool:
        """Whether there is an object."""
        try:
            self.size(path)
        except LaminaError as error:
            if error.kind == "file.missing":
                return False
            raise
        return True

    def location(self, path: str) -> str:
        """How `path` is named to people."""
        return f"{self.url}/{path}" if path else self.url

    def shared(self, kind: type[_Shared], make: Callable[[Storage], _Shared]) -> _Shared:
        """The one of its kind that all users of this storage share; made by the first who asks."""
        with self._sharing:
            found: _Shared | None = self._shared.get(kind)
            if found is None:
                found = self._shared[kind] = make(self)
            return found

    def at(self, url: str) -> Storage:
        """Another root with the same access."""
        return Storage(url, self._hadoop, self._fsync, cache=self._cache, jvm=self._jvm, roots=self._roots)

    def named(self, root: str) -> Storage:
        """Another root, which a file asks for: below this one, or below one that the setting `storage.roots` names.

        Args:
            root: a URL, or a path from the directory that this root lies in, with any `..` at its beginning.
        Raises:
            LaminaError: `file.identity` for any other.
        """
        try:
            url = resolved(root, self.url)
        except ValueError as error:
            raise LaminaError.from_kind("file.identity", f"{self.url} refers to files of no place: {error}") from error
        if not any(is_below(url, allowed, self._hadoop) for allowed in (self.url, *self._roots)):
            raise LaminaError.from_kind(
                "file.identity",
                f"{self.url} refers to files of {url}, a place of its own that storage.roots does not name: name it "
                "there, or to a command of lamina with --root, if the state is meant to stand on them",
            )
        return self.at(url)

    def encloses(self, url: str, up: int = 0) -> bool:
        """Whether a URL is this root or below it, in whatever way the two are written.

        Args:
            up: not this root, but the directory so many steps above it.
        """
        root = self.url if up == 0 else "/".join(self.url.split("/")[:-up]) or "/"
        return is_below(url, root, self._hadoop)

    def leads_to(self, root: str, directory: str) -> bool:
        """Whether a root as for `named` is `directory` below this one, in whatever way it is written."""
        try:
            return is_same(resolved(root, self.url), self.location(directory), self._hadoop)
        except ValueError:
            return False

    def _call(self, verb: str, path: str, operation: Callable[[], _Result]) -> _Result:
        try:
            return operation()
        except LaminaError:
            raise
        except FileNotFoundError as error:
            if verb == "write":
                raise LaminaError.from_kind("storage.failed", self._failed(verb, path, error)) from error
            raise LaminaError.from_kind("file.missing", f"{self.location(path)} is not there") from error
        except Exception as error:
            # of a remote storage s3fs says EIO where it has no better word
            if verb == "read" and not self._remote and getattr(error, "errno", None) in UNREADABLE:
                raise LaminaError.from_kind("file.damaged", self._failed(verb, path, error)) from error
            raise LaminaError.from_kind(_kind(error), self._failed(verb, path, error)) from error

    def _failed(self, verb: str, path: str, error: BaseException) -> str:
        return f"could not {verb} {self.location(path)}: {type(error).__name__}: {error}"


_WITHOUT_CREDENTIALS = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "RefreshError",
        "TokenRetrievalError",
    }
)
"""What the libraries of S3, Azure and Google raise where they find no credentials, or none that are valid."""


def _kind(error: Exception) -> str:
    # object stores raise exceptions of their own libraries, which have no common root
    denied = isinstance(error, PermissionError) or type(error).__name__ in _WITHOUT_CREDENTIALS
    return "storage.denied" if denied else "storage.failed"


class _Source:
    """Chunks on their way to a storage; remembers whether it was they that failed."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._chunks
        except Exception as error:
            self.error = error
            raise


def open_backend(url: str, hadoop: Mapping[str, str], fsync: bool, jvm: Jvm | None = None) -> Backend:
    """The backend for `url`: fsspec's where it has one, else the JVM's."""
    location = translate(url, hadoop)
    if location.protocol == "file":
        return LocalBackend(os.path.abspath(location.root), fsync=fsync)
    if jvm is not None and location.protocol in RENAMING:
        # libhdfs would start a second JVM in this process, and is seldom there; both of Hadoop's know its configuration
        return _through_jvm(jvm, url, hadoop)
    if location.only_jvm:
        backend = _only_through_jvm(jvm, url, hadoop, location.only_jvm)
        if location.protocol in ("s3", "abfs", "gs"):
            _warn_of_key(url, location.only_jvm)
        return backend
    if location.protocol in UNKNOWN_RENAME:
        if jvm is not None:
            return _through_jvm(jvm, url, hadoop)
        raise LaminaError.from_kind(
            "storage.scheme",
            f"{url}: files of {location.protocol} are visible while they are written, and only Hadoop's own client may "
            "write there: open it in a Spark query, or use an object store or HDFS",
        )
    try:
        if location.protocol == "memory":
            filesystem = fsspec.filesystem("memory", **location.options)
        else:
            filesystem = file_system(location.protocol, {**location.options, **_UNCACHED})
    except (ImportError, ValueError) as error:
        if jvm is not None:
            return _through_jvm(jvm, url, hadoop)
        package = PACKAGES.get(location.protocol)
        what = (
            f"install it with: pip install {package}" if package else "use a scheme for which fsspec has a file system"
        )
        raise LaminaError.from_kind(
            "storage.scheme", f"no file system for {url} is installed ({location.protocol}); {what} ({error})"
        ) from error
    except Exception as error:
        raise LaminaError.from_kind("storage.failed", f"could not open {url}: {error}") from error
    require_create_mode(location.protocol, filesystem)
    kind = {"s3": _open_s3, **dict.fromkeys(RENAMING, RenamingBackend)}.get(location.protocol, FsspecBackend)
    try:
        return kind(filesystem, location.root)
    except LaminaError:
        raise
    except Exception as error:
        raise LaminaError.from_kind(_kind(error), f"could not open {url}: {error}") from error


def _open_s3(filesystem: Any, root: str) -> S3Backend:
    """The backend for `root`: with the native client where it is installed and does what s3fs would do."""
    try:
        from lamina.storage.native_client import native_client
        from lamina.storage.native_s3 import NativeS3Backend
    except ImportError:
        return S3Backend(filesystem, root)
    client = native_client(filesystem, root)
    return S3Backend(filesystem, root) if client is None else NativeS3Backend(filesystem, root, client)


def _only_through_jvm(jvm: Jvm | None, url: str, hadoop: Mapping[str, str], reason: str) -> Backend:
    """Hadoop's own client, or an error that names the key: Python's would write as another, or unprotected."""
    if jvm is None:
        raise LaminaError.from_kind(
            "settings.invalid",
            f"{url} needs Hadoop's own client ({reason}), and there is no JVM here: open it in a Spark query, or "
            "remove the key",
        )
    try:
        return _through_jvm(jvm, url, hadoop)
    except LaminaError as error:
        raise LaminaError.from_kind(
            error.kind, f"{error.message}; only Hadoop's own client may open {url} ({reason})"
        ) from error


def _warn_of_key(url: str, reason: str) -> None:
    """A line in the log, one for each place and reason: each of many stores opens a storage of its own."""
    place = (url.partition("://")[2].partition("/")[0], reason)
    if place not in _TOLD:
        _TOLD.add(place)
        log.warning(
            "%s goes through the JVM's Hadoop client because of a key (%s), with more requests and more time for each "
            "file than through Python's client: remove the key where nothing needs it, or use what Python's client "
            "honours (docs/spec/storage.md, Identity and encryption)",
            url,
            reason,
        )


def _through_jvm(jvm: Jvm, url: str, hadoop: Mapping[str, str]) -> Backend:
    try:
        return JvmBackend(jvm, url, hadoop)
    except OSError as error:
        raise LaminaError.from_kind("storage.failed", f"could not open {url} through the JVM: {error}") from error


_TOLD: set[tuple[str, str]] = set()
"""Places that the log has a line about, and why they go through the JVM."""

_UNCACHED = {"use_listings_cache": False}
"""Listings must show what other processes published."""
