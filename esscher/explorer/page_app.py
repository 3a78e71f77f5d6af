"""A page of gradio as an application behind `Guard`: of gradio's routes those that the page needs, which leaves out uploads,
files, proxies and batches; calls of the page's own functions, with as many values as they take; a bounded queue."""

import json
import math
import re
from asyncio import Queue
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.console import write_line
from esscher.core.http_guard import Guard
from esscher.explorer.config import PageServerConfig, load_gradio
from esscher.reports.charts import theme

if TYPE_CHECKING:
    from gradio import Blocks

PORTS = range(7860, 7960)
API = "/gradio_api/"
CALL, JOIN, POSTED = f"{API}call/", f"{API}queue/join", (f"{API}cancel", f"{API}reset")
PATHS = (
    "/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt", "/login", "/login/", "/logout",
    "/assets/", "/static/", "/svelte/", JOIN, *POSTED,
    *(API + name for name in ("heartbeat/", "info", "login_check", "queue/data", "startup-events", "theme.css", "user")),
)  # fmt: skip
MAX_QUEUED, MAX_SESSIONS = 64, 1_000  # calls that wait, and visitors whose state is kept
IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a visitor, and of a call


def launch(page: "Blocks", serving: PageServerConfig) -> None:
    """Serve the page until a signal; its address is printed once the port is ours."""
    from esscher.core.http_server import address_of, listen, run  # needs uvicorn, which comes with gradio

    listener = listen(serving.host, PORTS if serving.port is None else range(serving.port, serving.port + 1))
    app = page_app(page, serving)
    write_line(f"{address_of(listener, serving)}  (stop with Ctrl-C)")
    run(app, serving, listener)


def page_app(page: "Blocks", serving: PageServerConfig) -> Guard:
    """The application that serves the page."""
    gradio = load_gradio()
    from fastapi import FastAPI

    page.queue(default_concurrency_limit=1, max_size=MAX_QUEUED, api_open=False)
    page.state_session_capacity = MAX_SESSIONS
    app = gradio.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        auth=None if serving.token is None else serving.authenticate,
        auth_message="Any name will do; the password is the token.",
        theme=gradio.themes.Default(
            primary_hue="blue", neutral_hue="slate", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css=theme() + Path(__file__).with_name("style.css").read_text(encoding="utf8"),
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],
    )
    _keep_queue_alive(page)
    names = [function.api_name for function in page.fns.values() if isinstance(function.api_name, str)]
    calls = [f"{CALL}{name}{below}" for name in names for below in ("", "/")]
    return Guard(app, serving, paths=(*PATHS, *calls), check=call_checker(page))


def _keep_queue_alive(page: "Blocks") -> None:
    """Drop messages to visitors who left: in gradio they raise a KeyError that ends the queue, for all calls."""
    from gradio.utils import LRUCache

    class Messages(LRUCache[str, Queue[Any]]):
        def __missing__(self, session: str) -> Queue[Any]:
            return Queue()

    page._queue.pending_messages_per_session = Messages(page._queue.pending_messages_per_session.max_size)


def call_checker(page: "Blocks") -> Callable[[str, bytes], str | None]:
    """What is wrong with the body of a POST to gradio's routes, which would answer some of it with 500; None if nothing is."""
    widths = {number: _widths(function) for number, function in page.fns.items()}
    by_name = {function.api_name: widths[number] for number, function in page.fns.items()}

    def check(path: str, content: bytes) -> str | None:
        if not path.startswith(CALL) and path not in (JOIN, *POSTED):
            return None
        fields = _json_object(content)
        if fields is None:
            return "The request must be a JSON object of finite numbers."
        for name in ("session_hash", "event_id"):
            value = fields.get(name)
            if value is not None and not (isinstance(value, str) and IDENTIFIER.fullmatch(value)):
                return f"{name!r} must be up to 64 letters and digits."
        if path in POSTED:
            return None
        index, data = fields.get("fn_index"), fields.get("data")
        if path != JOIN:
            allowed = by_name.get(path.removeprefix(CALL).rstrip("/"), set())
        elif isinstance(index, int) and not isinstance(index, bool) and index in widths:
            allowed = widths[index]
        else:
            return "'fn_index' is no function of this page."
        if not isinstance(data, list) or len(data) not in allowed or fields.get("batched"):
            return f"'data' must be a list of {' or '.join(map(str, sorted(allowed)))} values."
        return None

    return check


def _widths(function: Any) -> set[int]:
    """How many values a function of the page takes: all of its inputs, or those that are not kept by the server."""
    return {len(function.inputs), sum(not block.skip_api for block in function.inputs)}


def _json_object(content: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(content, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
