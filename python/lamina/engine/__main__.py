"""`python -m lamina.engine`: reads the start line, checks what the engine needs, and becomes the engine.

Until the dependencies are known to be there, only the standard library is imported, in syntax that old Pythons read.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING

from lamina._version import __version__
from lamina.engine.imports import without_pandas
from lamina.errors import EngineError, LaminaError, VersionError

_OLDEST_PYTHON = (3, 10)
_OLDEST_PYARROW = 17
_PROTOCOL = 1

if TYPE_CHECKING:
    from lamina.engine.process import EngineProcess


def _check_dependencies() -> None:
    """Raises `engine.dependency` naming what is missing and the command that installs it."""
    if sys.version_info < _OLDEST_PYTHON:
        found, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, _OLDEST_PYTHON))
        raise EngineError(
            "engine.dependency",
            f"the engine needs Python {needed} or newer, but {sys.executable} is Python {found}; set "
            "spark.sql.streaming.stateStore.lamina.engine.python to a newer one",
        )
    if importlib.util.find_spec("py4j") is None:
        sys.path += _py4j_of_spark()
    missing = [name for name in ("pyarrow", "fsspec", "py4j") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineError(
            "engine.dependency",
            f"the engine needs {' and '.join(missing)}, which {sys.executable} on this machine does not have; "
            f"install with: {sys.executable} -m pip install {' '.join(missing)}",
        )


def _engine(start: dict[str, object]) -> EngineProcess:
    without_pandas()
    try:
        import pyarrow

        if int(pyarrow.__version__.split(".")[0]) < _OLDEST_PYARROW:
            raise ImportError(f"pyarrow {pyarrow.__version__} is older than {_OLDEST_PYARROW}")
        from lamina.engine.process import EngineProcess
    except ImportError as error:
        raise EngineError(
            "engine.dependency",
            f"a package that the engine needs does not work in {sys.executable} ({error}); "
            f"install it anew with: {sys.executable} -m pip install --upgrade pyarrow fsspec py4j",
        ) from error
    return EngineProcess(start)


def _py4j_of_spark() -> list[str]:
    """The py4j that comes with Spark or with pip's pyspark, as an entry for sys.path; empty where there is none."""
    homes = [os.environ["SPARK_HOME"]] if os.environ.get("SPARK_HOME") else []
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.submodule_search_locations:
        homes += list(pyspark.submodule_search_locations)
    return [path for home in homes for path in sorted(glob.glob(os.path.join(home, "python", "lib", "py4j-*-src.zip")))]


def _check_version(start: dict[str, object]) -> None:
    """Raises `version.engine` where shim and engine are not of one release."""
    shim = start.get("shim_version")
    if shim != __version__ or start.get("protocol") != _PROTOCOL:
        newer, older = ("shim", "Python package") if _order(shim) > _order(__version__) else ("Python package", "shim")
        raise VersionError(
            "version.engine",
            f"the shim in the JVM is lamina {shim} with protocol {start.get('protocol')}, the Python package of the "
            f"engine in {sys.executable} is lamina {__version__} with protocol {_PROTOCOL}; the {newer} is newer: "
            f"upgrade the {older}",
        )


def _order(version: object) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in str(version).split(".")]


def _start_line() -> dict[str, object]:
    line = sys.stdin.buffer.readline()
    try:
        start = json.loads(line)
        if isinstance(start, dict):
            return start
    except ValueError:
        pass
    raise EngineError("engine.start", f"the engine was started without a start line; it was given {line[:200]!r}")


def _answer(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # From here on standard output belongs to nobody: a stray print goes where the log goes.
    sys.stdout = sys.stderr


def main() -> int:
    """Runs the engine until its standard input ends."""
    try:
        start = _start_line()
        _check_dependencies()
        _check_version(start)
        process = _engine(start)
    except Exception as error:
        ours = LaminaError.from_exception(error)
        _answer({"ok": False, "error": {"kind": ours.kind, "message": ours.message}})
        return 1
    _answer(process.started())
    process.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
