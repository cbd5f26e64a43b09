"""Which Hadoop keys of identity and encryption Python's clients honour, which need the JVM's client, which are refused.

`RULES` is the whole decision: the first rule that a key and its value match counts. A key that none matches is no
matter of identity or encryption. `python -m lamina.storage.hadoop_access` prints the table of docs/spec/storage.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lamina.errors import LaminaError

Decision = Literal["honoured", "jvm", "refused"]


@dataclass(frozen=True)
class Rule:
    """What is done about keys of a store.

    Args:
        store: `s3`, `abfs` or `gs`.
        keys: a regular expression for a key without the store's prefix, the bucket and the account.
        values: a regular expression for the value; any where it is empty.
    """

    store: str
    keys: str
    decision: Decision
    reason: str
    values: str = ""


_KEY_CONFLICT = "the key would replace the identity that the type names"
_UNKNOWN = "not known here; it may change who writes or how bytes are protected"

_OFF = r"(?i:false)"

RULES: tuple[Rule, ...] = (
    Rule("s3", r"(http\.signer|access\.grants|delegation\.tokens)\.enabled", "honoured", "off, as without it", _OFF),
    Rule("abfs", r"enable\.delegation\.token", "honoured", "off, as without it", _OFF),
    Rule("gs", r"auth\.null\.enable", "honoured", "off, as without it", _OFF),
    Rule("s3", r"access\.key|secret\.key|session\.token", "honoured", "credentials"),
    Rule("s3", r"security\.credential\.provider\.path", "honoured", "the shim has read its secrets", "python"),
    Rule("s3", r"security\.credential\.provider\.path", "jvm", "nobody has read credentials from it"),
    Rule(
        "s3",
        r"encryption\.algorithm|server-side-encryption-algorithm",
        "honoured",
        "encryption by the storage",
        r"AES256|SSE-S3|SSE-KMS|DSSE-KMS",
    ),
    Rule(
        "s3",
        r"encryption\.algorithm|server-side-encryption-algorithm",
        "jvm",
        "SSE-C, CSE and others: s3fs cannot",
    ),
    Rule("s3", r"encryption\.key|server-side-encryption\.key", "honoured", "the key of SSE-KMS and DSSE-KMS"),
    Rule("s3", r"encryption\.context|encryption\.cse\..+", "jvm", "s3fs is not given them"),
    Rule("s3", r"aws\.credentials\.provider", "honoured", "providers whose identity the Python client has", "python"),
    Rule("s3", r"aws\.credentials\.provider", "jvm", "other providers and orders; boto may find another identity"),
    Rule(
        "s3",
        r"assumed\.role\.(arn|credentials\.provider|external\.id|policy|session\.(name|duration)|sts\.endpoint(\.region)?)",
        "jvm",
        "s3fs assumes no role",
    ),
    Rule("s3", r"delegation\.tokens?\..+|access\.grants\..+|acl\.default|accesspoint\.arn", "jvm", "s3fs has none"),
    Rule(
        "s3", r"custom\.signers|(\w+\.)?signing-algorithm|http\.signer\.(enabled|class)", "jvm", "requests are signed"
    ),
    Rule(
        "s3",
        r"(encryption|server-side-encryption|cse).*|.*(assumed\.role|credentials?\.provider|sign(er|ing)).*",
        "refused",
        _UNKNOWN,
    ),
    Rule(
        "abfs", r"account\.key|sas\.fixed\.token|account\.oauth2\.client\.(id|secret|endpoint)", "honoured", "identity"
    ),
    Rule("abfs", r"account\.auth\.type", "honoured", "the only credentials set are of this type", "python"),
    Rule("abfs", r"account\.auth\.type", "jvm", _KEY_CONFLICT + ", or the type is another"),
    Rule(
        "abfs",
        r"account\.oauth\.provider\.type",
        "honoured",
        "a service principal",
        r"(org\.apache\.hadoop\.fs\.azurebfs\.oauth2\.)?ClientCredsTokenProvider",
    ),
    Rule(
        "abfs",
        r"account\.oauth\.provider\.type|account\.oauth2\..+|account\.keyprovider|sas\.token\.provider\.type"
        r"|enable\.delegation\.token|delegation\.token\..+",
        "jvm",
        "adlfs has no such provider",
    ),
    Rule(
        "abfs",
        r"encryption\.context\.provider\.type|encryption\.encoded\.client-provided-key(-sha)?"
        r"|client-provided-encryption-key",
        "jvm",
        "adlfs is not given customers' keys",
    ),
    Rule("abfs", r".*(encrypt|auth\.type|oauth|provider\.type|keyprovider).*", "refused", _UNKNOWN),
    Rule("gs", r"auth\.service\.account\.json\.keyfile", "honoured", "a file with credentials"),
    Rule("gs", r"auth\.service\.account\.enable", "honoured", "as without it", r"(?i:true)"),
    Rule("gs", r"auth\.type", "honoured", "the key file, or none, as set", "python"),
    Rule(
        "gs",
        r"auth\.(type|impersonation\..+|service\.account\..+|access\.token\..+|refresh\.token|client\.(id|secret)|null\.enable)",
        "jvm",
        "gcsfs would write as somebody else",
    ),
    Rule("gs", r"encryption\.(algorithm|key|key\.hash)", "jvm", "gcsfs is not given customers' keys"),
    Rule("gs", r"(auth\.|encryption|.*(impersonation|kms|cmek|credential|delegation)).*", "refused", _UNKNOWN),
)

_PREFIXES = {"s3": ("fs.s3a.",), "abfs": ("fs.azure.",), "gs": ("fs.gs.", "google.cloud.")}

_S3A = "org.apache.hadoop.fs.s3a."
_DEFAULT_PROVIDERS = (
    _S3A + "TemporaryAWSCredentialsProvider",
    _S3A + "SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    _S3A + "auth.IAMInstanceCredentialsProvider",
)
ANONYMOUS = _S3A + "AnonymousAWSCredentialsProvider"

_DEFAULTS = {
    "fs.s3a.assumed.role.credentials.provider": _DEFAULT_PROVIDERS[1],
    "fs.s3a.assumed.role.session.duration": "30m",
}
"""Values of Hadoop's own core-default.xml: they change nothing."""

