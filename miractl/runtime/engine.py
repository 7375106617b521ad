"""The engine: a transformers model whose experts live in a byte-budgeted slot cache."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from miractl.checkpoint.inspection import inspect_folder
from miractl.errors import MiractlError
from miractl.native.kernels import Pool
from miractl.native.layout import MatrixShape
from miractl.native.library import why_not
from miractl.native.places import SlotPool
from miractl.plan.pools import PoolPlan
from miractl.plan.slots import SlotPlan
from miractl.policy.prediction import Predictor
from miractl.policy.registry import ways_for
from miractl.policy.slots import make_table
from miractl.runtime import facts, kv, small, timing
from miractl.runtime.brain import brain_for, default_policy, predictor_for, remember
from miractl.runtime.budget import slots_for, this_machine
from miractl.runtime.cache import ExpertCache
from miractl.runtime.compute import SlotLayout, compute_for, slot_layout
from miractl.runtime.dense import DenseBlocks, DenseLinear, dense_shapes
from miractl.runtime.device import pick_device, pick_dtype, pick_threads
from miractl.runtime.embedding import StoredEmbedding
from miractl.runtime.emulated import rest
from miractl.runtime.heap import give_back
from miractl.runtime.hollow import attach
from miractl.runtime.host_tier import refuse_too_large
from miractl.runtime.loading import Checkpoint
from miractl.runtime.losses import Losses
from miractl.runtime.outline import Outline, read_outline
from miractl.runtime.pages import use_huge_pages
from miractl.runtime.prefetch import Prefetcher
from miractl.runtime.recording import Recording, recorder_for, served_by
from miractl.runtime.runner import LayerRuns
from miractl.runtime.sequences import Sequences
from miractl.runtime.source import ExpertSource
from miractl.runtime.stopwatch import Stopwatch, kernel_reads, watch
from miractl.runtime.supply import has_tier, host_experts, host_for, refuse_link, supply_for
from miractl.runtime.tokenizer import load_tokenizer
from miractl.telemetry.recorder import Recorder
from miractl.telemetry.snapshot import ExpertRow, Snapshot
from miractl.telemetry.timeline import Timeline
from miractl.units import format_seconds

log = logging.getLogger(__name__)

STALLED = 10.0  # seconds without an end of any read, from which on the disk is said to hang


@dataclass(frozen=True)
class EngineOptions:
    """What to load and within which limits. `parameters` are the 12 of the profile."""

    model_path: Path
    model_id: str
    parameters: dict[str, Any]
    profile: str = "default"
    device: str = "auto"
    dtype: str = "auto"
    policy: str | None = None  # one of policy.registry.RUNNABLE; None: the default
    warm_heat: Path | None = None  # what was learned: read at the start, written at the end
    record_trace: Path | None = None  # a file for all routing
    expert_memory: str | None = None  # "8GiB", "40%", or None for what the machine has free
    slots: SlotPlan | None = None  # as planned; None: by `expert_memory`
    sets: int | None = None  # that layers share slots in; None: as the policy has it
    threads: int | None = None  # on a CPU; None: as many as make sense
    dense: str = "as-is"  # "int8": attention and head by the CPU kernels
    emulate_link: float | None = None  # bytes a second; the device is this CPU behind such a link
    host_compute: str | None = None  # one of host_compute.MODES; None: auto behind such a link
    with_tokenizer: bool = True
    model_options: dict[str, Any] = field(default_factory=dict)  # for from_pretrained


class Engine:
    """Owns the model, the cache and its threads. Close it when done."""

    def __init__(
        self,
        options: EngineOptions,
        outline: Outline,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        source: ExpertSource,
        plan: PoolPlan,
        layout: SlotLayout,
        pool: Pool | None = None,
        recorder: Recorder | None = None,
        clock: "facts.Clock" = time.monotonic,
        sleep: Callable[[float], None] = rest,
    ) -> None:
        self.options, self.outline, self.plan = options, outline, plan
        self.model, self.source = model, source
        self._tokenizer = tokenizer
        self.started, self._clock = clock(), clock
        self.layout = layout
        int8 = any(isinstance(module, DenseLinear) for module in model.modules())
        self.dense_format = "int8" if int8 else str(model.dtype).removeprefix("torch.")
        layers, values = len(outline.layers), options.parameters
        self.supply = supply = supply_for(
            *(options, outline, source, plan, layout, model.device, clock, sleep)
        )
        self.arena, transfers = supply.memory, supply.transfers
        self.recording = None if recorder is None else Recording(recorder, layers, clock)
        deciding = clock
        if self.recording is not None:
            transfers, deciding = self.recording.link(transfers), self.recording.clock
        host = host_experts(supply, outline, pool)
        self.compute = compute_for(layout, self.arena, outline.experts, pool, host)
        slots = sum(plan.ways) / layers
        self.policy = options.policy or default_policy()
        self.predictor = self._predictor()
        self.brain = brain_for(model, outline, options, slots, clock, self.predictor)
        self.stopwatch = Stopwatch(lambda: timing.moved(self.cache), clock, kernel_reads())
        self.cache = ExpertCache(
            make_table(self._pools(), plan.staging_limit, self.brain),
            transfers,
            *(deciding, self.stopwatch.begin),
            host=host_for(supply, transfers),
        )
        self.prefetcher: Prefetcher | None = None
        if self.predictor is not None:
            self.prefetcher = Prefetcher(
                *(self.cache, self.predictor),
                confidence=values["prediction_confidence"],
                horizon=values["prediction_horizon"],
                clock=deciding,
            )
        sequences = Sequences()
        sequences.watch(model)
        blocks = (model.get_submodule(name.rpartition(".")[0]) for name in outline.modules)
        watch(model, blocks, sequences, self.stopwatch)
        if self.recording is not None:
            self.recording.begin(self.cache, served_by(self))
        self.losses = Losses()
        embedding: Any = model.get_input_embeddings()
        if isinstance(embedding, StoredEmbedding):
            embedding.losses = self.losses
        runs = LayerRuns(
            *(self.cache, self.compute, sequences, self.stopwatch, self.recording, self.losses)
        )
        for layer, name in enumerate(outline.modules):
            attach(model.get_submodule(name), layer, runs)
        self._memory_rate = timing.memory_rate(model, torch.get_num_threads())

    def _pools(self) -> list[SlotPool]:
        """The plan as the slot table takes it."""
        asked = self.options.sets is not None
        return [
            SlotPool(self.plan.layers(at), pool.slots, ways_for(self.policy, pool.ways, asked))
            for at, pool in enumerate(self.plan.pools)
        ]

    def _predictor(self) -> Predictor | None:
        """What bets go by; None where there are none."""
        if not self.plan.staging_limit:
            return None
        if (reason := why_not()) is not None:
            log.warning("nothing is prefetched: %s", reason)
            return None
        found = predictor_for(self.model, self.outline, self.options.parameters)
        if self.recording is None:
            return found
        return self.recording.guesses(found, self.outline.experts)

    @classmethod
    def load(
        cls,
        options: EngineOptions,
        clock: "facts.Clock" = time.monotonic,
        sleep: Callable[[float], None] = rest,
    ) -> Self:
        """Plan first, load after: what cannot run is refused before anything large is read.

        `clock` and `sleep` are what an emulated link goes by.
        """
        device = pick_device(options.device)
        dtype = pick_dtype(options.dtype, device)
        if options.dense == "int8":
            refuse_dense(device.type)
        inspect_folder(options.model_path).refuse()
        outline = read_outline(options.model_path, options.parameters["expert_layer_path"])
        layout = slot_layout(outline, device, dtype)
        refuse_link(options, outline, layout, device)
        dense = _dense_shapes(options, outline, device)
        plan = slots_for(options, outline, layout, device, dtype, dense)
        beside = has_tier(options, device)
        if beside or options.emulate_link is not None:
            assert outline.manifest is not None
            everything = outline.manifest.record.nbytes * outline.experts * len(outline.layers)
            lower = "--host-compute off" if beside else ""
            refuse_too_large(everything, this_machine(torch.device("cpu")), lower)
        recorder = recorder_for(options, outline, plan)
        tokenizer = load_tokenizer(options.model_path) if options.with_tokenizer else None
        # Where slots are elsewhere and the host keeps no copy its memory is free for pages.
        is_cached = device.type == "cuda" and not beside
        checkpoint = Checkpoint(options.model_path, outline, is_cached=is_cached)
        on_host = device.type == "cpu" or beside
        threads = pick_threads(outline, options.threads) if on_host else 1
        kernels = bool(dense) or layout.records is not None or beside
        pool = Pool(threads) if threads > 1 and kernels else None
        blocks = DenseBlocks(dense, pool) if dense else None
        model = checkpoint.load_others(dtype, device, blocks, **options.model_options)
        if device.type == "cpu":
            torch.set_num_threads(threads)
            if why_not() is None:
                small.install(model, pool, to_the_bit=not dense and layout.records is None)
            use_huge_pages(model)
        kv.install()
        give_back()
        return cls(
            *(options, outline, model, tokenizer, checkpoint.source, plan, layout, pool),
            recorder=recorder,
            clock=clock,
            sleep=sleep,
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer. Raises MiractlError if it was not asked for."""
        if self._tokenizer is None:
            raise MiractlError(f"{self.options.model_id} was loaded without its tokenizer")
        return self._tokenizer

    def snapshot(self) -> Snapshot:
        """Everything there is to know at this moment."""
        return facts.snapshot(self, self._clock() - self.started)

    def expert_rows(self) -> list[ExpertRow]:
        """One row for every (layer, expert), used or not."""
        return facts.expert_rows(self)

    def fault(self) -> str | None:
        """Why requests fail or wait: a read that hangs, a file that was changed; None: neither."""
        if (seconds := self.cache.transfers.stalled) >= STALLED:
            return f"no read from {self.options.model_path} has ended for {format_seconds(seconds)}"
        return self.source.fault()

    def timeline(self, last: int) -> Timeline:
        """Where the time of the last steps went."""
        machine = timing.machine(self, self._memory_rate)
        return Timeline(self.options.model_id, machine, tuple(self.stopwatch.steps)[-last:])

    @property
    def writes(self) -> bool:
        """Whether `close` writes what was recorded or learned."""
        return self.recording is not None or self.options.warm_heat is not None

    def close(self) -> None:
        """Stop the threads, keep what was learned and recorded, close the checkpoint's files."""
        self.cache.transfers.close()
        with self.cache.lock:  # a step that is still under way asks the brain under it
            remember(self)
            self.brain.close()
        if self.recording is not None:
            self.recording.close()
        self.source.close()


def _dense_shapes(
    options: EngineOptions, outline: Outline, device: torch.device
) -> Mapping[str, MatrixShape]:
    """The int8 matrices of a packed folder, or those that were asked for."""
    if outline.manifest is not None and outline.manifest.dense:
        usable = device.type == "cpu" and why_not() is None
        return outline.manifest.dense if usable else {}
    return dense_shapes(outline.model) if options.dense == "int8" else {}


def refuse_dense(device: str) -> None:
    """Raise MiractlError where linear layers cannot be int8: they are for the CPU kernels."""
    reason = why_not() if device == "cpu" else f"the model runs on {device}"
    if reason is not None:
        raise MiractlError(f"--dense int8 is for the CPU kernels: {reason}", hint="--dense as-is")
