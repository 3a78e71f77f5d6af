"""A server of a tiny tilted model on a free port, in a thread, and a client of few words."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from esscher.serving.config import ServeConfig
from esscher.serving.engine import Engine
from esscher.serving.server import create_app


@contextmanager
def served(model: Any, **limits: Any) -> Iterator[int]:
    """The port where the model is served with these limits."""
    settings = uvicorn.Config(create_app(Engine(model, ServeConfig(**limits))), port=0, log_level="critical")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


def ask(port: int, content: Any, *, path: str = "/v1/completions", method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Status and answer; `content` is bytes, or what becomes JSON."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = content if isinstance(content, bytes | type(None)) else json.dumps(content)
    try:
        client.request(method, path, body, headers)
        answer = client.getresponse()
        text = answer.read().decode()
    finally:
        client.close()
    streamed = answer.headers.get_content_type() == "text/event-stream"
    return answer.status, text if streamed else json.loads(text)