_OTHER_ACCOUNT = re.compile(r".*\.[\w-]+(\.z\d+)?\.(dfs|blob)\.[\w.-]+(:\d+)?")


def reason_for_jvm(store: str, authority: str, hadoop: Mapping[str, str]) -> str:
    """Why `authority` (a bucket, or an account's host) must be reached by Hadoop's client; empty where it need not.

    Raises:
        LaminaError: `settings.invalid` for a key that is refused.
    """
    reason = ""
    names = _names(store, authority, hadoop)
    for name, (key, value) in sorted(names.items()):
        if not value.strip() or _DEFAULTS.get(key) == value.strip():
            continue
        for rule in RULES:
            if rule.store != store or not re.fullmatch(rule.keys, name):
                continue
            if rule.values == "python":
                if not _has_identity(store, name, value, names):
                    continue
            elif rule.values and not re.fullmatch(rule.values, value.strip()):
                continue
            if rule.decision == "refused":
                raise refused(key, rule.reason)
            if rule.decision == "jvm":
                reason = reason or f"{key}: {rule.reason}"
            break
    if store == "s3":
        _check_kms_key(names)
    return reason


def refused(key: str, reason: str) -> LaminaError:
    """The error of a key that nobody here honours."""
    return LaminaError.from_kind(
        "settings.invalid",
        f"the Hadoop key {key} is not honoured: {reason}. Remove the key, or use a storage that does not need it",
    )


def _names(store: str, authority: str, hadoop: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Key and value by the name without prefix, bucket and account; the bucket's or account's own goes first."""
    own: dict[str, tuple[str, str]] = {}
    general: dict[str, tuple[str, str]] = {}
    for key, value in hadoop.items():
        for prefix in _PREFIXES.get(store, ()):
            if not key.startswith(prefix):
                continue
            name = key[len(prefix) :]
            if store == "s3" and name.startswith("bucket."):
                if name.startswith(f"bucket.{authority}.") and value:
                    own[name[len(f"bucket.{authority}.") :]] = (key, value)
            elif store == "abfs" and authority and name.endswith(f".{authority}"):
                own[name[: -len(authority) - 1]] = (key, value)
            elif store != "abfs" or not _OTHER_ACCOUNT.fullmatch(name):
                general[name] = (key, value)
    return {**general, **own}


def _has_identity(store: str, name: str, value: str, names: Mapping[str, tuple[str, str]]) -> bool:
    """Whether the Python client writes as the identity that a provider list or an authentication type names."""

    def is_set(*parts: str) -> bool:
        return all(names.get(part, ("", ""))[1] for part in parts)

    if name == "security.credential.provider.path":
        return is_set("access.key", "secret.key")
    if store == "s3":
        providers = tuple(part.strip() for part in value.split(",") if part.strip())
        if providers in (_DEFAULT_PROVIDERS, (ANONYMOUS,)):
            return True
        if not providers or not is_set("access.key", "secret.key"):
            return False
        token = is_set("session.token")
        return providers[0] == _DEFAULT_PROVIDERS[0 if token else 1]
    kind = value.strip().lower()
    if store == "gs":
        keyed = is_set("auth.service.account.json.keyfile")
        return kind in ({"service_account_json_keyfile"} if keyed else {"application_default", "compute_engine"})
    set_types = {
        "sharedkey": is_set("account.key"),
        "sas": is_set("sas.fixed.token"),
        "oauth": is_set("account.oauth2.client.id", "account.oauth2.client.secret", "account.oauth2.client.endpoint"),
    }
    return [each for each, there in set_types.items() if there] == [kind]


def _check_kms_key(names: Mapping[str, tuple[str, str]]) -> None:
    def first(*options: str) -> tuple[str, str]:
        return next((names[name] for name in options if names.get(name, ("", ""))[1]), ("", ""))

    _, algorithm = first("encryption.algorithm", "server-side-encryption-algorithm")
    key, _ = first("encryption.key", "server-side-encryption.key")
    if key and algorithm.strip() in ("AES256", "SSE-S3"):
        raise refused(key, f"the algorithm {algorithm} uses no key; set fs.s3a.encryption.algorithm to SSE-KMS")


def table() -> Iterator[str]:
    """The lines of the table of docs/spec/storage.md."""
    yield "| store | keys (a regular expression) | values | decision | reason |"
    yield "|---|---|---|---|---|"
    for rule in RULES:
        keys, values = rule.keys.replace("|", "\\|"), rule.values.replace("|", "\\|")
        shown = {"": "any", "python": "see below"}.get(values, f"`{values}`")
        yield f"| {rule.store} | `{keys}` | {shown} | {rule.decision} | {rule.reason} |"


if __name__ == "__main__":
    print("\n".join(table()))
