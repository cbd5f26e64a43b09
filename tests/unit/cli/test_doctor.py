"""`lamina doctor` on machines that fit and on machines that do not."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Lamina


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory for programs that pretend to be Java or Python."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def write(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("found", "fits"), [("17.0.9", True), ("21.0.1", True), ("11.0.2", False), ("1.8.0_392", False)]
)
def test_java_is_17_or_21(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Path, found: str, fits: bool
) -> None:
    write(program / "java", f"echo 'openjdk version \"{found}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    outcome = lamina("doctor")
    (line,) = [line for line in outcome.out.splitlines() if str(program / "java") in line]
    assert line.startswith("✓" if fits else "✗")
    if not fits:
        assert outcome.code == 1
        assert "needs Java 17 or 21" in outcome.out


def test_a_java_without_a_module_that_spark_starts_it_with_does_not_fit(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Path
) -> None:
    refuses = 'case "$1" in --add-modules=*) echo "Module jdk.incubator.vector not found"; exit 1;; esac'
    write(program / "java", f"{refuses}\necho 'openjdk version \"21.0.8\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    outcome = lamina("doctor")
    assert outcome.code == 1
    assert "is a Java 21 without the module jdk.incubator.vector" in " ".join(outcome.out.split())
    assert "Install a JDK" in outcome.out


def test_no_java_says_how_to_get_one(lamina: Lamina, monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program))
    outcome = lamina("doctor")
    assert outcome.code == 1
    assert "No Java was found" in outcome.out
    assert "Install a JDK" in outcome.out


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ('[[3, 11, 2], {"pyarrow": null, "fsspec": "2025.1"}]', "pyarrow is not installed for"),
        ('[[3, 11, 2], {"pyarrow": "12.0.1", "fsspec": "2025.1"}]', "but the engine needs 17"),
        ('[[3, 9, 2], {"pyarrow": "20", "fsspec": "2025.1"}]', "is Python 3.9.2, but lamina needs Python 3.10 to 3.13"),
        ("no JSON", "cannot be run"),
    ],
)
def test_the_python_of_executors_is_looked_at(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, program: Path, answer: str, sentence: str
) -> None:
    python = write(program / "python3", f"echo '{answer}'")
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    outcome = lamina("doctor")
    assert outcome.code == 1
    assert sentence in outcome.out
    assert str(python) in outcome.out


def test_the_same_python_is_not_looked_at_twice(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert lamina("doctor").out.count("pyarrow") == 1


def test_another_environment_of_the_same_interpreter_is_looked_at(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python3"
    assert os.path.realpath(bare) == os.path.realpath(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    outcome = lamina("doctor")
    assert outcome.code == 1
    assert f"{bare} -m pip install" in outcome.out


def test_another_spark_is_named_with_the_command_that_installs_the_right_one(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.0.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    outcome = lamina("doctor")
    assert outcome.code == 1
    assert f"{tmp_path} is Spark 4.0, but lamina" in outcome.out
    assert "pip install pyspark==4." in outcome.out
