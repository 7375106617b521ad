"""The learned predictor on several sequences: tables for all, a past for each."""

from typing import Any

import numpy as np

from miractl.native.predictor import KEPT, PredictorState
from miractl.native.predictor import Predictor as Native
from miractl.native.replay import Routing
from miractl.native.teller import Teller
from miractl.native.tutor import Tutor
from miractl.policy.prediction import (
    LAST,
    Popularity,
    Probabilities,
    Tables,
    is_prompt,
    only,
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
        self.teller = Teller(self.predictors, states[0].experts)
        self.next_layer = 0
        self._is_new = True
        self.prompt: list[Ids] = []  # the last tokens' ids [tokens, k] of each layer so far

    def begin(self, starts: bool) -> None:
        """A token begins."""
        self.next_layer = 0
        for predictor in self.predictors:
            predictor.begin(starts or self._is_new)
        self._is_new = False

    def follow(self, layer: int, ids: int) -> None:
        """Take in a layer's experts, int64 [k] at address `ids`."""
        self.next_layer = layer + 1
        for predictor in self.predictors:
            predictor.follow(layer, ids)

    def text(self, experts: int) -> Routing:
        """The end of the prompt, to be learned: it begins the sequence as far as is known."""
        tokens, self.prompt, self._is_new = np.stack(self.prompt, axis=1), [], False
        return Routing(tokens, experts, distinct=False)


def _kept(state: PredictorState) -> Tables:
    return {f"foresight.{state.ahead}.{name}": getattr(state, name) for name in KEPT}


class Foresight:
    """Guesses by `miractl.native.predictor`, which learns on a thread when a step is through.

    Of prompts the last tokens are learned. Raises MiractlError without the library.
    """

    mode = "learned"

    def __init__(self, layers: int, experts: int, top_k: int, horizon: int) -> None:
        self._states = [
            PredictorState(layers, experts, top_k, ahead=ahead) for ahead in range(1, horizon + 1)
        ]
        self._layers, self._experts = layers, experts
        self._tokens = 0  # learned
        self._streams = Streams(lambda: Stream(self._states, self._tokens))
        self._popular = Popularity(layers, experts, top_k)
        self._tutor = Tutor()
        self._step: Routed | None = None
        self._alone: Stream | None = None  # of a step that is one new token

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Follow new tokens; at the last layer begin to learn from them and from prompts."""
        self._step, layer = step, step.layer
        if layer == 0:
            self._begin(step)
        alone = self._alone
        if alone is None:
            self._popular.observe(step)
            for part in owned(step):
                self._follow(self._streams.of(part), step, part)
        elif alone.next_layer == layer:
            alone.follow(layer, (step.at or step.addresses)[0])
        if layer == self._layers - 1:
            self._teach(step)

    def teller(self, step: Routed) -> Teller | None:
        """That of the sequence whose new token is all of the step, but for the outermost layers."""
        alone, layer = self._alone, step.layer
        if alone is None or alone.next_layer != layer or not 0 < layer < self._layers - 1:
            return None
        self._step, alone.next_layer = step, layer + 1
        return alone.teller

    def guess(self, ahead: int) -> Probabilities | None:
        """By each new token's past, by popularity for prompts. Overwritten by the next."""
        step, alone = self._step, self._alone
        if step is None or step.layer + ahead >= self._layers or ahead > len(self._states):
            return None
        layer = step.layer + ahead
        if alone is not None:
            knows = alone.next_layer > step.layer
            return alone.predictors[ahead - 1].tell(layer) if knows else None
        if is_prompt(step):
            return self._popular.guess(ahead)
        streams = [self._streams.of(part) for part in owned(step)]
        each = [
            stream.predictors[ahead - 1].tell(layer)
            for stream in streams
            if stream.next_layer == step.layer + 1
        ]
        return union(np.stack(each)) if each else None

    def fade(self) -> None:
        """Halve the counts; let the tables move again."""
        self._tutor.wait()
        for state in self._states:
            state.fade()
        self._popular.fade()

    def tables(self) -> Tables:
        """Of each number of layers ahead; and of how many tokens they are."""
        self._tutor.wait()
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

    def _begin(self, step: Routed) -> None:
        """Take a step in."""
        self._tutor.wait()
        for part in owned(step):
            stream = self._alone = self._streams.begin(part)
            stream.prompt = []
            if len(part) == 1:
                self._tokens += 1
                stream.begin(part.position == 0)
        if only(step) is None:
            self._alone = None

    def _follow(self, stream: Stream, step: Routed, part: Segment) -> None:
        if len(part) > 1:
            stream.prompt.append(step.ids[max(part.start, part.stop - LAST) : part.stop])
        elif stream.next_layer == step.layer:
            ids, _ = step.addresses
            stream.follow(step.layer, ids + part.start * step.ids.strides[0])

    def _teach(self, step: Routed) -> None:
        alone = self._alone
        if alone is not None:
            if alone.next_layer == self._layers:
                self._tutor.teach(alone.predictors)
                self._popular.count(alone.predictors[0].ids)
            return
        parts = [(part, self._streams.of(part)) for part in owned(step)]
        through = [s for part, s in parts if len(part) == 1 and s.next_layer == self._layers]
        texts = []
        for stream in (s for _, s in parts if len(s.prompt) == self._layers):
            text = stream.text(self._experts)
            self._tokens += text.tokens
            texts += [(predictor, text) for predictor in stream.predictors]
        self._tutor.teach([p for stream in through for p in stream.predictors], texts)
