"""Attacks on the three servers: `serve`, `explore` and `compare`, each in a process of its own at a port of 127.0.0.1.

A case sends what a hostile, broken or hurried client would, and compares the statuses with those that are right; 0 stands for a
connection that was closed without an answer. Afterwards the server must still answer within `FREEZE` seconds.
"""

import atexit
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp

from faults.suite import Case, Family, Outcome

TOKEN, FREEZE = "open sesame", 4.0
RECEIVE, TIMEOUT = 1.0, 1.5  # limits of the servers under attack, in seconds
BOMBS = (r"(a|aa)+$", r"(a|aa)+(?=!)x", r"(aa|a)*$", r"((a|aa)+)+\1$")  # on the text below
BOMBED = "a" * 60 + "!"
LOOP, SLEEP, HOG, NAN = (len(BOMBS) + extra for extra in (1, 2, 3, 4))  # tokens of the prompt that ask for this


class Hostile:
    """An energy that does what the length of the prompt says: flat, a bomb, a loop without end, a sleep, a loop in C, NaN."""

    def __call__(self, x):
        from esscher.energies.text_scorers import pattern_scorer

        asked = int(x.start[0])
        if 1 <= asked <= len(BOMBS):
            pattern_scorer(BOMBS[asked - 1])(BOMBED)
        while asked == LOOP:
            pass
        if asked == SLEEP:
            time.sleep(TIMEOUT + 1)
        if asked == HOG:
            re.search(r"(a|aa)+$", BOMBED)  # holds the interpreter's lock for years
        return x.tokens.double().sum(-1) * (float("nan") if asked == NAN else 0.1)


@cache
def model():
    from small_networks import CONFIGS, lively

    from esscher.core.space import Space
    from esscher.core.target import Tilted
    from esscher.data.tokenizers import character_tokenizer
    from esscher.workflow.model import Model
    from esscher.workflow.processors import TextProcessor

    space = Space(3, 6, eos=0)
    base = lively(CONFIGS["gru, one-hot"], space)
    processor = TextProcessor(character_tokenizer("ab", unknown=False), space)
    return Model(base, Tilted(base, Hostile()), processor, folder=Path("toy"))


def serve_app(kind):
    """The application of a kind of server, and its settings."""
    from esscher.explorer.config import PageServerConfig
    from esscher.explorer.page_app import page_app
    from esscher.serving.config import ServeConfig
    from esscher.serving.engine import Engine
    from esscher.serving.server import create_app

    token = TOKEN if kind in ("token", "explore") else None
    if kind in ("serve", "token"):
        limits = {"max_concurrent": 2, "max_queued": 6, "max_prompt_tokens": 12, "timeout": TIMEOUT, "max_body_bytes": 20_000}
        config = ServeConfig(token=token, receive_timeout=RECEIVE, allowed_hosts=("proxy.example",), **limits)
        return create_app(Engine(model(), config)), config
    config = PageServerConfig(token=token, receive_timeout=RECEIVE, allowed_hosts=("proxy.example",))
    if kind == "explore":
        from esscher.explorer.page import build_explorer_page
        from esscher.explorer.views import Explorer

        return page_app(build_explorer_page(Explorer(model(), None, ("", "a")), timeout=TIMEOUT), config), config
    from esscher.explorer.blind_comparison import ComparisonStore, build_comparison_page, make_pairs

    texts = [[f"{name} wrote text number {n} here" for n in range(4)] for name in ("first", "second")]
    pairs = make_pairs([f"prompt {n}" for n in range(4)], *texts, seed=0)
    return page_app(build_comparison_page(ComparisonStore.create_or_resume(votes_folder(), pairs, seed=0)), config), config


@cache
def votes_folder():
    return Path(mkdtemp(prefix="esscher-votes-"))


def votes():
    file = votes_folder() / "votes.jsonl"
    return file.read_text().count("\n") if file.is_file() else 0


def _run(kind, listener):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from esscher.core.http_server import run

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    run(*serve_app(kind), listener)


def start(kind):
    """A server in a process of its own, and its port."""
    from esscher.core.http_server import listen

    model()
    if kind in ("explore", "compare"):
        from esscher.explorer.config import load_gradio

        load_gradio()
        votes_folder()
    listener = listen("127.0.0.1", range(1))
    process = get_context("fork").Process(target=_run, args=(kind, listener), daemon=True)
    process.start()
    port = listener.getsockname()[1]
    listener.close()
    if not healthy(port, kind, seconds=60):
        process.kill()
        raise RuntimeError(f"the server {kind} did not start")
    return process, port


