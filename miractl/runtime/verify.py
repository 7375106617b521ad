"""The proof that outputs do not depend on the cache: the same inputs through the stock model.

Each case runs the model with another way to go wrong: a small cache, barely more slots than one
layer needs, waves, predictions that are always wrong. The last one puts a wrong expert into every
slot on purpose, and has to be noticed: a check that cannot fail proves nothing.

Experts that are computed from their codes round their inputs too, so their outputs are near those
of stock transformers on the decoded weights, not equal. There every layer is given the stock
model's own inputs and routing, since a small difference may tip a later router; and the cases have
to give the very bits of a run with every expert resident.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from miractl.errors import MiractlError
from miractl.native.ahead import Ahead
from miractl.policy.keys import ExpertKey
from miractl.policy.prediction import Predictor, Probabilities
from miractl.policy.routing import Routed
from miractl.runtime.budget import this_machine
from miractl.runtime.compute import SlotLayout, slot_layout
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.layer_proof import Recorded, record_layers, relative_error
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import Outline, read_outline
from miractl.runtime.ticket import Course
from miractl.runtime.transfer import Mover
from miractl.runtime.transfer_queue import TransferQueue
from miractl.units import format_bytes

log = logging.getLogger(__name__)

TOLERANCE = 1e-5  # largest difference of a logit, float32
# Of a layer's output, |difference| / |output|: activations are rounded to 16 or 8 bits.
LAYER_TOLERANCE = {"i8": 5e-4, "i4k": 0.03}
GREEDY_TOKENS = 32
PROMPT_TOKENS = 96  # enough for a prefill that wants most experts of a layer
CONTROL = "wrong expert on purpose"


@dataclass(frozen=True, slots=True)
class Case:
    """One way of running the model, and what came of it."""

    name: str
    slots: int
    difference: float  # largest of a logit over the prompt; of a layer where `limit` is one's
    same_text: bool  # greedy continuation equals the one that was expected
    limit: float
    hits: int
    misses: int
    waves: int
    wasted: int
    control: bool = False

    @property
    def passed(self) -> bool:
        """Equal within the tolerance; for the control, noticeably different."""
        equal = self.difference <= self.limit and self.same_text
        return not equal if self.control else equal


def verify(options: EngineOptions) -> Iterator[Case]:
    """Run all cases, in float32. Raises MiractlError if the stock model does not fit the RAM."""
    options = dataclasses.replace(options, dtype="float32", device="cpu", with_tokenizer=False)
    outline = read_outline(options.model_path)
    refuse_too_large(outline)
    prompt = _prompt(outline)
    layout = slot_layout(outline, torch.device("cpu"), torch.float32)
    if layout.note is not None:
        log.warning("%s", layout.note)
    stock = Checkpoint(options.model_path, outline).load_stock(torch.float32)
    recorded = record_layers(stock, outline, prompt)
    expected = _answer(stock, prompt)
    del stock
    layers, k = len(outline.layers), outline.top_k
    quarter = max(k, layers * outline.experts // 4)
    same: _Check = _Whole(prompt, expected, TOLERANCE)
    noticed = same
    run = functools.partial(_run, options, functools.partial(_memory, outline, layout))
    if layout.records is not None or (outline.manifest is not None and outline.manifest.dense):
        noticed = _Layers(recorded, LAYER_TOLERANCE.get(layout.format, TOLERANCE))
        yield run("each layer on stock inputs", quarter, noticed)
        resident = _resident_answer(options, prompt)
        same = _Whole(prompt, resident, 0.0)
    for name, slots in (
        ("a quarter of the experts", quarter),
        ("one slot a layer above top-k", layers * (k + 1)),
        ("top-k slots for all layers: waves", k),
        ("predictions always wrong", quarter),
    ):
        yield run(name, slots, same)
    yield run(CONTROL, quarter, noticed)


class _Check(Protocol):
    """What is compared: the difference found, and whether the texts are equal."""

    limit: float

    def __call__(self, engine: Engine) -> tuple[float, bool]: ...


class _Whole:
    """Logits of the prompt and the greedy text of the whole model."""

    def __init__(self, prompt: torch.Tensor, expected: "_Answer", limit: float) -> None:
        self._prompt, self._expected, self.limit = prompt, expected, limit

    def __call__(self, engine: Engine) -> tuple[float, bool]:
        answer = _answer(engine.model, self._prompt)
        difference = float((answer.logits - self._expected.logits).abs().max())
        return difference, torch.equal(answer.text, self._expected.text)


class _Layers:
    """Every layer's output for given inputs and routing."""

    def __init__(self, recorded: Sequence[Recorded], limit: float) -> None:
        self._recorded, self.limit = recorded, limit

    @torch.no_grad()
    def __call__(self, engine: Engine) -> tuple[float, bool]:
        return max(relative_error(engine.model, layer) for layer in self._recorded), True


