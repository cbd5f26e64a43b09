"""Builds the JVM shim: one jar per Spark minor in `python/lamina/jars/`, without sbt.

As hatchling's build hook it runs for every wheel and editable install; `python hatch_build.py [minor ...]` runs it
alone.
The Scala compiler is the one that pyspark ships. The jars of the minor that is installed come from pyspark; Spark 4.2's
come from Maven Central through the Ivy that pyspark ships, and Spark 4.3, which is not there, from PyPI.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run alone, where hatchling is not needed
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "python" / "lamina"
SHIM = ROOT / "jvm-shim" / "src" / "main"
BUILD = ROOT / "build" / "shim"
SPARK_VERSIONS = {"4.2": "4.2.0", "4.3": "4.3.0"}
SCALAC_FLAGS = ["-Xlint", "-Werror", "-deprecation", "-feature", "-unchecked", "-encoding", "UTF-8"]
# Spark's own modules that the shim's classes, or the classes they extend, refer to. Everything else on the class path
# (json4s, Arrow, FlatBuffers, Hadoop, Py4J, ...) has the same version in both minors and comes from pyspark.
SPARK_MODULES = [
    "catalyst",
    "common-utils",
    "common-utils-java",
    "core",
    "kvstore",
    "launcher",
    "network-common",
    "network-shuffle",
    "sketch",
    "sql",
    "sql-api",
    "tags",
    "unsafe",
    "variant",
]


class BuildError(SystemExit):
    """A sentence for the person who builds."""


def version() -> str:
    """The version of lamina."""
    match = re.search(r'__version__ = "([^"]+)"', (PACKAGE / "_version.py").read_text(encoding="utf-8"))
    if match is None:
        raise BuildError("python/lamina/_version.py has no __version__.")
    return match[1]


def jar_name(minor: str) -> str:
    """The file name of the shim's jar for a Spark minor."""
    return f"lamina-spark-{minor}_2.13-{version()}.jar"


def java() -> str:
    """The path of a Java that fits; fails with a sentence."""
    spec = importlib.util.spec_from_file_location("lamina_java", PACKAGE / "spark" / "java.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problem = module.java_problem()
    if problem is not None:
        raise BuildError(problem)
    return str(module.java_program())


def installed_spark() -> tuple[str, Path]:
    """The minor and the jars of the pyspark beside this Python."""
    spec = importlib.util.find_spec("pyspark")
    versions = " or ".join(SPARK_VERSIONS.values())
    if spec is None or spec.origin is None:
        raise BuildError(
            f"{sys.executable} has no pyspark, but the shim is built with the Scala compiler of pyspark {versions}: "
            f"{sys.executable} -m pip install 'pyspark=={max(SPARK_VERSIONS.values())}'."
        )
    found = importlib.metadata.version("pyspark")
    minor = ".".join(found.split(".")[:2])
    if minor not in SPARK_VERSIONS:
        raise BuildError(f"pyspark {found} is installed, but the shim is built with pyspark {versions}.")
    return minor, Path(spec.origin).parent / "jars"


def class_path(minor: str, program: str) -> list[Path]:
    """The jars to compile against for a Spark minor; fetched once if that minor is not the installed one."""
    installed, jars = installed_spark()
    everything = sorted(jars.glob("*.jar"))
    if minor == installed:
        return everything
    fetched = BUILD / f"spark-{SPARK_VERSIONS[minor]}"
    if not fetched.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=f"{fetched.name}-", dir=BUILD))
        try:
            (fetch_from_maven if minor == "4.2" else fetch_from_pypi)(SPARK_VERSIONS[minor], program, jars, partial)
            partial.rename(fetched)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return sorted(fetched.glob("*.jar")) + [jar for jar in everything if not jar.name.startswith("spark-")]


