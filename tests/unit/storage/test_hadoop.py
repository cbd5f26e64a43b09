"""Hadoop's URLs and keys in fsspec's words."""

from __future__ import annotations

import pytest

from lamina.storage.hadoop import Location, is_below, resolved, translate


@pytest.mark.parametrize(
    ("url", "protocol", "root"),
    [
        ("/tmp/checkpoint/state", "file", "/tmp/checkpoint/state"),
        ("file:/tmp/with space", "file", "/tmp/with space"),
        ("file:///tmp/x", "file", "/tmp/x"),
        ("file://localhost/tmp/x", "file", "/tmp/x"),
        ("s3a://bucket/a/b", "s3", "bucket/a/b"),
        ("s3://bucket/a", "s3", "bucket/a"),
        ("s3n://bucket/a", "s3", "bucket/a"),
        ("gs://bucket/a", "gs", "bucket/a"),
        ("gcs://bucket/a", "gs", "bucket/a"),
        ("abfss://container@account.dfs.core.windows.net/a/b", "abfs", "container/a/b"),
        ("wasbs://container@account.blob.core.windows.net/a", "abfs", "container/a"),
        ("hdfs://namenode:8020/a/b", "hdfs", "/a/b"),
        ("webhdfs://namenode:9870/a/b", "webhdfs", "/a/b"),
        ("memory://a/b", "memory", "/a/b"),
        ("memory:/a/b", "memory", "/a/b"),
        ("oss://bucket/a", "oss", "bucket/a"),
    ],
)
def test_a_url_names_the_same_place_in_fsspec(url: str, protocol: str, root: str) -> None:
    location = translate(url, {})
    assert (location.protocol, location.root) == (protocol, root)


@pytest.mark.parametrize(
    ("root", "url"),
    [
        ("file:///tmp/lent", "file:/tmp/lent/0"),
        ("file:/tmp/lent/", "/tmp/lent"),
        ("/tmp/lent", "file://localhost/tmp/lent/0"),
        ("s3://bucket/lent", "s3a://bucket/lent/0"),
        ("s3a://bucket", "s3://bucket/lent"),
        ("S3A://bucket/lent", "s3a://bucket/lent"),
        ("abfss://c@a.dfs.core.windows.net/lent", "wasbs://c@a.blob.core.windows.net/lent/0"),
        ("gs://bucket/lent", "gcs://bucket/lent"),
        ("hdfs://node:8020/lent", "hdfs:///lent/0"),
        ("hdfs:/lent", "hdfs://node:8020/lent/0"),
        ("webhdfs://node:9870/lent", "webhdfs://node:9870/lent/0"),
        ("file:/", "file:/x"),
    ],
)
def test_a_root_that_is_named_is_the_same_in_whatever_way_it_is_written(root: str, url: str) -> None:
    hadoop = {"fs.defaultFS": "hdfs://node:8020"} if "hdfs" in root else {}
    assert is_below(url, root, hadoop)


@pytest.mark.parametrize(
    ("root", "url"),
    [
        ("file:/tmp/lent", "file:/tmp/lent-not"),
        ("file:/tmp/lent/x", "file:/tmp/lent"),
        ("file:/tmp/lent", "file:/tmp/lent/../other"),
        ("file:/tmp/lent", "file:/tmp/x/..//lent/0"),
        ("s3://bucket/lent", "s3a://bucket//lent/0"),
        ("s3://bucket/lent", "s3a://other/lent"),
        ("s3://bucket/lent", "gs://bucket/lent"),
        ("s3://bucket", "s3://bucket-other"),
        ("abfss://c@a.dfs.core.windows.net/lent", "abfss://c@b.dfs.core.windows.net/lent"),
        ("abfss://c@a.dfs.core.windows.net/lent", "abfss://d@a.dfs.core.windows.net/lent"),
        ("hdfs://node:8020/lent", "hdfs://other:8020/lent"),
        ("hdfs://node:8020/lent", "hdfs:///lent"),
        ("/lent", "hdfs://node:8020/lent"),
        ("sftp://host/lent", "sftp://other/lent"),
    ],
)
def test_another_place_is_not_below_a_root_that_is_named(root: str, url: str) -> None:
    assert not is_below(url, root, {})


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("/a/ckpt/state", "/a/lent/0"),
        ("/a/x/../ckpt/state", "/a/lent/0"),
        ("file:/a/ckpt/state", "file:/a/lent/0"),
        ("file:///a/ckpt/state", "file:///a/lent/0"),
        ("s3a://bucket/a/ckpt/state", "s3a://bucket/a/lent/0"),
        ("s3a://bucket/ckpt/state", "s3a://bucket/lent/0"),
        ("memory://a/ckpt/state", "memory://a/lent/0"),
        ("hdfs://node:8020/ckpt/state", "hdfs://node:8020/lent/0"),
        ("hdfs:/ckpt/state", "hdfs:/lent/0"),
        ("abfss://c@a.dfs.core.windows.net/x/ckpt/state", "abfss://c@a.dfs.core.windows.net/x/lent/0"),
    ],
)
def test_a_relative_root_is_beside_the_checkpoint(url: str, place: str) -> None:
    assert resolved("../lent/0", url) == place


