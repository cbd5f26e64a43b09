"""The three documented ways into lamina, in one JVM and on a cluster of two executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.conftest import Environment, Program, Run

MASTERS = ["local[2]", "local-cluster[2,1,1024]"]


def check(run: Run, master: str) -> None:
    """The program gave the right answer, with its state in lamina, and one engine for each executor."""
    assert run.code == 0, run.messages
    seen = run.seen
    assert seen["identical"]
    assert seen["words"] == 6
    assert seen["batches"] >= 6
    assert seen["state_files"] > 0
    assert seen["other_files"] == 0
    cluster = master.startswith("local-cluster")
    assert seen["executors"] == (3 if cluster else 1)
    if seen["proc"]:
        assert seen["engine_parents"] == (2 if cluster else 1)


@pytest.mark.parametrize("master", MASTERS)
def test_configure_in_a_python_program(user: Environment, run_program: Program, master: str) -> None:
    run = run_program([user.python], "configure", spark_home=user.spark_home, environment={"MASTER": master})
    check(run, master)
    assert run.seen["format"] == "2"
    assert f"lamina-spark-{user.spark_minor}_2.13" in run.seen["jars"]


@pytest.mark.parametrize("master", MASTERS)
def test_spark_submit_with_packages_and_a_properties_file_where_executors_have_only_pyarrow_and_fsspec(
    user: Environment, bare: Environment, maven_home: Path, run_program: Program, repository: Path, master: str
) -> None:
    (version,) = {path.parent.name for path in maven_home.rglob("*.pom")}
    submit = [str(user.spark_home / "bin" / "spark-submit"), "--master", master]
    submit += ["--packages", f"io.lamina:lamina-spark-{user.spark_minor}_2.13:{version}"]
    submit += ["--properties-file", str(repository / "conf" / "heap.conf")]
    environment = {"PYSPARK_PYTHON": bare.python, "SPARK_HOME": str(user.spark_home)}
    run = run_program(
        submit,
        "submitted",
        spark_home=user.spark_home,
        environment=environment,
        java=f"-Duser.home={maven_home}",
    )
    check(run, master)
    assert run.seen["format"] == "2"
    assert not run.seen["lamina_installed"]


@pytest.mark.parametrize("master", MASTERS)
def test_provider_class_and_jar_set_by_hand(user: Environment, run_program: Program, master: str) -> None:
    (jar,) = user.folder.glob(f"lib/python3*/site-packages/lamina/jars/lamina-spark-{user.spark_minor}_*.jar")
    environment = {"MASTER": master, **user.activated}
    run = run_program([user.python], "by-hand", str(jar), spark_home=user.spark_home, environment=environment)
    check(run, master)
    assert run.seen["format"] == "1"
