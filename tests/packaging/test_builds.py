"""The wheel, the jars in it, and building them from source."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from lamina._version import __version__
from tests.packaging.conftest import Environment, Program
from tests.packaging.test_three_ways import check

MINORS = ["4.2", "4.3"]


def jars_in(wheel: Path, into: Path) -> dict[str, Path]:
    """The wheel's jars by Spark minor."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jar")]
        return {name.split("lamina-spark-")[1].split("_")[0]: Path(archive.extract(name, into)) for name in names}


def contents(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_the_wheel_has_a_jar_per_spark_minor_with_the_classes_and_the_engine(wheel: Path, tmp_path: Path) -> None:
    jars = jars_in(wheel, tmp_path)
    assert sorted(jars) == MINORS
    for minor, jar in jars.items():
        inside = contents(jar)
        assert f"sparkMinor={minor}" in inside["lamina-build.properties"].decode().splitlines()
        assert "org/apache/spark/sql/lamina/LaminaStateStoreProvider.class" in inside
        assert {"lamina/__init__.py", "lamina/engine/__main__.py", "lamina/settings.py"} <= set(inside)


def test_the_jar_in_maven_is_the_one_in_the_wheel(wheel: Path, maven_home: Path, tmp_path: Path) -> None:
    ours = jars_in(wheel, tmp_path)
    published = {path.name.split("lamina-spark-")[1].split("_")[0]: path for path in maven_home.rglob("*.0.jar")}
    assert published
    for minor, path in published.items():
        mine, theirs = contents(ours[minor]), contents(path)
        mine.pop("META-INF/MANIFEST.MF"), theirs.pop("META-INF/MANIFEST.MF")
        assert sorted(mine) == sorted(theirs)
        python = [name for name in mine if not name.endswith(".class")]
        assert [name for name in python if mine[name] != theirs[name]] == []


def test_the_published_artifact_asks_for_nothing_else(maven_home: Path) -> None:
    poms = list(maven_home.rglob("*.pom"))
    assert poms
    for pom in poms:
        assert "<dependency>" not in pom.read_text(encoding="utf-8")


def test_a_source_distribution_builds_the_same_wheel_in_isolation_without_sbt(
    repository: Path, wheel: Path, tmp_path: Path
) -> None:
    sdist = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(sdist, cwd=repository, check=True, stdin=subprocess.DEVNULL)
    (archive,) = tmp_path.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(archive)]
    environment = {**os.environ, "PIP_CONSTRAINT": str(repository / "constraints.txt")}
    subprocess.run(pip, cwd=tmp_path, env=environment, check=True, stdin=subprocess.DEVNULL, timeout=1800)
    (built,) = tmp_path.glob("*.whl")
    for minor, jar in jars_in(built, tmp_path / "built").items():
        assert contents(jar) == contents(jars_in(wheel, tmp_path / "ours")[minor])


def test_a_build_without_java_says_what_is_needed(repository: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "nothing")}
    build = [sys.executable, "hatch_build.py"]
    ended = subprocess.run(build, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert ended.stderr.startswith(str(tmp_path / "nothing"))
    assert "needs Java 17 or 21" in ended.stderr
    assert "Install a JDK" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_same_wheel_works_with_the_older_spark(
    new_environment: Callable[..., Environment], wheel: Path, run_program: Program
) -> None:
    older = new_environment("pyspark==4.2.0", str(wheel))
    run = run_program([older.python], "configure", spark_home=older.spark_home, environment={"MASTER": "local[2]"})
    check(run, "local[2]")
    assert run.seen["spark"] == "4.2.0"


def test_the_readme_names_the_artifact_and_the_settings_file_that_exist(repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert f"--packages io.lamina:lamina-spark-4.3_2.13:{__version__} --properties-file conf/heap.conf" in readme
    assert (repository / "conf" / "heap.conf").is_file()
