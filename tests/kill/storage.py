"""Where the kill campaign's checkpoint lies: on the disk of this machine, its log apart or not, or on moto's S3."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import s3fs
from moto.server import ThreadedMotoServer

from benchmarks.hadoop_jars import hadoop_aws_jars
from benchmarks.slow_s3 import KEYS, hadoop_keys
from lamina.settings import PREFIX
from tests.kill.files import Checkpoint

DISK, APART, S3 = "disk", "apart", "s3"


@dataclass(frozen=True)
class Place:
    """A checkpoint, and what reaches it.

    Args:
        checkpoint: as the campaign looks at it.
        directory: of this machine, where the state lies or its local copies.
        pause_s: between two looks at Spark's log.
    """

    checkpoint: Checkpoint
    directory: Path
    pause_s: float

    @property
    def remote(self) -> bool:
        """Whether what is in `directory` are copies."""
        return bool(self.checkpoint.hadoop)

    @property
    def directories(self) -> list[Path]:
        """Those of this machine in which processes have files open."""
        apart = self.checkpoint.apart
        return [self.directory] if apart is None else [self.directory, apart]

    def conf(self) -> dict[str, str]:
        """What a session of Spark sets."""
        if self.checkpoint.apart is not None:
            return {f"{PREFIX}changelog.path": str(self.checkpoint.apart)}
        if not self.remote:
            return {}
        # on the class path, since each new executor would copy 690 MB that `spark.jars` names
        jars = os.pathsep.join(map(str, hadoop_aws_jars()))
        return {
            **{f"spark.hadoop.{key}": value for key, value in self.checkpoint.hadoop.items()},
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            f"{PREFIX}storage.cache.directory": str(self.directory),
        }

    def drop_copies(self) -> None:
        """Takes the local copies away, so that the next restore reads from the storage."""
        if self.remote and self.directory.is_dir():
            for path in self.directory.iterdir():
                if len(path.name) == 64:  # the SHA-256 of an object's URL
                    path.unlink(missing_ok=True)


def on_disk(directory: Path, *, apart: bool = False) -> Place:
    """A place in a directory of this machine; `apart`: with log objects in another one (`changelog.path`)."""
    checkpoint = directory / "checkpoint"
    found = Checkpoint.on_disk(checkpoint, directory / "fast" if apart else None)
    return Place(found, checkpoint / "state", pause_s=0.05)


@contextlib.contextmanager
def place(storage: str, directory: Path) -> Iterator[Place]:
    """A place for a checkpoint; what is on this machine lies in `directory`."""
    if storage != S3:
        yield on_disk(directory, apart=storage == APART)
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        system = s3fs.S3FileSystem(**KEYS, endpoint_url=endpoint, use_listings_cache=False, skip_instance_cache=True)
        # the buckets of one process are there for all its servers
        root = f"lamina-{uuid.uuid4().hex}/checkpoint"
        system.mkdir(root.split("/")[0])
        # each look is a request to the server, which is slow
        yield Place(
            Checkpoint(f"s3a://{root}", system, root, hadoop_keys(endpoint)), directory / "copies", pause_s=0.25
        )
    finally:
        server.stop()
