"""The brain of one engine: what the policy knows of, made for a model and its parameters."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from miractl.errors import MiractlError, UsageError
from miractl.native import available
from miractl.native.replay import Kind
from miractl.policy.brain import Brain
from miractl.policy.guessing import LEARNED, make_predictor
from miractl.policy.heat import heat_for
from miractl.policy.memory import Identity, read_memory, writable, write_memory
from miractl.policy.prediction import Predictor, TablePredictor
from miractl.policy.registry import DEFAULT, POLICIES, STATIC, WITHOUT_LIBRARY, make_policy
from miractl.runtime.lookahead import Lookahead, find_router

if TYPE_CHECKING:
    from miractl.runtime.engine import Engine, EngineOptions
    from miractl.runtime.outline import Outline

UNTAUGHT = "lru-pool"  # in place of a learned policy where all experts have slots

log = logging.getLogger(__name__)


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
    predictor: Predictor | None,
) -> Brain:
    """The policy asked for, for `slots` experts a layer, and the heat; warm if there is a memory.

    So is the predictor then, if it is one that remembers.

    Raises UsageError for a memory that does not belong to the model, or that static has not got.
    """
    sizes = len(outline.layers), outline.experts, outline.top_k
    heat = heat_for(*sizes, options.parameters, clock)
    path, memory = options.warm_heat, None
    name = options.policy or default_policy()
    if path is None and slots >= outline.experts and _learns(name):
        name = UNTAUGHT  # nobody ever has to go, and nobody asks afterwards what was learned
    if path is not None:
        memory = read_memory(path, identity_of(model, outline))
        if memory is None and name == STATIC:
            raise UsageError(f"policy static goes by an earlier run, and there is no {path}")
    brain = Brain(make_policy(name, outline.top_k, slots, heat, memory), heat)
    if memory is not None:
        try:
            brain.recall(memory)
            if isinstance(predictor, TablePredictor):
                predictor.recall(memory.guesses)
        except ValueError as error:
            brain.close()
            raise UsageError(f"warm heat {path}: {error}") from None
    if path is not None:
        found = "new, written at the end" if memory is None else memory.describe(outline.top_k)
        log.info("warm heat %s: %s", path, found)
    return brain


def _learns(policy: str) -> bool:
    return policy in POLICIES and POLICIES[policy].kind is Kind.LEARNED


def remember(engine: "Engine") -> None:
    """Keep what was learned for the next start, if asked to; the log has a line of it."""
    path = engine.options.warm_heat
    if path is None or not writable(path):
        return
    try:
        memory = engine.brain.remember()
        if isinstance(engine.predictor, TablePredictor):
            guesses = {**memory.guesses, **engine.predictor.tables()}
            memory = replace(memory, guesses=guesses)
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
        mode = LEARNED
    sizes = len(outline.layers), outline.experts, outline.top_k
    return make_predictor(mode, *sizes, parameters)


def _lookahead(model: PreTrainedModel, outline: "Outline") -> Lookahead | None:
    """None unless every layer's router can be asked early."""
    blocks = [model.get_submodule(name.rpartition(".")[0]) for name in outline.modules]
    width = outline.config.get_text_config().hidden_size
    sample = torch.zeros(2, width, dtype=model.dtype, device=model.device)
    found = (find_router(block, sample) for block in blocks)
    routers = [router for router in found if router is not None]
    return Lookahead(routers, outline.experts) if len(routers) == len(blocks) else None
