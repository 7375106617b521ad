"""One log line for each request that generates: what, status, seconds until its last byte."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)
CLIENT_GONE = 499


class RequestLog:
    """Wraps an application. Polling (GET) is not logged: it would drown the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note how it ended."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), CLIENT_GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            seconds = time.monotonic() - started
            log.info("%s %s %d in %.2f s", scope["method"], scope["path"], status, seconds)
