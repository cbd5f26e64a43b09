"""Hadoop's URLs and configuration keys in fsspec's words.

Spark names a checkpoint by a Hadoop URL and configures access by `fs.*` keys; the same directory has another URL and
other parameters in fsspec. Keys of identity and encryption are decided in `hadoop_access`; others that are not
understood are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.storage.hadoop_access import ANONYMOUS, by_name, reason_for_jvm

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)?")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_S3_ENCRYPTION = {"AES256": "AES256", "SSE-S3": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
"""S3A's names of encryption by the storage, and the storage's own."""

_S3_TRIES = 5
"""Of one request, the first one included; S3A's own default."""

_S3_CONNECTIONS = 64
"""At once, where Hadoop's settings do not say how many: as many as all restores of a few tasks together may use."""

PACKAGES: Mapping[str, str] = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "abfs": "adlfs",
    "hdfs": "pyarrow (built with libhdfs, and a Hadoop client on the machine)",
    "webhdfs": "requests",
    "oss": "ossfs",
    "oci": "ocifs",
}
"""The pip package that brings the file system of an fsspec protocol."""

_WEBHDFS_PORT = 9870
"""Of a name node, where the URL says none; fsspec takes that of Hadoop 2."""

_PROTOCOLS = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs", "gcs": "gs", "local": "file"}


@dataclass(frozen=True)
class Location:
    """A place in fsspec's words: protocol, root without scheme, and parameters of the file system.

    Args:
        only_jvm: why only Hadoop's own client may be used; empty where fsspec's may.
    """

    protocol: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    only_jvm: str = ""


def translate(url: str, hadoop: Mapping[str, str]) -> Location:
    """Where `url` is, with the access that the Hadoop configuration `hadoop` gives.

    Raises:
        LaminaError: `settings.invalid` for a key of identity or encryption that is refused.
    """
    url = _with_scheme(url, hadoop)
    match = _URL.fullmatch(url)
    if match is None:
        return Location("file", url)
    scheme = match["scheme"].lower()
    protocol = _PROTOCOLS.get(scheme, scheme)
    rest = match["rest"]
    if protocol == "file":
        return Location("file", _without_authority(rest))
    authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.lstrip("/"))
    if protocol == "memory":
        return Location("memory", "/" + "/".join(part for part in (authority, path) if part))
    store = protocol if protocol in ("s3", "abfs", "gs", "hdfs") else "other"
    # gcs: is a scheme of fsspec only
    only_jvm = reason_for_jvm("gs" if protocol == "gs" else scheme, store, authority, hadoop)
    if protocol == "s3":
        return Location("s3", f"{authority}/{path}", _s3(authority, hadoop), only_jvm)
    if protocol == "abfs":
        container, _, host = authority.rpartition("@")
        root = f"{container}/{path}" if container else f"{host}/{path}"
        return Location("abfs", root, _azure(authority, hadoop), only_jvm)
    if protocol == "gs":
        return Location("gs", f"{authority}/{path}", _google(hadoop), only_jvm)
    if protocol == "hdfs":
        return Location("hdfs", "/" + path, _hdfs(authority or _default_authority(hadoop), hadoop), only_jvm)
    if protocol == "webhdfs":
        return Location("webhdfs", "/" + path, {"port": _WEBHDFS_PORT, **_hdfs(authority, hadoop)}, only_jvm)
    return Location(protocol, f"{authority}/{path}" if authority else "/" + path, {}, only_jvm)


def is_below(url: str, root: str, hadoop: Mapping[str, str]) -> bool:
    """Whether `url` is the directory `root` or below it, in whatever way the two are written; no `..` is.

    Args:
        hadoop: says where a path without a scheme, and `hdfs:` without a name node, lie.
    """
    place = _place(url, hadoop)
    return ".." not in place.split("/") and f"{place}/".startswith(f"{_named_place(root, hadoop)}/")


def is_same(url: str, other: str, hadoop: Mapping[str, str]) -> bool:
    """Whether two directories are one, in whatever way they are written.

    Args:
        hadoop: as for `is_below`.
    """
    return _named_place(url, hadoop) == _named_place(other, hadoop)


def resolved(root: str, url: str) -> str:
    """`root` where it is a URL or an absolute path, else where it leads from the directory that `url` lies in.

    Raises:
        ValueError: where it leads out of the file system of `url`, or that is not normal there.
    """
    if root.startswith("/") or _URL.fullmatch(root):
        return root
    match = _URL.fullmatch(url)
    scheme, path = ("", os.path.abspath(url)) if match is None else (f"{match['scheme']}:", match["rest"])
    if path.startswith("//"):
        authority, _, path = path[2:].partition("/")
        scheme, path = f"{scheme}//{authority}", f"/{path}"
    up = root.split("/").count("..")
    for _ in range(1 + up):
        path, _, left = path.rpartition("/")
        if left in ("", ".", ".."):
            raise ValueError(f"{root!r} leads nowhere from {url}")
    return f"{scheme}{path}/{root[3 * up :]}"


def _named_place(root: str, hadoop: Mapping[str, str]) -> str:
    return _place(root if _URL.fullmatch(root) else os.path.abspath(root), hadoop)


