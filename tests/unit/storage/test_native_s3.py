"""The native client of S3: when it stands for s3fs, that its requests are s3fs's, and what it leaves to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lamina.errors import LaminaError
from lamina.storage import Storage, file_systems
from lamina.testing.expect import fails_with
from tests.s3_server import NATIVE, Request, S3Server, Trouble, through_s3fs

if not NATIVE:
    pytest.skip("there is no native client for this Python", allow_module_level=True)

S3A = "org.apache.hadoop.fs.s3a."
KEYS = {"fs.s3a.access.key": "id", "fs.s3a.secret.key": "secret"}
ANONYMOUS = {"fs.s3a.aws.credentials.provider": S3A + "AnonymousAWSCredentialsProvider"}
AMAZON = {**KEYS, "fs.s3a.endpoint.region": "eu-central-1"}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "SSL_CERT_")) or name == "REQUESTS_CA_BUNDLE" or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture(scope="module")
def module_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def client_of(storage: Storage) -> str:
    return type(storage._backend).__name__


@pytest.mark.parametrize(
    ("keys", "endpoint", "in_host"),
    [
        (
            {"fs.s3a.endpoint": "https://minio.example.com", "fs.s3a.path.style.access": "true"},
            "https://minio.example.com",
            False,
        ),
        (
            {"fs.s3a.endpoint": "https://minio.example.com/s3", "fs.s3a.path.style.access": "true"},
            "https://minio.example.com/s3",
            False,
        ),
        ({}, "https://minio.s3.eu-central-1.amazonaws.com", True),
        ({"fs.s3a.path.style.access": "true"}, "https://s3.eu-central-1.amazonaws.com", False),
    ],
)
def test_a_host_that_has_the_buckets_name_by_itself_is_asked_as_it_is(
    keys: dict[str, str], endpoint: str, in_host: bool
) -> None:
    config = Storage("s3a://minio/q", {**AMAZON, **keys})._backend._client.store.config  # type: ignore[attr-defined]
    assert (config["endpoint"], str(config["virtual_hosted_style_request"]).lower()) == (endpoint, str(in_host).lower())


@pytest.mark.parametrize(
    "keys",
    [
        AMAZON,
        {**AMAZON, "fs.s3a.session.token": "token"},
        {**AMAZON, "fs.s3a.path.style.access": "true"},
        {**AMAZON, "fs.s3a.encryption.algorithm": "SSE-S3"},
        {**AMAZON, "fs.s3a.encryption.algorithm": "SSE-KMS"},
        {**AMAZON, "fs.s3a.encryption.algorithm": "DSSE-KMS", "fs.s3a.encryption.key": "k"},
        {**KEYS, "fs.s3a.endpoint": "http://localhost:9000"},
        {**ANONYMOUS, "fs.s3a.endpoint.region": "eu-central-1"},
    ],
)
def test_what_it_does_as_s3fs_does_goes_through_it(keys: dict[str, str]) -> None:
    assert client_of(Storage("s3a://bucket/q", keys)) == "NativeS3Backend"


@pytest.mark.parametrize(
    ("url", "keys", "environment"),
    [
        ("s3a://bucket/q", {"fs.s3a.endpoint.region": "eu-central-1"}, {}),
        ("s3a://bucket//q", AMAZON, {}),
        ("s3a://zone--use1-az4--x-s3/q", AMAZON, {}),
        ("s3a://bucket/q", {**AMAZON, "fs.s3a.connection.timeout": "0"}, {}),
        *(
            ("s3a://bucket/q", AMAZON, {name: value})
            for name, value in {
                "AWS_SERVER_SIDE_ENCRYPTION": "AES256",
                "AWS_SSE_KMS_KEY_ID": "k",
                "AWS_SKIP_SIGNATURE": "true",
                "AWS_CONDITIONAL_PUT": "disabled",
                "AWS_ENDPOINT_URL_S3": "http://localhost:1",
                "AWS_ALLOW_INVALID_CERTIFICATES": "true",
                "AWS_USE_FIPS_ENDPOINT": "true",
                "AWS_OF_TOMORROW": "x",
                "AWS_CA_BUNDLE": "/certificates.pem",
                "REQUESTS_CA_BUNDLE": "/certificates.pem",
                "SSL_CERT_FILE": "/certificates.pem",
                "SSL_CERT_DIR": "/certificates",
                "HTTPS_PROXY": "http://localhost:1",
                "all_proxy": "http://localhost:1",
            }.items()
        ),
    ],
)
def test_what_it_would_do_otherwise_goes_through_s3fs(
    monkeypatch: pytest.MonkeyPatch, url: str, keys: dict[str, str], environment: dict[str, str]
) -> None:
    from lamina.storage import native_client

    monkeypatch.setattr(native_client, "_clients", OrderedDict())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert client_of(Storage(url, keys)) == "S3Backend"


@pytest.mark.parametrize(
    "lines",
    ["s3 =\n  use_accelerate_endpoint = true", "use_dualstack_endpoint = true", "ca_bundle = /certificates.pem"],
)
def test_what_a_configuration_file_says_that_it_does_not_do_goes_through_s3fs(
    monkeypatch: pytest.MonkeyPatch, lines: str
) -> None:
    from lamina.storage import native_client

    monkeypatch.setattr(native_client, "_clients", OrderedDict())
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\n{lines}\n")
    # other keys, so that s3fs makes a client that reads the file
    keys = {**AMAZON, "fs.s3a.access.key": lines.partition(" ")[0] + os.environ["AWS_CONFIG_FILE"]}
    assert client_of(Storage("s3a://bucket/q", keys)) == "S3Backend"


@pytest.mark.parametrize("version", ["0.11.0", "0.13.0", "1.0.0"])
def test_a_release_whose_errors_were_not_tested_is_not_used(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import obstore

    from lamina.storage import native_client

    monkeypatch.setattr(native_client, "_clients", OrderedDict())
    monkeypatch.setattr(obstore, "__version__", version)
    assert client_of(Storage("s3a://bucket/q", AMAZON)) == "S3Backend"


def test_a_package_that_cannot_be_loaded_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lamina.storage.native_s3", ModuleType("lamina.storage.native_s3"))
    assert client_of(Storage("s3a://bucket/q", AMAZON)) == "S3Backend"


def protection(request: Request) -> dict[str, str]:
    """Who makes a request, to whom, and how what it writes is protected; without what differs from time to time."""
    found = {
        name: value
        for name, value in request.headers.items()
        if name in ("host", "if-none-match", "x-amz-security-token") or name.startswith("x-amz-server-side")
    }
    signed = re.search(r"Credential=([^/]*)/\d+/([^,]*)", request.headers.get("authorization", ""))
    return {**found, "path": request.path, "signed": "/".join(signed.groups()) if signed else ""}


def requests_of(storage: Storage, server: S3Server) -> list[dict[str, str]]:
    server.proxy.forget()
    for call in (
        lambda: storage.publish("ä b+c/f", b"hello"),
        lambda: storage.publish_if_absent("g", b"hello"),
        lambda: storage.read("ä b+c/f", 5),
        lambda: storage.size("g"),
    ):
        # the server denies those who do not say who they are
        with contextlib.suppress(LaminaError):
            call()
    made = [protection(request) for request in server.proxy.requests]
    with contextlib.suppress(LaminaError):
        storage.delete_many(["g"])
    return made


PROFILE = (
    "[default]\naws_access_key_id = of-the-file\naws_secret_access_key = s\n[other]\naws_access_key_id = of-other\n"
)


@pytest.mark.parametrize(
    ("keys", "environment"),
    [
        ({}, {}),
        ({"fs.s3a.session.token": "token"}, {}),
        ({}, {"AWS_ACCESS_KEY_ID": "outside", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "outside"}),
        ({"fs.s3a.endpoint.region": "eu-west-3"}, {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}),
        ({"fs.s3a.access.key": "", "fs.s3a.secret.key": ""}, {}),
        (
            {"fs.s3a.access.key": "", "fs.s3a.secret.key": ""},
            {"AWS_ACCESS_KEY_ID": "outside", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "outside"},
        ),
        (ANONYMOUS, {"AWS_ACCESS_KEY_ID": "outside", "AWS_SECRET_ACCESS_KEY": "s"}),
        ({"fs.s3a.encryption.algorithm": "SSE-S3"}, {}),
        ({"fs.s3a.encryption.algorithm": "SSE-KMS"}, {}),
        ({"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "k"}, {}),
        ({"fs.s3a.encryption.algorithm": "DSSE-KMS", "fs.s3a.encryption.key": "k"}, {}),
    ],
)
def test_its_requests_are_those_of_s3fs(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).write_text(PROFILE)
    file_systems.forget_all()
    native = server.storage(f"same-{len(keys)}-{len(environment)}", keys)
    assert client_of(native) == "NativeS3Backend"
    made = [requests_of(storage, server) for storage in (native, through_s3fs(native))]
    assert len(made[0]) == 4
    assert made[0] == made[1]


def test_credentials_that_are_not_there_are_denied(server: S3Server) -> None:
    storage = server.storage(hadoop={"fs.s3a.access.key": "", "fs.s3a.secret.key": ""})
    with fails_with("storage.denied"):
        storage.publish("f", b"x")
    assert server.proxy.requests == []


def test_storages_with_the_same_access_to_a_bucket_share_one_client(server: S3Server) -> None:
    first, second, other = server.storage(), server.storage(), server.storage(hadoop={"fs.s3a.session.token": "t"})
    assert first._backend._client is second._backend._client
    assert first._backend._client is not other._backend._client


def test_who_asks_for_a_client_does_not_wait_for_the_credentials_of_another(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lamina.storage import native_client

    asked, go_on = threading.Event(), threading.Event()
    find = native_client._credentials

    def slow(filesystem: object) -> object:
        if filesystem.token == "slow":  # type: ignore[attr-defined]
            asked.set()
            assert go_on.wait(60)
        return find(filesystem)

    monkeypatch.setattr(native_client, "_credentials", slow)
    found: list[Storage] = []
    waits = threading.Thread(target=lambda: found.append(server.storage(hadoop={"fs.s3a.session.token": "slow"})))
    waits.start()
    assert asked.wait(60)
    assert client_of(server.storage(hadoop={"fs.s3a.session.token": "quick"})) == "NativeS3Backend"
    assert found == []
    go_on.set()
    waits.join()
    assert client_of(found[0]) == "NativeS3Backend"


def test_a_request_is_tried_as_often_as_is_set_and_not_once_more_through_s3fs(server: S3Server) -> None:
    storage = server.storage(hadoop={"fs.s3a.attempts.maximum": "2"})
    storage.publish("d/f", b"x")
    server.proxy.forget()
    for operation, call in (
        ("PUT", lambda: storage.publish("d/f", b"x")),
        ("GET", lambda: storage.read_range("d/f", 0, 1)),
        ("HEAD", lambda: storage.size("d/f")),
    ):
        trouble = server.proxy.inject(Trouble(operation, status=503, times=9))
        with fails_with("storage.failed"):
            call()
        assert server.proxy.count(operation) == 2
        trouble.times = 0


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", "storage.denied"),
        (404, "NoSuchKey", "file.missing"),
        (503, "SlowDown", "storage.failed"),
    ],
)
def test_an_error_is_told_in_a_sentence(server: S3Server, status: int, code: str, kind: str) -> None:
    storage = server.storage(hadoop={"fs.s3a.attempts.maximum": "1"})
    server.proxy.inject(Trouble("GET", status=status, code=code))
    with fails_with(kind) as caught:
        storage.read_range("d/f", 0, 1)
    error: BaseException | None = caught.error
    while error is not None:
        assert len(str(error)) < 700
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.fixture
def storage(server: S3Server) -> Storage:
    found = server.storage()
    assert client_of(found) == "NativeS3Backend"
    return found


@pytest.mark.parametrize(("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")])
def test_a_bucket_of_another_region_is_reached_through_s3fs_from_then_on(status: int, code: str) -> None:
    with S3Server() as server:
        storage = server.storage(hadoop={"fs.s3a.session.token": f"for {code}"})
        server.proxy.inject(Trouble("PUT", status=status, code=code))
        storage.publish("f", b"hello")
        assert server.proxy.count("PUT") == 2
        assert bytes(storage.read("f")) == b"hello"
        assert "aiobotocore" in server.proxy.requests[-1].headers["user-agent"].lower()


@pytest.mark.parametrize("operation", ["PUT", "GET", "HEAD", "GET list-type"])
@pytest.mark.parametrize("name", ["f", "redirect", "HTTP error", "status code: 503"])
def test_an_answer_that_it_cannot_tell_is_asked_for_through_s3fs(
    server: S3Server, storage: Storage, operation: str, name: str
) -> None:
    path = f"d {name}/{name}"
    storage.publish(path, b"hello")
    server.proxy.inject(Trouble(operation, status=400, code="RequestTimeout"))
    storage.publish(path, b"hello")
    assert bytes(storage.read(path, 5)) == b"hello"
    assert storage.size(path) == 5
    assert len(storage.list(f"d {name}")) == 1
    # and only that one
    server.proxy.forget()
    storage.size(path)
    assert "aiobotocore" not in server.proxy.requests[-1].headers["user-agent"].lower()


def test_foreign_objects_with_names_that_it_refuses_do_not_hide_ours(server: S3Server, storage: Storage) -> None:
    folder = storage.url.rpartition("/")[2]
    storage.publish("d/f", b"hello")
    for name in ("d//x", "d/", "d/a%01b"):
        server.direct("PUT", f"/{server.bucket}/{folder}/{name}")
    assert "f" in [entry.name for entry in storage.list("d")]


def test_a_large_object_that_is_shorter_than_was_thought_ends_where_it_ends(server: S3Server, storage: Storage) -> None:
    storage.publish("f", b"x" * (6 << 20))
    assert storage.read_range("f", 1 << 20, 40 << 20).size == 5 << 20


def test_a_process_that_was_forked_off_is_told_so_and_can_open_the_storage_anew(
    server: S3Server, storage: Storage
) -> None:
    storage.publish("f", b"hello")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # what hangs ends, and gives no answer
        signal.alarm(30)
        answer = "the storage of the parent was used"
        try:
            storage.size("f")
        except LaminaError as error:
            again = Storage(storage.url, storage._hadoop)
            answer = f"{error.kind} {client_of(again)} {bytes(again.read('f')).decode()}"
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        assert answers.read().decode() == "storage.failed S3Backend hello"
    os.waitpid(child, 0)


def test_many_threads_publish_and_read_at_once(server: S3Server, storage: Storage) -> None:
    def use(number: int) -> None:
        for turn in range(10):
            storage.publish(f"d/{number}-{turn}", f"{number} {turn}".encode())
            assert bytes(storage.read(f"d/{number}-{turn}")) == f"{number} {turn}".encode()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(storage.list("d")) == 160


LARGE = bytes(range(256)) * 40_000
PIECE = 1 << 20


def streamed(storage: Storage, length: int = len(LARGE)) -> bytes:
    return b"".join(map(bytes, storage.stream("large", length, PIECE)))


def test_a_large_object_is_streamed_in_one_request(server: S3Server) -> None:
    storage = server.storage()
    storage.publish("large", LARGE)
    server.proxy.forget()
    assert streamed(storage) == LARGE
    assert streamed(storage, 3_000_000) == LARGE[:3_000_000]
    assert server.proxy.count("GET") == 2


@pytest.mark.parametrize(
    "trouble",
    [{"cut_answer": True}, {"cut_answer": True, "times": 5}, {"status": 503, "times": 4}, {"lose": True}],
)
def test_a_stream_that_fails_or_breaks_off_goes_on(server: S3Server, trouble: dict[str, object]) -> None:
    storage = server.storage()
    storage.publish("large", LARGE)
    server.proxy.inject(Trouble("GET", **trouble))  # type: ignore[arg-type]
    assert streamed(storage) == LARGE


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ({"status": 403, "code": "AccessDenied"}, "storage.denied"),
        ({"status": 404, "code": "NoSuchKey"}, "file.missing"),
        ({"status": 503, "times": 5}, "storage.failed"),
    ],
)
def test_what_is_certain_of_a_stream_is_not_asked_for_again(
    server: S3Server, trouble: dict[str, object], kind: str
) -> None:
    storage = server.storage()
    storage.publish("large", LARGE)
    server.proxy.forget()
    server.proxy.inject(Trouble("GET", **trouble))  # type: ignore[arg-type]
    with fails_with(kind) as caught:
        streamed(storage)
    assert "large" in caught.error.message
    assert server.proxy.count("GET") == trouble.get("times", 1)


def test_with_one_connection_nothing_is_streamed() -> None:
    with S3Server() as own:
        storage = own.storage(hadoop={"fs.s3a.connection.maximum": "1"})
        storage.publish("large", LARGE)
        own.proxy.forget()
        begun = storage.stream("large", len(LARGE), PIECE)
        next(begun)
        assert bytes(storage.read_range("large", 5, 3)) == LARGE[5:8]
        assert b"".join(map(bytes, begun)) == LARGE[PIECE:]
        assert own.proxy.count("GET") == 1 + -(-len(LARGE) // PIECE)


def test_streams_leave_half_of_the_connections_to_others() -> None:
    with S3Server() as own:
        storage = own.storage(hadoop={"fs.s3a.connection.maximum": "4"})
        storage.publish("large", LARGE)
        begun = [storage.stream("large", len(LARGE), PIECE) for _ in range(3)]
        own.proxy.forget()
        first = [bytes(next(one)) for one in begun]
        # the third one is read by ranges, whose requests end
        assert len(first[2]) == PIECE and own.proxy.requests[-1].sent == PIECE
        assert bytes(storage.read_range("large", 5, 3)) == LARGE[5:8]
        rest = [b"".join(map(bytes, one)) for one in begun]
        assert [a + b for a, b in zip(first, rest, strict=True)] == [LARGE] * 3
        assert streamed(storage) == LARGE
        assert own.proxy.requests[-1].sent == len(LARGE)


def test_who_stops_a_stream_early_gives_its_connection_back() -> None:
    with S3Server() as own:
        storage = own.storage(hadoop={"fs.s3a.connection.maximum": "2"})
        storage.publish("large", LARGE)
        for _ in range(5):
            begun = storage.stream("large", len(LARGE), PIECE)
            next(begun)
            begun.close()
        own.proxy.forget()
        assert streamed(storage) == LARGE
        assert own.proxy.count("GET") == 1
