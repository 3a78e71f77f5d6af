"""The web application: OpenAI's completions from a tilted model, with limits on size, number and time.

    POST /v1/completions    draws after prompts; with `stream`, words on progress first (chunks without choices)
    GET  /v1/models         what is served
    GET  /health            whether it is up, and how many requests are in hand

Requests are drawn for in threads, a few at once; some more wait, others are refused at once with 429, so that memory and the
time to wait are bounded. A client that goes away ends its drawing.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esscher.reach import knows
from esscher.serving.engine import Engine, StoppedError, Watch
from esscher.serving.requests import RefusedError, read_request

LOOK = 0.2  # seconds between two looks whether a client is still there
GONE = 499  # a client that went away sees no status


def endpoint(engine: Engine) -> Starlette:
    """The application that serves a model."""
    desk = Desk(engine)
    routes = [
        Route("/v1/completions", desk.completions, methods=["POST"]),
        Route("/v1/models", desk.models),
        Route("/health", desk.health),
    ]
    return Starlette(routes=routes, exception_handlers={RefusedError: _refusal, 404: _unknown, 405: _unknown})


class Desk:
    """Takes requests, and knows how many are in hand."""

    def __init__(self, engine: Engine):
        self.engine, self.config, self.in_hand = engine, engine.config, 0
        self.threads = ThreadPoolExecutor(self.config.at_once, thread_name_prefix="drawing")
        self.name = engine.model.folder.name

    async def completions(self, request: Request) -> Response:
        self._admit(request)
        if self.in_hand >= self.config.at_once + self.config.waiting:
            raise RefusedError(429, f"{self.in_hand} requests are in hand, as many as are taken; try again later.")
        self.in_hand += 1
        told: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            loop.call_soon_threadsafe(told.put_nowait, text)

        watch = Watch(self.config.seconds, say)
        try:
            asked = read_request(await self._body(request), self.config)
            work = asyncio.ensure_future(loop.run_in_executor(self.threads, self.engine.draw, asked, watch))
        except BaseException:
            self.in_hand -= 1
            raise
        work.add_done_callback(lambda _: self._release())
        if asked.stream:
            return StreamingResponse(self._events(work, watch, told), media_type="text/event-stream")
        return await self._whole(request, work, watch)

    def _release(self) -> None:
        self.in_hand -= 1

    async def _whole(self, request: Request, work: "asyncio.Future[dict[str, Any]]", watch: Watch) -> Response:
        while not work.done():
            await asyncio.wait([work], timeout=LOOK)
            if not work.done() and await request.is_disconnected():
                watch.given_up.set()
        try:
            return JSONResponse(self._chunk(work.result()))
        except StoppedError:
            return Response(status_code=GONE)

    async def _events(
        self, work: "asyncio.Future[dict[str, Any]]", watch: Watch, told: "asyncio.Queue[str]"
    ) -> AsyncIterator[str]:
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK)
                while not told.empty():
                    yield _event(self._chunk({"choices": [], "progress": told.get_nowait()}))
            yield _event(self._chunk(work.result()))
            yield "data: [DONE]\n\n"
        except RefusedError as error:  # the status was sent long ago
            yield _event(_words(error))
        finally:
            watch.given_up.set()

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "esscher"}]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "up", "in_hand": self.in_hand})

    def _admit(self, request: Request) -> None:
        token, given = self.config.token, request.headers.get("authorization", "")
        if token is not None and not knows(given, f"Bearer {token}"):
            raise RefusedError(401, "The bearer token is missing or wrong.")

    async def _body(self, request: Request) -> bytes:
        """At most so many bytes, in time, whatever the headers say."""
        content = bytearray()
        try:
            async with asyncio.timeout(self.config.seconds):
                async for part in request.stream():
                    content += part
                    if len(content) > self.config.body:
                        raise RefusedError(413, f"A request has at most {self.config.body:,} bytes.")
        except TimeoutError as error:
            raise RefusedError(408, "The request did not arrive in time.") from error
        except ClientDisconnect as error:
            raise RefusedError(GONE, "The client went away.") from error
        return bytes(content)

    def _chunk(self, found: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
            **found,
        }


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _words(error: RefusedError) -> dict[str, Any]:
    kinds = {401: "authentication_error", 408: "timeout", 413: "request_too_large", 429: "rate_limit_error"}
    return {"error": {"message": error.message, "type": kinds.get(error.status, "invalid_request_error"), "code": error.status}}


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse(_words(error), error.status, headers)


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = (
        f"There is no {request.method} {request.url.path} here; there are POST /v1/completions, GET /v1/models, GET /health."
    )
    return JSONResponse(_words(RefusedError(status, message)), status)
