"""Hadoop's keys of identity and encryption: each is honoured, or Hadoop's own client is needed, or it is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from benchmarks.scala import pyspark_jars
from lamina.components import SystemClock
from lamina.storage import Jvm, Storage
from lamina.storage.hadoop import translate
from lamina.storage.hadoop_access import RULES, table
from lamina.testing.expect import fails_with
from lamina.testing.memory import MemoryBackend

S3 = "s3a://bucket/q/state"
AZURE = "abfss://container@account.dfs.core.windows.net/q/state"
GOOGLE = "gs://bucket/q/state"
WASB = "wasbs://container@account.blob.core.windows.net/q/state"
EMRFS = "s3://bucket/q/state"
S3A = "org.apache.hadoop.fs.s3a."
KEYS = {"fs.s3a.access.key": "id", "fs.s3a.secret.key": "secret"}

HONOURED: list[tuple[str, dict[str, str]]] = [
    (S3, {}),
    (S3, KEYS),
    (S3, {"fs.s3a.encryption.algorithm": "SSE-S3"}),
    (S3, {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "k"}),
    (S3, {"fs.s3a.server-side-encryption-algorithm": "AES256"}),
    (S3, {"fs.s3a.encryption.algorithm": "", "fs.s3a.assumed.role.arn": " "}),
    (S3, {**KEYS, "fs.s3a.aws.credentials.provider": S3A + "SimpleAWSCredentialsProvider"}),
    (
        S3,
        {
            **KEYS,
            "fs.s3a.session.token": "t",
            "fs.s3a.aws.credentials.provider": S3A + "TemporaryAWSCredentialsProvider",
        },
    ),
    (S3, {"fs.s3a.aws.credentials.provider": S3A + "AnonymousAWSCredentialsProvider"}),
    (
        S3,
        {
            "fs.s3a.bucket.other.assumed.role.arn": "arn:aws:iam::1:role/r",
            "fs.s3a.bucket.other.encryption.algorithm": "SSE-C",
        },
    ),
    (
        S3,
        {
            "fs.s3a.bucket.bucket.archive.aws.credentials.provider": "org.example.Archive",
            "fs.s3a.bucket.bucket.archive.assumed.role.arn": "arn:aws:iam::1:role/r",
        },
    ),
    (S3, {"fs.s3a.http.signer.enabled": "false", "fs.s3a.threads.max": "9", "fs.s3a.committer.name": "magic"}),
    (S3, {"fs.azure.account.auth.type": "Custom", "fs.gs.encryption.key": "k"}),
    (AZURE, {"fs.azure.account.key.account.dfs.core.windows.net": "k"}),
    (AZURE, {"fs.azure.account.key": "k", "fs.azure.account.auth.type": "SharedKey"}),
    (AZURE, {"fs.azure.account.auth.type.another.dfs.core.windows.net": "Custom"}),
    (GOOGLE, {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": "/k"}),
    (GOOGLE, {"fs.gs.auth.service.account.enable": "true"}),
    (S3, {**KEYS, "fs.s3a.security.credential.provider.path": "jceks://file/secrets"}),
    (S3, {"fs.s3a.impl": S3A + "S3AFileSystem", "fs.s3a.impl.disable.cache": "true"}),
    (S3, {"fs.s3.impl": "com.amazon.ws.emr.hadoop.fs.EmrFileSystem", "fs.s3.cse.enabled": "true"}),
    (S3, {"fs.s3a.s3.client.factory.impl": S3A + "DefaultS3ClientFactory"}),
    (S3, {"fs.s3a.bucket.other.fs.s3a.encryption.algorithm": "SSE-C", "fs.s3a.endpoint.fips": "false"}),
    (EMRFS, {"fs.s3.impl": S3A + "S3AFileSystem", "fs.s3.maxRetries": "9"}),
    (EMRFS, {**KEYS, "fs.s3a.encryption.algorithm": "SSE-S3", "fs.s3.impl.disable.cache": "true"}),
    (AZURE, {"fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"}),
    (AZURE, {"fs.azure.sas.other.account.dfs.core.windows.net": "s", "fs.azure.secure.mode": "false"}),
    (WASB, {"fs.azure.sas.container.another.blob.core.windows.net": "s"}),
    (GOOGLE, {"fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"}),
    ("gcs://bucket/q", {"fs.gs.auth.service.account.json.keyfile": "/k"}),
    ("oss://bucket/q", {"fs.oss.impl.disable.cache": "true", "fs.adl.oauth2.client.id": "i"}),
    ("hdfs://node/q", {"fs.hdfs.impl": "org.apache.hadoop.hdfs.DistributedFileSystem", "dfs.replication": "2"}),
]

NEED_JVM: list[tuple[str, str, str, dict[str, str]]] = [
    (S3, "fs.s3a.encryption.algorithm", "SSE-C", {"fs.s3a.encryption.key": "k"}),
    (S3, "fs.s3a.encryption.algorithm", "CSE-KMS", {"fs.s3a.encryption.key": "k"}),
    (S3, "fs.s3a.encryption.algorithm", "of tomorrow", {}),
    (S3, "fs.s3a.server-side-encryption-algorithm", "SSE-C", {}),
    (S3, "fs.s3a.bucket.bucket.encryption.algorithm", "SSE-C", {"fs.s3a.encryption.algorithm": "SSE-S3"}),
    (S3, "fs.s3a.encryption.context", "a=b", {}),
    (S3, "fs.s3a.encryption.cse.kms.region", "eu-central-1", {}),
    (S3, "fs.s3a.assumed.role.arn", "arn:aws:iam::1:role/r", {}),
    (S3, "fs.s3a.aws.credentials.provider", S3A + "auth.AssumedRoleCredentialProvider", KEYS),
    (S3, "fs.s3a.aws.credentials.provider", S3A + "SimpleAWSCredentialsProvider", {}),
    (S3, "fs.s3a.aws.credentials.provider", f"com.example.Own,{S3A}AnonymousAWSCredentialsProvider", {}),
    (S3, "fs.s3a.delegation.token.binding", S3A + "auth.delegation.SessionTokenBinding", {}),
    (S3, "fs.s3a.access.grants.enabled", "true", {}),
    (S3, "fs.s3a.custom.signers", "Own:com.example.Own", {}),
    (AZURE, "fs.azure.account.auth.type", "OAuth", {"fs.azure.account.key": "k"}),
    (AZURE, "fs.azure.account.auth.type.account.dfs.core.windows.net", "Custom", {}),
    (AZURE, "fs.azure.sas.token.provider.type", "com.example.Own", {}),
    (AZURE, "fs.azure.encryption.context.provider.type", "com.example.Own", {}),
    (AZURE, "fs.azure.account.oauth2.msi.tenant", "t", {}),
    (GOOGLE, "fs.gs.auth.impersonation.service.account", "a@b", {}),
    (GOOGLE, "fs.gs.auth.service.account.enable", "false", {}),
    (GOOGLE, "fs.gs.encryption.key", "k", {}),
    (GOOGLE, "fs.gs.auth.type", "COMPUTE_ENGINE", {"fs.gs.auth.service.account.json.keyfile": "/k"}),
    (S3, "fs.s3a.security.credential.provider.path", "jceks://file/secrets", {}),
    (S3, "fs.s3a.impl", "com.example.Encrypting", {}),
    (S3, "fs.s3a.s3.client.factory.impl", "com.example.Signing", {}),
    (S3, "fs.s3a.audit.execution.interceptors", "com.example.Own", {}),
    (S3, "fs.s3a.endpoint.fips", "true", {}),
    (S3, "fs.s3a.bucket.bucket.fs.s3a.encryption.algorithm", "SSE-C", {}),
    (S3, "fs.s3a.bucket.bucket.fs.s3a.access.key", "id", {}),
    (S3, "fs.s3a.bucket.bucket.server-side-encryption-algorithm", "SSE-C", {"fs.s3a.encryption.algorithm": "SSE-S3"}),
    (EMRFS, "fs.s3.impl", "com.amazon.ws.emr.hadoop.fs.EmrFileSystem", {"fs.s3a.impl": S3A + "S3AFileSystem"}),
    (EMRFS, "fs.s3.cse.enabled", "true", {}),
    (EMRFS, "fs.s3.enableServerSideEncryption", "true", {}),
    (EMRFS, "fs.s3.serverSideEncryption.kms.keyId", "arn:k", {}),
    (EMRFS, "fs.s3.customAWSCredentialsProvider", "com.example.Own", {}),
    ("s3n://bucket/q", "fs.s3n.awsAccessKeyId", "id", {}),
    (AZURE, "fs.abfss.impl", "com.example.Encrypting", {}),
    (AZURE, "fs.azure.sas.fixed.token.container.account.dfs.core.windows.net", "s", {}),
    (WASB, "fs.azure.sas.container.account.blob.core.windows.net", "s", {}),
    (WASB, "fs.azure.secure.mode", "true", {}),
    (GOOGLE, "fs.gs.impl", "com.example.Encrypting", {}),
    (GOOGLE, "fs.gs.storage.http.headers.x-goog-encryption-key", "k", {}),
    (GOOGLE, "google.cloud.auth.service.account.enable", "false", {}),
    ("gcs://bucket/q", "fs.gs.auth.type", "USER_CREDENTIALS", {}),
    ("oss://bucket/q", "fs.oss.server-side-encryption-algorithm", "AES256", {}),
    ("oss://bucket/q", "fs.oss.credentials.provider", "com.example.Own", {}),
    ("oss://bucket/q", "fs.oss.accessKeyId", "id", {}),
    ("adl://account.azuredatalakestore.net/q", "fs.adl.oauth2.client.id", "i", {}),
    ("adl://account.azuredatalakestore.net/q", "dfs.adls.oauth2.credential", "c", {}),
    ("az://container/q", "fs.azure.account.key", "k", {}),
    ("webhdfs://node/q", "dfs.webhdfs.oauth2.enabled", "true", {}),
    ("sftp://host/q", "fs.sftp.user.host", "u", {}),
    ("hdfs://node/q", "fs.hdfs.impl", "com.example.Encrypting", {}),
]

REFUSED = [
    (S3, "fs.s3a.encryption.of.tomorrow"),
    (S3, "fs.s3a.server-side-encryption-of-tomorrow"),
    (S3, "fs.s3a.bucket.bucket.assumed.role.of.tomorrow"),
    (S3, "fs.s3a.of.tomorrow.credentials.provider"),
    (S3, "fs.s3a.bucket.bucket.encryption.provider.impl"),
    (S3, "fs.s3a.bucket.bucket.assumed.role.session.token"),
    (AZURE, "fs.azure.account.oauth.of.tomorrow"),
    (AZURE, "fs.azure.encryption.of.tomorrow"),
    (GOOGLE, "fs.gs.auth.of.tomorrow"),
    (GOOGLE, "fs.gs.kms.of.tomorrow"),
]


@pytest.mark.parametrize(("url", "keys"), HONOURED)
def test_what_pythons_client_honours_goes_through_it(url: str, keys: dict[str, str]) -> None:
    assert translate(url, keys).only_jvm == ""


@pytest.mark.parametrize(("url", "key", "value", "others"), NEED_JVM)
def test_what_it_cannot_honour_needs_hadoops_own_client(url: str, key: str, value: str, others: dict[str, str]) -> None:
    keys = {**others, key: value}
    assert translate(url, keys).only_jvm.startswith(f"{key}: ")
    with fails_with("settings.invalid") as caught:
        Storage(url, keys)
    assert key in caught.error.message
    assert "no JVM" in caught.error.message


def test_a_place_that_goes_through_the_jvm_because_of_a_key_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lamina.storage.storage.JvmBackend", lambda *_: MemoryBackend(SystemClock()))
    monkeypatch.setattr("lamina.storage.storage._TOLD", set())
    jvm = Jvm("socket", "token")
    for url in (S3, f"{S3}/a-store", "s3a://other/q"):
        Storage(url, {"fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/writer"}, jvm=jvm)
    Storage("hdfs://node/q", jvm=jvm)
    Storage("sftp://host/q", {"fs.sftp.user.host": "u"}, jvm=jvm)
    told = [record.getMessage() for record in caplog.records]
    assert [message.split()[0] for message in told] == [S3, "s3a://other/q"]
    assert all("fs.s3a.assumed.role.arn: s3fs assumes no role" in message for message in told)


@pytest.mark.parametrize(("url", "key"), REFUSED)
def test_an_unknown_key_of_identity_or_encryption_is_refused_by_name(url: str, key: str) -> None:
    with fails_with("settings.invalid") as caught:
        Storage(url, {key: "x"})
    assert key in caught.error.message
    assert "Remove the key" in caught.error.message


def test_a_key_for_an_encryption_that_uses_none_is_refused() -> None:
    with fails_with("settings.invalid") as caught:
        Storage(S3, {"fs.s3a.encryption.algorithm": "SSE-S3", "fs.s3a.encryption.key": "k"})
    assert "fs.s3a.encryption.key" in caught.error.message


def test_a_buckets_own_key_goes_before_the_general_one_also_where_it_asks_for_less() -> None:
    keys = {"fs.s3a.encryption.algorithm": "SSE-C", "fs.s3a.bucket.bucket.encryption.algorithm": "SSE-S3"}
    assert translate(S3, keys).only_jvm == ""
    assert translate("s3a://other/q", keys).only_jvm.startswith("fs.s3a.encryption.algorithm: ")


def test_hadoops_own_defaults_change_nothing() -> None:
    (client,) = pyspark_jars().glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(client) as jar:
        document = ElementTree.fromstring(jar.read("core-default.xml"))
    found = {
        str(one.findtext("name")).strip(): (one.findtext("value") or "")
        for one in document.iter("property")
        if str(one.findtext("name")).strip().startswith("fs.")
    }
    assert len(found) > 80
    for url in (S3, EMRFS, AZURE, WASB, GOOGLE):
        assert translate(url, found).only_jvm == ""


def test_every_rule_decides_something_and_the_page_shows_all_of_them(repository: Path) -> None:
    page = (repository / "docs" / "spec" / "storage.md").read_text(encoding="utf-8")
    lines = list(table())
    assert len(lines) == len(RULES) + 2
    assert "\n".join(lines) in page
