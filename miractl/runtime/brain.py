"""The brain of one engine: what the policy knows of, made for a model and its parameters."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from miractl.policy.eviction import Brain
from miractl.policy.heat import HeatTable
from miractl.policy.prediction import MarkovTable
from miractl.policy.registry import make_policy
from miractl.runtime.lookahead import Lookahead, find_router
from miractl.runtime.prefetch import Predictor, TablePredictor

if TYPE_CHECKING:
    from miractl.runtime.loading import Outline

log = logging.getLogger(__name__)


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


def brain_for(
    outline: "Outline",
    name: str,
    slots: float,
    parameters: Mapping[str, Any],
    clock: Callable[[], float],
) -> Brain:
    """The policy of this name, for `slots` experts a layer, and the heat."""
    heat = heat_table(outline, parameters, clock)
    return Brain(make_policy(name, outline.top_k, slots, heat), heat)


def predictor_for(model: PreTrainedModel, outline: "Outline", mode: str) -> Predictor:
    """Look-ahead where every layer's router can be asked early, else a Markov table."""
    if mode == "lookahead":
        blocks = [model.get_submodule(name.rpartition(".")[0]) for name in outline.modules]
        width = outline.config.get_text_config().hidden_size
        sample = torch.zeros(2, width, dtype=model.dtype, device=model.device)
        found = (find_router(block, sample) for block in blocks)
        routers = [router for router in found if router is not None]
        if len(routers) == len(blocks):
            return Lookahead(routers, outline.experts)
        log.warning(
            "%s: no router found beside the experts; predicting with a Markov table instead",
            outline.config.model_type,
        )
    return TablePredictor(MarkovTable(len(outline.layers), outline.experts, outline.top_k))
