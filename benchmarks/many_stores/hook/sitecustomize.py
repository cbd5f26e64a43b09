"""The hook of the far storage: Python imports this module at its start, and it does something only in the two
processes of lamina."""

from __future__ import annotations

import os
import sys

from benchmarks.many_stores.latency import ENGINE, MAINTENANCE, VARIABLE, Distance, install

PROCESSES = {"lamina.engine": ENGINE, "lamina.engine.maintenance": MAINTENANCE}

process = PROCESSES.get(sys.orig_argv[2]) if sys.orig_argv[1:2] == ["-m"] else None
if VARIABLE in os.environ and process is not None:
    install(Distance(os.environ[VARIABLE], process))
