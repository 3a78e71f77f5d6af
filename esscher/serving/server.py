"""The web application: OpenAI's completions API for a tilted model, with limits on size, number and time.

    POST /v1/completions    draws after prompts; with `stream`, progress messages first (chunks without choices)
    GET  /v1/models         the model that is served
    GET  /health            whether the server is up, and how many requests are pending

`max_concurrent` requests are computed at once, each in a thread; `max_queued` more wait; others are refused with 429. A client
that disconnects cancels its request.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esscher.core.auth import token_matches
from esscher.serving.engine import Engine, GenerationCancelledError, RequestMonitor
from esscher.serving.requests import RefusedError, parse_request

POLL_SECONDS = 0.2  # between two checks whether the client is still connected
CLIENT_CLOSED_REQUEST = 499  # nginx's status; no client sees it


def create_app(engine: Engine) -> Starlette:
    """The application that serves the engine's model."""
    server = CompletionServer(engine)
    routes = [
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/health", server.health),
    ]
    return Starlette(routes=routes, exception_handlers={RefusedError: _refused, 404: _unknown_route, 405: _unknown_route})


class CompletionServer:
    """The handlers of the routes, and the number of pending requests."""

    def __init__(self, engine: Engine):
        self.engine, self.config, self.pending_requests = engine, engine.config, 0
        self.threads = ThreadPoolExecutor(self.config.max_concurrent, thread_name_prefix="drawing")
        self.name = Path(engine.model.name).name

    async def completions(self, request: Request) -> Response:
        self._authenticate(request)
        if self.pending_requests >= self.config.max_concurrent + self.config.max_queued:
            raise RefusedError(429, f"{self.pending_requests} requests are pending, the most accepted; try again later.")
        self.pending_requests += 1
        progress: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            loop.call_soon_threadsafe(progress.put_nowait, text)

        monitor = RequestMonitor(self.config.timeout, say)
        try:
            completion_request = parse_request(await self._body(request), self.config)
            work = asyncio.ensure_future(loop.run_in_executor(self.threads, self.engine.draw, completion_request, monitor))
        except BaseException:
            self._release()
            raise
        work.add_done_callback(self._release)
        if completion_request.stream:
            return StreamingResponse(self._events(work, monitor, progress), media_type="text/event-stream")
        return await self._respond(request, work, monitor)

    def _release(self, _: object = None) -> None:
        self.pending_requests -= 1

    async def _respond(self, request: Request, work: "asyncio.Future[dict[str, Any]]", monitor: RequestMonitor) -> Response:
        while not work.done():
            await asyncio.wait([work], timeout=POLL_SECONDS)
            if not work.done() and await request.is_disconnected():
                monitor.cancelled.set()
        try:
            return JSONResponse(self._envelope(work.result()))
        except GenerationCancelledError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _events(
        self, work: "asyncio.Future[dict[str, Any]]", monitor: RequestMonitor, progress: "asyncio.Queue[str]"
    ) -> AsyncIterator[str]:
        try:
            while not work.done():
                await asyncio.wait([work], timeout=POLL_SECONDS)
                while not progress.empty():
                    yield _server_sent_event(self._envelope({"choices": [], "progress": progress.get_nowait()}))
            yield _server_sent_event(self._envelope(work.result()))
            yield "data: [DONE]\n\n"
        except RefusedError as error:  # the status has been sent already
            yield _server_sent_event(_error_body(error))
        finally:
            monitor.cancelled.set()

    async def models(self, request: Request) -> Response:
        self._authenticate(request)
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "esscher"}]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "up", "pending_requests": self.pending_requests})

    def _authenticate(self, request: Request) -> None:
        token, header = self.config.token, request.headers.get("authorization", "")
        if token is not None and not token_matches(header, f"Bearer {token}"):
            raise RefusedError(401, "The bearer token is missing or wrong.")

    async def _body(self, request: Request) -> bytes:
        """The body; size and time are limited whatever the headers say."""
        content = bytearray()
        try:
            async with asyncio.timeout(self.config.timeout):
                async for part in request.stream():
                    content += part
                    if len(content) > self.config.max_body_bytes:
                        raise RefusedError(413, f"A request has at most {self.config.max_body_bytes:,} bytes.")
        except TimeoutError as error:
            raise RefusedError(408, "The request did not arrive in time.") from error
        except ClientDisconnect as error:
            raise RefusedError(CLIENT_CLOSED_REQUEST, "The client disconnected.") from error
        return bytes(content)

    def _envelope(self, content: dict[str, Any]) -> dict[str, Any]:
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": self.name}
        return {**head, **content}


def _server_sent_event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _error_body(error: RefusedError) -> dict[str, Any]:
    kinds = {401: "authentication_error", 408: "timeout", 413: "request_too_large", 429: "rate_limit_error"}
    return {"error": {"message": error.message, "type": kinds.get(error.status, "invalid_request_error"), "code": error.status}}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse(_error_body(error), error.status, headers)


async def _unknown_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    routes = "POST /v1/completions, GET /v1/models, GET /health"
    message = f"There is no {request.method} {request.url.path} here; there are {routes}."
    return JSONResponse(_error_body(RefusedError(status, message)), status)
