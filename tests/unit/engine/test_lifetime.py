"""The engine process: how it starts, what it refuses, and that nothing of it stays behind, however it ends."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import py4j
import pyarrow
import pytest

from lamina.engine.directories import Directories
from lamina.settings import PREFIX
from tests.unit.engine.conftest import Starter
from tests.unit.engine.engine_client import SOURCES, Engine, Refused, Store, checked, entries

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "lamina.engine"], stdin=subprocess.PIPE)
child.stdin.write(sys.stdin.buffer.readline())
child.stdin.flush()
sys.stdin.buffer.read()
"""
"""Stands between the test and the engine as the JVM does: holds the engine's standard input, and can be killed."""


@contextmanager
def watched(pid: int) -> Iterator[None]:
    """Waits at the end of the block until the process has gone; fails after 20 seconds."""
    descriptor = os.pidfd_open(pid)
    try:
        yield
        assert select.select([descriptor], [], [], 20)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


def test_end_of_standard_input_ends_engine_and_maintenance_and_removes_the_directory(engine: Engine) -> None:
    maintenance = engine.call("hello", {})["maintenance_pid"]
    with watched(maintenance):
        assert engine.end() == 0
    assert not engine.directory.exists()


def test_a_directory_that_the_jvm_made_for_its_socket_goes_with_the_engine(
    start_engine: Starter, tmp_path: Path
) -> None:
    own = tmp_path / "lamina-of-the-jvm"
    own.mkdir()
    (own / "hadoop.sock").touch()
    engine = start_engine(start={"hadoop_socket": str(own / "hadoop.sock")})
    assert engine.end() == 0
    assert not own.exists()


def test_nothing_stays_when_the_parent_is_killed(start_engine: Starter) -> None:
    parent = start_engine(arguments=("-c", PARENT))
    hello = parent.call("hello", {})
    with watched(hello["pid"]), watched(hello["maintenance_pid"]):
        parent.process.kill()
    assert not parent.directory.exists()


def test_nothing_stays_when_the_parent_is_killed_with_a_request_in_progress(start_engine: Starter) -> None:
    parent = start_engine(arguments=("-c", PARENT))
    hello = parent.call("hello", {})
    data = parent.connect()
    assert data.greeted()
    data.send({"op": "commit", "handle": 1, "sections": ["increment"]})
    with watched(hello["pid"]), watched(hello["maintenance_pid"]):
        parent.process.kill()
    assert data.closed()
    assert not parent.directory.exists()


def test_the_maintenance_process_goes_when_the_engine_is_killed(engine: Engine) -> None:
    maintenance = engine.call("hello", {})["maintenance_pid"]
    with watched(maintenance):
        engine.process.kill()


def test_a_killed_maintenance_process_is_started_again(engine: Engine) -> None:
    first = engine.call("hello", {})["maintenance_pid"]
    with watched(first):
        os.kill(first, signal.SIGKILL)
    # It comes back at the latest two seconds after its first start; each call below is a round trip to the engine.
    while (stats := engine.call("stats")["maintenance"])["starts"] == 1:
        os.sched_yield()
    assert stats["pid"] != first


def test_sigterm_ends_the_engine_and_removes_the_directory(engine: Engine) -> None:
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(20) == 0
    assert not engine.directory.exists()


def test_a_terminal_interrupt_is_the_parents_to_answer(engine: Engine) -> None:
    engine.process.send_signal(signal.SIGINT)
    assert engine.call("hello", {})["pid"] == engine.process.pid


def test_shutdown_ends_the_engine(engine: Engine) -> None:
    engine.call("shutdown")
    assert engine.process.wait(20) == 0
    assert not engine.directory.exists()


def test_a_private_directory_of_200_characters_works_and_nothing_of_it_stays(
    start_engine: Starter, tmp_path: Path
) -> None:
    directory = tmp_path / ("lamina-" + "d" * (200 - len(str(tmp_path)) - 8))
    assert len(str(directory)) == 200
    engine = start_engine(directory)
    path = Path(checked(engine.answer)["socket"])
    assert len(str(path)) < 108
    assert path.parent.stat().st_mode & 0o777 == 0o700
    data = engine.connect()
    assert data.greeted()
    assert data.request({"op": "ping"})["ok"]
    engine.end()
    assert not path.parent.exists()
    assert not directory.exists()


