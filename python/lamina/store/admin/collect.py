"""Collects stores of a checkpoint beside its query, several at once.

Retained is what the query was last run with, and every version that Spark's log names: Spark can go back to it. Once a
newer run of the query has started, nothing is deleted in the stores that come then: it may stand on an older batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.checkpoint import LoggedStores, read_claims
from lamina.components import SystemClock
from lamina.errors import LaminaError
from lamina.format.manifest import StoreIdentity
from lamina.store.admin.side_by_side import Progress, side_by_side
from lamina.store.collection.classes import LOG
from lamina.store.collection.collector import Collector
from lamina.store.collection.retention import Retention
from lamina.store.files.log_parts import LogObjects
from lamina.store.files.store_files import StoreFiles
from lamina.store.model import Collected, Version
from lamina.store.versions.checkpoint_state import Standing
from lamina.store.versions.resolution import Versions, is_empty


@dataclass(frozen=True)
class CollectedStore:
    """What became of one store.

    Args:
        version: the newest that Spark committed; None before the first commit.
        problem: why its files could not be judged, or not all be deleted that are to go.
    """

    identity: StoreIdentity
    version: int | None
    collected: Collected | None
    problem: str | None = None


def collect_stores(found: LoggedStores, *, dry_run: bool, progress: Progress) -> list[CollectedStore]:
    """Deletes what no retained version needs; with `dry_run` only says what it would. `progress` counts stores."""
    LogObjects.of(found.state).places.remember_silence()
    return _each_once(side_by_side(lambda one: collect_store(found, one, dry_run=dry_run), found.identities, progress))


def _each_once(outcomes: Sequence[CollectedStore]) -> list[CollectedStore]:
    """What goes of the log is said by the first store that said it: each look at the log says it to one of them."""
    said: set[str] = set()
    once = []
    for outcome in outcomes:
        verdicts = outcome.collected.verdicts if outcome.collected else ()
        new = [one for one in verdicts if one.kind != LOG or one.path not in said]
        said.update(one.path for one in new if one.kind == LOG)
        collected = replace(outcome.collected, verdicts=tuple(new)) if outcome.collected else None
        once.append(replace(outcome, collected=collected))
    return once


def collect_store(found: LoggedStores, identity: StoreIdentity, *, dry_run: bool) -> CollectedStore:
    """The same with one of the stores."""
    version = None
    files = StoreFiles(found.state, identity)
    versions = Versions(files)
    try:
        store = found.log.store(identity)
        version = max(store.named, default=None)
        if version is None:
            return CollectedStore(identity, None, Collected((), dry_run, "Spark has committed no batch yet"))
        attempt = versions.locate(Version(version, store.named[version]))
        if attempt is None or is_empty(attempt):
            return CollectedStore(identity, version, Collected((), dry_run, "the store is empty"))
        newest = versions.open(attempt, Version(version, attempt)).manifest
        # what Spark can go back to stays, whatever the query was last run with
        retention = Retention.recorded(newest).at_least(version - min(store.named))

        def standing() -> Standing | None:
            # a run that started since the log was read may stand on an older batch
            return Standing.of(found.runs[-1].id, {*read_claims(found.state), *found.runs}) if found.runs else None

        collector = Collector(files, versions, retention, SystemClock())
        named = {name for name in store.named.values() if name is not None and not is_empty(name)}
        collected = collector.collect(
            Version(version, attempt), standing, dry_run=dry_run or not found.runs, named=named
        )
        return CollectedStore(identity, version, collected)
    except LaminaError as error:
        return CollectedStore(identity, version, None, error.message)
