"""The control server: connections are taken from the moment on which its port is told."""

import resource
import socket
import threading

import pytest
from py4j.clientserver import PythonServer

from lamina.engine.control import Control, ControlServer
from tests.unit.engine import engine_client
from tests.unit.engine.conftest import Starter


def test_the_port_takes_connections_before_the_servers_thread_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    may_run = threading.Event()
    run = PythonServer.run

    def late(server: PythonServer) -> None:
        may_run.wait()
        run(server)

    monkeypatch.setattr(PythonServer, "run", late)
    control = object.__new__(Control)
    server = ControlServer(control, "token")
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60):
            pass
    finally:
        may_run.set()


def test_an_engine_that_had_no_file_descriptor_for_a_caller_takes_callers_afterwards(start_engine: Starter) -> None:
    engine = start_engine()
    assert engine.call("stats")["ok"]
    pid, port = engine.process.pid, engine.answer["py4j_port"]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    with socket.create_connection(("127.0.0.1", port), timeout=60):
        for _ in range(200):
            assert engine.call("stats")["ok"]  # meanwhile it has tried to take the connection
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    control = engine_client.Control(port, engine.token)
    assert control.call("stats")["ok"]
    control.close()
