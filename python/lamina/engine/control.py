"""The control side: a Py4J server whose entry point takes and gives JSON texts, never an exception."""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters, PythonServer

from lamina._version import __version__
from lamina.engine.framing import PROTOCOL
from lamina.engine.maintenance_queue import MaintenanceQueue
from lamina.engine.requests import Requests
from lamina.engine.sessions import Sessions
from lamina.errors import EngineError, LaminaError

log = logging.getLogger(__name__)

_ACCEPT_PAUSE_S = 0.1


def _answered(method: Callable[..., dict[str, Any] | None]) -> Callable[..., str]:
    """Makes a method answer JSON; an exception becomes `{"ok": false, "error": …}`."""

    @functools.wraps(method)
    def answer(self: Control, *arguments: Any) -> str:
        try:
            return json.dumps({"ok": True, **(method(self, *arguments) or {})}, separators=(",", ":"))
        except Exception as error:
            if not isinstance(error, LaminaError):
                log.exception("the control call %s failed", method.__name__)
            ours = LaminaError.from_exception(error)
            return json.dumps({"ok": False, "error": _error(ours)})

    return answer


def _error(error: LaminaError) -> dict[str, str]:
    return {"kind": error.kind, "message": error.message}


def _read(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise EngineError("engine.protocol", f"a control call with an argument that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise EngineError("engine.protocol", "a control call with an argument that is not an object")
    return value


class Control:
    """The entry point; names and arguments are those of docs/spec/wire.md."""

    def __init__(
        self,
        sessions: Sessions,
        requests: Requests,
        maintenance: MaintenanceQueue,
        stats: Callable[[], dict[str, Any]],
        end: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._requests = requests
        self._maintenance = maintenance
        self._stats = stats
        self._end = end

    @_answered
    def hello(self, argument: str) -> dict[str, Any]:
        _read(argument)
        return {
            "engine_version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "maintenance_pid": self._maintenance.pid,
        }

    @_answered
    def openStore(self, argument: str) -> dict[str, Any]:  # noqa: N802 - a name of the wire
        return self._sessions.open(_read(argument))

    @_answered
    def begin(self, handle: int, argument: str) -> dict[str, Any]:
        return self._sessions.get(handle).begin(_read(argument))

    @_answered
    def resolve(self, handle: int, argument: str) -> dict[str, Any]:
        return self._sessions.get(handle).resolve(_read(argument))

    @_answered
    def materialize(self, handle: int, argument: str) -> dict[str, Any]:
        return self._sessions.get(handle).materialize(_read(argument))

    @_answered
    def maintain(self, handle: int, argument: str) -> dict[str, Any]:
        return self._sessions.get(handle).maintain(_read(argument))

    @_answered
    def closeStore(self, handle: int) -> None:  # noqa: N802 - a name of the wire
        self._sessions.close(handle)

    @_answered
    def cancel(self, request_id: int) -> dict[str, Any]:
        broken = self._requests.broken(request_id)
        if broken is not None:
            return {"cancelled": False, "error": _error(broken)}
        return {"cancelled": self._requests.cancel(request_id)}

    @_answered
    def hurry(self, request_id: int) -> dict[str, Any]:
        return {"hurried": self._requests.hurry(request_id)}

    @_answered
    def stats(self) -> dict[str, Any]:
        return self._stats()

    @_answered
    def shutdown(self) -> None:
        self._end()


class _PythonServer(PythonServer):  # type: ignore[misc]
    """Py4J's server ends with the first connection that it cannot take: this one goes on."""

    def run(self) -> None:
        pause = threading.Event()
        super().run()
        while not self.is_shutdown:
            # out of file descriptors or threads: who connects goes on waiting
            pause.wait(_ACCEPT_PAUSE_S)
            super().run()


class _ClientServer(ClientServer):  # type: ignore[misc]
    """Py4J's pair of client and server, with that server."""

    def _create_callback_server(self, _: Any) -> PythonServer:
        return _PythonServer(self._gateway_client, self.java_parameters, self.python_parameters, self.gateway_property)


class ControlServer:
    """Listens on a free port of the loopback interface; a caller without the token is refused by Py4J."""

    def __init__(self, control: Control, token: str) -> None:
        # The Java parameters are never used: this side calls nothing in the JVM.
        self._server = _ClientServer(
            java_parameters=JavaParameters(port=0, auth_token=token),
            python_parameters=PythonParameters(
                address="127.0.0.1", port=0, daemonize=True, daemonize_connections=True, auth_token=token
            ),
            python_server_entry_point=control,
        )
        self._callbacks = self._server.get_callback_server()
        # Py4J listens only when the thread that it has started gets to run; the port is told before that
        self._callbacks.server_socket.listen()

    @property
    def port(self) -> int:
        """Where the server listens: connections are taken from now on."""
        return int(self._callbacks.get_listening_port())
