"""The web application: OpenAI's completions API for a tilted model, with limits on size, number and time.

    POST /v1/completions    draws after prompts; with `stream`, progress messages first (chunks with an empty text)
    GET  /v1/models         the model that is served
    GET  /health            whether the server is up, and how many requests are pending

A request counts once it is here (`esscher.core.http_guard`). `max_concurrent` are computed at once, each in a thread;
`max_queued` more wait; others are refused with 429. A client that disconnects cancels its request. A request is answered within
`timeout`; a thread that does not stop by then is interrupted, which works as soon as it runs Python again.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esscher.core.auth import token_matches
from esscher.core.http_guard import BEARER, Guard, error_body
from esscher.core.time_limit import InterruptibleCall
from esscher.serving.engine import LATE, Engine, GenerationCancelledError, RequestMonitor
from esscher.serving.requests import CompletionRequest, RefusedError, parse_request

POLL_SECONDS = 0.2  # between two checks whether the client is still connected
CLIENT_CLOSED_REQUEST = 499  # nginx's status; no client sees it


def create_app(engine: Engine) -> Guard:
    """The application that serves the engine's model."""
    server = CompletionServer(engine)
    routes = [
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/health", server.health),
    ]
    app = Starlette(routes=routes, exception_handlers={RefusedError: _refused, 404: _unknown_route, 405: _unknown_route})
    app.router.redirect_slashes = False
    return Guard(app, engine.config)


class CompletionServer:
    """The handlers of the routes, and the number of pending requests."""

    def __init__(self, engine: Engine):
        self.engine, self.config, self.pending_requests = engine, engine.config, 0
        self.slots = asyncio.Semaphore(self.config.max_concurrent)
        self.name = Path(engine.model.name).name

    async def completions(self, request: Request) -> Response:
        self._authenticate(request)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "The content type must be application/json.")
        completion_request = parse_request(await request.body(), self.config, self.name)
        if self.pending_requests >= self.config.max_concurrent + self.config.max_queued:
            raise RefusedError(429, f"{self.pending_requests} requests are pending, the most accepted; try again later.")
        progress: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        monitor = RequestMonitor(self.config.timeout, lambda text: _call(loop, progress.put_nowait, text))
        self.pending_requests += 1
        work = asyncio.ensure_future(self._work(completion_request, monitor))
        work.add_done_callback(self._release)
        if completion_request.stream:
            events = self._events(completion_request, work, monitor, progress)
            return StreamingResponse(events, media_type="text/event-stream")
        return await self._respond(request, work, monitor)

    def _release(self, work: "asyncio.Future[dict[str, Any]]") -> None:
        self.pending_requests -= 1
        if not work.cancelled():
            work.exception()  # seen, even if the client is gone

    async def _work(self, request: CompletionRequest, monitor: RequestMonitor) -> dict[str, Any]:
        """Draw in a thread once there is a slot, which is free again when the thread ends. Late is late in either case."""
        try:
            async with asyncio.timeout(max(0.0, monitor.seconds_left)):
                await self.slots.acquire()
        except TimeoutError as error:
            raise RefusedError(408, LATE) from error
        loop, finished = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            if not finished.is_set():
                finished.set()
                self.slots.release()

        drawing = InterruptibleCall(lambda: self.engine.draw(request, monitor), lambda: _call(loop, finish))
        drawing.start()
        try:
            async with asyncio.timeout(max(0.0, monitor.seconds_left) + POLL_SECONDS):
                await finished.wait()
        except TimeoutError as error:
            monitor.cancelled.set()
            drawing.interrupt()
            raise RefusedError(408, LATE) from error
        try:
            return drawing.result()
        except (RefusedError, GenerationCancelledError):
            raise
        except BaseException as error:  # of a network or an energy, which must not end the server
            raise RefusedError(500, f"Drawing failed: {type(error).__name__}: {error}") from error

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
        self,
        request: CompletionRequest,
        work: "asyncio.Future[dict[str, Any]]",
        monitor: RequestMonitor,
        progress: "asyncio.Queue[str]",
    ) -> AsyncIterator[str]:
        """Chunks with one choice each, as OpenAI's; with `include_usage` a last one has the usage and no choice."""
        head = self._envelope({"usage": None} if request.include_usage else {})
        waiting = {"index": 0, "text": "", "finish_reason": None, "logprobs": None}
        try:
            while not work.done():
                await asyncio.wait([work], timeout=POLL_SECONDS)
                while not progress.empty():
                    yield _server_sent_event({**head, "choices": [waiting], "progress": progress.get_nowait()})
            result = work.result()
            for choice in result["choices"]:
                yield _server_sent_event({**head, "choices": [choice], "seed": result["seed"]})
            if request.include_usage:
                yield _server_sent_event({**head, "choices": [], "usage": result["usage"]})
            yield "data: [DONE]\n\n"
        except RefusedError as error:  # the status has been sent already
            yield _server_sent_event(error_body(error.status, error.message, error.code))
        except GenerationCancelledError:
            pass
        finally:
            monitor.cancelled.set()

    async def models(self, request: Request) -> Response:
        self._authenticate(request)
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "esscher"}]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "up", "pending_requests": self.pending_requests})

    def _authenticate(self, request: Request) -> None:
        token, header = self.config.token, request.headers.get("authorization", "")
        if token is not None and not token_matches(header, f"{BEARER}{token}"):
            raise RefusedError(401, "The bearer token is missing or wrong.")

    def _envelope(self, content: dict[str, Any]) -> dict[str, Any]:
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": self.name}
        return {**head, **content}


def _call(loop: asyncio.AbstractEventLoop, function: Any, *arguments: Any) -> None:
    """Call a function in the event loop, from another thread; nothing, if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)


def _server_sent_event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse(error_body(error.status, error.message, error.code), error.status, headers)


async def _unknown_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    routes = "POST /v1/completions, GET /v1/models, GET /health"
    message = f"There is no {request.method} {request.scope['path'][:80]} here; there are {routes}."
    return JSONResponse(error_body(status, message), status, getattr(error, "headers", None))
