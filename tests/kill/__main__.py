"""Kills the processes of a query and counts what is wrong afterwards: `python -m tests.kill --minutes 5`.

The query runs in `local-cluster[2,1,1024]`. SIGKILL hits the engine, its maintenance process, an executor or the
driver, at random and at named points; the driver is started again. Each output is compared with what the input says
(tests/kill/records.py). At the end the files are checked, that no process and no open file is left over, and that
a kill explains each error of lamina that a task had, also where Spark tried it again (tests/kill/tasks.py).
The exit code is 0 where nothing is wrong and enough was killed to show it (tests/kill/report.py says how much).
With `--storage s3` the checkpoint is on moto's S3 server, with `--storage apart` only its log objects are elsewhere
than it (`changelog.path`; for a backend with a changelog), with `--backend rocksdb` it stands on tables of RocksDB,
with `--backend rocksdb-spilling` with so little memory that batches keep changes on the local disk.
`tests/kill` runs each for some minutes. Ctrl-C ends a campaign after its kill, and what was counted counts.

`--broken` runs a build with one promise taken away, which the campaign must notice; then it exits with 0 if it did.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, variants
from benchmarks.rounds import LONG_MINUTES, RESULTS, progress, record_name, write_result
from tests.kill.campaign import BACKENDS, CHANGELOG, LOGGED, STEP_S, Campaign, CannotGoOn, broken_plan, plan_of
from tests.kill.points import BARRIERS, NO_LINEAGE_CHECK, PUBLICATION_BEFORE_DATA
from tests.kill.report import check_alike, faults, is_caught, merged, record_of, shortfalls, show, targets
from tests.kill.storage import APART, DISK, S3, place
from tests.kill.tasks import judged, read

BROKEN = RESULTS / "kill-broken.json"
EXAMPLES = 5
SHARES_CLASSES = 10.0
"""To have JVMs share classes takes two minutes first, and makes up for them in so many."""


def run(
    minutes: float, seed: int, storage: str, broken: str | None, keep: Path | None, backend: str = "heap"
) -> dict[str, Any]:
    """A campaign of so many minutes."""
    variants.shim_jar()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir=keep)).resolve()
    plan = plan_of(backend, storage) if broken is None else broken_plan(broken)
    with place(storage, folder) as there:
        result = ran(Campaign(folder, there, seed, broken, plan, backend), minutes)
    # whoever reads it elsewhere has no such directory
    result = json.loads(json.dumps(result).replace(f"{folder}/", ""))
    if keep is not None:
        progress(f"the campaign's files are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return {**result, "storage": storage, "backend": backend}


def ran(campaign: Campaign, minutes: float) -> dict[str, Any]:
    """The result of a campaign of so many minutes."""
    verdict = ""
    end_state: dict[str, list[str]] = {"orphans": [], "damaged": [], "held": []}
    try:
        if minutes >= SHARES_CLASSES:
            campaign.share_classes()
        campaign.start()
        campaign.go_on(12, seconds=4 * STEP_S)
        campaign.begin()
        with ends_by_interrupt() as asked:
            while goes_on(campaign, minutes) and not asked.is_set():
                point, victim = campaign.next_kill()
                campaign.kill(point, victim)
                if campaign.drawn.random() < 0.8 or campaign.child is None:
                    campaign.go_on()
                show_progress(campaign, point, victim)
            if asked.is_set():
                progress("interrupted: judges what was counted; Ctrl-C once more ends it at once")
        if not campaign.judge.wrong:
            end_state = campaign.settle()
    except CannotGoOn as error:
        verdict = str(error)
    finally:
        campaign.stop()
    return result_of(campaign, verdict, end_state)


@contextmanager
def ends_by_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C asks for the end of what is inside; once more, and it ends at once."""
    asked = threading.Event()

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def goes_on(campaign: Campaign, minutes: float) -> bool:
    """Whether there is another kill; a long campaign short of its targets has half as much time again."""
    if campaign.broken:
        return campaign.minutes < minutes and not campaign.judge.wrong
    late = minutes >= LONG_MINUTES and any(count < bar for _, bar, count in targets(kills_of(campaign)))
    return campaign.minutes < minutes * (1.5 if late else 1)