@cache
def port_of(kind):
    """The port of the server that the cases of this process share."""
    process, port = start(kind)
    atexit.register(process.kill)
    return port


def healthy(port, kind, seconds=FREEZE):
    """Whether a server answers; a page must also compute, in the queue of gradio."""
    page = kind in ("explore", "compare")
    status = send(port, request(b"", method="GET", path="/theme.css" if page else "/health"), seconds=seconds)
    if status != 200 or not page:
        return status == 200
    call = ("tokens", ["", "sir", 16, 1, 0, 0]) if kind == "explore" else ("begin", ["watchman"])
    return b"event: complete" in called(port, *call, seconds=seconds, cookie=cookie(port) if kind == "explore" else None)


@cache
def cookie(port):
    """The cookie of a visitor who knows the token."""
    form = request(
        b"username=a&password=open+sesame", path="/login", Content_Type="application/x-www-form-urlencoded", Connection="close"
    )
    _, text = send(port, form, whole=True, source="127.0.0.9")
    return "; ".join(part.decode() for part in re.findall(rb"set-cookie: ([^;\r]+)", text))


def called(port, name, data, *, seconds=8.0, cookie=None, session=None):
    """What a call of a page's function answers: its events, or the refusal."""
    make = partial(request, Cookie=cookie, Connection="close")
    body = {"data": data} if session is None else {"data": data, "session_hash": session}
    status, text = send(port, make(body, path=f"/gradio_api/call/{name}"), whole=True, seconds=seconds)
    if status != 200:
        return text
    event = json.loads(text.rpartition(b"\r\n\r\n")[2])["event_id"]
    place = make(b"", method="GET", path=f"/gradio_api/call/{name}/{event}")
    return send(port, place, whole=True, seconds=seconds)[1]


def send(port, *pieces, seconds=8.0, pause=0.0, half_close=False, source="127.0.0.1", whole=False):
    """The status of the answer to these bytes, sent piece by piece; 0 if there is none. With `whole`, all that came."""
    received, status = b"", 0
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds, source_address=(source, 0)) as client:
            end = time.monotonic() + seconds
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        time.sleep(pause)
                    client.sendall(piece)
                if half_close:
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the server has had enough; its answer may be there
            while time.monotonic() < end and (whole or b"\r\n\r\n" not in received):
                client.settimeout(max(0.01, end - time.monotonic()))
                part = client.recv(65_536)
                if not part:
                    break
                received += part
    except OSError:
        pass
    if received.startswith(b"HTTP/1.1 ") and len(received) > 12:
        status = int(received[9:12])
        if status == 503 and b"retry-after" in received.lower():
            status = 429  # overload, said properly
    return (status, received) if whole else status


def request(content, *, method="POST", path="/v1/completions", length=None, **headers):
    """The bytes of a request; `content` is bytes, or what becomes JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    said = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(body) if length is None else length}
    said.update({name.replace("_", "-"): value for name, value in headers.items()})
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def case(name: str, kind: str, attack: Callable[[int], Sequence[int]], right: set[int]) -> Case:
    """A case: the attack's statuses must be among the right ones, and the server must live."""

    def run(folder: Path) -> Outcome:
        port = port_of(kind)
        actual = list(attack(port))
        failed = sum(status >= 500 for status in actual)
        accepted = sum(status < 400 and status not in right for status in actual if status)
        frozen = int(not healthy(port, kind))
        detail = f"{name}: {actual}, right are {sorted(right)}; {'frozen' if frozen else 'alive'}"
        other = [status for status in actual if status not in right and status < 500 and (status >= 400 or not status)]
        if other:
            raise AssertionError(detail)
        return Outcome({"500s": failed, "freezes": frozen, "wrong acceptances": accepted}, detail)

    return Case(name, run, slow=kind in ("explore", "compare"))  # importing gradio takes many seconds


def sends(name: str, right: set[int], *pieces: bytes, kind: str = "serve", **how) -> Case:
    return case(name, kind, lambda port: [send(port, *pieces, **how)], right)


