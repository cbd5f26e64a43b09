"""What all stores of one checkpoint share: its uuid, and the epoch that orders this run of the query among others.

    _lamina/checkpoint            published if absent by the first store that opens for writing
    _lamina/runs/<epoch>_<run>    claims; the smallest epoch of a run counts

Two stores of one run may claim at the same time: both list again after their claim and take the smallest epoch of their
run. Where another run claims between them, one may go on with a greater epoch than the other; it is the same run, so
its place in the order is that of its smallest claim. Two runs may claim the same epoch: runs are ordered by (epoch,
run id).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from lamina._version import __version__
from lamina.checkpoint import FORMAT_NEWEST, QueryRun, read_claims, read_identity, sealed_bytes, smallest_claims
from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.manifest import to_bytes
from lamina.storage import Storage
from lamina.store.versions.claims import Claims


@dataclass(frozen=True)
class Standing:
    """How a run stands among the others.

    Args:
        run: the run in its place in the order.
        epochs: all that it and the runs before it claimed.
        newer: the newest run after it.
    """

    run: QueryRun
    epochs: frozenset[int]
    newer: QueryRun | None

    @classmethod
    def of(cls, run_id: str, claims: Iterable[QueryRun]) -> Standing:
        """The standing of a run, which is among `claims`."""
        claims = sorted(claims)
        runs = smallest_claims(claims)
        run, newest = runs[run_id], max(runs.values())
        epochs = frozenset(claim.epoch for claim in claims if runs[claim.id] <= run)
        return cls(run, epochs, newest if newest > run else None)


@dataclass(frozen=True)
class CheckpointState:
    """One checkpoint as one run sees it.

    `uuid` is None where a reader meets a checkpoint in which nothing was written yet; `epoch` is None for readers.
    """

    storage: Storage
    uuid: str | None
    run_id: str
    epoch: int | None

    @classmethod
    def open(cls, storage: Storage, *, run_id: str, read_only: bool, clock: Clock, ids: Ids) -> CheckpointState:
        """Opens the checkpoint whose directory `state` is the root of `storage`; writers claim an epoch.

        Raises:
            LaminaError: `file.missing` where its identity was lost, `file.damaged`, `file.version`, `storage.*`.
        """
        found = read_identity(storage)
        if read_only:
            return cls(storage, found.uuid if found else None, run_id, None)
        if found is None:
            mine = {
                "uuid": ids.uuid(),
                "format": FORMAT_NEWEST,
                "created_ms": clock.now_ms(),
                "created_by": f"lamina {__version__}",
            }
            storage.publish_if_absent(paths.CHECKPOINT, sealed_bytes(mine))
            # whoever loses the race, or gets no answer to its write, reads what is there
            found = read_identity(storage)
            if found is None:
                raise LaminaError.from_kind(
                    "storage.failed", f"{storage.location(paths.CHECKPOINT)} was written and is not there"
                )
        return cls(storage, found.uuid, run_id, _claim_epoch(storage, run_id, clock))

    @classmethod
    def rejoin(cls, storage: Storage, uuid: str, run_id: str, epoch: int) -> CheckpointState:
        """The checkpoint as a process sees it that works for one that has opened it; writes nothing.

        Raises:
            LaminaError: `file.missing` where the checkpoint was removed meanwhile, also if another is in its place;
                `file.damaged`, `file.version`, `storage.*`.
        """
        found = read_identity(storage)
        if found is None or found.uuid != uuid:
            now = "is not there" if found is None else f"is another checkpoint's, {found.uuid}"
            raise LaminaError.from_kind(
                "file.missing", f"{storage.location(paths.CHECKPOINT)} {now}: checkpoint {uuid} was removed"
            )
        return cls(storage, uuid, run_id, epoch)

    def outlives(self, other: CheckpointState) -> bool:
        """Whether this is of a newer run than another one; see `is_newer_than`."""
        return self.is_newer_than(other.uuid, other.run_id, other.epoch)

    def is_newer_than(self, uuid: str | None, run_id: str, epoch: int | None) -> bool:
        """Whether this is of a newer run than another one, on the same checkpoint: one that was made anew in its place
        begins with its first epoch. Readers are in no order, and a run that claimed two epochs is one."""
        if self.epoch is None or epoch is None or uuid != self.uuid or run_id == self.run_id:
            return False
        return QueryRun(epoch, run_id) < QueryRun(self.epoch, self.run_id)

    def standing(self) -> Standing | None:
        """How this run stands among the others now; None for readers.

        Raises:
            LaminaError: `storage.*`.
        """
        if self.epoch is None:
            return None
        return Standing.of(self.run_id, {*Claims.of(self.storage).now(), QueryRun(self.epoch, self.run_id)})

    def newer_run(self) -> QueryRun | None:
        """The newest run that is ordered after this one, if any.

        Raises:
            LaminaError: `storage.*`.
        """
        if self.epoch is None:
            return None
        claims, own = Claims.of(self.storage).now(), QueryRun(self.epoch, self.run_id)
        own = min(own, next((claim for claim in claims if claim.id == self.run_id), own))
        # each commit asks, and mostly there is none above, or claims of this run alone: no order has to be made
        if all(claim.id == self.run_id for claim in claims[bisect_right(claims, own) :]):
            return None
        return Standing.of(self.run_id, {*claims, own}).newer


def _claim_epoch(storage: Storage, run_id: str, clock: Clock) -> int:
    claims = read_claims(storage)
    own = smallest_claims(claims).get(run_id)
    if own is not None:
        return own.epoch
    claimed = 1 + (claims[-1].epoch if claims else 0)
    claim = {"epoch": claimed, "run": run_id, "created_ms": clock.now_ms()}
    storage.publish_if_absent(paths.run_path(claimed, run_id), to_bytes(claim))
    # a store of the same run may have claimed meanwhile, with a smaller number
    own = smallest_claims(read_claims(storage)).get(run_id)
    return claimed if own is None else own.epoch
