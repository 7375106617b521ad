"""How fast a model reads a prompt and goes on: the same prompts through every contender.

Contenders take turns, so that a slow minute meets all of them, and each has one round that is not
counted: memory is touched, caches fill.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.loading import Checkpoint
from miractl.runtime.stopwatch import kernel_reads
from miractl.runtime.verify import refuse_too_large
from miractl.telemetry.snapshot import Snapshot

OURS, STOCK = "miractl", "transformers"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Lap:
    """One part of one round: seconds on the clock and of all processors, bytes from storage."""

    tokens: int
    seconds: float
    cpu_seconds: float
    read_bytes: int | None  # as the kernel counts; None where it does not say

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Tokens a second of processor time."""
        return self.tokens / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the cache did while tokens were generated, over all counted rounds."""

    hit_rate: float | None  # of lookups; None without one
    bytes_per_token: float  # brought into slots


@dataclass(slots=True)
class Contender:
    """A model and what was measured of it. `snapshot` asks its cache; None: it has none."""

    model: PreTrainedModel
    snapshot: Callable[[], Snapshot] | None = None
    device: torch.device | None = None  # that prompts go to; None: where the model is
    prefill: list[Lap] = field(default_factory=list)
    decode: list[Lap] = field(default_factory=list)
    _uses: list[tuple[int, int, int]] = field(default_factory=list)  # lookups, hits, bytes

    @property
    def cache_use(self) -> CacheUse | None:
        """None for a model without a cache."""
        if not self._uses:
            return None
        lookups, hits, moved = (sum(column) for column in zip(*self._uses, strict=True))
        tokens = sum(lap.tokens for lap in self.decode)
        return CacheUse(hits / lookups if lookups else None, moved / tokens)

    @torch.no_grad()
    def run(self, prompt: torch.Tensor, tokens: int) -> None:
        """One round: a prompt [1, P], then `tokens` more, the likeliest each."""
        device = self.device or self.model.device
        step = _stepper(self.model)
        with _lap(self.prefill, prompt.shape[1], device):
            ids, past = step(prompt.to(device), None)
        before = self._counts()
        with _lap(self.decode, tokens, device):
            for _ in range(tokens):
                ids, past = step(ids, past)
        if before is not None and (after := self._counts()) is not None:
            lookups, hits, moved = (b - a for a, b in zip(before, after, strict=True))
            self._uses.append((lookups, hits, moved))

    def forget(self) -> None:
        """Drop what was measured."""
        for laps in (self.prefill, self.decode, self._uses):
            laps.clear()

    def _counts(self) -> tuple[int, int, int] | None:
        if self.snapshot is None:
            return None
        facts = self.snapshot()
        return facts.cache.lookups, facts.cache.hits, facts.transfer.bytes


def random_prompts(model: PreTrainedModel, tokens: int, count: int) -> list[torch.Tensor]:
    """`count` prompts [1, tokens], always the same ones."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, vocabulary, (1, tokens), generator=generator) for _ in range(count)]


def text_prompts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], tokens: int, count: int
) -> list[torch.Tensor]:
    """`count` prompts [1, up to tokens] from the starts of texts, in turn."""
    known = [tokenizer(text, return_tensors="pt")["input_ids"][:, :tokens] for text in texts]
    return [known[number % len(known)] for number in range(count)]


def measure(
    contenders: Mapping[str, Contender],
    prompts: Sequence[torch.Tensor],
    tokens: int,
    progress: Progress,
) -> None:
    """Run a round of all contenders with each prompt; what was measured is theirs."""
    for number, prompt in enumerate(prompts):
        for name, contender in contenders.items():
            progress(f"{name}: round", number, len(prompts) - 1)
            contender.run(prompt, tokens)
            if number == 0:
                contender.forget()


@contextmanager
def contenders_of(
    options: EngineOptions, with_stock: bool
) -> Iterator[tuple[dict[str, Contender], dict[str, Any]]]:
    """Our engine and, if wanted, the stock model, by name; and JSON-ready facts of the run.

    Raises MiractlError where the stock model does not fit the RAM.
    """
    engine = Engine.load(options)
    try:
        contenders = {OURS: Contender(engine.model, engine.snapshot)}
        if with_stock:
            refuse_too_large(engine.outline)
            stock = Checkpoint(options.model_path, engine.outline).load_stock(engine.model.dtype)
            contenders[STOCK] = Contender(stock.to(engine.model.device))  # type: ignore[arg-type]
        facts = {
            "device": str(engine.model.device),
            "dtype": str(engine.model.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "slots": engine.plan.slots,
            "sets": len(engine.cache.residency.ways),
            "ways": min(engine.cache.residency.ways),
            "staged": engine.plan.staging_limit if engine.prefetcher else 0,
            "layers": len(engine.outline.layers),
            "top_k": engine.outline.top_k,
            "experts": len(engine.outline.layers) * engine.outline.experts,
            "expert_memory_bytes": engine.plan.arena_bytes,
            "emulated_link_bytes_per_second": options.emulate_link,
        }
        yield contenders, facts
    finally:
        engine.close()


Step = Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]]


def _stepper(model: PreTrainedModel) -> Step:
    """(ids [1, n], cache) -> (likeliest next id [1, 1], cache)."""
    accepted = inspect.signature(model.forward).parameters
    last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    cache = "cache" if "cache" in accepted else "past_key_values"

    def step(ids: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
        out = model(input_ids=ids, use_cache=True, **{cache: past}, **last)
        return out.logits[:, -1:].argmax(-1), out[cache]

    return step


@contextmanager
def _lap(laps: list[Lap], tokens: int, device: torch.device) -> Iterator[None]:
    """Take the time of a block, the device's work included."""
    _finish(device)
    reads = kernel_reads()
    before, begun, cpu = reads(), time.perf_counter(), time.process_time()
    yield
    _finish(device)
    seconds, used, after = time.perf_counter() - begun, time.process_time() - cpu, reads()
    read = None if before is None or after is None else after - before
    laps.append(Lap(tokens, seconds, used, read))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