def listening_in(directory: Path) -> socket.socket:
    """A JVM's socket for Hadoop files, in a directory without an engine."""
    directory.mkdir()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(directory / "hadoop.sock"))
    server.listen()
    return server


def test_a_new_engine_removes_what_a_killed_one_left_and_touches_no_living_one(
    start_engine: Starter, tmp_path: Path
) -> None:
    long = tmp_path / ("lamina-" + "d" * 150)
    living, killed, killed_long = start_engine(), start_engine(), start_engine(long)
    for engine in (killed, killed_long):
        engine.process.kill()
        engine.process.wait()
    starting = tmp_path / "lamina-starting"
    starting.mkdir()
    foreign = tmp_path / "other"
    foreign.mkdir()
    names = ("dead", "listening", "young")
    dead, listening, young = (tmp_path / f"lamina-jvm-{name}" for name in names)
    jvms = [listening_in(path) for path in (dead, listening, young)]
    for jvm in (jvms[0], jvms[2]):
        jvm.close()
    for path in (dead, listening):
        os.utime(path, (0, 0))
    next_engine = start_engine()
    left = [killed.directory, long, Path(killed_long.answer["socket"]).parent, dead]
    while any(path.exists() for path in left):
        assert next_engine.call("hello", {})["ok"]
    next_engine.end()
    for path in (living.directory, starting, foreign, listening, young):
        assert path.exists()
    data = living.connect()
    assert data.greeted()


def test_working_files_lie_where_the_setting_says_and_go_with_the_engine_however_it_ends(
    start_engine: Starter, tmp_path: Path
) -> None:
    base = tmp_path / "disk" / "lamina"
    process = {PREFIX + "engine.localDirectory": str(base)}
    ended, killed = start_engine(process=process), start_engine(process=process)
    first, second = sorted(base.iterdir(), key=lambda path: path.stat().st_ctime_ns)
    assert first.stat().st_mode & 0o777 == 0o700
    # the maintenance process works there, too
    assert any(path.name.startswith("maintenance-") for path in first.iterdir())
    for path in (first, second):
        (path / "lamina-tables-1").mkdir()
        (path / "lamina-tables-1" / "table.sst").write_bytes(b"rows")
    ended.end()
    killed.process.kill()
    killed.process.wait()
    assert [*base.iterdir()] == [second]
    foreign = base / "other"
    foreign.mkdir()
    next_engine = start_engine(process=process)
    while second.exists():
        assert next_engine.call("hello", {})["ok"]
    next_engine.end()
    assert [*base.iterdir()] == [foreign]


