"""Names of files and directories of a checkpoint: the only place that builds or parses a path.

    <state>/<operator>/<partition>/[<store name>/]<version>_<attempt id>.lam
    <state>/<operator>/<partition>/[<store name>/]<from>-<to>_<id>.seg
    <state>/<operator>/<partition>/[<store name>/]<version>_<id>.rdb
    <state>/<operator>/<partition>/[<store name>/]<id>.sst
    <state>/_lamina/checkpoint
    <state>/_lamina/runs/<epoch>_<run id>
    <state>/_lamina/pins/<id>
    <state>/_lamina/log/<id>.log
    <state>/_lamina/log/<id>.needs
    <state>/_lamina/log/<place>.at

Paths are relative to `<state>`, the directory `state` of a query's checkpoint, and use "/". A place of its own for log
objects (`changelog.path`) has, relative to its own directory:

    <changelog.path>/<uuid>/<place>/<id>.log
    <changelog.path>/<uuid>/<place>/<place>.at
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lamina.errors import LaminaError
from lamina.format.attempt_id import FILE, GROUP, AttemptId

CHECKPOINT = "_lamina/checkpoint"
RUNS = "_lamina/runs"
PINS = "_lamina/pins"
LOG = "_lamina/log"
DEFAULT_STORE = "default"
FIRST_STORES = (DEFAULT_STORE, "left-keyToNumValues")
"""Every operator has a store of one of these names in each partition; the second is a join's."""
UNHEARD_STORES = ("left-keyToNumValues", "right-keyToNumValues")
"""Stores of a join whose own metrics Spark drops (`SymmetricHashJoinStateManager.metrics`): it adds up those of the
other two."""

_NUMBER = r"(?:0|[1-9][0-9]*)"
_COMMIT = re.compile(rf"({_NUMBER})_(L1\.[A-Za-z0-9._-]+)\.lam", re.ASCII)
_SEGMENT = re.compile(rf"({_NUMBER})-({_NUMBER})_([0-9a-f]{{32}})\.seg", re.ASCII)
_TABLE_LIST = re.compile(rf"({_NUMBER})_([0-9a-f]{{32}})\.rdb", re.ASCII)
_TABLE = re.compile(r"([0-9a-f]{32})\.sst", re.ASCII)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_RUN = re.compile(rf"({_NUMBER})_([^/]+)")


@dataclass(frozen=True)
class CommitName:
    """The name of a commit: of its file, or, where it is a part of a log object, what a file of it would be called."""

    attempt: AttemptId

    @property
    def version(self) -> int:
        return self.attempt.version

    def __str__(self) -> str:
        return f"{self.attempt.version}_{self.attempt}.lam"


@dataclass(frozen=True)
class SegmentName:
    """The name of a compacted segment: the changes of versions start + 1 … end."""

    start: int
    end: int
    id: str

    def __str__(self) -> str:
        return f"{self.start}-{self.end}_{self.id}.seg"


@dataclass(frozen=True)
class TableListName:
    """The name of a list of sorted tables, which together are the state of a version."""

    version: int
    id: str

    def __str__(self) -> str:
        return f"{self.version}_{self.id}.rdb"


@dataclass(frozen=True)
class TableName:
    """The name of a sorted table (SST file), which is no container: its reference has its checksum."""

    id: str

    def __str__(self) -> str:
        return f"{self.id}.sst"


def commit_of(name: str) -> CommitName | None:
    """The commit that `name` names, of a file or of a part of a log object; None for any other name."""
    match = _COMMIT.fullmatch(name)
    if match is None:
        return None
    try:
        attempt = AttemptId.parse(match[2])
    except LaminaError:
        return None
    return CommitName(attempt) if attempt.kind in (FILE, GROUP) and str(attempt.version) == match[1] else None


_LOG_OBJECT = re.compile(rf"{LOG}/([0-9a-f]{{32}})\.log", re.ASCII)


def log_path(log: str) -> str:
    """The path of a log object."""
    return f"{LOG}/{log}.log"


def log_of(path: str) -> str | None:
    """The id of the log object at a path; None for any other file."""
    match = _LOG_OBJECT.fullmatch(path)
    return match[1] if match else None


_LOG_NEEDS = re.compile(rf"{LOG}/[0-9a-f]{{32}}\.needs", re.ASCII)


