"""Which releases of fsspec's packages write conditionally.

Older ones know no condition, or drop it without a word: the object is replaced, and both writers are told that they
wrote. Such releases are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from lamina.errors import LaminaError

_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)(?![0-9])")

_SINCE: Mapping[str, tuple[str, tuple[int, int]]] = {
    "s3": ("s3fs", (2024, 12)),
    "gs": ("gcsfs", (2024, 12)),
    "abfs": ("adlfs", (2024, 12)),
}
"""By protocol: the package, and the first release that knows `mode="create"`."""

_ALSO: Mapping[str, tuple[str, ...]] = {"s3": ("botocore>=1.35.2",)}
"""What else must be new enough: the first botocore whose PutObject has the condition; an older one sends none."""


def require_create_mode(protocol: str, filesystem: Any) -> None:
    """Refuses a release of the protocol's package that does not know fsspec's `mode="create"`.

    Raises:
        LaminaError: `storage.scheme`.
    """
    if protocol not in _SINCE:
        return
    _, since = _SINCE[protocol]
    module = type(filesystem).__module__.partition(".")[0]
    release = _RELEASE.match(_version(module))
    if release is None or (int(release[1]), int(release[2])) < since:
        raise refused(protocol, module)


def refused(protocol: str, module: str) -> LaminaError:
    """The error that names the module that is too old, and says what to install."""
    package, since = _SINCE[protocol]
    wanted = [f"{package}>={since[0]}.{since[1]}.0", *_ALSO.get(protocol, ())]
    return LaminaError.from_kind(
        "storage.scheme",
        f"{module} {_version(module)} cannot write an object only where none is, so two writers would not notice each "
        "other; pip install " + " ".join(f"'{package}'" for package in wanted),
    )


def _version(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__version__", "of an unknown version"))
