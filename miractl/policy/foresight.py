"""The learned predictor on several sequences: tables for all, a past for each."""

from typing import Any

import numpy as np

from miractl.native.predictor import KEPT, PredictorState
from miractl.native.predictor import Predictor as Native
from miractl.policy.prediction import (
    LAST,
    Popularity,
    Probabilities,
    Tables,
    is_prompt,
    owned,
    put_back,
    union,
)
from miractl.policy.routing import Ids, Routed, Segment
from miractl.policy.streams import Streams

MOST_TOKENS = 2**53  # learned: more are no count of a run


class Stream:
    """One sequence: its past in each of the predictors, one for each number of layers ahead."""

    def __init__(self, states: list[PredictorState], tokens: int) -> None:
        self.predictors = [Native(state.branch(tokens)) for state in states]
        self.next_layer = 0
        self._is_new = True
        self.prompt: list[Ids] = []  # the last tokens' ids [tokens, k] of each layer so far

    def begin(self, starts: bool) -> None:
        """A token begins; what its first layers can be told from is known."""
        self.next_layer = 0
        for predictor in self.predictors:
            predictor.begin(starts or self._is_new)
            for layer in range(min(predictor.state.ahead, predictor.state.layers)):
                predictor.predict(layer)
        self._is_new = False

    def confirm(self, layer: int, ids: int) -> None:
        """Learn a layer's experts, int64 [k] at address `ids`, and predict what they tell of."""
        for predictor in self.predictors:
            predictor.follow(layer, ids)
        self.next_layer = layer + 1


def _kept(state: PredictorState) -> Tables:
    return {f"foresight.{state.ahead}.{name}": getattr(state, name) for name in KEPT}


class Foresight:
    """Guesses by `miractl.native.predictor`; a prompt's last tokens are learned when it is through.

    Raises MiractlError without the library.
    """

    mode = "learned"

    def __init__(self, layers: int, experts: int, top_k: int, horizon: int) -> None:
        self._states = [
            PredictorState(layers, experts, top_k, ahead=ahead) for ahead in range(1, horizon + 1)
        ]
        self._layers = layers
        self._tokens = 0  # learned
        self._streams = Streams(lambda: Stream(self._states, self._tokens))
        self._popular = Popularity(layers, experts, top_k)
        self._step: Routed | None = None

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Learn from new tokens at once, from prompts at their last layer."""
        self._step = step
        self._popular.observe(step)
        for part in owned(step):
            stream = self._streams.begin(part) if step.layer == 0 else self._streams.of(part)
            if len(part) > 1:
                self._read(stream, step, part)
            elif step.layer == 0:
                self._tokens += 1
                stream.begin(part.position == 0)
                stream.confirm(0, self._row_at(step, part))
            elif stream.next_layer == step.layer:
                stream.confirm(step.layer, self._row_at(step, part))

    def guess(self, ahead: int) -> Probabilities | None:
        """By each new token's past, by popularity for prompts."""
        step = self._step
        if step is None or step.layer + ahead >= self._layers or ahead > len(self._states):
            return None
        if is_prompt(step):
            return self._popular.guess(ahead)
        streams = [self._streams.of(part) for part in owned(step)]
        each = [
            stream.predictors[ahead - 1].guess
            for stream in streams
            if stream.next_layer == step.layer + 1
        ]
        if len(each) > 1:
            return union(np.stack(each))
        return each[0].copy() if each else None

    def fade(self) -> None:
        """Halve the counts; let the tables move again."""
        for state in self._states:
            state.fade()
        self._popular.fade()

    def tables(self) -> Tables:
        """Of each number of layers ahead; and of how many tokens they are."""
        kept = {name: array for state in self._states for name, array in _kept(state).items()}
        tokens = np.array([self._tokens], np.float64)
        return {**kept, "foresight.tokens": tokens, **self._popular.tables()}

    def recall(self, tables: Tables) -> None:
        """As the protocol says, but as ready to learn anew as at the start.

        Kept sums of squared gradients would hold on to what was right for other texts.
        """
        self._popular.recall(tables)
        tokens = np.zeros(1)
        known = [put_back(_kept(state), tables) for state in self._states]
        if any(known) and put_back({"foresight.tokens": tokens}, tables):
            self._tokens = int(np.clip(tokens[0], 0, MOST_TOKENS))

    @staticmethod
    def _row_at(step: Routed, part: Segment) -> int:
        ids, _ = step.addresses
        return ids + part.start * step.ids.strides[0]

    def _read(self, stream: Stream, step: Routed, part: Segment) -> None:
        if step.layer == 0:
            stream.prompt = []
        stream.prompt.append(step.ids[max(part.start, part.stop - LAST) : part.stop])
        if step.layer + 1 < self._layers or len(stream.prompt) < self._layers:
            return
        tokens = np.ascontiguousarray(np.stack(stream.prompt, axis=1), np.int64)
        for at, token in enumerate(tokens):
            self._tokens += 1
            stream.begin(at == 0)
            for layer in range(len(token)):
                stream.confirm(layer, token[layer].ctypes.data)
        stream.prompt = []
