"""Installs lamina as a new user would: fresh environments, another directory, the built wheel, no source tree."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lamina._version import __version__

APP = Path(__file__).with_name("app.py")
# Nothing can be reached through these: what works with them works offline.
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
NO_NETWORK_JAVA = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))
PASSED_ON = ("HOME", "JAVA_HOME", "LANG", "LC_ALL", "PATH", "TMPDIR")


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def spark_home(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages/pyspark"))

    @property
    def spark_minor(self) -> str:
        return next((self.spark_home / "jars").glob("spark-core_*.jar")).stem.rsplit("-", 1)[1].rsplit(".", 1)[0]

    @property
    def activated(self) -> dict[str, str]:
        """What `bin/activate` sets."""
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(self.folder)}

    def install(self, *what: str) -> None:
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *what]
        subprocess.run(pip, check=True, cwd=self.folder, stdin=subprocess.DEVNULL, timeout=1800)


@dataclass
class Run:
    """How the user's program ended."""

    code: int
    output: str
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> str:
        """The end of the output without the frames of stack traces."""
        lines = [line for line in self.output.splitlines() if not line.lstrip().startswith(("at ", "File "))]
        return "\n".join(lines[-60:])


Program = Callable[..., Run]


def make(repository: Path, *arguments: str) -> None:
    """Calls a documented command, with the Python that runs these tests."""
    python = f"PYTHON={getattr(sys, '_base_executable', sys.executable)}"
    subprocess.run(["make", "--silent", python, *arguments], cwd=repository, check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def wheel(repository: Path) -> Path:
    """What `make build` built."""
    make(repository, "build")
    return repository / "dist" / f"lamina-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="session")
def maven_home(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory whose local Maven repository holds what `make publish-local` published, and nothing else."""
    home = tmp_path_factory.mktemp("home")
    make(repository, "publish-local", f"M2={home / '.m2' / 'repository'}")
    return home


@pytest.fixture(scope="session")
def new_environment(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Environment]]:
    """Makes virtual environments with pinned packages, and removes them at the end (Spark takes 0.5 GB in each)."""
    made: list[Path] = []
    pins = tmp_path_factory.mktemp("pins") / "constraints.txt"
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins.write_text("\n".join(line for line in lines if not line.startswith("pyspark==")), encoding="utf-8")

    def create(*packages: str) -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        made.append(folder)
        python = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([python, "-m", "venv", str(folder)], check=True, stdin=subprocess.DEVNULL)
        environment = Environment(folder)
        if packages:
            environment.install("-c", str(pins), *packages)
        return environment

    yield create
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def user(new_environment: Callable[..., Environment], wheel: Path) -> Environment:
    """A person's environment: the wheel with Spark and the demo's data."""
    return new_environment(f"lamina[demo] @ {wheel.as_uri()}")


@pytest.fixture(scope="session")
def bare(new_environment: Callable[..., Environment]) -> Environment:
    """A Python such as executors have: pyarrow and fsspec, neither lamina nor pyspark."""
    return new_environment("pyarrow", "fsspec")


@pytest.fixture
def run_program(tmp_path: Path) -> Iterator[Program]:
    """Runs `app.py` from a directory of its own, with no network; nothing that it started may be left afterwards."""
    mark = uuid.uuid4().hex
    copied = tmp_path / "app.py"
    shutil.copy(APP, copied)
    cleaned: list[Path] = []

    def run(launcher: list[str], *arguments: str, spark_home: Path, environment: dict[str, str], java: str = "") -> Run:
        cleaned.append(spark_home / "work")  # local-cluster writes its executors' files there
        full = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        full |= {"LAMINA_TEST_MARK": mark, "SPARK_LOCAL_IP": "127.0.0.1", **NO_NETWORK, **environment}
        # a JVM that lives for seconds gains nothing by the second compiler
        full["SPARK_SUBMIT_OPTS"] = f"{NO_NETWORK_JAVA} -XX:TieredStopAtLevel=1 {java}".strip()
        folder = tmp_path / "data"
        folder.mkdir()
        ended = subprocess.run(
            [*launcher, str(copied), str(folder), *arguments],
            cwd=tmp_path,
            env=full,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        seen = [line.removeprefix("SEEN ") for line in ended.stdout.splitlines() if line.startswith("SEEN ")]
        return Run(ended.returncode, ended.stdout, json.loads(seen[0]) if seen else {})

    yield run
    left = still_running(mark, seconds=30)
    for folder in cleaned:
        shutil.rmtree(folder, ignore_errors=True)
    assert left == [], f"processes were left behind: {left}"


def still_running(mark: str, seconds: float) -> list[str]:
    """The commands of processes with the mark in their environment that do not end within the time."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"LAMINA_TEST_MARK={mark}".encode() not in (folder / "environ").read_bytes():
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            handle = os.pidfd_open(int(folder.name))
        except OSError:
            continue
        with os.fdopen(handle) as process:
            ended, _, _ = select.select([process], [], [], seconds)
        if not ended:
            left.append(command)
    return left
