"""Parts that do not fit or are missing: each gets one sentence, with what was found and what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import Environment, Program


def test_a_jar_for_another_spark_names_the_right_one(user: Environment, run_program: Program) -> None:
    other = {"4.2": "4.3", "4.3": "4.2"}[user.spark_minor]
    (jar,) = user.folder.glob(f"lib/python3*/site-packages/lamina/jars/lamina-spark-{other}_*.jar")
    environment = {"MASTER": "local[2]", **user.activated}
    run = run_program([user.python], "by-hand", str(jar), spark_home=user.spark_home, environment=environment)
    assert run.code != 0
    sentences = [line for line in run.output.splitlines() if "[version.spark]" in line]
    assert sentences, run.messages
    assert f"lamina-spark-{user.spark_minor}_2.13" in sentences[0]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "case $1 in --version) echo Python 3.9.2;; *) exit 1;; esac",
            "is Python 3.9.2, but lamina needs Python 3.10-3.13",
        ),
        (
            'case "$*" in *venv*) exit 1;; esac',
            "has no venv module, but lamina is installed into a virtual environment",
        ),
    ],
)
def test_make_with_a_python_that_does_not_fit_says_what_is_needed(
    repository: Path, tmp_path: Path, script: str, says: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    make = ["make", "--silent", "check-machine", f"PYTHON={python}"]
    ended = subprocess.run(make, cwd=repository, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert ended.stderr.startswith(f"{python} {says}"), ended.stderr


def test_make_without_any_python_says_how_to_get_one(repository: Path) -> None:
    make = ["make", "--silent", "check-machine", "PYTHON="]
    ended = subprocess.run(make, cwd=repository, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert ended.stderr.startswith("No Python 3.10-3.13 was found on PATH")
    assert "install it from https://www.python.org" in ended.stderr


def test_executors_without_pyarrow_are_told_what_to_install(
    user: Environment, new_environment: Callable[..., Environment], run_program: Program
) -> None:
    empty = new_environment()
    environment = {
        "MASTER": "local[2]",
        "PYSPARK_PYTHON": empty.python,
        "PYSPARK_DRIVER_PYTHON": user.python,
    }
    run = run_program([user.python], "configure", spark_home=user.spark_home, environment=environment)
    assert run.code != 0
    sentences = [line for line in run.output.splitlines() if "[engine.dependency]" in line]
    assert sentences, run.messages
    assert "pip install" in sentences[0]
    assert "pyarrow" in sentences[0]


def test_a_query_without_the_jar_says_so_before_it_starts(user: Environment, run_program: Program) -> None:
    """`configure` under spark-submit without `--packages`: the driver's JVM runs already and cannot load the jar."""
    submit = [str(user.spark_home / "bin" / "spark-submit"), "--master", "local[2]"]
    environment = {"PYSPARK_PYTHON": user.python, "SPARK_HOME": str(user.spark_home)}
    run = run_program(submit, "configure", spark_home=user.spark_home, environment=environment)
    assert run.code != 0
    assert "[settings.conflict]" in run.output, run.messages
    assert "--packages" in run.output