REFUSED_JSON = {
    "nothing": b"",
    "a brace": b"{",
    "no object": b"[1]",
    "a number": b"7",
    "null": b"null",
    "a text": b'"a"',
    "trailing": b'{"prompt": "a"} x',
    "single quotes": b"{'prompt': 'a'}",
    "deep list": b"[" * 10_000,
    "deep object": b'{"a":' * 3_000,
    "a huge whole number": b'{"prompt": "a", "n": ' + b"9" * 5_000 + b"}",
    "NaN as n": b'{"prompt": "a", "n": NaN}',
    "NaN as temperature": b'{"prompt": "a", "temperature": NaN}',
    "infinite temperature": b'{"prompt": "a", "temperature": 1e999}',
    "cold": b'{"prompt": "a", "temperature": 1e-300}',
    "no prompts": b'{"prompt": []}',
    "null prompt": b'{"prompt": null}',
    "tokens": b'{"prompt": [1, 2]}',
    "mixed prompts": b'{"prompt": ["a", 1]}',
    "an object as prompt": b'{"prompt": {"a": 1}}',
    "true prompt": b'{"prompt": true}',
    "n of 0": b'{"prompt": "a", "n": 0}',
    "n below 0": b'{"prompt": "a", "n": -1}',
    "huge n": b'{"prompt": "a", "n": 1000000000}',
    "n of 1.5": b'{"prompt": "a", "n": 1.5}',
    "n as text": b'{"prompt": "a", "n": "3"}',
    "true n": b'{"prompt": "a", "n": true}',
    "list as n": b'{"prompt": "a", "n": [1]}',
    "max_tokens of 0": b'{"prompt": "a", "max_tokens": 0}',
    "max_tokens below 0": b'{"prompt": "a", "max_tokens": -5}',
    "max_tokens as text": b'{"prompt": "a", "max_tokens": "5"}',
    "top_k of 0": b'{"prompt": "a", "top_k": 0}',
    "top_p of 2": b'{"prompt": "a", "top_p": 2}',
    "top_p of 0": b'{"prompt": "a", "top_p": 0}',
    "a seed of 100 bits": b'{"prompt": "a", "seed": 1267650600228229401496703205376}',
    "a seed of 1e30": b'{"prompt": "a", "seed": 1e30}',
    "many candidates": b'{"prompt": "a", "num_candidates": 100000}',
    "stream of 1": b'{"prompt": "a", "stream": 1}',
    "unknown field": b'{"prompt": "a", "wings": 2}',
    "stop": b'{"prompt": "a", "stop": ["a"]}',
    "echo": b'{"prompt": "a", "echo": true}',
    "true best_of": b'{"prompt": "a", "best_of": true}',
    "logprobs": b'{"prompt": "a", "logprobs": 5}',
    "options without a stream": b'{"prompt": "a", "stream_options": {"include_usage": true}}',
    "options of another kind": b'{"prompt": "a", "stream": true, "stream_options": [1]}',
    "a number as model": b'{"prompt": "a", "model": 3}',
    "an object as user": b'{"prompt": "a", "user": {}}',
    "another letter": b'{"prompt": "c"}',
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "the other half": b'{"prompt": "a\\udfffa"}',
    "a surrogate as field": b'{"prompt": "a", "\\ud800": 1}',
    "a NUL": b'{"prompt": "\\u0000"}',
    "Latin-1": b'{"prompt": "\xe9"}',
    "half of UTF-8": b'{"prompt": "a\xc3"}',
    "UTF-7": b'{"prompt": "+AOk-"}',
    "an emoji": '{"prompt": "\U0001f600"}'.encode(),
    "right to left": '{"prompt": "\u202eab"}'.encode(),
    "overlong UTF-8": b'{"prompt": "\xc0\x80"}',
    "a mark": b'{"prompt": "a\\u0301"}',
    "a byte-order mark inside": '{"prompt": "\ufeffa"}'.encode(),
    "NaN from the energy": json.dumps({"prompt": "a" * NAN}).encode(),
}
ACCEPTED_JSON = {
    "no prompt": {},
    "huge max_tokens": {"prompt": "", "max_tokens": 10**30},
    "huge top_k": {"prompt": "", "top_k": 10**30},
    "tiny top_p": {"prompt": "", "top_p": 1e-300},
    "smallest seed": {"prompt": "", "seed": -(2**63)},
    "no-op fields": {"prompt": "", "stop": None},
    "this model": {"prompt": "", "model": "toy"},
    "hot": {"prompt": "", "temperature": 100},
    "a user": {"prompt": "", "user": "\ud83d\ude00"},
}
OK = {"prompt": ""}


def json_cases() -> Iterator[Case]:
    for name, body in REFUSED_JSON.items():
        yield sends(f"JSON: {name}", {400}, request(body))
    for name, body in ACCEPTED_JSON.items():
        yield sends(f"JSON: {name}", {200}, request(body))
    yield sends("JSON: another model", {404}, request({"prompt": "", "model": "gpt-4"}))
    yield sends("JSON: a surrogate as model", {404}, request(b'{"prompt": "", "model": "\\ud800"}'))
    yield sends("JSON: many prompts", {413}, request({"prompt": [""] * 9}))
    yield sends("JSON: a long prompt", {413}, request({"prompt": "a" * 13}))
    yield sends("JSON: many bytes", {413}, request(b" " * 30_000))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/html; charset=utf-7"):
        yield sends(f"content type {kind}", {415}, request(OK, Content_Type=kind))
    for body in ({"prompt": "c", "stream": True}, {"prompt": "a" * NAN, "stream": True}):
        yield case(f"a stream of {body['prompt']}", "serve", partial(failed_stream, body), {400})


