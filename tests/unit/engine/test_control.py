"""The control server: connections are taken from the moment on which its port is told."""

import socket
import threading

import pytest
from py4j.clientserver import PythonServer

from lamina.engine.control import Control, ControlServer


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
