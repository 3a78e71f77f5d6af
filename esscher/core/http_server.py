"""Serve an ASGI application with uvicorn, with limits on connections and on time. Needs uvicorn.

connections   at most `MAX_CONNECTIONS`; a further one takes the place of the oldest that has sent no whole request yet, and
              is refused (503) if all are being answered
headers       within `receive_timeout` of the connection, or of the last answer; bodies: `esscher.core.http_guard`
idle          connections are closed after `IDLE_SECONDS`, and so are clients that do not read for `WRITE_SECONDS`
signals       SIGTERM and SIGINT end the server when what is being answered is done, after `GRACE_SECONDS` in any case:
              another process watches, because code that never returns can keep this one from seeing the signal
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from esscher.core.auth import ServerConfig
from esscher.core.http_guard import App

MAX_CONNECTIONS = 256
IDLE_SECONDS = 5
WRITE_SECONDS = 30.0
GRACE_SECONDS, KILL_SECONDS = 3, 2.0  # for what is being answered; then for the process to end
MAX_HEADER_BYTES = 65_536
CLOSING = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"
WATCHDOG = """
import os, select, signal, sys
parent, seconds = int(sys.argv[1]), float(sys.argv[2])
while (byte := os.read(0, 1)) and byte[0] not in (signal.SIGINT, signal.SIGTERM):
    pass
while byte and select.select([0], [], [], seconds)[0]:
    byte = os.read(0, 1)  # nothing, at the end of the process
if byte:
    os.kill(parent, signal.SIGKILL)
"""


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn with the limits of this module."""

    receive_timeout = ServerConfig.receive_timeout

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.opened = self.loop.time()
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether the client has yet to send a request, or the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_header_timer()
        if len(self.connections) <= MAX_CONNECTIONS:
            return
        others = [other for other in self.connections if other is not self and getattr(other, "is_receiving", False)]
        if others:
            min(others, key=lambda other: other.opened).transport.abort()  # type: ignore[union-attr]
        else:
            self._close(b"503 Service Unavailable")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_header_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def _set_header_timer(self) -> None:
        """Count the seconds until a request's headers are here, from the connection or the last answer on."""
        waits = (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()
        if waits and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.receive_timeout, self._close, b"408 Request Timeout")
        elif not waits and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close(self, status: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None:
                self.transport.write(CLOSING % status)
            self.transport.close()


def server_config(app: App, config: ServerConfig) -> uvicorn.Config:
    """The settings of uvicorn with the limits of this module."""
    protocol = type("LimitedProtocol", (LimitedProtocol,), {"receive_timeout": config.receive_timeout})
    return uvicorn.Config(
        app, http=protocol, ws="none", loop="asyncio",  # uvloop would take the pipe of the watchdog
        log_level="error", access_log=False, server_header=False,
        proxy_headers=bool(config.allowed_hosts),  # addresses of clients behind a proxy of this machine
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )  # fmt: skip


def listen(host: str, ports: range) -> socket.socket:
    """A socket that listens on the first free one of some ports."""
    for port in ports:
        try:
            places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, address = min(places, key=lambda place: place[0] != socket.AF_INET)
            return socket.create_server(address[:2], family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            reason = error
    taken = f"port {ports[0]}" if len(ports) == 1 else f"any port from {ports[0]} to {ports[-1]}"
    raise OSError(f"Cannot listen on {taken} at {host}: {reason.strerror or reason}. Nothing is served; choose another --port.")


def address_of(listener: socket.socket, config: ServerConfig) -> str:
    """The address to open in a browser."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listener.getsockname()[1]}"


def run(app: App, config: ServerConfig, listener: socket.socket) -> None:
    """Serve until a signal."""
    with watchdog(GRACE_SECONDS + KILL_SECONDS):
        uvicorn.Server(server_config(app, config)).run([listener])


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Have this process killed `seconds` after a signal, if it has not ended by then. The signal is written to a pipe by the C
    code of Python at once, even if no Python code gets to run."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-I", "-S", "-c", WATCHDOG, str(os.getpid()), str(seconds)]
    with open(reader, "rb") as stdin:
        process = subprocess.Popen(command, stdin=stdin, start_new_session=True)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        process.wait()
