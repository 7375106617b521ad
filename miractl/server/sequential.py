"""One job after another with `model.generate`: for model families that cannot be batched."""

import asyncio
import queue
import threading
from asyncio import AbstractEventLoop
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from miractl.server.job import Deliver, Job, Progress
from miractl.server.sampler import Sampler


class _CancelledError(Exception):
    """Ends `generate` from inside its streamer."""


@dataclass(eq=False)
class _Turn:
    """A job in the queue."""

    job: Job
    deliver: Deliver
    loop: AbstractEventLoop
    cancelled: bool = False

    def report(self, progress: Progress) -> None:
        """Deliver on the event loop, unless cancelled or the loop has ended."""

        def run() -> None:
            if not self.cancelled:
                self.deliver(progress)

        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(run)


class _Choose(LogitsProcessor):
    """One request's sampler in the form that `generate` takes."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """`scores` [1, vocabulary]."""
        scores = scores.float().clone()  # type: ignore[assignment]
        self._sampler.choose_in(scores[0])
        if self._sampler.error is not None:
            raise RuntimeError(self._sampler.error)
        return scores


class _Tokens(BaseStreamer):
    """Reports tokens as they come; the prompt, which `generate` sends first, is left out."""

    def __init__(self, turn: _Turn) -> None:
        self._turn = turn
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Tokens of one step."""
        if self._turn.cancelled:
            raise _CancelledError
        if self._prompt_seen:
            self._turn.report(Progress(value.flatten().tolist(), finished=False))
        self._prompt_seen = True

    def end(self) -> None:
        """The end is reported after `generate` has returned."""


class SequentialBackend:
    """Jobs in a queue, one thread that works them off."""

    name = "one after another"

    def __init__(self, model: Any) -> None:
        self._model = model
        self._queue: queue.Queue[_Turn | None] = queue.Queue()
        self._turns: dict[str, _Turn] = {}
        self._thread = threading.Thread(target=self._work, name="generate", daemon=True)
        self._thread.start()

    def submit(self, job: Job, deliver: Deliver) -> None:
        """See Backend."""
        turn = _Turn(job, deliver, asyncio.get_running_loop())
        self._turns[job.id] = turn
        self._queue.put(turn)

    def cancel(self, job_id: str) -> None:
        """See Backend."""
        turn = self._turns.pop(job_id, None)
        if turn is not None:
            turn.cancelled = True

    def failure(self) -> str | None:
        """See Backend."""
        return None if self._thread.is_alive() else "the generation thread has ended"

    def close(self, timeout: float) -> None:
        """See Backend."""
        for job_id in list(self._turns):
            self.cancel(job_id)
        self._queue.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while (turn := self._queue.get()) is not None:
            if turn.cancelled:
                continue
            try:
                self._generate(turn)
                turn.report(Progress([], finished=True))
            except _CancelledError:
                pass
            except Exception as error:  # of this job alone: the next one is another prompt
                turn.report(Progress([], finished=True, error=str(error)))
            finally:
                self._turns.pop(turn.job.id, None)

    def _generate(self, turn: _Turn) -> None:
        job = turn.job
        config = GenerationConfig.from_dict(
            {
                "do_sample": False,
                "max_new_tokens": job.max_new_tokens,
                "eos_token_id": sorted(job.eos) or None,
                "pad_token_id": min(job.eos, default=0),
            }
        )
        ids = torch.tensor([job.prompt], device=self._model.device)
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            logits_processor=LogitsProcessorList([_Choose(Sampler(job.sampling))]),
            streamer=_Tokens(turn),
        )
