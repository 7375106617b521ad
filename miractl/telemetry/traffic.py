"""Requests to a running server, several at a time, and how long each took.

OpenAI's own client asks, so any server of that API could be measured.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import openai

from miractl.errors import MiractlError
from miractl.telemetry.client import Client

PATIENCE = 600.0  # seconds without a piece of an answer


@dataclass(frozen=True, slots=True)
class Answered:
    """One request that was answered; times in seconds since it was sent."""

    first: float  # the first piece of text came, or the end without one
    last: float  # the last piece of text came
    whole: float  # the stream ended
    prompt_tokens: int
    tokens: int

    @property
    def between(self) -> float | None:
        """Seconds a token after the first; None of an answer without a second."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(slots=True)
class Traffic:
    """What came back, and the seconds from the first request to the last end."""

    answered: list[Answered] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answered)


class Asking:
    """Greedy completions of so many tokens at most, streamed."""

    def __init__(self, client: Client, model: str, tokens: int) -> None:
        self._client, self._model, self._tokens = client, model, tokens

    def measure(
        self, prompts: Sequence[str], at_once: int, progress: Callable[[str, int, int], None]
    ) -> Traffic:
        """Ask for every prompt, `at_once` of them at a time: an answer's end sends the next.

        Raises MiractlError if none is answered.
        """
        traffic = asyncio.run(self._measure(prompts, at_once, progress))
        if not traffic.answered:
            raise MiractlError(f"no request was answered: {traffic.failures[0]}")
        return traffic

    async def _measure(
        self, prompts: Sequence[str], at_once: int, progress: Callable[[str, int, int], None]
    ) -> Traffic:
        traffic, waiting = Traffic(), iter(prompts)

        async def ask_in_turn(api: openai.AsyncOpenAI, left: Iterable[str]) -> None:
            for prompt in left:
                try:
                    traffic.answered.append(await self._ask(api, prompt))
                except openai.OpenAIError as error:
                    traffic.failures.append(" ".join(str(error).split()))
                done = len(traffic.answered) + len(traffic.failures)
                progress("requests", done, len(prompts))

        async with openai.AsyncOpenAI(
            base_url=f"{self._client.url}/v1",
            api_key="none",
            max_retries=0,  # a second try would hide a failure, and look slow
            timeout=PATIENCE,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=not self._client.is_local),
        ) as api:
            start = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(ask_in_turn(api, waiting))
            traffic.seconds = time.perf_counter() - start
        return traffic

    async def _ask(self, api: openai.AsyncOpenAI, prompt: str) -> Answered:
        start = time.perf_counter()
        pieces: list[float] = []
        usage = None
        stream = await api.completions.create(
            model=self._model,
            prompt=prompt,
            max_tokens=self._tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for event in stream:
            if event.choices and event.choices[0].text:
                pieces.append(time.perf_counter() - start)
            usage = event.usage or usage
        whole = time.perf_counter() - start
        if usage is None:
            raise openai.OpenAIError("an answer ended without its count of tokens")
        first, last = (pieces[0], pieces[-1]) if pieces else (whole, whole)
        return Answered(first, last, whole, usage.prompt_tokens, usage.completion_tokens)
