"""Server-sent events: an answer on its way to a client that may go away at any time."""

import json
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from miractl.server.answer import Answer
from miractl.server.errors import ApiError

DONE = "data: [DONE]\n\n"


def event(data: str) -> str:
    """One event."""
    return f"data: {data}\n\n"


class EventStream(StreamingResponse):
    """Sends events and `[DONE]`; closes the answer when all is sent or the client has gone."""

    def __init__(self, answer: Answer, events: AsyncIterator[str]) -> None:
        super().__init__(
            _guarded(events),
            media_type="text/event-stream",
            # Proxies would hold the pieces back.
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send. Also ends an answer of which nothing was read."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _guarded(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Once the stream has begun, an error can only be one more event."""
    try:
        async for text in events:
            yield text
    except ApiError as error:
        yield event(json.dumps(error.to_json()))
    yield DONE
