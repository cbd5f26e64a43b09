"""The native client of S3 (obstore): whether it may stand for s3fs, and one per bucket, access and process.

It is taken where every request that it makes is the one that s3fs would make: to the same server, as the same
identity, protected in the same way. What botocore made of settings, environment and configuration files decides;
whatever is not known here stays with s3fs.
"""

from __future__ import annotations

import os
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from fsspec.asyn import sync
from obstore.store import S3Store

from lamina.components import SystemClock
from lamina.storage.file_systems import MOST_KEPT

_TESTED = "0.12."
"""The minor release whose errors are known by their text; another one may be installed for somebody else."""

_PLAIN_VARIABLES = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_DATA_PATH",
        "AWS_DEFAULT_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_ENDPOINT_URL",
        "AWS_EXECUTION_ENV",
        "AWS_MAX_ATTEMPTS",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_RETRY_MODE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    }
)
"""Variables that may be set: botocore reads them, and what it made of them goes before what obstore reads itself."""

_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE")
"""Variables that name certificates to trust; obstore may trust those beside the ones that it is given."""

_ENCRYPTION = {"ServerSideEncryption": "server_side_encryption", "SSEKMSKeyId": "sse_kms_key_id"}
"""Parameters of s3fs's requests, and obstore's names of them."""

_RETRYING = timedelta(minutes=10)
"""No new try of a request begins later: its signature is good for a quarter of an hour."""

_CREDENTIALS_FOR = timedelta(minutes=5)
"""How long credentials that botocore found are used before it is asked again; it renews them ten minutes ahead."""


@dataclass
class NativeClient:
    """obstore's client of one bucket, and the places of its connections.

    Args:
        store: obstore's store; its paths are the bucket's keys.
        connections: a place for each request that is under way.
        streams: half of them, which is what large objects that are read in one request may have: they keep theirs long.
        moved: whether the bucket turned out to lie in another region, where obstore does not follow it.
    """

    store: S3Store
    connections: threading.BoundedSemaphore
    streams: threading.BoundedSemaphore
    process: int = field(default_factory=os.getpid)
    moved: bool = False

    @property
    def usable(self) -> bool:
        """Whether requests may be made; its threads do not live on in a process that was forked off."""
        return not self.moved and self.process == os.getpid()


class _Place:
    """The client of a bucket where there is one, made by the first who asks: who asks for another does not wait."""

    def __init__(self, filesystem: Any, bucket: str) -> None:
        self._filesystem = filesystem  # it must outlive its identity
        self._bucket = bucket
        self._lock = threading.Lock()
        self._made = False
        self._client: NativeClient | None = None

    def client(self) -> NativeClient | None:
        # what finds credentials may wait for a service
        with self._lock:
            if not self._made:
                self._client = _new_client(self._filesystem, self._bucket)
                self._made = True
            return self._client


_lock = threading.Lock()
_clients: OrderedDict[tuple[int, str], _Place] = OrderedDict()
"""The latest ones, by file system and bucket."""
_process: int | None = None
"""The process of the first client."""


def native_client(filesystem: Any, root: str) -> NativeClient | None:
    """The process's native client for a bucket, and a folder of it, of an s3fs file system; None where s3fs has to be
    used.

    There is one file system per process and set of parameters (`file_systems`), so there is one client per bucket and
    access; one that is used lives on with who uses it.
    """
    bucket, _, folder = root.partition("/")
    if not obstore.__version__.startswith(_TESTED):
        return None
    if folder.startswith("/"):
        # obstore would take the slash away from each key
        return None
    global _process
    if _process not in (None, os.getpid()):
        # a process that was forked off has neither the threads of obstore nor whoever held a lock
        return None
    with _lock:
        _process = os.getpid()
        key = id(filesystem), bucket
        place = _clients.setdefault(key, _Place(filesystem, bucket))
        _clients.move_to_end(key)
        while len(_clients) > MOST_KEPT:
            _clients.popitem(last=False)
    return place.client()


