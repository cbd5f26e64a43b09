"""Lists of sorted tables: which SST files are the state of a version, and what RocksDB needs beside them to open it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.format.manifest import FILE, Reference, Section, StoreIdentity
from lamina.format.paths import TableName, parse_name

_TABLE_FILE = re.compile(r"[0-9]{6,20}\.sst", re.ASCII)
_OTHER_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]{6,20}", re.ASCII)


@dataclass(frozen=True)
class Table:
    """One sorted table.

    Args:
        name: of the file in the database's directory, which that database gave it.
        path: of the file in the store's directory, under a name that no other file ever has.
        sha256: the first half of the SHA-256 of all its bytes, in hexadecimal.
        rows: entries in it, deletes among them.
        version: of the first list that has it.
    """

    name: str
    path: str
    size: int
    sha256: str
    rows: int
    version: int

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "size": self.size,
            "sha256": self.sha256,
            "rows": self.rows,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Table:
        found = cls(
            str(value["name"]),
            str(value["path"]),
            int(value["size"]),
            str(value["sha256"]),
            int(value["rows"]),
            int(value["version"]),
        )
        # names become paths on the machine that opens the database
        if not _TABLE_FILE.fullmatch(found.name) or not isinstance(parse_name(found.path), TableName):
            raise ValueError(f"{found.name!r} at {found.path!r} is no table")
        return found

    def reference(self, version: int, origin: StoreIdentity) -> Reference:
        """How a manifest that stands on a list of `version` refers to the table."""
        return Reference(None, self.path, 0, self.size, self.size, self.sha256, FILE, 0, version, 0, origin)


@dataclass(frozen=True)
class TableListManifest:
    """The state of one version as a database of RocksDB.

    Args:
        version: whose state it is.
        tables: the tables, in the order of their names.
        files: names and bytes of what else the database's directory has: `CURRENT`, and the `MANIFEST-…` that it names.
        inputs: the references that it was made of (newest first), and takes the place of.
    """

    store: StoreIdentity
    list: str
    version: int
    header_crc: int
    created_ms: int
    writer: str
    tables: tuple[Table, ...]
    files: Mapping[str, bytes]
    inputs: tuple[Reference, ...]

    @property
    def sections(self) -> tuple[Section, ...]:
        """None: all of it is in the manifest."""
        return ()

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.store.to_json(),
            "list": self.list,
            "version": self.version,
            "sections": [],
            "header_crc": self.header_crc,
            "created_ms": self.created_ms,
            "writer": self.writer,
            "tables": [table.to_json() for table in self.tables],
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "inputs": [reference.to_json() for reference in self.inputs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableListManifest:
        found = cls(
            StoreIdentity.from_json(value["store"]),
            str(value["list"]),
            int(value["version"]),
            int(value["header_crc"]),
            int(value["created_ms"]),
            str(value["writer"]),
            tuple(Table.from_json(table) for table in value["tables"]),
            {str(name): base64.b64decode(data, validate=True) for name, data in value["files"].items()},
            tuple(Reference.from_json(reference) for reference in value["inputs"]),
        )
        wrong = [name for name in found.files if not _OTHER_FILE.fullmatch(name)]
        if wrong or value["sections"]:
            raise ValueError(f"a list of tables has {wrong or 'sections'}")
        # without them a database would be taken for a new one
        if found.files["CURRENT"].decode().strip() not in found.files:
            raise ValueError("a list of tables has not the file that its CURRENT names")
        for names in ([table.name for table in found.tables], [table.path for table in found.tables]):
            if len(set(names)) < len(names):
                raise ValueError("a list of tables has one twice")
        return found