def kills_of(campaign: Campaign) -> dict[str, Any]:
    """Who was killed where how often, and who was not although it was tried."""
    return {
        name: [[*one, counts[one]] for one in campaign.plan]
        for name, counts in (("kills", campaign.kills), ("missed", campaign.missed))
    }


def result_of(campaign: Campaign, verdict: str, end_state: dict[str, Any]) -> dict[str, Any]:
    """The result as JSON."""
    judge = campaign.judge
    return {
        "benchmark": "kill",
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "minutes": round(campaign.minutes, 1),
        "seed": campaign.seed,
        "broken": campaign.broken,
        **kills_of(campaign),
        "starts": campaign.starts,
        "batches": judge.checked,
        "records": judge.records,
        "lost": judge.lost,
        "duplicated": judge.duplicated,
        "reordered": judge.reordered,
        "foreign": judge.foreign,
        "stuck": verdict,
        "failures_of_the_query": campaign.own_failures,
        **judged(read(campaign.root / "events"), campaign.killed),
        "leaked_processes": campaign.leaked,
        "open_files_left": end_state["held"],
        "orphans": end_state["orphans"],
        "damaged_files": end_state["damaged"],
        "examples": judge.examples[:EXAMPLES],
    }


def show_progress(campaign: Campaign, point: str, victim: str) -> None:
    """One line for a kill."""
    progress(
        f"{sum(campaign.kills.values())} kills, batch {campaign.done}; {victim} {point}; {campaign.judge.wrong} wrong"
    )


def _counted(path: Path | None) -> list[dict[str, Any]]:
    """What other campaigns have counted so far."""
    return [json.loads(path.read_text())] if path is not None and path.exists() else []


def _added(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Adds a campaign to what a file counts, where others may end meanwhile."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = merged([*_counted(path), result])
        path.write_text(json.dumps(total, indent=1, sort_keys=True) + "\n")
    return total


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storage", choices=(DISK, APART, S3), default=DISK)
    parser.add_argument("--backend", choices=list(BACKENDS), default="heap")
    parser.add_argument("--broken", choices=(PUBLICATION_BEFORE_DATA, NO_LINEAGE_CHECK, *BARRIERS))
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="keep the files of the campaign in this directory")
    parser.add_argument("--add", type=Path, help="add the counts to this file, made where it is not there")
    given = parser.parse_args()
    if given.broken in BARRIERS:
        given.backend = CHANGELOG
    if given.storage == APART and given.backend not in LOGGED:
        having = " and ".join(LOGGED)
        parser.error(f"--storage {APART} is where a log lies, and --backend {given.backend} has none: {having} have")
    # before anything is killed
    alike = {"storage": given.storage, "backend": given.backend, "code": machine.code()}
    check_alike([*_counted(given.add), alike])
    result = run(given.minutes, given.seed, given.storage, given.broken, given.keep, given.backend)
    if given.broken is not None:
        builds = json.loads(BROKEN.read_text())["builds"] if BROKEN.exists() else {}
        # each task of a broken build may fail, and in the same way
        errors = result["unexplained_task_errors"][:EXAMPLES]
        few = {**result, "commit": machine.commit(), "unexplained_task_errors": errors}
        write_result(BROKEN.stem, {"benchmark": BROKEN.stem, "builds": {**builds, given.broken: few}})
    else:
        name = record_of(given.storage, given.backend)
        result["code"] = alike["code"]
        # one that was interrupted is not as long
        write_result(record_name(name, min(given.minutes, result["minutes"])), result)
        if given.add is not None:
            total = _added(given.add, result)
            write_result(record_name(name, total["minutes"]), total)
    if given.json:
        print(json.dumps(result, indent=1))
    else:
        show(result, Console(width=130))
    if given.broken is not None and not is_caught(result):
        raise SystemExit(f"the build with {given.broken} was not noticed")
    if given.broken is None and faults(result):
        raise SystemExit(1)
    if given.broken is None and (short := shortfalls(result)):
        raise SystemExit(f"not enough was killed to show anything: {'; '.join(short)}")


if __name__ == "__main__":
    main()
