"""What passes the guard of the servers, without sockets; with them: `tests/serving` and `tests/faults/servers.py`."""

import asyncio
import json

import pytest

from esscher.core.auth import ServerConfig
from esscher.core.http_guard import FREE_FAILURES, MAX_CLIENTS, Guard, LoginLimiter, is_allowed_host

TOKEN = "open sesame"


async def app(scope, receive, send):
    """Says the body; 401 without the token, but at /health."""
    body = (await receive())["body"]
    right = dict(scope["headers"]).get(b"authorization") == f"Bearer {TOKEN}".encode() or scope["path"] == "/health"
    await send({"type": "http.response.start", "status": 200 if right else 401, "headers": []})
    await send({"type": "http.response.body", "body": body})


def asked(guard, path="/", *, body=b"{}", method="POST", version="1.1", client="192.0.2.1", **headers):
    """Status and answer of one request; of `body`, None never comes."""
    sent = []

    async def receive():
        if body is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
    scope = {
        "type": "http", "http_version": version, "method": method, "path": path, "raw_path": path.encode(), "headers": pairs,
        "client": (client, 1),
    }  # fmt: skip
    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("localhost", True), ("LOCALHOST:80", True), ("127.0.0.1:8000", True), ("[::1]:8000", True), ("proxy.example", True),
        ("evil.example", False), ("127.0.0.1.evil.example", False), ("localhost@evil.example", False), ("", False),
        ("[::1", False), ("localhost:x", False), ("10.0.0.1", False), ("127.1", False),
    ],
)  # fmt: skip
def test_a_host_that_is_not_this_server_is_refused(host, right):
    config = ServerConfig(allowed_hosts=("proxy.example",))
    assert is_allowed_host(host, config) == right
    status, said = asked(Guard(app, config), "/health", host=host)
    assert status == (200 if right else 421) and (right or b"allowed_hosts" in said)


def test_all_addresses_allow_addresses_but_no_names():
    config = ServerConfig(host="0.0.0.0", token=TOKEN)
    assert is_allowed_host("10.0.0.1:80", config) and not is_allowed_host("evil.example", config)


def test_pages_of_others_are_refused():
    guard = Guard(app, ServerConfig(allowed_hosts=("proxy.example",)))
    for origin, status in {
        "http://localhost": 200,
        "https://proxy.example": 200,
        "http://evil.example": 403,
        "http://localhost:1": 403,
        "null": 403,
        "": 403,
    }.items():
        assert asked(guard, "/health", origin=origin)[0] == status, origin


def test_paths_bodies_and_framing_are_bounded():
    guard = Guard(app, ServerConfig(max_body_bytes=10, receive_timeout=0.05), paths=("/health", "/below/"), check=checked)
    assert asked(guard, "/health")[0] == 200 and asked(guard, "/upload")[0] == 404 and asked(guard, "/below")[0] == 404
    assert asked(guard, "/below/" + "a" * 300)[0] == 414
    assert asked(guard, "/health", body=b" " * 11)[0] == 413 and asked(guard, "/health", content_length="11")[0] == 413
    assert asked(guard, "/health", body=None)[0] == 408
    assert asked(guard, "/health", version="9.9")[0] == 400
    assert asked(guard, "/health", content_length="2", transfer_encoding="chunked")[0] == 400
    status, said = asked(guard, "/health", body=b"wrong")
    assert status == 400 and json.loads(said)["error"]["message"] == "It is wrong. Nothing was done."


def checked(path, body):
    return "It is wrong." if body == b"wrong" else None


def test_guessing_is_slowed_also_between_requests_that_need_no_token():
    guard = Guard(app, ServerConfig(token=TOKEN))
    statuses = []
    for number in range(2 * FREE_FAILURES):
        statuses.append(asked(guard, authorization=f"Bearer wrong {number}")[0])
        asked(guard, "/health", authorization=f"Bearer wrong {number}")
    assert 401 in statuses[:2] and set(statuses[FREE_FAILURES:]) == {429}
    assert asked(guard, authorization=f"Bearer {TOKEN}")[0] == 429
    assert asked(guard, authorization=f"Bearer {TOKEN}", client="192.0.2.2")[0] == 200
    assert asked(guard, authorization="Basic of the proxy", client="192.0.2.3")[0] == 401 and len(guard.logins) == 1


def test_waits_double_and_clients_are_forgotten():
    now = [0.0]
    limiter = LoginLimiter(lambda: now[0])
    waits = []
    for _ in range(FREE_FAILURES + 8):
        limiter.failed("2001:db8::1")
        waits.append(limiter.wait("2001:db8::2"))  # of the same network
    assert waits[: FREE_FAILURES - 1] == [0] * (FREE_FAILURES - 1) and waits[FREE_FAILURES - 1 : FREE_FAILURES + 2] == [1, 2, 4]
    assert waits[-1] == 60
    now[0] = 61
    assert limiter.wait("2001:db8::1") == 0
    for number in range(2 * MAX_CLIENTS):
        limiter.failed(str(number))
    assert len(limiter) == MAX_CLIENTS