def fetch_from_maven(spark: str, program: str, jars: Path, to: Path) -> None:
    """Copies `SPARK_MODULES` of a Spark release into `to`, with Ivy, which checks the repository's checksums."""
    ivy_file = to / "ivy.xml"
    dependencies = "".join(
        f'<dependency org="org.apache.spark" name="spark-{name}_2.13" rev="{spark}" transitive="false"/>'
        for name in SPARK_MODULES
    )
    ivy_file.write_text(
        '<ivy-module version="2.0"><info organisation="io.lamina" module="shim-build"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [program, "-cp", f"{jars}/*", "org.apache.ivy.Main", "-ivy", str(ivy_file), "-types", "jar", "-warn"]
    command += ["-cache", str(BUILD / "ivy"), "-retrieve", f"{to}/[artifact]-[revision].[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    missing = [name for name in SPARK_MODULES if not (to / f"spark-{name}_2.13-{spark}.jar").is_file()]
    if answer.returncode != 0 or missing:
        raise BuildError(
            f"{answer.stdout[-3000:]}{answer.stderr[-3000:]}\nThe jars of Spark {spark} could not be fetched from "
            "Maven Central (the output above says why), but the shim is built for every Spark minor: connect to "
            "https://repo1.maven.org and build again."
        )


def fetch_from_pypi(spark: str, program: str, jars: Path, to: Path) -> None:
    """Copies the jars of a pyspark release that this Python cannot install (4.3 needs Python 3.11) into `to`."""
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--ignore-requires-python"]
        command += ["--no-binary", "pyspark", "--dest", scratch, f"pyspark=={spark}"]
        answer = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
        archives = list(Path(scratch).glob("pyspark-*.tar.gz"))
        if answer.returncode != 0 or not archives:
            raise BuildError(
                f"pyspark {spark} could not be downloaded from PyPI (the output above says why), but the shim is built "
                "for every Spark minor: connect to https://pypi.org and build again."
            )
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = Path(member.name).name
                if name.startswith("spark-") and name.endswith(".jar") and "/jars/" in member.name:
                    member.name = name
                    archive.extract(member, to)


def sources(minor: str) -> list[Path]:
    """The Scala sources for a Spark minor: the shared ones and its own folder."""
    folders = [SHIM / "scala", SHIM / f"scala-spark-{minor}"]
    return sorted(path for folder in folders for path in folder.rglob("*.scala"))


def digest(minor: str, files: list[Path]) -> str:
    """Changes when the compiler's input does."""
    state = hashlib.sha256(" ".join([SPARK_VERSIONS[minor], *SCALAC_FLAGS]).encode())
    for path in files:
        state.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return state.hexdigest()


def compiled(minor: str, program: str) -> Path:
    """The folder of the shim's classes for a Spark minor; compiles only what changed since the last time."""
    files = sources(minor)
    classes, stamp = BUILD / minor, BUILD / f"{minor}.sha256"
    wanted = digest(minor, files)
    if classes.is_dir() and stamp.is_file() and stamp.read_text() == wanted:
        return classes
    stamp.unlink(missing_ok=True)
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir(parents=True)
    jars = class_path(minor, program)
    arguments = BUILD / f"{minor}.scalac"
    options = [*SCALAC_FLAGS, "-classpath", os.pathsep.join(map(str, jars)), "-d", str(classes)]
    arguments.write_text("\n".join(f'"{word}"' for word in [*options, *map(str, files)]), encoding="utf-8")
    compiler = os.pathsep.join(str(jar) for jar in jars if jar.name.startswith(("scala-", "jline-", "jna-")))
    command = [program, "-Xss8m", "-cp", compiler, "scala.tools.nsc.Main", f"@{arguments}"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if answer.returncode != 0:
        raise BuildError(f"The Scala compiler refused the shim for Spark {minor}; its messages are above.")
    stamp.write_text(wanted)
    return classes


def jar_contents(minor: str, classes: Path) -> dict[str, bytes]:
    """What the jar of a Spark minor holds: classes, the engine's Python sources, and what it was built for."""
    entries = {str(path.relative_to(classes)): path.read_bytes() for path in classes.rglob("*.class")}
    for path in PACKAGE.rglob("*.py"):
        entries[str(path.relative_to(PACKAGE.parent))] = path.read_bytes()
    resources = SHIM / "resources"
    for path in resources.rglob("*"):
        if path.is_file():
            entries[str(path.relative_to(resources))] = path.read_bytes()
    entries["lamina-build.properties"] = f"version={version()}\nsparkMinor={minor}\n".encode()
    entries["META-INF/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return entries


def write_jar(minor: str, program: str) -> Path:
    """Writes the jar of a Spark minor; the same sources give the same bytes."""
    entries = jar_contents(minor, compiled(minor, program))
    target = PACKAGE / "jars" / jar_name(minor)
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as jar:
        manifest = zipfile.ZipInfo("META-INF/MANIFEST.MF", (1980, 1, 1, 0, 0, 0))
        jar.writestr(manifest, f"Manifest-Version: 1.0\nImplementation-Version: {version()}\n\n")
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, entries[name])
    partial.replace(target)
    return target


def build(minors: list[str]) -> list[Path]:
    """Builds the jars of these Spark minors and removes those of other versions."""
    program = java()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = [write_jar(minor, program) for minor in minors]
    expected = {jar_name(minor) for minor in SPARK_VERSIONS}
    for old in (PACKAGE / "jars").glob("*.jar"):
        if old.name not in expected:
            old.unlink()
    return jars


class ShimBuildHook(BuildHookInterface):  # type: ignore[misc,unused-ignore]
    """Builds the jars before the wheel is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling for each wheel and editable install."""
        build(list(SPARK_VERSIONS))


if __name__ == "__main__":
    for built in build(sys.argv[1:] or list(SPARK_VERSIONS)):
        print(built.relative_to(ROOT))
