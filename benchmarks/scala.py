"""Compiles the benchmarks' Scala sources with the compiler that pyspark ships; a jar is kept until a source changes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "benchmarks"


def pyspark_jars() -> Path:
    """The directory of the jars of the installed Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed: pip install pyspark==4.3.0")
    return Path(spec.origin).parent / "jars"


def linked_spark(home: Path) -> Path:
    """Spark's folder under another name, made where it is missing: a local cluster writes into its SPARK_HOME."""
    if not home.exists():
        home.mkdir()
        for entry in pyspark_jars().parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return home


def java() -> str:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def compile_jar(name: str, sources: Sequence[Path], classpath: Sequence[Path] = ()) -> Path:
    """Compile sources into a jar.

    Args:
        name: First part of the jar's file name.
        sources: Scala files, or directories of them.
        classpath: Jars needed beside Spark's.

    Returns:
        The path of the jar, taken from the cache when no source and no jar of the class path changed.
    """
    files = sorted(f for s in sources for f in (s.rglob("*.scala") if s.is_dir() else [s]))
    if not files:
        raise SystemExit(f"no Scala sources for {name}")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    for jar in classpath:
        digest.update(jar.read_bytes())
    target = CACHE / f"{name}-{digest.hexdigest()[:16]}.jar"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    jars = f"{pyspark_jars()}/*"
    with tempfile.TemporaryDirectory(dir=CACHE) as out:
        command = [java(), "-Xss4m", "-cp", jars, "scala.tools.nsc.Main", "-d", out, "-Xlint", "-Werror"]
        command += ["-classpath", os.pathsep.join([jars, *map(str, classpath)]), *map(str, files)]
        subprocess.run(command, check=True)
        partial = Path(out) / "partial.jar"
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for compiled in sorted(Path(out).rglob("*.class")):
                archive.write(compiled, compiled.relative_to(out).as_posix())
        partial.rename(target)
    return target


def benchmark_jar(part: str, classpath: Sequence[Path] = ()) -> Path:
    """The jar of `benchmarks/<part>/src`."""
    return compile_jar(part, [ROOT / "benchmarks" / part / "src"], classpath)
