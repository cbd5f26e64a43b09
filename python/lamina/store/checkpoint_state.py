"""What all stores of one checkpoint share: its uuid, and the epoch that orders this run of the query among others.

    _lamina/checkpoint            published if absent by the first store that opens for writing
    _lamina/runs/<epoch>_<run>    claims; the smallest epoch of a run counts

Two stores of one run may claim at the same time: both list again after their claim and take the smallest epoch of their
run, so they agree. Two runs may claim the same epoch: runs are ordered by (epoch, run id).
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina._version import __version__
from lamina.checkpoint import identity_bytes, read_identity
from lamina.components import Clock, Ids
from lamina.errors import LaminaError
from lamina.format import paths
from lamina.format.manifest import to_bytes
from lamina.storage import Storage

FORMAT = 1


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
            LaminaError: `file.damaged`, `file.version`, `storage.*`.
        """
        uuid = _read_uuid(storage)
        if read_only:
            return cls(storage, uuid, run_id, None)
        if uuid is None:
            mine = {
                "uuid": ids.uuid(),
                "format": FORMAT,
                "created_ms": clock.now_ms(),
                "created_by": f"lamina {__version__}",
            }
            storage.publish_if_absent(paths.CHECKPOINT, identity_bytes(mine))
            # whoever loses the race, or gets no answer to its write, reads what is there
            uuid = _read_uuid(storage)
            if uuid is None:
                raise LaminaError.from_kind(
                    "storage.failed", f"{storage.location(paths.CHECKPOINT)} was written and is not there"
                )
        return cls(storage, uuid, run_id, _claim_epoch(storage, run_id, clock))

    def newer_run(self) -> tuple[int, str] | None:
        """The newest (epoch, run id) that is ordered after this run, if any."""
        if self.epoch is None:
            return None
        newest = max(_runs(self.storage), default=None)
        return newest if newest is not None and newest > (self.epoch, self.run_id) else None


def _read_uuid(storage: Storage) -> str | None:
    identity = read_identity(storage)
    return None if identity is None else identity.uuid


def _runs(storage: Storage) -> list[tuple[int, str]]:
    parsed = (paths.parse_run(entry.name) for entry in storage.list(paths.RUNS))
    return [run for run in parsed if run is not None]


def _own_epoch(runs: list[tuple[int, str]], run_id: str) -> int | None:
    return min((epoch for epoch, run in runs if run == run_id), default=None)


def _claim_epoch(storage: Storage, run_id: str, clock: Clock) -> int:
    runs = _runs(storage)
    epoch = _own_epoch(runs, run_id)
    if epoch is not None:
        return epoch
    claimed = 1 + max((epoch for epoch, _ in runs), default=0)
    claim = {"epoch": claimed, "run": run_id, "created_ms": clock.now_ms()}
    storage.publish_if_absent(paths.run_path(claimed, run_id), to_bytes(claim))
    # a store of the same run may have claimed meanwhile, with a smaller number
    epoch = _own_epoch(_runs(storage), run_id)
    return claimed if epoch is None else epoch