@pytest.mark.parametrize("url", ["s3a://bucket/state", "file:/state", "/state", "s3a://b/a//state", "file:/a/../state"])
def test_a_relative_root_leads_nowhere_out_of_a_file_system(url: str) -> None:
    with pytest.raises(ValueError, match="leads nowhere"):
        resolved("../lent/0", url)


@pytest.mark.parametrize("root", ["s3a://other/lent", "file:/x", "/x", "memory:x"])
def test_a_url_and_an_absolute_path_name_a_place_by_themselves(root: str) -> None:
    assert resolved(root, "s3a://bucket/ckpt/state") == root


def test_a_path_without_scheme_is_on_the_default_file_system() -> None:
    assert translate("/a/b", {"fs.defaultFS": "hdfs://namenode:8020"}) == Location(
        "hdfs", "/a/b", {"host": "namenode", "port": 8020}
    )
    assert translate("/a/b", {"fs.defaultFS": "s3a://bucket/"}).root == "bucket/a/b"
    assert translate("/a/b", {"fs.defaultFS": "file:///"}).protocol == "file"


def test_a_url_without_name_node_takes_the_default_one() -> None:
    location = translate("hdfs:///a/b", {"fs.defaultFS": "hdfs://namenode:9000"})
    assert location == Location("hdfs", "/a/b", {"host": "namenode", "port": 9000})


def test_keys_of_s3a_become_parameters_of_s3fs() -> None:
    location = translate(
        "s3a://bucket/a",
        {
            "fs.s3a.access.key": "id",
            "fs.s3a.secret.key": "secret",
            "fs.s3a.session.token": "token",
            "fs.s3a.endpoint": "localhost:9000",
            "fs.s3a.endpoint.region": "eu-central-1",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.attempts.maximum": "7",
            "fs.s3a.connection.maximum": "96",
            "fs.s3a.connection.timeout": "200s",
            "fs.s3a.connection.establish.timeout": "1500",
        },
    )
    assert location.options == {
        "key": "id",
        "secret": "secret",
        "token": "token",
        "endpoint_url": "http://localhost:9000",
        "client_kwargs": {"region_name": "eu-central-1"},
        "config_kwargs": {
            "retries": {"mode": "standard", "total_max_attempts": 7},
            "max_pool_connections": 96,
            "read_timeout": 200.0,
            "connect_timeout": 1.5,
            "s3": {"addressing_style": "path"},
        },
    }


def test_a_key_of_one_bucket_wins_over_the_general_one() -> None:
    hadoop = {"fs.s3a.access.key": "general", "fs.s3a.bucket.mine.access.key": "own"}
    assert translate("s3a://mine/a", hadoop).options["key"] == "own"
    assert translate("s3a://other/a", hadoop).options["key"] == "general"


def test_encryption_by_the_storage_is_asked_for_as_s3a_does() -> None:
    def asked(**keys: str) -> object:
        hadoop = {f"fs.s3a.{name.replace('_', '.')}": value for name, value in keys.items()}
        return translate("s3a://b/a", hadoop).options.get("s3_additional_kwargs")

    assert asked() is None
    assert asked(encryption_algorithm="SSE-S3") == {"ServerSideEncryption": "AES256"}
    assert asked(encryption_algorithm="SSE-KMS", encryption_key="k") == {
        "ServerSideEncryption": "aws:kms",
        "SSEKMSKeyId": "k",
    }


@pytest.mark.parametrize(
    ("keys", "encryption"),
    [
        (
            {
                "fs.s3a.encryption.algorithm": "SSE-KMS",
                "fs.s3a.encryption.key": "everyones",
                "fs.s3a.bucket.bucket.server-side-encryption.key": "its-own",
            },
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "its-own"},
        ),
        (
            {
                "fs.s3a.encryption.algorithm": "SSE-S3",
                "fs.s3a.bucket.bucket.server-side-encryption-algorithm": "SSE-KMS",
            },
            {"ServerSideEncryption": "aws:kms"},
        ),
        (
            {
                "fs.s3a.bucket.bucket.server-side-encryption-algorithm": "SSE-KMS",
                "fs.s3a.bucket.bucket.encryption.algorithm": "DSSE-KMS",
            },
            {"ServerSideEncryption": "aws:kms:dsse"},
        ),
        (
            {"fs.s3a.server-side-encryption-algorithm": "SSE-KMS", "fs.s3a.encryption.algorithm": "SSE-S3"},
            {"ServerSideEncryption": "AES256"},
        ),
    ],
)
def test_a_buckets_key_goes_first_under_its_older_name_too(keys: dict[str, str], encryption: dict[str, str]) -> None:
    location = translate("s3a://bucket/a", keys)
    assert location.only_jvm == ""
    assert location.options["s3_additional_kwargs"] == encryption


