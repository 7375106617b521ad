"""One answer: the tokens of a job turned into pieces of text, with its end and its usage."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from miractl.server.errors import ApiError
from miractl.server.job import Backend, Job, Progress
from miractl.server.text import Decode, Detokenizer, StopFilter

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text; the last piece of an answer has the reason for its end."""

    text: str
    finish_reason: FinishReason | None = None


class Answer:
    """A running job as text. `close` must be called once, whether the answer was read or not.

    Joined pieces are the whole answer; there is no other way to its text, so that an answer reads
    the same streamed or not.
    """

    def __init__(
        self,
        backend: Backend,
        job: Job,
        decode: Decode,
        stops: list[str],
        done: Callable[["Answer"], None],
    ) -> None:
        """Starts the job; `done` is called when the answer no longer takes a place.

        Raises ApiError 503 when the back-end cannot run.
        """
        self.prompt_tokens = len(job.prompt)
        self.completion_tokens = 0
        self._job = job
        self._backend = backend
        self._text = Detokenizer(decode)
        self._stop = StopFilter(stops)
        self._news: asyncio.Queue[Progress | ApiError] = asyncio.Queue()
        self._done: Callable[[Answer], None] | None = done
        try:
            backend.submit(job, self._news.put_nowait)
        except RuntimeError as error:
            self.close()
            raise ApiError(503, str(error), code="engine_failed") from error

    async def pieces(self) -> AsyncIterator[Piece]:
        """Non-empty texts as they come, then one last piece. Raises ApiError when the job fails."""
        while True:
            news = await self._news.get()
            if isinstance(news, ApiError):
                raise news
            text, ended = self._take(news.tokens)
            if news.error is not None and not ended:
                raise ApiError(500, f"generation failed: {news.error}", code="generation_failed")
            if ended or news.finished:
                yield Piece(text + self._rest(), self._reason(ended))
                return
            if text:
                yield Piece(text)

    def abort(self, error: ApiError) -> None:
        """End the answer with an error."""
        self._backend.cancel(self._job.id)
        self._news.put_nowait(error)

    def close(self) -> None:
        """Give the place back; a job that still runs is cancelled. Again does nothing."""
        if self._done is not None:
            self._backend.cancel(self._job.id)
            self._done(self)
            self._done = None

    def _take(self, tokens: list[int]) -> tuple[str, bool]:
        """Text of new tokens, and whether the answer ends with the last one counted."""
        text = ""
        for token in tokens:
            self.completion_tokens += 1
            if token in self._job.eos:
                return text, True
            text += self._stop.push(self._text.push(token))
            if self._stop.stopped:
                return text, True
        return text, False

    def _rest(self) -> str:
        return self._stop.push(self._text.flush()) + self._stop.flush()

    def _reason(self, ended: bool) -> FinishReason:
        # `_rest` may complete a stop string too.
        return "stop" if ended or self._stop.stopped else "length"


async def probe(backend: Backend, job: Job) -> None:
    """Let a back-end answer once. Raises RuntimeError when it gives fewer tokens than asked."""
    news: asyncio.Queue[Progress] = asyncio.Queue()
    backend.submit(job, news.put_nowait)
    tokens: list[int] = []
    while True:
        progress = await news.get()
        if progress.error is not None:
            raise RuntimeError(progress.error)
        tokens += progress.tokens
        if progress.finished:
            break
    if len(tokens) < job.max_new_tokens and not job.eos & set(tokens):
        raise RuntimeError(f"{len(tokens)} tokens instead of {job.max_new_tokens}")
    with suppress(RuntimeError):
        backend.cancel(job.id)
