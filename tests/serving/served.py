"""A server of a tiny tilted model on a free port, in a thread, and a client of few words."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from esscher.core.http_server import listen, server_config
from esscher.serving.config import ServeConfig
from esscher.serving.engine import Engine
from esscher.serving.server import create_app


@contextmanager
def served(model: Any, **limits: Any) -> Iterator[int]:
    """The port where the model is served with these limits."""
    config = ServeConfig(**limits)
    listener = listen(config.host, range(1))
    server = uvicorn.Server(server_config(create_app(Engine(model, config)), config))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    port = listener.getsockname()[1]
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield port
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