@pytest.mark.parametrize(("value", "attempts"), [("0", 1), ("1", 1), ("9", 9), ("", 5), ("many", 5)])
def test_a_request_to_s3_is_made_once_at_least(value: str, attempts: int) -> None:
    options = translate("s3a://bucket/q", {"fs.s3a.attempts.maximum": value}).options
    assert options["config_kwargs"]["retries"]["total_max_attempts"] == attempts


def test_an_endpoint_keeps_its_own_scheme_and_is_secure_by_default() -> None:
    for endpoint in ("https://e", "e"):
        assert translate("s3a://b/a", {"fs.s3a.endpoint": endpoint}).options["endpoint_url"] == "https://e"


def test_anonymous_access_to_s3_is_recognised() -> None:
    provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    assert translate("s3a://b/a", {"fs.s3a.aws.credentials.provider": provider}).options["anon"] is True


@pytest.mark.parametrize("text", ["soon", "", "10 parsecs", "-1"])
def test_a_duration_that_is_not_understood_is_left_alone(text: str) -> None:
    assert "read_timeout" not in translate("s3a://b/a", {"fs.s3a.connection.timeout": text}).options["config_kwargs"]


def test_keys_of_azure_become_parameters_of_adlfs() -> None:
    host = "account.dfs.core.windows.net"
    url = f"abfss://container@{host}/a"
    assert translate(url, {f"fs.azure.account.key.{host}": "k"}).options == {
        "account_name": "account",
        "account_key": "k",
    }
    assert translate(
        url,
        {
            f"fs.azure.account.oauth2.client.id.{host}": "c",
            f"fs.azure.account.oauth2.client.secret.{host}": "s",
            f"fs.azure.account.oauth2.client.endpoint.{host}": "https://login.microsoftonline.com/t/oauth2/token",
        },
    ).options == {"account_name": "account", "client_id": "c", "client_secret": "s", "tenant_id": "t"}


def test_a_token_of_azure_is_taken_for_its_account_and_else_for_all() -> None:
    host = "account.dfs.core.windows.net"
    url = f"abfss://container@{host}/a"
    general = {"fs.azure.sas.fixed.token": "general"}
    own = {f"fs.azure.sas.fixed.token.{host}": "own"}
    assert translate(url, {**general, **own}).options == {"account_name": "account", "sas_token": "own"}
    assert translate(url, general).options == {"account_name": "account", "sas_token": "general"}


@pytest.mark.parametrize(
    ("host", "blobs"),
    [
        ("account.dfs.core.chinacloudapi.cn", "account.blob.core.chinacloudapi.cn"),
        ("account.blob.core.usgovcloudapi.net", "account.blob.core.usgovcloudapi.net"),
        ("account.dfs.storage.local:10000", "account.blob.storage.local:10000"),
        # zones of Azure's own names
        ("account.z1.dfs.storage.azure.net", "account.z1.blob.storage.azure.net"),
    ],
)
def test_an_account_of_another_azure_is_reached_under_its_own_host(host: str, blobs: str) -> None:
    assert translate(f"abfss://container@{host}/a", {f"fs.azure.account.key.{host}": "k"}).options == {
        "account_name": "account",
        "account_host": blobs,
        "account_key": "k",
    }


def test_a_name_without_domain_is_no_host() -> None:
    assert "account_host" not in translate("abfs://container/a", {}).options


@pytest.mark.parametrize("host", ["account.dfs.core.windows.net", "account.blob.core.windows.net"])
def test_an_account_of_the_public_azure_needs_no_host(host: str) -> None:
    assert translate(f"wasbs://container@{host}/a", {}).options == {"account_name": "account"}


def test_the_user_of_hdfs_is_the_one_that_is_set() -> None:
    assert translate("hdfs://namenode:8020/a", {"hadoop.user.name": "spark"}).options == {
        "host": "namenode",
        "port": 8020,
        "user": "spark",
    }


def test_another_endpoint_of_google_is_taken_without_its_last_slash() -> None:
    for root in ("https://storage.local:4443", "https://storage.local:4443/"):
        assert translate("gs://b/a", {"fs.gs.storage.root.url": root}).options == {
            "endpoint_url": "https://storage.local:4443"
        }


def test_keys_of_google_become_parameters_of_gcsfs() -> None:
    assert translate(
        "gs://b/a",
        {"google.cloud.auth.service.account.json.keyfile": "/key.json", "fs.gs.project.id": "p"},
    ).options == {"token": "/key.json", "project": "p"}