def _place(url: str, hadoop: Mapping[str, str]) -> str:
    default = {name: value for name, value in hadoop.items() if name == "fs.defaultFS"}
    url = _with_scheme(url, default)
    location = translate(url, default)
    match = _URL.fullmatch(url)
    authority = match["rest"][2:].partition("/")[0] if match is not None and match["rest"].startswith("//") else ""
    if location.protocol in ("hdfs", "webhdfs"):
        # their roots have no authority
        node = authority or (_default_authority(default) if location.protocol == "hdfs" else "")
        return f"{location.protocol}://{node}{location.root}".rstrip("/")
    if location.protocol == "abfs":
        return f"abfs://{authority.replace('.dfs.', '.blob.', 1)}/{location.root}".rstrip("/")
    return f"{location.protocol}:{location.root}".rstrip("/")


def _with_scheme(url: str, hadoop: Mapping[str, str]) -> str:
    default = hadoop.get("fs.defaultFS", "")
    by_default = url.startswith("/") and default and not default.startswith("file:")
    return default.rstrip("/") + url if by_default else url


def _without_authority(rest: str) -> str:
    """`/x`, `///x` and `//localhost/x` are the same local file."""
    if not rest.startswith("//"):
        return rest
    return "/" + rest[2:].partition("/")[2].lstrip("/")


def _default_authority(hadoop: Mapping[str, str]) -> str:
    default = _URL.fullmatch(hadoop.get("fs.defaultFS", ""))
    return default["rest"].strip("/") if default and default["scheme"].lower() == "hdfs" else ""


def _s3(bucket: str, hadoop: Mapping[str, str]) -> dict[str, Any]:
    names = by_name("s3", bucket, hadoop)

    def get(name: str) -> str | None:
        return names.get(name, ("", ""))[1] or None

    options: dict[str, Any] = {}
    for name, parameter in (("access.key", "key"), ("secret.key", "secret"), ("session.token", "token")):
        if value := get(name):
            options[parameter] = value
    client: dict[str, Any] = {}
    secure = (get("connection.ssl.enabled") or "true").lower() != "false"
    if endpoint := get("endpoint"):
        has_scheme = "://" in endpoint
        options["endpoint_url"] = endpoint if has_scheme else f"{'https' if secure else 'http'}://{endpoint}"
    elif not secure:
        options["use_ssl"] = False
    if region := get("endpoint.region"):
        client["region_name"] = region
    tries = get("attempts.maximum")
    # Hadoop counts from 0 on
    attempts = max(1, int(tries)) if tries and tries.isdecimal() else _S3_TRIES
    config: dict[str, Any] = {"retries": {"mode": "standard", "total_max_attempts": attempts}}
    most = get("connection.maximum")
    config["max_pool_connections"] = int(most) if most and most.isdecimal() and int(most) else _S3_CONNECTIONS
    for name, parameter in (
        ("connection.timeout", "read_timeout"),
        ("connection.establish.timeout", "connect_timeout"),
    ):
        if (seconds := _seconds(get(name))) is not None:
            config[parameter] = seconds
    if (get("path.style.access") or "false").lower() == "true":
        config["s3"] = {"addressing_style": "path"}
    options["config_kwargs"] = config
    if client:
        options["client_kwargs"] = client
    algorithm = (get("encryption.algorithm") or "").strip()
    if algorithm in _S3_ENCRYPTION:
        options["s3_additional_kwargs"] = {"ServerSideEncryption": _S3_ENCRYPTION[algorithm]}
        key = get("encryption.key")
        if key and _S3_ENCRYPTION[algorithm] != "AES256":
            options["s3_additional_kwargs"]["SSEKMSKeyId"] = key
    if (get("aws.credentials.provider") or "").strip() == ANONYMOUS:
        options["anon"] = True
    return options


def _seconds(duration: str | None) -> float | None:
    """A duration as Hadoop writes it, `30s` or a number of milliseconds; None where it is not understood."""
    match = _DURATION.fullmatch((duration or "").strip().lower())
    return None if match is None else float(match[1]) * _DURATION_UNITS[match[2] or "ms"]


def _azure(authority: str, hadoop: Mapping[str, str]) -> dict[str, Any]:
    host = authority.rpartition("@")[2]
    account = host.partition(".")[0]
    options: dict[str, Any] = {"account_name": account} if account else {}
    # the same account under the name of the service that adlfs speaks to
    blobs = host.replace(".dfs.", ".blob.", 1)
    if "." in host and blobs != f"{account}.blob.core.windows.net":
        options["account_host"] = blobs

    names = by_name("abfs", authority, hadoop)

    def get(name: str) -> str | None:
        return names.get(name, ("", ""))[1] or None

    if key := get("account.key"):
        options["account_key"] = key
    if token := get("sas.fixed.token"):
        options["sas_token"] = token
    if client := get("account.oauth2.client.id"):
        options["client_id"] = client
        options["client_secret"] = get("account.oauth2.client.secret")
        # https://login.microsoftonline.com/<tenant>/oauth2/token
        endpoint = (get("account.oauth2.client.endpoint") or "").split("/")
        if len(endpoint) > 3:
            options["tenant_id"] = endpoint[3]
    return options


def _google(hadoop: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in ("fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile"):
        if value := hadoop.get(name):
            options["token"] = value
            break
    if project := hadoop.get("fs.gs.project.id"):
        options["project"] = project
    if root := hadoop.get("fs.gs.storage.root.url"):
        options["endpoint_url"] = root.rstrip("/")
    return options


def _hdfs(authority: str, hadoop: Mapping[str, str]) -> dict[str, Any]:
    host, _, port = authority.partition(":")
    options: dict[str, Any] = {"host": host or "default"}
    if port:
        options["port"] = int(port)
    if user := hadoop.get("hadoop.user.name"):
        options["user"] = user
    return options