def log_needs_path(id: str) -> str:
    """The path of a file that says which versions in log objects stores need."""
    return f"{LOG}/{id}.needs"


def is_log_needs(path: str) -> bool:
    """Whether such a file is at a path."""
    return _LOG_NEEDS.fullmatch(path) is not None


_LOG_PLACE = re.compile(rf"(?:{LOG}/)?([0-9a-f]{{32}})\.at", re.ASCII)
_PLACED_LOG = re.compile(r"([0-9a-f]{32})\.log", re.ASCII)


def log_place_path(place: str, directory: str = LOG) -> str:
    """The path of the file that names a place of log objects, in the checkpoint; in the place itself it lies in ""."""
    return join(directory, f"{place}.at")


def log_place_of(path: str) -> str | None:
    """The id of the place that the file at a path names, in the checkpoint or in a place; None for any other file."""
    match = _LOG_PLACE.fullmatch(path)
    return match[1] if match else None


def placed_log_path(log: str) -> str:
    """The path of a log object in a place of its own."""
    return f"{log}.log"


def placed_log_of(path: str) -> str | None:
    """The id of the log object at a path in a place; None for any other file."""
    match = _PLACED_LOG.fullmatch(path)
    return match[1] if match else None


def parse_name(name: str) -> CommitName | SegmentName | TableListName | TableName | None:
    """What `name` (without its directory) names; None for files that are not ours."""
    if (commit := commit_of(name)) is not None:
        # a part of a log object is no file
        return commit if commit.attempt.kind == FILE else None
    if match := _SEGMENT.fullmatch(name):
        return SegmentName(int(match[1]), int(match[2]), match[3])
    if match := _TABLE_LIST.fullmatch(name):
        return TableListName(int(match[1]), match[2])
    if match := _TABLE.fullmatch(name):
        return TableName(match[1])
    return None


def is_immutable(path: str) -> bool:
    """Whether the file at `path` never has other contents: its name carries an id that is used once."""
    is_log = log_of(path) is not None or placed_log_of(path) is not None or is_log_needs(path)
    return is_log or parse_name(directory_and_name(path)[1]) is not None


def is_table(path: str) -> bool:
    """Whether the file at `path` is a table, which others than we read, as a whole file."""
    return isinstance(parse_name(directory_and_name(path)[1]), TableName)


def store_directory(operator: int, partition: int, name: str) -> str:
    """The directory of a store; the store "default" has no folder of its own.

    Raises:
        LaminaError: `store.unsupported` for a name that cannot be a folder.
    """
    if name == DEFAULT_STORE:
        return f"{operator}/{partition}"
    if not name or "/" in name or name in (".", ".."):
        raise LaminaError.from_kind("store.unsupported", f"{name!r} cannot be the name of a state store")
    return f"{operator}/{partition}/{name}"


def join(directory: str, name: str) -> str:
    """The path of `name` in `directory`; "" is the root."""
    return f"{directory}/{name}" if directory else name


def directory_and_name(path: str) -> tuple[str, str]:
    """Directory and name of `path`."""
    directory, _, name = path.rpartition("/")
    return directory, name


def require_normal(path: str) -> str:
    """`path`, if it is relative and normal, so that it cannot leave the directory that it is relative to.

    Raises:
        ValueError: for any other.
    """
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} is no path below a directory")
    return path


def require_root(root: str) -> str:
    """`root`, if it is a URL, an absolute path, or a path from a checkpoint that is normal behind its leading `..`s.

    Raises:
        ValueError: for any other.
    """
    if not _ABSOLUTE.match(root):
        parts = root.split("/")
        up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
        require_normal("/".join(parts[up:]))
    return root


def run_path(epoch: int, run_id: str) -> str:
    """The path of the claim of `epoch` by `run_id`."""
    if not run_id or "/" in run_id:
        raise LaminaError.from_kind("store.unsupported", f"{run_id!r} cannot be the id of a run")
    return f"{RUNS}/{epoch}_{run_id}"


def parse_run(name: str) -> tuple[int, str] | None:
    """Epoch and run id of a file in `RUNS`; None for other files."""
    match = _RUN.fullmatch(name)
    return (int(match[1]), match[2]) if match else None