def failed_stream(body, port):
    """The status in the error event of a stream."""
    status, text = send(port, request(body, Connection="close"), whole=True)
    events = re.findall(rb'data: (\{"error".*\})', text)
    return [json.loads(events[-1])["error"]["code"]] if status == 200 and events and b"[DONE]" not in text else [status]


def protocol_cases() -> Iterator[Case]:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        yield sends(f"{method} of completions", {405}, request(b"", method=method))
    for path in (
        "/",
        "/v1/chat/completions",
        "/../etc/passwd",
        "/v1/completions/",
        "/%00",
        "/%ff%fe",
        "//v1/completions",
        "/a" * 2_000,
    ):
        yield sends(f"path {path[:24]}", {404, 414}, request(OK, path=path))
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    raw = {
        "garbage": ({400}, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n"),
        "no version": ({400}, b"GET /\r\n\r\n"),
        "HTTP/9.9": ({400, 505}, b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n"),
        "HTTP/2 preface": ({400}, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        "huge header": ({400, 431, 0}, get + b"X: " + b"a" * 200_000 + b"\r\n\r\n"),
        "many headers": ({400, 431, 0}, get + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)) + b"\r\n"),
        "header with NUL": ({400}, get + b"X: a\x00b\r\n\r\n"),
        "bare newlines in a header": ({400, 200}, get + b"X: a\n b\r\n\r\n"),
        "two lengths": (
            {400},
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        ),
        "negative length": ({400}, request(b"{}", length=-1)),
        "a length of letters": ({400}, request(b"{}", length="two")),
        "a length of 10^30": ({400, 413}, request(b"{}", length=10**30)),
        "too short a length": ({400}, request(b'{"prompt": ""}', length=3)),
        "length and chunks": ({400}, request(b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked")),
        "chunks of garbage": ({400}, request(b"zz\r\nnope\r\n", length=0, Content_Length=None, Transfer_Encoding="chunked")),
        "a chunk below 0": ({400}, request(b"-5\r\nhello\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")),
        "a chunk of 2^64": (
            {400, 408, 413},
            request(b"FFFFFFFFFFFFFFFF\r\nhello\r\n", Content_Length=None, Transfer_Encoding="chunked"),
        ),
        "two encodings": ({400, 501}, request(b"", Content_Length=None, Transfer_Encoding="gzip, chunked")),
        "endless chunks": (
            {413},
            request(b"400\r\n" + b" " * 1024 + b"\r\n", Content_Length=None, Transfer_Encoding="chunked"),
            *[b"400\r\n" + b" " * 1024 + b"\r\n"] * 40,
        ),
        "chunks": ({200}, request(b'e\r\n{"prompt": ""}\r\n0\r\n\r\n', Content_Length=None, Transfer_Encoding="chunked")),
        "an upgrade": ({200}, get + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"),
        "absolute target": ({404}, b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        "expecting 100": ({100}, request(OK, Expect="100-continue")),
        "expecting 100 for too much": ({413}, request(b"", length=10**9, Expect="100-continue")),
        "one byte": ({0, 408}, b"G"),
        "nothing at all": ({0, 408}, b""),
        "newlines": ({0, 400, 408}, b"\r\n" * 50),
    }
    for name, (right, *pieces) in raw.items():
        yield sends(f"protocol: {name}", right, *pieces)
    dripped = [bytes([byte]) for byte in get + b"X: " + b"a" * 100]
    yield sends("slow headers", {0, 408}, *dripped, pause=0.05)
    body = request({"prompt": "", "n": 1, "user": "a" * 60})
    yield sends("a slow body", {0, 408}, body[:-60], *[bytes([byte]) for byte in body[-60:]], pause=0.05)
    yield sends("a body that never comes", {408}, request(b"{", length=100))
    yield sends("a body that ends early", {0}, request(b"{", length=100), half_close=True)
    yield sends("half-closed", {0, 200}, get + b"\r\n", half_close=True)
    yield sends("two in one packet", {200}, (get + b"\r\n") * 2)
    yield case("a hundred in one packet", "serve", lambda port: [send(port, (get + b"\r\n") * 100, seconds=3)], {200})
    yield sends("slow second request", {200}, get + b"\r\n", b"GET /hea", b"lth", pause=0.3)


def names_of(kind) -> tuple[str, str, bytes, int]:
    """How a harmless request to a kind of server looks, and its status."""
    return {
        "serve": ("POST", "/v1/completions", b'{"prompt": ""}', 200),
        "explore": ("GET", "/", b"", 200),
        "compare": ("GET", "/", b"", 200),
    }[kind]


def host_cases() -> Iterator[Case]:
    for kind in ("serve", "explore", "compare"):
        method, path, body, right = names_of(kind)
        make = partial(request, body, method=method, path=path)
        good = ("localhost", "127.0.0.1:7860", "[::1]:9", "LOCALHOST", "proxy.example", "proxy.example:443")
        bad = (
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "10.0.0.1",
            "evil.example:8000",
            "localhost@evil.example",
            "[::1",
            "127.1",
            "",
            "localhost:x",
            "xproxy.example",
        )
        for host in good:
            yield sends(f"{kind}: host {host}", {right}, make(Host=host), kind=kind)
        for host in bad:
            yield sends(f"{kind}: host {host or 'empty'}", {421, 400}, make(Host=host), kind=kind)
        yield sends(f"{kind}: no host", {400}, make(Host=None), kind=kind)
        yield sends(f"{kind}: no host in HTTP/1.0", {421, 400}, make(Host=None).replace(b"HTTP/1.1", b"HTTP/1.0"), kind=kind)
        yield sends(f"{kind}: two hosts", {400}, make(host="evil.example"), kind=kind)
        for origin in (
            "http://evil.example",
            "null",
            "http://localhost:1",
            "https://127.0.0.1.evil.example",
            "file://",
            "localhost",
            "",
        ):
            yield sends(f"{kind}: origin {origin or 'empty'}", {403}, make(Origin=origin), kind=kind)
        for origin in ("http://localhost", "https://proxy.example"):
            yield sends(f"{kind}: origin {origin}", {right}, make(Origin=origin), kind=kind)


def wrong_tokens(port, source, tries):
    return [send(port, request(OK, Authorization=f"Bearer wrong{n}"), source=source) for n in range(tries)]


def auth_cases() -> Iterator[Case]:
    tokens = {
        "none": None,
        "empty": "",
        "no scheme": TOKEN,
        "basic": f"Basic {TOKEN}",
        "short": f"Bearer {TOKEN[:-1]}",
        "long": f"Bearer {TOKEN}x",
        "other case": f"Bearer {TOKEN.upper()}",
        "Latin-1": "Bearer \xff\xfe",
        "huge": "Bearer " + "a" * 30_000,
        "lower-case scheme": f"bearer {TOKEN}",
    }
    for number, (name, token) in enumerate(tokens.items()):
        yield sends(f"token: {name}", {401}, request(OK, Authorization=token), kind="token", source=f"127.0.1.{number + 1}")
    yield sends("token: right", {200}, request(OK, Authorization=f"Bearer {TOKEN}"), kind="token", source="127.0.2.1")
    yield sends(
        "token: none for models", {401}, request(b"", method="GET", path="/v1/models"), kind="token", source="127.0.2.2"
    )
    yield case("guessing is slowed", "token", lambda port: wrong_tokens(port, "127.0.2.3", 30)[10:], {429})

    def amid_others(port):
        """Guesses between requests that need no token, but have the header."""
        statuses = []
        for number in range(12):
            wrong = f"Bearer wrong{number}"
            statuses += [send(port, request(OK, Authorization=wrong), source="127.0.2.8")]
            send(port, request(b"", method="GET", path="/health", Authorization=wrong), source="127.0.2.8")
        return statuses[6:]

    yield case("guessing between other requests", "token", amid_others, {429})

    def guessed(port):
        wrong_tokens(port, "127.0.2.4", 8)
        return [send(port, request(OK, Authorization=f"Bearer {TOKEN}"), source="127.0.2.4")]

    yield case("the right token while waiting", "token", guessed, {429})

    def others(port):
        wrong_tokens(port, "127.0.2.5", 8)
        return [send(port, request(OK, Authorization=f"Bearer {TOKEN}"), source="127.0.2.6")]

    yield case("guessing does not slow others", "token", others, {200})

    def spoofed(port):
        said = [request(OK, Authorization="Bearer wrong", X_Real_IP=f"10.0.0.{n}") for n in range(20)]
        return [send(port, one, source="127.0.2.7") for one in said][10:]

    yield case("another address in a header", "token", spoofed, {429})
    login = partial(request, path="/login", Content_Type="application/x-www-form-urlencoded")
    yield sends("a wrong password", {400}, login(b"username=a&password=wrong"), kind="explore", source="127.0.3.1")
    yield sends("the right password", {200}, login(b"username=a&password=open+sesame"), kind="explore", source="127.0.3.2")
    yield sends(
        "a password of a list", {400, 422}, login(b"username=a&username=b&password="), kind="explore", source="127.0.3.3"
    )

    def passwords(port):
        with ThreadPoolExecutor(10) as clients:
            every = clients.map(lambda n: send(port, login(b"username=a&password=x%d" % n), source="127.0.3.4"), range(30))
        return sorted(every)[-15:]

    yield case("passwords at the same time", "explore", passwords, {429})
    for path in ("config", "gradio_api/info", "gradio_api/queue/data?session_hash=x"):
        yield sends(f"without a password: {path}", {401}, request(b"", method="GET", path=f"/{path}"), kind="explore")
    yield sends(
        "drawing without a password",
        {401},
        request({"data": ["", "sir", 16, 1, 0, 0]}, path="/gradio_api/call/draw"),
        kind="explore",
    )


def bomb_cases() -> Iterator[Case]:
    def beside(length, port):
        """The status of a hostile request, while the server answers others."""
        with ThreadPoolExecutor(1) as client:
            answer = client.submit(send, port, request({"prompt": "a" * length, "num_candidates": 4}))
            time.sleep(0.3)
            if not healthy(port, "serve"):
                return [599]
            return [answer.result()]

    for number, pattern in enumerate(BOMBS, 1):
        yield case(f"pattern {pattern}", "serve", partial(beside, number), {408})
    yield case("an energy that loops", "serve", partial(beside, LOOP), {408})
    yield case("an energy that sleeps", "serve", partial(beside, SLEEP), {408})
    loops = [request({"prompt": "a" * LOOP, "num_candidates": 2})] * 3

    def free_again(port):
        with ThreadPoolExecutor(3) as clients:
            late = list(clients.map(lambda one: send(port, one), loops))
        return [*late, send(port, request(OK))] if set(late) <= {408} else late

    yield case("loops leave their places", "serve", lambda port: free_again(port)[-1:], {200})


def drawn(length, port):
    """408 if drawing after this prompt was given up in time, 200 if it was answered."""
    text = called(port, "draw", ["a" * length, "sir", 16, 1, 0, 0], seconds=TIMEOUT + FREEZE, cookie=cookie(port))
    return [408 if b"given up" in text or b"backtracks" in text else 200 if b"event: complete" in text else 599]


def page_bomb_cases() -> Iterator[Case]:
    yield case("explore: a harmless prompt", "explore", partial(drawn, 0), {200})
    for number, pattern in enumerate(BOMBS, 1):
        yield case(f"explore: pattern {pattern}", "explore", partial(drawn, number), {408})
    yield case("explore: an energy that loops", "explore", partial(drawn, LOOP), {408})
    yield case("explore: an energy that sleeps", "explore", partial(drawn, SLEEP), {408})


def load_cases() -> Iterator[Case]:
    def held(begin, count, port):
        """An honest request while many connections are held open."""
        with ExitStack() as stack:
            for _ in range(count):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                client.sendall(begin)
            begun = time.monotonic()
            status = send(port, request(OK))
            return [status if time.monotonic() - begun < FREEZE else 599]

    begins = {
        "idle": b"",
        "half a header": b"POST /v1/comp",
        "half a body": request(b"{", length=500),
        "no blank line": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    }
    for name, begin in begins.items():
        for count in (40, 400):
            yield case(f"{count} connections: {name}", "serve", partial(held, begin, count), {200})
    yield case("400 connections to a page", "compare", lambda port: held_page(port), {200})

    def crowd(body, port):
        with ThreadPoolExecutor(40) as clients:
            return list(clients.map(lambda _: send(port, request(body)), range(40)))

    yield case("forty at once", "serve", partial(crowd, {"prompt": "", "n": 4}), {200, 429, 408})
    yield case("forty streams at once", "serve", partial(crowd, {"prompt": "", "stream": True}), {200, 429})
    yield case("forty that sleep", "serve", partial(crowd, {"prompt": "a" * SLEEP, "num_candidates": 2}), {408, 429})

    def leave(body, port):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(request(body))
        time.sleep(TIMEOUT + 0.5)
        return [send(port, request(OK))]

    yield case("streams that are left", "serve", partial(leave, {"prompt": "", "n": 16, "stream": True}), {200})
    yield case("requests that are left", "serve", partial(leave, {"prompt": "", "n": 16}), {200})
    yield case("sleepers that are left", "serve", partial(leave, {"prompt": "a" * SLEEP}), {200, 408, 429})

    def reset(port):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(request({"prompt": "", "stream": True}))
        time.sleep(0.5)
        return [send(port, request(OK))]

    yield case("connections that are reset", "serve", reset, {200})


def held_page(port):
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)).sendall(b"GET / HT")
        return [send(port, request(b"", method="GET", path="/"), seconds=FREEZE)]


def page_cases() -> Iterator[Case]:
    upload = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nevil\r\n--x--\r\n'
    for kind in ("explore", "compare"):
        yield sends(
            f"{kind}: an upload",
            {404},
            request(upload, path="/gradio_api/upload", Content_Type="multipart/form-data; boundary=x"),
            kind=kind,
        )
        for path in (
            "gradio_api/file=/etc/passwd",
            "gradio_api/file/etc/passwd",
            "file=/etc/passwd",
            "gradio_api/proxy=http://evil.example/",
            "gradio_api/stream/a",
            "gradio_api/dev/reload",
            "gradio_api/vibe-code",
            "gradio_api/deep_link",
            "gradio_api/run/draw",
            "gradio_api/component_server",
            "monitoring",
            "docs",
            "openapi.json",
            "gradio_api/openapi.json",
            "gradio_api/token",
        ):
            yield sends(f"{kind}: {path}", {404}, request(b"", method="GET", path=f"/{path}"), kind=kind)
        for path in ("assets/../../../etc/passwd", "static/..%2f..%2f..%2fetc/passwd", "svelte/%2e%2e/%2e%2e/etc/passwd"):
            yield sends(f"{kind}: {path}", {400, 403, 404}, request(b"", method="GET", path=f"/{path}"), kind=kind)
        yield sends(f"{kind}: a long body", {413}, request(b" " * 100_000, path="/gradio_api/queue/join"), kind=kind)
    voted = request({"data": ["ann"]}, path="/gradio_api/call/begin", Origin="http://evil.example")
    yield sends("compare: begin from another page", {403}, voted, kind="compare")
    yield case("compare: a vote from another page", "compare", partial(vote, Origin="http://evil.example"), {403})
    yield case("compare: a vote to another host", "compare", partial(vote, Host="evil.example"), {421})
    yield case("compare: a vote of a form", "compare", partial(vote, Content_Type="text/plain"), {200, 400, 415, 422})
    yield case("compare: a long name", "compare", partial(vote_as, "a" * 65), {400})
    yield case("compare: a name of control characters", "compare", partial(vote_as, "a\u202eb"), {400})
    yield case("compare: half a surrogate pair", "compare", partial(vote_as, "a\ud800"), {400})
    yield case("compare: no name", "compare", partial(vote_as, " "), {400})
    yield case("compare: ann votes", "compare", partial(vote_as, "ann"), {200})
    ann = {"data": ["ann"], "fn_index": 0, "session_hash": "s"}
    bodies = {
        "nothing": b"",
        "no data": b"{}",
        "deep": b"[" * 5_000,
        "a list": b"[]",
        "an object": b'{"data": {}}',
        "null": b"null",
        "a surrogate as session": {**ann, "session_hash": "\ud800"},
        "no session": {**ann, "session_hash": ""},
        "a long session": {**ann, "session_hash": "a" * 65},
        "a path as session": {**ann, "session_hash": "../a"},
        "too few values": {**ann, "data": []},
        "too many values": {**ann, "data": ["a", "b"]},
        "NaN": b'{"data": [NaN]}',
        "infinity": b'{"data": [1e999]}',
        "a batch": {**ann, "batched": True},
        "an event of another kind": {**ann, "event_id": 3},
    }
    for name, body in bodies.items():
        for path in ("call/begin", "queue/join"):
            yield sends(f"compare: {path} with {name}", {400}, request(body, path=f"/gradio_api/{path}"), kind="compare")
    for path in ("cancel", "reset"):
        for name in ("nothing", "deep", "NaN", "infinity", "a list", "no session"):
            yield sends(
                f"compare: {path} with {name}", {400}, request(bodies[name], path=f"/gradio_api/{path}"), kind="compare"
            )
    for index in (999, -1, None, "0", 0.5, True, 10**30):
        body = {**ann, "fn_index": index}
        yield sends(f"compare: function {index}", {400}, request(body, path="/gradio_api/queue/join"), kind="compare")
    yield sends("compare: an unknown call", {404}, request({"data": []}, path="/gradio_api/call/nobody"), kind="compare")
    for path in ("assets", "static", "svelte", "gradio_api/heartbeat", "gradio_api/call/begin"):
        name = request(b"", method="GET", path=f"/{path}/{'a' * 300}")
        yield sends(f"compare: a long name below {path}", {414}, name, kind="compare")
    yield case("compare: visitors who leave", "compare", leavers, {200})

    def flood(port):
        join = [
            request({"data": [f"r{n}"], "fn_index": 0, "session_hash": f"s{n}"}, path="/gradio_api/queue/join")
            for n in range(200)
        ]
        with ThreadPoolExecutor(20) as clients:
            return list(clients.map(partial(send, port), join))

    yield case("compare: 200 calls", "compare", flood, {200, 429})


def vote(port, **headers):
    """The status of a vote with other headers; 500 if it was recorded although it was refused."""
    before = votes()
    status = send(port, request({"data": [None], "session_hash": "x"}, path="/gradio_api/call/left", **headers))
    time.sleep(0.2)
    return [status if votes() == before or status == 200 else 200]


def vote_as(name, port):
    """200 if somebody of this name can vote, 400 if not."""
    session, before = f"s{time.monotonic_ns()}", votes()
    for call, data in (("begin", [name]), ("left", [None])):
        text = called(port, call, data, session=session, seconds=5)
        if not text.startswith(b"HTTP/1.1 200"):
            return [int(text[9:12] or 0)]
    return [200 if votes() > before else 400]


def leavers(port):
    """Visitors who call and go before they are answered; the status of one who stays."""
    for number in range(30):
        session = f"leaver{number}"
        body = {"data": ["ann"], "fn_index": 0, "session_hash": session}
        for _ in range(2):
            send(port, request(body, path="/gradio_api/queue/join"))
        stream = request(b"", method="GET", path=f"/gradio_api/queue/data?session_hash={session}")
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(stream)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return [200 if b"event: complete" in called(port, "begin", ["bob"]) else 599]


def ending(load: Callable[[int, ExitStack], None], sign: int, kind: str, folder: Path) -> Outcome:
    """Whether a server ends within seconds of a signal, whatever it is doing."""
    process, port = start(kind)
    with ExitStack() as stack:
        load(port, stack)
        begun = time.monotonic()
        os.kill(process.pid, sign)
        process.join(10)
        took = time.monotonic() - begun
    alive = process.is_alive()
    if alive:
        process.kill()
    return Outcome({"freezes": int(alive or took > 8)}, f"it took {took:.1f} s")


def asked(body, count, port, stack):
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)).sendall(body)
    time.sleep(0.5)


def ending_cases() -> Iterator[Case]:
    loads = {
        "nothing": (b"", 0),
        "idle connections": (b"", 30),
        "drawing": (request({"prompt": "", "n": 16}), 8),
        "streams": (request({"prompt": "", "n": 16, "stream": True}), 8),
        "a loop": (request({"prompt": "a" * LOOP}), 2),
        "a sleep": (request({"prompt": "a" * SLEEP}), 2),
        "a loop in C": (request({"prompt": "a" * HOG}), 1),
        "a bomb": (request({"prompt": "a"}), 2),
    }
    for name, (body, count) in loads.items():
        yield Case(
            f"SIGTERM during {name}", partial(ending, partial(asked, body, count), signal.SIGTERM, "serve"), slow=count == 1
        )
    for name in ("nothing", "a loop", "a loop in C"):
        yield Case(
            f"SIGINT during {name}",
            partial(ending, partial(asked, *loads[name]), signal.SIGINT, "serve"),
            slow=name != "nothing",
        )

    def draw(length, port, stack):
        stack.enter_context(ThreadPoolExecutor(1)).submit(drawn, length, port)
        time.sleep(0.7)

    for name, length in {"a loop": LOOP, "a loop in C": HOG}.items():
        yield Case(
            f"explore: SIGTERM during {name}", partial(ending, partial(draw, length), signal.SIGTERM, "explore"), slow=True
        )
    watched = request(b"", method="GET", path="/gradio_api/heartbeat/x")
    yield Case(
        "compare: SIGTERM before visitors", partial(ending, partial(asked, watched, 20), signal.SIGTERM, "compare"), slow=True
    )


def cases() -> Iterator[Case]:
    for part in (
        json_cases,
        protocol_cases,
        bomb_cases,
        page_bomb_cases,
        load_cases,
        auth_cases,
        host_cases,
        page_cases,
        ending_cases,
    ):
        yield from part()


FAMILY = Family(
    "servers", "server cases", ("500s", "freezes", "wrong acceptances"), fewest=100, cases=cases, sample=14, serial=True
)
