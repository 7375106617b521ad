"""The HTTP application: routes, limits and error objects around one Service.

It knows neither torch nor transformers: `endpoints` arrive when the model has loaded.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Protocol
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from miractl.server.errors import ApiError, shorten, shutting_down, still_loading
from miractl.server.requestlog import CLIENT_GONE, RequestLog
from miractl.server.requests import ChatRequest, CompletionRequest, parse
from miractl.server.service import Service
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)
REQUEST_ID = "x-request-id"
# Of a body that is too large so much is still read, so that the client gets to read the answer.
DRAIN_BYTES = 64 * 2**20

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class EndpointsLike(Protocol):
    """What answers the two generating endpoints; `handlers.Endpoints`."""

    async def chat(self, request: ChatRequest) -> Response:
        """Answer a conversation."""

    async def complete(self, request: CompletionRequest) -> Response:
        """Continue a text."""


class Application:
    """The routes. `endpoints` is set once, when the service becomes ready."""

    def __init__(self, service: Service, build: dict[str, str] | None = None) -> None:
        self.service = service
        self.endpoints: EndpointsLike | None = None
        self._metrics = Metrics(service.snapshot, build)
        application = Starlette(
            routes=[
                self._route("/health", self._health),
                self._route("/ready", self._health),
                self._route("/live", self._live),
                self._route("/metrics", self._scrape),
                self._route("/v1/models", self._models),
                self._route("/v1/models/{id:path}", self._model),
                self._route("/v1/status", self._status),
                self._route("/v1/experts", self._experts),
                self._route("/v1/timeline", self._timeline),
                self._route("/v1/completions", self._complete, "POST"),
                self._route("/v1/chat/completions", self._chat, "POST"),
            ],
            exception_handlers={HTTPException: _http_error},
        )
        self.asgi = RequestLog(application)

    def _route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        async def unless_aborted(request: Request) -> Response:
            aborted = self.service.aborted.wait()
            return await _unless(handler(request), aborted, shutting_down)

        return Route(path, _guarded(unless_aborted), methods=[method])

    async def _health(self, request: Request) -> Response:
        status, body = self.service.health()
        return JSONResponse(body, status)

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _scrape(self, request: Request) -> Response:
        body = await self.service.look(self._metrics.render)
        return Response(body, headers={"Content-Type": CONTENT_TYPE})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def _model(self, request: Request) -> Response:
        model, asked = self._model_object(), request.path_params["id"]
        if asked != model["id"]:
            message = f"no model {shorten(repr(asked))}: this server has {model['id']!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(model)

    def _model_object(self) -> dict[str, Any]:
        self.service.ready()
        return {"id": self.service.model_id, "object": "model", "created": 0, "owned_by": "local"}

    async def _status(self, request: Request) -> Response:
        engine, _ = self.service.ready()
        snapshot = await self.service.look(engine.snapshot)
        return JSONResponse(snapshot.to_json())

    async def _experts(self, request: Request) -> Response:
        engine, _ = self.service.ready()
        snapshot = await self.service.look(engine.snapshot)
        rows = await self.service.look(engine.expert_rows)
        table = ExpertTable(snapshot.timestamp, snapshot.model.id, tuple(rows))
        return JSONResponse(table.to_json())

    async def _timeline(self, request: Request) -> Response:
        engine, _ = self.service.ready()
        last = _count(request.query_params.get("last", "64"))
        timeline = await self.service.look(lambda: engine.timeline(last))
        return JSONResponse(timeline.to_json())

    async def _complete(self, request: Request) -> Response:
        body = parse(CompletionRequest, await self._body(request))
        work = self._ready_endpoints().complete(body)
        return await _unless(work, _disconnect(request), ClientDisconnect)

    async def _chat(self, request: Request) -> Response:
        body = parse(ChatRequest, await self._body(request))
        work = self._ready_endpoints().chat(body)
        return await _unless(work, _disconnect(request), ClientDisconnect)

    def _ready_endpoints(self) -> EndpointsLike:
        self.service.ready()
        if self.endpoints is None:
            raise still_loading()
        return self.endpoints

    async def _body(self, request: Request) -> bytes:
        limit, seconds = self.service.body_limit, self.service.config.body_seconds
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > DRAIN_BYTES:
                        break
                    if size <= limit:
                        body += chunk
        except TimeoutError:
            raise ApiError(
                408,
                f"the body has not come whole within {seconds:g} s",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from None
        if size > limit:
            raise ApiError(
                413,
                f"the body is larger than {limit} bytes",
                code="body_too_large",
                headers={"Connection": "close"},
            )
        return bytes(body)


def _count(text: str) -> int:
    """The `last` of a query. Raises ApiError."""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text)):
        raise ApiError(400, f"last={shorten(text)} is not a number of steps", param="last")
    return int(text)


def _guarded(handler: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Adds the request id, and turns every error into an error object."""

    async def run(request: Request) -> Response:
        request_id = _request_id(request.headers.get(REQUEST_ID))
        try:
            response = await handler(request)
        except ApiError as error:
            response = _error_response(error)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_GONE)
        except Exception as error:  # of our own making: this request fails, the server goes on
            debug = bool(os.environ.get("MIRACTL_DEBUG"))
            log.error("internal error: %s: %s", type(error).__name__, error, exc_info=debug)
            response = _error_response(ApiError(500, "internal error", code="internal_error"))
        response.headers[REQUEST_ID] = request_id
        return response

    return run


def _request_id(given: str | None) -> str:
    usable = given and len(given) <= 200 and given.isascii() and given.isprintable()
    return str(given) if usable else uuid4().hex


def _error_response(error: ApiError) -> Response:
    return JSONResponse(error.to_json(), error.status, headers=error.headers)


def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    assert isinstance(error, HTTPException)
    known = {404: ("no such path", "not_found"), 405: ("not this method", "method_not_allowed")}
    what, code = known.get(error.status_code, (error.detail, None))
    headers = dict(error.headers or {}) | {REQUEST_ID: _request_id(request.headers.get(REQUEST_ID))}
    message = f"{request.method} {shorten(request.url.path)}: {what}"
    return _error_response(ApiError(error.status_code, message, code=code, headers=headers))


async def _unless(
    work: Coroutine[Any, Any, Response],
    end: Coroutine[Any, Any, Any],
    error: Callable[[], Exception],
) -> Response:
    """The result of `work`, which is cancelled, and the error raised, when `end` comes first."""
    task, ended = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise error()
    finally:
        ended.cancel()
        task.cancel()
        await asyncio.gather(ended, task, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    # The body has been read, so there is nothing else to come.
    while (await request.receive())["type"] != "http.disconnect":
        pass
