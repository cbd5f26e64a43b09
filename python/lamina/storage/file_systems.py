"""File systems of fsspec: whoever opens the same place with the same access shares one, of the latest that were used.

fsspec itself keeps each for ever, and credentials that go on make each of them another one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.utils import tokenize

MOST_KEPT = 8

_lock = threading.Lock()
_kept: OrderedDict[str, Any] = OrderedDict()


def file_system(protocol: str, options: Mapping[str, Any]) -> Any:
    """The file system of a protocol with these parameters, of this process.

    Raises what fsspec raises: `ImportError` or `ValueError` where there is none.
    """
    key = tokenize(os.getpid(), protocol, options)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    # not under the lock: one may ask a service for credentials
    made = fsspec.filesystem(protocol, **options, skip_instance_cache=True)
    with _lock:
        found = _kept.setdefault(key, made)
        _kept.move_to_end(key)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found


def forget_all() -> None:
    """Has each made anew that is asked for from now on; those that are used live on with who uses them."""
    with _lock:
        _kept.clear()
