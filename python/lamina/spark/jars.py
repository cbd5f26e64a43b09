"""Finds the shim's jar for a Spark minor, and the minor of the Spark that a driver would start."""

from __future__ import annotations

import re
from pathlib import Path

from lamina._version import __version__
from lamina.errors import VersionError

_JARS = Path(__file__).resolve().parent.parent / "jars"


def spark_minors() -> list[str]:
    """The Spark minors that this installation has a jar for, oldest first."""
    found = (re.fullmatch(r"lamina-spark-(\d+\.\d+)_2\.13-.+\.jar", path.name) for path in _JARS.glob("*.jar"))
    return sorted((match[1] for match in found if match), key=lambda minor: [int(part) for part in minor.split(".")])


def jar_path(minor: str | None = None) -> str:
    """The path of the shim's jar.

    Args:
        minor: a Spark minor such as "4.3"; by default that of the Spark that a driver would start.

    Raises:
        VersionError: `version.spark`, where there is no jar for that Spark.
    """
    wanted = spark_minor() if minor is None else minor
    path = _JARS / f"lamina-spark-{wanted}_2.13-{__version__}.jar"
    if path.is_file():
        return str(path)
    minors = spark_minors()
    if not minors:
        raise VersionError(
            "version.spark",
            f"lamina {__version__} has no jar in {_JARS}; a source tree builds them with `python hatch_build.py`, and "
            "the wheel that `make build` puts into dist/ has them: install that one.",
        )
    raise VersionError(
        "version.spark",
        f"Spark {wanted} was found, but lamina {__version__} is built for Spark {' and '.join(minors)}: install "
        f"pyspark {minors[-1]} (`pip install 'pyspark~={minors[-1]}.0'`), or a release of lamina for Spark {wanted}.",
    )


def spark_home() -> Path:
    """The folder of the Spark that a PySpark driver would start: SPARK_HOME, else the installed pyspark."""
    try:
        from pyspark.find_spark_home import _find_spark_home
    except ImportError:
        raise VersionError(
            "version.spark", "pyspark is not installed, but a session needs it: `pip install 'lamina[spark]'`."
        ) from None
    return Path(_find_spark_home())


def spark_minor() -> str:
    """The minor version of that Spark, such as "4.3"."""
    home = spark_home()
    for path in sorted((home / "jars").glob("spark-core_*.jar")):
        match = re.search(r"-(\d+\.\d+)\.\d[^-]*(?:-SNAPSHOT)?\.jar$", path.name)
        if match:
            return match[1]
    raise VersionError("version.spark", f"{home} holds no Spark (no jars/spark-core_*.jar); check SPARK_HOME.")
