"""The predictors that go by the routing alone, by the modes of the profile."""

from collections.abc import Callable, Mapping
from typing import Any

from miractl.policy.foresight import Foresight
from miractl.policy.markov import MarkovTable
from miractl.policy.position import Hybrid, PositionTable
from miractl.policy.prediction import Popularity, Shuffled, TablePredictor
from miractl.policy.resampling import Resampled

TABLES: dict[str, Callable[[int, int, int], TablePredictor]] = {
    table.mode: table for table in (MarkovTable, PositionTable, Hybrid, Popularity)
}
LEARNED, SHUFFLE = Foresight.mode, "shuffle"
MODES = (*TABLES, LEARNED, SHUFFLE)


def make_predictor(
    mode: str, layers: int, experts: int, top_k: int, parameters: Mapping[str, Any]
) -> TablePredictor:
    """One of MODES; its tables are sampled anew if the profile says so."""
    sizes = layers, experts, top_k
    predictor: TablePredictor
    if mode in TABLES:
        predictor = TABLES[mode](*sizes)
    else:
        predictor = Foresight(*sizes, horizon=parameters["prediction_horizon"])
    if mode == SHUFFLE:
        predictor = Shuffled(predictor, layers, experts)
    if not parameters["dynamic_resampling"]:
        return predictor
    return Resampled(predictor, parameters["resample_interval_tokens"])
