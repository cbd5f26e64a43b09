"""Programs of the tests of faults, each in a process of its own, which may have mounts of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NO_MOUNT = "needs a small file system, which this user may not mount, not even in a user namespace"


def namespace() -> list[str] | None:
    """The command that gives a program mounts of its own: as root, or as one who becomes root in there."""
    probe = "d=$(mktemp -d) && mount -t tmpfs -o size=1m lamina-test $d && umount $d && rmdir $d"
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        try:
            if subprocess.run([*command, "sh", "-c", probe], capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            return None
    return None


def run_child(
    repository: Path,
    own: Sequence[str],
    module: str,
    *arguments: str,
    timeout_s: float,
    paths: Sequence[Path] = (),
    **environment: str,
) -> Any:
    """What a program of this directory gave as its result, a line of JSON.

    Args:
        own: as `namespace` gives it; nothing for a program without mounts.
        paths: that its Python looks in before all others.
    """
    searched = os.pathsep.join(map(str, (*paths, repository / "python", repository)))
    child = subprocess.run(
        [*own, sys.executable, "-m", f"tests.faults.{module}", *arguments],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": searched, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    for line in child.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    raise AssertionError(child.stdout[-2000:] + child.stderr[-4000:])
