"""Objects under names: one small contract over local files, memory and every fsspec file system."""

from __future__ import annotations

from lamina.storage.backend import Backend, Listed, NotDurable
from lamina.storage.in_flight import all_of, in_flight
from lamina.storage.jvm import Jvm
from lamina.storage.local_copies import LocalCache
from lamina.storage.storage import Storage
from lamina.storage.temporary import is_temporary

__all__ = ["Backend", "Jvm", "Listed", "LocalCache", "NotDurable", "Storage", "all_of", "in_flight", "is_temporary"]