def _new_client(filesystem: Any, bucket: str) -> NativeClient | None:
    config = filesystem.s3.meta.config
    endpoint, in_host = _endpoint(filesystem, bucket) if _is_plain(filesystem, bucket) else (None, False)
    credentials = None if filesystem.anon else _credentials(filesystem)
    if endpoint is None or (credentials is None and not filesystem.anon):
        return None
    options: dict[str, Any] = {
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=config.connect_timeout),
        "read_timeout": timedelta(seconds=config.read_timeout),
        # botocore has no limit for a request as a whole either
        "timeout": timedelta(days=1),
    }
    if endpoint.startswith("https:"):
        options["root_certificate"] = Path(get_cert_path(True)).read_bytes()
    tries = config.retries["total_max_attempts"]
    store = S3Store(
        bucket,
        config={
            "conditional_put": "etag",
            "endpoint": endpoint,
            "region": filesystem.s3.meta.region_name,
            "skip_signature": credentials is None,
            "virtual_hosted_style_request": in_host,
            **{_ENCRYPTION[name]: value for name, value in filesystem.s3_additional_kwargs.items()},
        },
        client_options=options,
        retry_config={"max_retries": tries - 1, "retry_timeout": _RETRYING},
        **({} if credentials is None else {"credential_provider": credentials}),
    )
    most = config.max_pool_connections
    return NativeClient(store, threading.BoundedSemaphore(most), threading.BoundedSemaphore(most // 2))


def _is_plain(filesystem: Any, bucket: str) -> bool:
    """Whether nothing is set that obstore does not do as botocore does."""
    meta = filesystem.s3.meta
    config = meta.config
    encrypted = meta.endpoint_url.startswith("https:")
    return (
        set(filesystem.s3_additional_kwargs) <= set(_ENCRYPTION)
        and set(config.s3 or {}) <= {"addressing_style"}
        and config.signature_version in ("s3v4", UNSIGNED)
        and not config.use_fips_endpoint
        and not config.use_dualstack_endpoint
        and bool(config.read_timeout and config.connect_timeout)
        and "total_max_attempts" in (config.retries or {})
        and not config.proxies
        and set(urllib.request.getproxies_environment()) <= {"no"}
        and not (encrypted and filesystem.session.get_config_variable("ca_bundle"))
        and not (encrypted and any(os.environ.get(name) for name in _CERTIFICATES))
        and all(name in _PLAIN_VARIABLES for name in os.environ if name.upper().startswith("AWS_"))
        and meta.region_name not in (None, "aws-global")
        # access points, and buckets of one zone, whose sessions have credentials of their own
        and ":" not in bucket
        and not bucket.endswith("--x-s3")
    )


def _endpoint(filesystem: Any, bucket: str) -> tuple[str | None, bool]:
    """The server, and whether botocore writes the bucket into its host's name, which has it then. None without
    credentials."""
    meta = filesystem.s3.meta
    try:
        signed = sync(filesystem.loop, filesystem.s3.generate_presigned_url, "head_bucket", Params={"Bucket": bucket})
    except BotoCoreError:
        # s3fs says so with the first request
        return None, False
    server = urlsplit(meta.endpoint_url)
    # a host may have the bucket's name by itself
    in_host = not urlsplit(signed).path.rstrip("/").endswith(f"/{bucket}")
    if in_host:
        server = server._replace(netloc=f"{bucket}.{server.netloc}")
    return str(server.geturl()).rstrip("/"), in_host


def _credentials(filesystem: Any) -> Callable[[], Mapping[str, Any]] | None:
    """What tells obstore the keys that are set, or else those that botocore's chain finds."""
    if filesystem.key and filesystem.secret:
        keys = {
            "access_key_id": filesystem.key,
            "secret_access_key": filesystem.secret,
            "token": filesystem.token,
            "expires_at": None,
        }
        return lambda: keys
    chain = Session().get_credentials()
    if chain is None:
        return None
    clock = SystemClock()

    def found() -> Mapping[str, Any]:
        # botocore renews them in time
        frozen = chain.get_frozen_credentials()
        expires = datetime.fromtimestamp(clock.now_ms() / 1000, timezone.utc) + _CREDENTIALS_FOR
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }

    return found
