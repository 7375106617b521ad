"""The brain of one engine: what the policy knows of, made for a model and its parameters."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from miractl.policy.foresight import Foresight
from miractl.policy.heat import HeatTable
from miractl.policy.markov import MarkovTable
from miractl.policy.position import Hybrid, PositionTable
from miractl.policy.prediction import Popularity, Predictor, Shuffled
from miractl.policy.resampling import Resampled
from miractl.runtime.lookahead import Lookahead, find_router

if TYPE_CHECKING:
    from miractl.runtime.loading import Outline

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
