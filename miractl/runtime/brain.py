"""The brain of one engine: what the policy knows of, made for a model and its parameters."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from miractl.errors import MiractlError, UsageError
from miractl.native import available
from miractl.policy.eviction import Brain
from miractl.policy.foresight import Foresight
from miractl.policy.heat import HeatTable
from miractl.policy.markov import MarkovTable
from miractl.policy.memory import Identity, read_memory, writable, write_memory
from miractl.policy.position import Hybrid, PositionTable
from miractl.policy.prediction import Popularity, Predictor, Shuffled
from miractl.policy.registry import DEFAULT, STATIC, WITHOUT_LIBRARY, make_policy
from miractl.policy.resampling import Resampled
from miractl.runtime.lookahead import Lookahead, find_router

if TYPE_CHECKING:
    from miractl.runtime.engine import Engine, EngineOptions
    from miractl.runtime.outline import Outline

log = logging.getLogger(__name__)

TABLES: dict[str, Callable[[int, int, int], Predictor]] = {
    table.mode: table for table in (MarkovTable, PositionTable, Hybrid, Popularity)
}


def heat_table(
    outline: "Outline", parameters: Mapping[str, Any], clock: Callable[[], float]
) -> HeatTable:
    """The heat score of every expert, by the profile's parameters."""
    return HeatTable(
        len(outline.layers),
        outline.experts,
        outline.top_k,
        clock=clock,
        threshold=parameters["cache_threshold"],
        window=parameters["prediction_window_ms"] / 1000,
        decay=parameters["heat_decay_factor"],
    )


def default_policy() -> str:
    """The learned policy, where the library that learns is at hand."""
    return DEFAULT if available() else WITHOUT_LIBRARY


def identity_of(model: PreTrainedModel, outline: "Outline") -> Identity:
    """Of a model for what is remembered of it: its shape, and what its routers are."""
    digest = hashlib.sha256()
    for name in outline.modules:
        for own, weight in model.get_submodule(name.rpartition(".")[0]).named_parameters():
            if weight.dim() == 2 and len(weight) == outline.experts:
                digest.update(own.encode())
                # As bfloat16, so that the type that it is loaded in makes no difference.
                digest.update(weight.detach().bfloat16().view(torch.int16).cpu().numpy().tobytes())
    config = outline.config
    sizes = tuple(outline.layers), outline.experts, outline.top_k
    return Identity(config.model_type, *sizes, digest.hexdigest()[:16])


def brain_for(
    model: PreTrainedModel,
    outline: "Outline",
    options: "EngineOptions",
    slots: float,
    clock: Callable[[], float],
) -> Brain:
    """The policy asked for, for `slots` experts a layer, and the heat; warm if there is a memory.

    Raises UsageError for a memory that does not belong to the model, or that static has not got.
    """
    heat = heat_table(outline, options.parameters, clock)
    path, memory = options.warm_heat, None
    name = options.policy or default_policy()
    if path is not None:
        memory = read_memory(path, identity_of(model, outline))
        if memory is None and name == STATIC:
            raise UsageError(f"policy static goes by an earlier run, and there is no {path}")
    brain = Brain(make_policy(name, outline.top_k, slots, heat, memory), heat)
    if memory is not None:
        try:
            brain.recall(memory)
        except ValueError as error:
            brain.close()
            raise UsageError(f"warm heat {path}: {error}") from None
    if path is not None:
        found = "new, written at the end" if memory is None else memory.describe(outline.top_k)
        log.info("warm heat %s: %s", path, found)
    return brain


def remember(engine: "Engine") -> None:
    """Keep what the brain knows for the next start, if asked to; the log has a line of it."""
    path = engine.options.warm_heat
    if path is None or not writable(path):
        return
    try:
        memory = engine.brain.remember()
        write_memory(path, identity_of(engine.model, engine.outline), memory)
    except MiractlError as error:
        log.error("%s", error.message)
    else:
        log.info("warm heat %s: written, %s", path, memory.describe(engine.outline.top_k))


def predictor_for(
    model: PreTrainedModel, outline: "Outline", parameters: Mapping[str, Any]
) -> Predictor:
    """The predictor of the profile's mode; its tables are sampled anew if the profile says so."""
    mode = parameters["prediction_mode"]
    if mode == "lookahead":
        if (found := _lookahead(model, outline)) is not None:
            return found
        log.warning(
            "%s: no router found beside the experts; predicting from the routing instead",
            outline.config.model_type,
        )
        mode = "learned"
    sizes = len(outline.layers), outline.experts, outline.top_k
    predictor: Predictor
    if mode in TABLES:
        predictor = TABLES[mode](*sizes)
    else:
        predictor = Foresight(*sizes, horizon=parameters["prediction_horizon"])
    if mode == "shuffle":
        predictor = Shuffled(predictor, *sizes[:2])
    if not parameters["dynamic_resampling"]:
        return predictor
    return Resampled(predictor, parameters["resample_interval_tokens"])


def _lookahead(model: PreTrainedModel, outline: "Outline") -> Lookahead | None:
    """None unless every layer's router can be asked early."""
    blocks = [model.get_submodule(name.rpartition(".")[0]) for name in outline.modules]
    width = outline.config.get_text_config().hidden_size
    sample = torch.zeros(2, width, dtype=model.dtype, device=model.device)
    found = (find_router(block, sample) for block in blocks)
    routers = [router for router in found if router is not None]
    return Lookahead(routers, outline.experts) if len(routers) == len(blocks) else None
