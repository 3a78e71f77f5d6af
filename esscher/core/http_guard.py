"""What every request to a server of this library passes first, as plain ASGI: `Guard` around the application.

    framing   HTTP/1, with a length or with chunks but not both; else 400 (what a proxy before this might read otherwise)
    Host      must name this server: its address, localhost, or one of `allowed_hosts`; else 421 (DNS rebinding)
    Origin    where a browser sends it, must be this server or one of `allowed_hosts`; else 403 (pages of others)
    path      up to `MAX_PATH` bytes, else 414; one of `paths`, where only some are served; else 404
    body      is read before the application is called: `max_body_bytes` (413) within `receive_timeout` (408), and
              passes `check`, which says what is wrong with the body of a path (400)
    login     a client that fails often waits, longer each time (429)

Time limits of headers and idle connections are in `esscher.core.http_server`.
"""

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from esscher.core.auth import ServerConfig, token_matches

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Check = Callable[[str, bytes], str | None]

VERSIONS = ("1.0", "1.1")
BEARER = "Bearer "
MAX_PATH = 255  # as names of files
LOGIN = "/login"  # where a page's visitors send their password
FREE_FAILURES, MAX_WAIT, MAX_CLIENTS = 5, 60.0, 1_024  # wrong tokens without a wait; seconds; clients that are remembered
SAFER = ((b"x-frame-options", b"SAMEORIGIN"), (b"x-content-type-options", b"nosniff"))  # headers of every answer
ERROR_TYPES = {
    401: "authentication_error", 408: "timeout", 413: "request_too_large", 429: "rate_limit_error", 500: "server_error",
}  # fmt: skip


