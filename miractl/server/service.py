"""The service behind the HTTP interface: its phase, its engine, and who is being answered.

Phases only move forward: loading -> ready -> stopping. Everything here runs on the event loop; the
engine is loaded and the back-end built on a thread of their own.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from uuid import uuid4

from miractl.errors import MiractlError
from miractl.plan.request import PlanRequest
from miractl.server.answer import Answer, probe
from miractl.server.config import ServerConfig
from miractl.server.errors import ApiError, shutting_down, still_loading
from miractl.server.job import Backend, Job, Sampling
from miractl.telemetry.snapshot import ExpertRow, Snapshot
from miractl.telemetry.timeline import Timeline

if TYPE_CHECKING:
    from miractl.runtime.losses import Losses

Phase = Literal["loading", "ready", "stopping"]
PROBE_TOKENS = 2  # one from the prompt, one that reads the cache
CLOSE_SECONDS = 0.8

T = TypeVar("T")


class EngineLike(Protocol):
    """What the server needs of `miractl.runtime.engine.Engine`."""

    @property
    def model(self) -> Any:
        """The transformers model."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""

    @property
    def losses(self) -> "Losses":
        """Tokens that could not be computed; a batch takes them."""

    @property
    def writes(self) -> bool:
        """Whether closing it writes files, which would be missed."""

    def snapshot(self) -> Snapshot:
        """The present figures; callable from any thread."""

    def fault(self) -> str | None:
        """Why requests fail or wait, or None."""

    def expert_rows(self) -> list[ExpertRow]:
        """One row an expert, used or not; callable from any thread."""

    def timeline(self, last: int) -> Timeline:
        """Where the time of the last steps went; callable from any thread."""

    def close(self) -> None:
        """Free memory and threads."""


class Service:
    """One model, served. `backend` is None until it has answered."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.phase: Phase = "loading"
        self.engine: EngineLike | None = None
        self.backend: Backend | None = None
        self.model_id = ""
        self.context = 0
        self._eos: frozenset[int] = frozenset()
        self._answers: set[Answer] = set()
        self._preparing = 0  # requests whose prompt is not made into tokens yet
        self._looks = ThreadPoolExecutor(1, "look")
        self.aborted = asyncio.Event()

    async def start(
        self,
        engine: EngineLike,
        backends: Sequence[Callable[[], Backend]],
        note: Callable[[str], None],
    ) -> None:
        """Become ready with the first back-end that really answers; `note` tells of the others.

        Raises MiractlError when none does, or when the window does not suit the model.
        """
        self.engine = engine
        self.model_id = engine.snapshot().model.id
        longest = getattr(engine.model.config.get_text_config(), "max_position_embeddings", None)
        self.context = PlanRequest(context=self.config.context).window(longest)
        self._eos = end_tokens(engine.model, engine.tokenizer)
        reasons: list[str] = []
        for make in backends:
            backend = None
            try:
                backend = make()
                await probe(backend, self._probe_job())
            except Exception as error:  # whatever the model raises: the next back-end may do
                reasons.append(" ".join(str(error).split()) or type(error).__name__)
                if backend is not None:
                    backend.close(timeout=5.0)
                continue
            if reasons:
                family = engine.model.config.model_type
                note(
                    f"{family} cannot be batched ({reasons[0][:200]}): requests run {backend.name}"
                )
            self.backend = backend
            if self.phase == "loading":
                self.phase = "ready"
            return
        raise MiractlError(f"the model does not answer: {reasons[-1]}")

    def ready(self) -> tuple[EngineLike, Backend]:
        """Engine and back-end. Raises ApiError 503 while loading and when stopping."""
        if self.phase == "stopping":
            raise shutting_down()
        if self.engine is None or self.backend is None:
            raise still_loading()
        return self.engine, self.backend

    def health(self) -> tuple[int, dict[str, str]]:
        """Status and body of /health: 200 only when a request would be answered."""
        if self.phase != "ready" or self.backend is None or self.engine is None:
            return 503, {"status": self.phase}
        if reason := self.backend.failure() or self.engine.fault():
            return 503, {"status": "unhealthy", "reason": reason}
        return 200, {"status": "ok"}

    @property
    def open_answers(self) -> int:
        """Requests that generate or wait for it."""
        return len(self._answers) + self._preparing

    @property
    def body_limit(self) -> int:
        """Bytes that the body of a request may have."""
        return self.config.body_limit(self.context)

    def snapshot(self) -> Snapshot | None:
        """The engine's figures, None while loading."""
        return None if self.backend is None or self.engine is None else self.engine.snapshot()

    def default_sampling(self) -> Sampling:
        """The generation config of the model where it samples; OpenAI's defaults otherwise."""
        engine, _ = self.ready()
        config = engine.model.generation_config
        if not config.do_sample:
            return Sampling()
        return Sampling(
            temperature=1.0 if config.temperature is None else config.temperature,
            top_p=1.0 if config.top_p is None else config.top_p,
            top_k=config.top_k or None,
        )

    def answer(
        self, prompt: list[int], limit: Callable[[int], int], sampling: Sampling, stops: list[str]
    ) -> Answer:
        """Start an answer; `limit` says how many tokens of the room left it may have.

        Inside `place`. Raises ApiError when the prompt does not fit the window.
        """
        engine, backend = self.ready()
        self.require_room(len(prompt), f"{len(prompt)} tokens")
        room = self.context - len(prompt)
        job = Job(f"gen-{uuid4().hex}", prompt, limit(room), self._eos, sampling)
        answer = Answer(backend, job, decoder(engine.tokenizer), stops, self._answers.discard)
        self._answers.add(answer)
        return answer

    def require_room(self, tokens: int, words: str) -> None:
        """Raise ApiError when a prompt of so many tokens leaves no room for an answer."""
        if tokens >= self.context:
            raise ApiError(
                400,
                f"the prompt has {words}, and the context window of {self.model_id} is"
                f" {self.context} tokens: at most {self.context - 1} leave room for an answer",
                code="context_length_exceeded",
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for a request until it has its answer. Raises ApiError when there is none."""
        self.ready()
        self._admit()
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    async def look(self, work: Callable[[], T]) -> T:
        """Ask the engine for figures, on a thread that prompts cannot take."""
        return await asyncio.get_running_loop().run_in_executor(self._looks, work)

    def stop(self) -> None:
        """Take no more requests."""
        self.phase = "stopping"

    def abort(self) -> None:
        """End all open requests with an error."""
        self.aborted.set()
        for answer in list(self._answers):
            answer.abort(shutting_down())

    def close(self) -> None:
        """Stop the back-end, then the engine."""
        self._looks.shutdown(wait=False, cancel_futures=True)
        if self.backend is not None:
            self.backend.close(timeout=CLOSE_SECONDS)
        if self.engine is not None:
            self.engine.close()

    def _admit(self) -> None:
        limit = self.config.max_concurrency + self.config.max_waiting
        if self.open_answers >= limit:
            raise ApiError(
                429,
                f"{limit} requests are running or waiting, which is the limit",
                code="too_many_requests",
                headers={"Retry-After": "1"},
            )

    def _probe_job(self) -> Job:
        assert self.engine is not None
        prompt = list(self.engine.tokenizer("Hello")["input_ids"])
        return Job("probe", prompt, PROBE_TOKENS, self._eos, Sampling(temperature=0))


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: of the generation config, or else of the tokenizer."""
    found = model.generation_config.eos_token_id
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Tokens to text without special tokens, and without tidying up blanks."""

    def decode(ids: Sequence[int]) -> str:
        return str(
            tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    return decode
