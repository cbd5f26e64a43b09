"""Changes of shim and engine that are no part of what some results measured.

A figure counts as long as the code that it measured is that of now. What a change leaves as it was is said here by who
has read its difference: from which code it led to which one, which results it leaves alone, and why. Whoever is in
doubt measures again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks import machine


@dataclass(frozen=True)
class Change:
    """From the code with one digest (`machine.code`) to that with another, of which the results `spares` say as much as
    before, and `why`; but for some answers of a result of questions, each as `name/question`.
    """

    before: str
    after: str
    spares: frozenset[str]
    why: str
    but: frozenset[str] = frozenset()

    def leaves(self, result: str) -> bool:
        """Whether a result, or an answer of one, says as much as before; a result does where all of its answers do."""
        name = result.split("/")[0]
        return name in self.spares and not any(one == result or one.startswith(f"{result}/") for one in self.but)


_ALL = frozenset({"aggregation", "changelog", "kill-heap-changelog", "kill-rocksdb", "restore", "rocksdb"})
"""Of the results with figures that are kept."""

_WITH_BROKEN = _ALL | {"kill-broken"}
"""These, and the builds without a promise, of which there is a record since."""

_WITH_BOTH = _WITH_BROKEN | {"kill-rocksdb-changelog"}
"""These, and the kills of tables below a changelog, of which there is a record since."""

_OF_TASKS = frozenset({"changelog/objects", "changelog/partitions", "changelog/throughput"})
"""What is asked of commits for which tasks wait on local files."""

CHANGES: tuple[Change, ...] = (
    Change(
        "cb28790ee4bb9437",
        "f71ec330c15a240a",
        frozenset({"aggregation", "changelog", "restore"}),
        "how local copies of tables of RocksDB are verified, RocksDB's cache of blocks, and how often tables are made, "
        "all with `backend` `rocksdb` alone; and that the eviction of local copies goes by the time of access",
    ),
    Change(
        "f71ec330c15a240a",
        "0a357a7bba39a8b1",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "what a late attempt of an upload does on a storage that renames, how tables are fetched from a remote one, "
        "how lists below a run are looked up, what happens when memory is refused or a storage hangs; and that who has "
        "written a log object does not read its index back, beside each batch",
    ),
    Change(
        "0a357a7bba39a8b1",
        "72adc7d6676e44d2",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "further figures in the query's progress, some hundred bytes in each log object that say what its process has "
        "done, when tables of stores go that are not open any more, and what errors say",
    ),
    Change(
        "72adc7d6676e44d2",
        "5ba5be49d7bf9a62",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "how loads are counted, and how log objects are listed for people, both written more simply",
    ),
    Change(
        "5ba5be49d7bf9a62",
        "a5428e8a59b35759",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "how long a commit waits for others when its store is opened before it is durable, as by a second action of a "
        "batch; and that a local copy on another disk needs room before it is copied",
    ),
    Change(
        "a5428e8a59b35759",
        "a5c84ce6cf935031",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "checks and collections by the command line; that what a publication was cut off from is collected later; that "
        "tables which are on this disk need no memory to be fetched, which jobs beside each other would want; how "
        "blocks share a budget of less than 8 MiB; and what is kept of memory for rows of more than 1 MiB",
    ),
    Change(
        "a5c84ce6cf935031",
        "4820633ea0bf1867",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "what a check counts as not needed; and that more than 16 small tables in a row are joined, which keys in no "
        "order do not leave",
    ),
    Change(
        "4820633ea0bf1867",
        "e8153038994d6793",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "that scans of ranges pass over keys that came since they began; what is done with what earlier runs of a "
        "query left in memory, or where the system has no further thread; that an attempt begins at the open where the "
        "log is on a remote storage; how many objects a barrier looks for at once with a file manager that is named; "
        "and that more of the newest tables of RocksDB wait for a merge where what is below is larger",
    ),
    Change(
        "e8153038994d6793",
        "5ec5e83ea7a14a5b",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "what a collection says that only asks",
    ),
    Change(
        "5ec5e83ea7a14a5b",
        "3c1c36c185c4566b",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "that the version of a table's format is looked at when it is fetched, and what errors say of full local disks "
        "and of times that do not go together",
    ),
    Change(
        "3c1c36c185c4566b",
        "1c56a0e0ddd4915b",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "that a merge does not wait for the long ones of others where somebody waits for its store; what jobs of an "
        "older run of a query leave alone; that local tables are verified again which somebody met as damaged, and "
        "that they count as used; when attempts of stores begin that changed nothing in the last batch, on a remote "
        "storage; what a driver that has just started looks for; when memory of large rows is given back; and that "
        "sections are verified side by side on a remote storage",
    ),
    Change(
        "1c56a0e0ddd4915b",
        "b4ed55c79f6e99bb",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "how many tables are sent at once where little memory is free, on a remote storage; how the caps of rows and "
        "of RocksDB's blocks share a JVM; when the time of a commit ends where a task has several stores; that a file "
        "is closed before it gets its name; how lists of tables, the change feed and indexes of log objects are read "
        "with fewer requests; what is looked at before a deletion by hand; what happens when threads, file handles or "
        "answers are missing; and what commands say, clean up and remember",
    ),
    Change(
        "b4ed55c79f6e99bb",
        "68a9127ae7133379",
        frozenset({"aggregation", "changelog", "restore", "rocksdb"}),
        "what happens where the local disk is full while a batch keeps changes there, and where a storage, a place of "
        "log objects or the flush of a directory hangs; that more than sixteen small tables in a row, which keys in no "
        "order do not leave, are joined bit by bit; that jobs say that they go on while they join or fetch tables; "
        "and which job's failure ends a wait for tables",
    ),
    Change(
        "68a9127ae7133379",
        "a1dddeec1b72a7f6",
        frozenset({"aggregation", "changelog", "kill-rocksdb", "restore", "rocksdb"}),
        "what an engine publishes that ends; how often the driver looks for log objects of other executors; that a "
        "listing of log objects serves all who came soon after it began, however long it takes; and whose credentials "
        "are asked for where log objects lie elsewhere",
    ),
    Change(
        "a1dddeec1b72a7f6",
        "821b4e1fa5680f8c",
        _ALL,
        "a look for a log object on another machine has another one beside it where it is slow; with the changelog, "
        "states of which two megabytes in the log are changed four times over, and files between small commits, are "
        "merged sooner, and without merges in the background stores that change seldom leave the log; with `backend` "
        "`rocksdb`, what a failed upload leaves on the disk, whose tables end a wait, and that tables are made also "
        "where the next commit is to write a snapshot",
    ),
    Change(
        "821b4e1fa5680f8c",
        "cb1d347e16f4fa18",
        _ALL,
        "what a look does whose second request gets no thread, and that attempts, waits for tables and merges of the "
        "log are written more simply",
    ),
    Change(
        "cb1d347e16f4fa18",
        "988a400488de67ed",
        _ALL,
        "which bytes of log objects count as uploaded before a batch was over",
    ),
    Change(
        "988a400488de67ed",
        "8d755fc7f863b5ce",
        _ALL,
        "that such bytes count for objects that were whole by then; what counts where the answer of an upload was "
        "lost; and that a log object whose upload was queued and refused is not written any more",
    ),
    Change(
        "8d755fc7f863b5ce",
        "ca715cc5845687b8",
        _ALL,
        "that parts of log objects on another machine are read side by side where the checkpoint is not on another one",
    ),
    Change(
        "ca715cc5845687b8",
        "e4d1d6a9877aae29",
        _ALL,
        "that these are not: what a read takes of the memory has to be the same when it is given back; and that an "
        "object whose answer was lost counts as failed, as before",
    ),
    Change(
        "e4d1d6a9877aae29",
        "7302bc7a4be5cb7b",
        _WITH_BROKEN,
        "which part of the engine sees to it that an upload that was refused is not carried out, too",
    ),
    Change(
        "7302bc7a4be5cb7b",
        "faa685bf7ac5be56",
        _WITH_BROKEN,
        "after how many increments, 128 by default where it was 32, and after how many bytes tables of RocksDB are "
        "made: where the number is set, or memory decides, it is as before, and so is a restart with 24 increments "
        "above its tables. Also which rows go from memory once they are in tables that were made for bytes or age, and "
        "how many indexes of log objects are kept for restores",
        but=frozenset(
            f"rocksdb/{one}"
            for one in ("1M-in-memory", "4M-in-memory", "20M-in-memory", "uploads", "uploads-each-second")
        ),
    ),
    Change(
        "faa685bf7ac5be56",
        "36eec8bb33cbdf9a",
        _WITH_BROKEN,
        "what is said of settings, how much collections are told of commits with many references, and that a store "
        "which is about to be closed in the engine is opened anew for who goes on with it",
    ),
    Change(
        "36eec8bb33cbdf9a",
        "fed3ca17a38a9b31",
        _WITH_BROKEN,
        "that a table is read from S3 in one request; and the figure of RocksDB's cache of blocks, where it is asked "
        "for",
        but=frozenset({"rocksdb/restart"}),
    ),
    Change(
        "fed3ca17a38a9b31",
        "a446a2478b0c35d1",
        _WITH_BROKEN,
        "what is said of a setting, which checkpoint file manager `lamina.configure` puts lamina's around, which state "
        "machines can be run by name, and how ranges of an object are written",
    ),
    Change(
        "a446a2478b0c35d1",
        "0a64fbde88524acb",
        _WITH_BROKEN,
        "how long a task waits for further commits of its log object; a batch of `query-waits` without latency, which "
        "is taken from the waits of level task, would be up to 80 ms of some two seconds shorter",
        but=_OF_TASKS,
    ),
    Change(
        "0a64fbde88524acb",
        "290177a8c89bcf44",
        _WITH_BROKEN,
        "the same where it is set, where uploads wait for their turn, and where a commit is hurried; that an engine "
        "which ends waits for what was accepted into a checkpoint that is just forgotten",
        but=_OF_TASKS,
    ),
    Change(
        "290177a8c89bcf44",
        "6289a5e587842259",
        _WITH_BROKEN,
        "how long a commit waits where uploads wait for their turn, which those of two tasks hardly do, and where it "
        "is hurried",
    ),
    Change(
        "6289a5e587842259",
        "0623003a15dea8b1",
        _WITH_BOTH,
        "that the lineage of a commit is written with the text of the one before, so that a store's share of "
        "a group takes the engine an eighth less (0.73 beside 0.84 ms, medians of five in turns on a busy "
        "machine); that merges read small parts of a remote storage side by side and say what they made "
        "before a collection, that queries take turns in maintenance, and that what working files take is "
        "looked at less often; which tables, clients and checkpoints are kept after a failure or an end, and "
        "that nothing is collected where a file of the newest version is lost; that files on HDFS are "
        "stamped; and what commands and `open_store` say",
    ),
    Change(
        "ad099917f85bf7da",
        "0623003a15dea8b1",
        frozenset({"rocksdb"}),
        "of these, all but the lineage and the merges",
    ),
    Change(
        "0623003a15dea8b1",
        "4ca1c2e3ce76fa04",
        _WITH_BOTH,
        "that a load which meets a lost or damaged file begins once more, that replays and ways around such a file "
        "read several manifests at once, what becomes of the tables of a load that broke off, that an identity which "
        "was lost is not made anew, and what commands and `open_store` say",
    ),
    Change(
        "4ca1c2e3ce76fa04",
        "4caa6504e10efd8b",
        _WITH_BOTH,
        "that a way down a lineage keeps to what each version stands on, whatever else its lineage names, and what is "
        "left of tables of a load that came to its deadline",
    ),
    Change(
        "4caa6504e10efd8b",
        "94a3ca0b0b3e0f56",
        _WITH_BOTH,
        "what becomes of merges that take a large part of the minimum age, of attempts of uploads that hang, and of "
        "the last commit of a round whose place is in an older group; what collections keep and where they stop; how "
        "the JVM's file systems are kept, locked and read; how errors are told; what commands ask for; what is done "
        "about files that a load went around or a collection misses, a full local disk and a maintenance process that "
        "does not start; versions that an offline repartition writes; stores that a task has for itself, that rest or "
        "that were left; which memory counts of jobs that hang; claims under checkpoint format v1; lists that are "
        "walked on tables; and engines that start with their executors, of which benchmarks have none",
    ),
)


def told_of(changes: Sequence[Change] | None, all_changes: Sequence[Change] = CHANGES) -> str:
    """Which changes since are no part of a figure, as a sentence behind another one; nothing where there are none."""
    if not changes:
        return ""
    first = all_changes.index(changes[0]) + 1
    return f" Measured before the [changes](#later-changes) from number {first} on, which are no part of it."


def listed(changes: Iterable[Change] = CHANGES) -> str:
    """All of them as a section of a page."""
    lines = [f"{number}. {change.why[0].upper()}{change.why[1:]}." for number, change in enumerate(changes, 1)]
    return "\n".join(["## Later changes\n", *lines, ""])


def later(code: str, result: str, changes: Iterable[Change] = CHANGES) -> list[Change] | None:
    """The changes since a result was measured, all of which spare it, oldest first; None where others came, too.

    Args:
        result: its name, or `name/question` of an answer.
    """
    found = list[Change]()
    while code != machine.code():
        change = next((one for one in changes if one.before == code and one.leaves(result)), None)
        if change is None or change in found:
            return None
        found.append(change)
        code = change.after
    return found
