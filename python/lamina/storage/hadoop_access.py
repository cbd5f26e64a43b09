"""Which Hadoop keys of identity and encryption Python's clients honour, which need the JVM's client, which are refused.

`RULES` is the whole decision: the first rule that a key and its value match counts. A key that none matches is no
matter of identity or encryption; of a storage without rules of its own every key is one.
`python -m lamina.storage.hadoop_access` prints the table of docs/spec/storage.md.
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
        store: `s3`, `abfs`, `gs`, `hdfs`, or `other` for all without rules of their own.
        keys: a regular expression for the name that `by_name` gives a key.
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

_CLIENT = "the class that Python's client stands for"
_OTHER_CLIENT = "another class than the one that Python's client stands for"

RULES: tuple[Rule, ...] = (
    Rule("s3", r"impl", "honoured", _CLIENT, r"org\.apache\.hadoop\.fs\.s3a\.S3AFileSystem"),
    Rule(
        "abfs",
        r"impl",
        "honoured",
        _CLIENT,
        r"org\.apache\.hadoop\.fs\.(azurebfs\.(Secure)?AzureBlobFileSystem|azure\.NativeAzureFileSystem(\$Secure)?)",
    ),
    Rule(
        "gs",
        r"impl",
        "honoured",
        _CLIENT,
        r"(com\.google\.cloud\.hadoop\.fs\.gcs|org\.apache\.hadoop\.fs\.gs)\.GoogleHadoopFileSystem",
    ),
    Rule("hdfs", r"impl", "honoured", _CLIENT, r"org\.apache\.hadoop\.hdfs\.DistributedFileSystem"),
    *(Rule(store, r"impl", "jvm", _OTHER_CLIENT) for store in ("s3", "abfs", "gs", "hdfs")),
    Rule("s3", r"fs\.s3n?\..+", "jvm", "keys of another client of `s3:` URLs; none counts where `fs.s3.impl` is S3A's"),
    Rule("s3", r"fs\.s3a\..+", "jvm", "a bucket's key in its long form, `fs.s3a.bucket.<bucket>.fs.s3a.`"),
    Rule(
        "s3",
        r"s3\.client\.factory\.impl",
        "honoured",
        "Hadoop's own",
        r"org\.apache\.hadoop\.fs\.s3a\.DefaultS3ClientFactory",
    ),
    Rule(
        "s3",
        r"s3\.client\.factory\.impl|audit\.(execution\.interceptors|request\.handlers|service\.classname)",
        "jvm",
        "a class that makes or changes requests",
    ),
    Rule("s3", r"endpoint\.fips", "honoured", "off, as without it", _OFF),
    Rule("s3", r"endpoint\.fips", "jvm", "s3fs is not told"),
    Rule("s3", r"(http\.signer|access\.grants|delegation\.tokens)\.enabled", "honoured", "off, as without it", _OFF),
    Rule("abfs", r"enable\.delegation\.token", "honoured", "off, as without it", _OFF),
    Rule("gs", r"auth\.null\.enable", "honoured", "off, as without it", _OFF),
    Rule("s3", r"access\.key|secret\.key|session\.token", "honoured", "credentials"),
    Rule("s3", r"security\.credential\.provider\.path", "honoured", "the shim has read its secrets", "python"),
    Rule("s3", r"security\.credential\.provider\.path", "jvm", "nobody has read credentials from it"),
    Rule(
        "s3",
        r"encryption\.algorithm",
        "honoured",
        "encryption by the storage",
        r"AES256|SSE-S3|SSE-KMS|DSSE-KMS",
    ),
    Rule(
        "s3",
        r"encryption\.algorithm",
        "jvm",
        "SSE-C, CSE and others: s3fs cannot",
    ),
    Rule("s3", r"encryption\.key", "honoured", "the key of SSE-KMS and DSSE-KMS"),
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
    Rule("abfs", r"container\..+", "jvm", "a key of one container; adlfs is given those of an account"),
    Rule("abfs", r"secure\.mode|local\.sas\.key\.mode|authorization", "honoured", "off, as without it", _OFF),
    Rule("abfs", r"secure\.mode|local\.sas\.key\.mode|authorization", "jvm", "adlfs has no such mode"),
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
    Rule("gs", r"storage\.http\.headers\..+", "jvm", "gcsfs does not send them; customers' keys are such headers"),
    Rule("gs", r"authorization\.handler\..+", "jvm", "gcsfs has none"),
    Rule("gs", r"(auth\.|encryption|.*(impersonation|kms|cmek|credential|delegation)).*", "refused", _UNKNOWN),
    Rule("other", r"impl\.disable\.cache", "honoured", "no matter of identity or encryption"),
    Rule("other", r".+", "jvm", "Python's client of such a storage is given no keys"),
)

_PREFIXES = {"s3": ("fs.s3a.",), "abfs": ("fs.azure.",), "gs": ("fs.gs.", "google.cloud."), "hdfs": ()}
_PREFIXES_BESIDE: Mapping[str, tuple[str, ...]] = {
    "adl": ("dfs.adls.",),
    "az": ("fs.azure.",),
    "webhdfs": ("dfs.webhdfs.",),
}
"""Where keys of a storage without rules are besides `fs.<scheme>.`."""

_RENAMED = {
    "server-side-encryption-algorithm": "encryption.algorithm",
    "server-side-encryption.key": "encryption.key",
}
"""Keys of S3A by their older names."""

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


def reason_for_jvm(scheme: str, store: str, authority: str, hadoop: Mapping[str, str]) -> str:
    """Why `authority` must be reached by Hadoop's client; empty where it need not.

    Args:
        scheme: of the URL; it decides which class Hadoop takes.
        store: whose rules count.
        authority: as `by_name` takes it.
    Raises:
        LaminaError: `settings.invalid` for a key that is refused.
    """
    reason = ""
    names = by_name(store, authority, hadoop, scheme)
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
            if rule.decision == "refused" and not _is_of_another_bucket(key, name, rule.keys):
                raise refused(key, rule.reason)
            if rule.decision == "jvm":
                reason = reason or f"{key}: {rule.reason}"
            break
    if store == "s3":
        _check_kms_key(names)
    return reason


def _is_of_another_bucket(key: str, name: str, refused_keys: str) -> bool:
    """Whether a bucket's key that is unknown, and refused for its name, is a known one of a bucket whose name goes on:
    `fs.s3a.bucket.a.b.assumed.role.arn` is of `a.b`, and nothing of `a`."""
    words = name.split(".") if key.startswith("fs.s3a.bucket.") else []
    known = [rule.keys for rule in RULES if rule.store == "s3" and rule.decision != "refused"]
    rests = [".".join(words[start:]) for start in range(1, len(words))]
    return any(re.fullmatch(refused_keys, rest) and re.fullmatch(keys, rest) for keys in known for rest in rests)


def refused(key: str, reason: str) -> LaminaError:
    """The error of a key that nobody here honours."""
    return LaminaError.from_kind(
        "settings.invalid",
        f"the Hadoop key {key} is not honoured: {reason}. Remove the key, or use a storage that does not need it",
    )


def by_name(store: str, authority: str, hadoop: Mapping[str, str], scheme: str = "") -> Mapping[str, tuple[str, str]]:
    """Key and value by the key's name: without prefix, bucket and account, and the newer one of two.

    The bucket's or the account's own key goes first, whether under its newer name or its older one.

    Args:
        authority: a bucket, or `<container>@<host>` of Azure.
        scheme: of the URL, whose class is `impl`; empty where nobody asks for it.
    """
    if store == "s3":
        found = _of_a_bucket(authority, hadoop)
    elif store == "abfs":
        found = _of_an_account(authority, hadoop)
    else:
        prefixes = _PREFIXES.get(store, (f"fs.{scheme}.", *_PREFIXES_BESIDE.get(scheme, ())))
        found = {name: at for prefix in reversed(prefixes) for name, at in _without(prefix, hadoop).items()}
    own_class = (f"fs.{scheme}.impl", hadoop.get(f"fs.{scheme}.impl", ""))
    found = {**{name: at for name, at in found.items() if name != "impl"}, "impl": own_class}
    if scheme in ("s3", "s3n") and not own_class[1].strip():
        found |= {key: (key, value) for key, value in hadoop.items() if _of_another_client(key, scheme)}
    return found


def _of_another_client(key: str, scheme: str) -> bool:
    return key.startswith(f"fs.{scheme}.") and key != f"fs.{scheme}.impl.disable.cache"


def _without(prefix: str, hadoop: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {key[len(prefix) :]: (key, value) for key, value in hadoop.items() if key.startswith(prefix)}


def _of_a_bucket(bucket: str, hadoop: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    general = {name: at for name, at in _without("fs.s3a.", hadoop).items() if not name.startswith("bucket.")}
    own = {name: at for name, at in _without(f"fs.s3a.bucket.{bucket}.", hadoop).items() if at[1]}
    found: dict[str, tuple[str, str]] = {}
    for names in (own, general):
        for name, at in sorted(names.items(), key=lambda one: one[0] in _RENAMED):
            if at[1].strip() or name not in _RENAMED:
                found.setdefault(_RENAMED.get(name, name), at)
    return found


def _of_an_account(authority: str, hadoop: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    container, _, host = authority.rpartition("@")
    general: dict[str, tuple[str, str]] = {}
    own: dict[str, tuple[str, str]] = {}
    for name, at in _without("fs.azure.", hadoop).items():
        if host and name.endswith(f".{host}"):
            name = name[: -len(host) - 1]
            if container and name.endswith(f".{container}"):
                name = f"container.{name[: -len(container) - 1]}"
            if at[1].strip():
                own[name] = at
        elif not _OTHER_ACCOUNT.fullmatch(name):
            general[name] = at
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
    _, algorithm = names.get("encryption.algorithm", ("", ""))
    key, value = names.get("encryption.key", ("", ""))
    if value and algorithm.strip() in ("AES256", "SSE-S3"):
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