class LoginLimiter:
    """Counts wrong tokens by client: after `FREE_FAILURES` in a row, a client waits 1 s, 2 s, 4 s, ... up to `MAX_WAIT`."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.now = now
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, and until when the client waits

    def __len__(self) -> int:
        return len(self._failures)

    def wait(self, client: str) -> float:
        """Seconds until this client may try again; 0 if it may now."""
        return max(0.0, self._failures.get(_network(client), (0, 0.0))[1] - self.now())

    def failed(self, client: str) -> None:
        key = _network(client)
        failures = self._failures.pop(key, (0, 0.0))[0] + 1
        wait = min(MAX_WAIT, 2.0 ** min(failures - FREE_FAILURES, 30)) if failures >= FREE_FAILURES else 0.0
        self._failures[key] = failures, self.now() + wait
        if len(self._failures) > MAX_CLIENTS:
            self._failures.popitem(last=False)

    def succeeded(self, client: str) -> None:
        self._failures.pop(_network(client), None)


class Guard:
    """An application behind the checks of this module; of `paths`, those that end with "/" stand for all below."""

    def __init__(self, app: App, config: ServerConfig, *, paths: Iterable[str] | None = None, check: Check | None = None):
        self.app, self.config, self.check, self.logins = app, config, check, LoginLimiter()
        self.paths = None if paths is None else frozenset(paths)
        self.below = tuple(path for path in self.paths or () if path.endswith("/") and path != "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        refused = self._refusal(scope, headers)
        if refused is not None:
            return await answer(send, *refused, close=refused[0] == 400)  # where the next request begins is unknown
        try:
            async with asyncio.timeout(self.config.receive_timeout):
                body = await self._body(receive, headers)
        except TimeoutError:
            seconds = self.config.receive_timeout
            return await answer(send, 408, f"The body did not arrive within {seconds:g} s. Nothing was done.")
        if isinstance(body, int):
            limit = self.config.max_body_bytes
            return await answer(send, 413, f"A request has at most {limit:,} bytes, not {body:,}. Nothing was done.")
        if body is None:  # the client is gone
            return None
        if scope["method"] == "POST" and self.check is not None and (wrong := self.check(scope["path"], body)) is not None:
            return await answer(send, 400, f"{wrong} Nothing was done.")
        await self._call(scope, body, receive, send, headers)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """Status and reason if a request is refused for its headers or its path."""
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if scope["http_version"] not in VERSIONS:
            return 400, f"This is a server of HTTP/1.1, not {_short(scope['http_version'])}. Nothing was done."
        if b"content-length" in headers and b"transfer-encoding" in headers:
            return 400, "A request has a length or a transfer encoding, not both. Nothing was done."
        if not is_allowed_host(host, self.config):
            return (
                421,
                f"This server is not {_short(host)}. Nothing was done; to serve under that name, name it in allowed_hosts.",
            )
        if origin is not None and not is_allowed_origin(origin, host, self.config):
            return 403, f"A page of {_short(origin)} may not use this server. Nothing was done."
        path = scope["path"]
        if len(scope.get("raw_path") or path.encode(errors="replace")) > MAX_PATH:
            return 414, f"A path has at most {MAX_PATH} bytes. Nothing was done."
        known = self.paths is None or path in self.paths or path.startswith(self.below)
        return None if known else (404, f"There is no {_short(path)} here.")

    async def _body(self, receive: Receive, headers: dict[bytes, str]) -> bytes | int | None:
        """The body, or how long it is if that is too long, or None if the client is gone."""
        declared = headers.get(b"content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.config.max_body_bytes:
            return int(declared[:20])
        content = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            content += message.get("body", b"")
            if len(content) > self.config.max_body_bytes:
                return len(content)
            if not message.get("more_body", False):
                return bytes(content)

    async def _call(self, scope: Scope, body: bytes, receive: Receive, send: Send, headers: dict[bytes, str]) -> None:
        """Call the application with the body, unless the client has to wait after wrong tokens."""
        client, logs_in = (scope.get("client") or ("",))[0], scope["path"].rstrip("/") == LOGIN and scope["method"] == "POST"
        authorization = headers.get(b"authorization", "")
        tries = self.config.token is not None and (logs_in or authorization.startswith(BEARER))
        if tries and (wait := self.logins.wait(client)):
            seconds = math.ceil(wait)
            return await answer(send, 429, f"Too many wrong tokens; try again in {seconds} s.", retry_after=seconds)
        if tries and not logs_in and token_matches(authorization, f"{BEARER}{self.config.token}"):
            self.logins.succeeded(client)
        elif tries:
            self.logins.failed(client)  # of a login, until the answer says otherwise: attempts at the same time count, too
        replayed = False

        async def receive_again() -> MutableMapping[str, Any]:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status, extra = message["status"], list(SAFER)
                if tries and logs_in and status < 400:
                    self.logins.succeeded(client)
                if status == 503:
                    extra.append((b"retry-after", b"1"))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self.app(scope, receive_again, watched)


def is_allowed_host(header: str, config: ServerConfig) -> bool:
    """Whether a Host names this server. One that listens on all addresses allows every IP address: no name, no rebinding."""
    name, own = _host_name(header), config.host.lower().strip("[]")
    if name in {own, "localhost", "127.0.0.1", "::1", *map(str.lower, config.allowed_hosts)} and name:
        return True
    return _is_wildcard(own) and _ip(name) is not None


def is_allowed_origin(origin: str, host: str, config: ServerConfig) -> bool:
    """Whether a page of this origin may use the server: its own pages, and those of `allowed_hosts`."""
    scheme, separator, authority = origin.lower().partition("://")
    if scheme not in ("http", "https") or not separator:
        return False
    return authority == host.lower() or _host_name(authority) in {*map(str.lower, config.allowed_hosts)}


async def answer(send: Send, status: int, message: str, *, retry_after: int | None = None, close: bool = False) -> None:
    """Send an error in the format of OpenAI."""
    content = json.dumps(error_body(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [] if retry_after is None else [(b"retry-after", str(retry_after).encode())]
    headers += [(b"connection", b"close")] if close else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """An error in the format of OpenAI."""
    kind = ERROR_TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or status}}


def _host_name(authority: str) -> str:
    """The name of `name:port`, in lower case, without the brackets of an IPv6 address; "" if it is malformed."""
    name, _, port = authority.lower().rpartition(":") if not authority.endswith("]") else (authority.lower(), "", "")
    if not name:
        name, port = port, ""
    if port and not (port.isascii() and port.isdecimal()):
        return ""
    if name.startswith("["):
        return name[1:-1] if name.endswith("]") else ""
    return name if ":" not in name else ""


def _ip(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _is_wildcard(host: str) -> bool:
    address = _ip(host)
    return host == "" or (address is not None and address.is_unspecified)


def _network(client: str) -> str:
    """The client's address; of IPv6 its network, within which an address costs nothing."""
    address = _ip(client)
    return str(ip_network((client, 64), strict=False)) if isinstance(address, IPv6Address) else client


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