def test_a_working_directory_that_cannot_be_is_named(start_engine: Starter, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    base = tmp_path / "file" / "lamina"
    engine = start_engine(process={PREFIX + "engine.localDirectory": str(base)})
    assert engine.answer["error"]["kind"] == "engine.start"
    assert str(base) in engine.answer["error"]["message"]


def test_what_is_written_while_a_directory_is_removed_is_found_by_the_next_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "lamina-own", tmp_path / "lamina-other"
    for path in (own, other):
        path.mkdir()
    held = Directories(str(own))
    (own / "data.sock").touch()
    (own / "tables").mkdir()
    plain = shutil.rmtree

    def rmtree(path: str, ignore_errors: bool) -> None:
        plain(path, ignore_errors)
        (own / "late").touch()

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    held.remove()
    monkeypatch.undo()
    assert {path.name for path in own.iterdir()} == {"data.sock", "late"}
    for descriptor in held._locks:
        os.close(descriptor)
    Directories(str(other)).sweep()
    assert not own.exists()


def test_an_engine_waits_for_the_sweep_that_looks_at_its_directory(tmp_path: Path) -> None:
    own, other = tmp_path / "lamina-own", tmp_path / "lamina-other"
    for path in (own, other):
        path.mkdir()
    looked_at = os.open(own, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(looked_at, fcntl.LOCK_EX)
    sweep = threading.Timer(0.2, os.close, [looked_at])
    sweep.start()
    held = Directories(str(own))
    sweep.join()
    (own / "data.sock").touch()
    Directories(str(other)).sweep()
    assert own.exists()
    held.remove()


def test_a_missing_dependency_is_named_with_the_command_that_installs_it(start_engine: Starter, tmp_path: Path) -> None:
    # -S leaves out site-packages: a Python with nothing installed.
    engine = start_engine(arguments=("-S", "-m", "lamina.engine"), environment={"SPARK_HOME": ""})
    with pytest.raises(Refused, match=r"pip install pyarrow fsspec py4j") as refused:
        checked(engine.answer)
    assert refused.value.kind == "engine.dependency"
    assert engine.process.wait(20) == 1


def test_py4j_is_found_in_the_zip_that_comes_with_spark(start_engine: Starter, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in ("pyarrow", "fsspec"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise ImportError('broken')")
    lib = tmp_path / "spark" / "python" / "lib"
    lib.mkdir(parents=True)
    with zipfile.ZipFile(lib / "py4j-0.10.9.9-src.zip", "w") as archive:
        archive.writestr("py4j/__init__.py", "")
    engine = start_engine(
        arguments=("-S", "-m", "lamina.engine"),
        python_path=f"{SOURCES}{os.pathsep}{site}",
        environment={"SPARK_HOME": str(tmp_path / "spark")},
    )
    # All three are found; that the empty ones do not work is the next thing it says.
    error = engine.answer["error"]
    assert error["kind"] == "engine.dependency"
    assert "does not work" in error["message"]


def test_the_engine_runs_from_a_zip(start_engine: Starter, tmp_path: Path) -> None:
    jar = tmp_path / "shim.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for source in sorted((SOURCES / "lamina").rglob("*.py")):
            archive.write(source, source.relative_to(SOURCES))
    engine = start_engine(python_path=str(jar))
    hello = engine.call("hello", {})
    assert hello["engine_version"] == checked(engine.answer)["engine_version"]
    for pid in (hello["pid"], hello["maintenance_pid"]):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert f"PYTHONPATH={jar}".encode() in environment


def test_another_version_of_the_shim_is_refused_and_the_side_to_upgrade_is_named(start_engine: Starter) -> None:
    with pytest.raises(Refused, match="upgrade the Python package") as refused:
        checked(start_engine(start={"shim_version": "9.0.0"}).answer)
    assert refused.value.kind == "version.engine"
    with pytest.raises(Refused, match="upgrade the shim"):
        checked(start_engine(start={"shim_version": "0.0.1"}).answer)


def test_an_unknown_process_setting_is_refused_at_the_start(start_engine: Starter) -> None:
    with pytest.raises(Refused, match=r"engine\.connections") as refused:
        checked(start_engine(process={"spark.sql.streaming.stateStore.lamina.engine.conections": "3"}).answer)
    assert refused.value.kind == "settings.unknown"


def test_a_start_line_that_is_not_one_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lamina.engine"],
        input=b"hello\n",
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert result.returncode == 1
    assert b'"engine.start"' in result.stdout


def test_the_engine_needs_nothing_but_its_three_dependencies(start_engine: Starter, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for package in (pyarrow, fsspec, py4j):
        home = Path(package.__path__[0])
        for path in home.parent.glob(f"{home.name}*"):
            (site / path.name).symlink_to(path)
    engine = start_engine(arguments=("-S", "-m", "lamina.engine"), python_path=f"{SOURCES}{os.pathsep}{site}")
    url = f"file:{tmp_path}/checkpoint/state"
    data = engine.connect()
    assert data.greeted()
    store = Store(engine, url)
    attempt = store.commit(data, 1, None, entries([(0, 1, b"k", b"v")]))
    assert store.load(data, 1, attempt)[1] == [(0, 1, b"k", b"v")]


def test_the_directory_may_disappear_before_the_engine_ends(engine: Engine) -> None:
    shutil.rmtree(engine.directory)
    assert engine.end() == 0


@pytest.mark.parametrize("left", [b"", b'{"number": 1, "op'], ids=["between two jobs", "in the middle of one"])
def test_the_maintenance_process_ends_wherever_its_engine_was_killed(tmp_path: Path, left: bytes) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lamina.engine.maintenance"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert process.stdin is not None
    with watched(process.pid):
        process.stdin.write(b'{"workers": 2, "jvm": null}\n' + left)
        process.stdin.close()
    process.wait()