def _memory(outline: Outline, layout: SlotLayout, slots: int) -> str:
    """Bytes of so many slots: each pool has its layers' share, and top-k at least."""
    layers = len(outline.of_layer)
    shares = (slots * outline.of_layer.count(pool) // layers for pool in range(len(layout.sizes)))
    sizes = zip(shares, layout.sizes, strict=True)
    return f"{sum(max(outline.top_k, share) * size for share, size in sizes)}B"


def _run(
    options: EngineOptions, memory: Callable[[int], str], name: str, slots: int, check: _Check
) -> Case:
    engine = Engine.load(dataclasses.replace(options, expert_memory=memory(slots)))
    try:
        if name == CONTROL:
            queue = engine.cache.transfers
            assert isinstance(queue, TransferQueue)
            queue.mover = _NeighbourMover(queue.mover, engine.outline.experts)
        if "wrong" in name and engine.prefetcher is not None:
            engine.prefetcher.go_by(_Contrary(engine.prefetcher.predictor))
            engine.prefetcher.ahead = _Reckless(engine.prefetcher.ahead)
        difference, same_text = check(engine)
        facts = engine.snapshot()
    finally:
        engine.close()
    return Case(
        name=name,
        slots=engine.plan.slots,
        difference=difference,
        same_text=same_text,
        limit=check.limit,
        hits=facts.cache.hits,
        misses=facts.cache.misses,
        waves=facts.cache.waves,
        wasted=facts.prefetch.wasted,
        control=name == CONTROL,
    )


def _resident_answer(options: EngineOptions, prompt: torch.Tensor) -> "_Answer":
    """The answer with a slot for every expert."""
    engine = Engine.load(dataclasses.replace(options, expert_memory="100%"))
    try:
        return _answer(engine.model, prompt)
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class _Answer:
    logits: torch.Tensor  # [1, prompt, vocabulary]
    text: torch.Tensor  # [1, prompt + generated]


@torch.no_grad()
def _answer(model: torch.nn.Module, prompt: torch.Tensor) -> _Answer:
    logits = model(prompt).logits
    text = model.generate(  # type: ignore[operator]
        prompt[:, : PROMPT_TOKENS // 2],
        attention_mask=torch.ones(1, PROMPT_TOKENS // 2, dtype=torch.int64),
        max_new_tokens=GREEDY_TOKENS,
        do_sample=False,
    )
    return _Answer(logits, text)


def _prompt(outline: Outline) -> torch.Tensor:
    """Fixed pseudo-random ids [1, PROMPT_TOKENS]: they reach more experts than prose does."""
    vocabulary = int(outline.config.get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, vocabulary, (1, PROMPT_TOKENS), generator=generator)


def refuse_too_large(outline: Outline) -> None:
    """Raise MiractlError if the stock model would not fit the free RAM in float32."""
    need = sum(parameter.numel() for parameter in outline.model.parameters()) * 4
    free = this_machine(torch.device("cpu")).host_free.value
    if free is not None and need > 0.8 * free:
        raise MiractlError(
            f"the stock model takes {format_bytes(need)} in float32, {format_bytes(free)} is free, "
            "so there is nothing to compare with on this machine",
            hint="take a smaller model of the same family",
        )


class _Contrary:
    """Wants most what the real predictor wants least."""

    def __init__(self, inner: Predictor) -> None:
        self._inner, self.mode = inner, inner.mode

    def observe(self, step: Routed, hidden: torch.Tensor) -> None:
        self._inner.observe(step, hidden)

    def guess(self, ahead: int) -> Probabilities | None:
        wanted = self._inner.guess(ahead)
        return None if wanted is None else wanted.max() - wanted

    def fade(self) -> None:
        self._inner.fade()


class _Reckless(Ahead):
    """Bets on whoever is likeliest, whatever it costs."""

    def __init__(self, usual: Ahead) -> None:
        super().__init__(usual.bets, usual.table, 1, 1.0, 0.0)

    @property
    def skips(self) -> bool:
        return False  # no wait is too short to bet

    def place(self, ahead: int, guesses: npt.NDArray[np.float64]) -> list[list[int]]:
        layer = self.table.layer + ahead
        there = self.table.present(layer)
        order = np.argsort(-guesses, kind="stable").tolist()
        chosen = [expert for expert in order if not there[expert]]
        return self.table.bet(layer, chosen[: self.table.room_for_bets])


class _NeighbourMover:
    """Brings the next expert instead of the one asked for."""

    def __init__(self, inner: Mover, experts: int) -> None:
        self._inner, self._experts = inner, experts
        self.source, self.chunks = inner.source, inner.chunks

    @property
    def busy_seconds(self) -> float | None:
        return self._inner.busy_seconds

    @property
    def seconds(self) -> float | None:
        return self._inner.seconds

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        other = ExpertKey(key.layer, (key.expert + 1) % self._experts)
        return self._inner.move(other, slot, chunks)

    def arrive(self, slot: int) -> None:
        self._inner.arrive(slot)
