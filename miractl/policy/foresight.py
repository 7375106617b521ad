"""The learned predictor on several sequences: tables for all, a past for each."""

from typing import Any

import numpy as np

from miractl.native.predictor import KEPT, PredictorState
from miractl.native.predictor import Predictor as Native
from miractl.native.replay import Routing
from miractl.native.teller import Teller
from miractl.native.tutor import Tutor
from miractl.policy.prediction import LAST, Popularity, Probabilities, Tables, owned, put_back
from miractl.policy.routing import Ids, Routed
from miractl.policy.streams import Streams
from miractl.policy.tellers import Tellers

MOST_TOKENS = 2**53  # learned: more are no count of a run


class Stream:
    """One sequence: its past in each of the predictors, one for each number of layers ahead."""

    def __init__(self, states: list[PredictorState], tokens: int) -> None:
        self.predictors = [Native(state.branch(tokens)) for state in states]
        self._is_new = True
        self.prompt: list[Ids] = []  # the last tokens' ids [tokens, k] of each layer so far

    def begin(self, starts: bool) -> None:
        """A token begins."""
        for predictor in self.predictors:
            predictor.begin(starts or self._is_new)
        self._is_new = False

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
        self._tellers: Tellers[Native] = Tellers(layers, experts, top_k, horizon)

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Follow new tokens; at the last layer begin to learn from them and from prompts."""
        if step.layer == 0:
            self._begin(step)
        tellers = self._tellers
        tellers.follow(step)
        if tellers.is_prompt:
            self._popular.observe(step)
            for part in owned(step):
                if len(part) > 1:
                    last = step.ids[max(part.start, part.stop - LAST) : part.stop]
                    self._streams.of(part).prompt.append(last)
        if step.layer == self._layers - 1:
            self._teach(step)

    def teller(self, step: Routed) -> Teller[Native] | None:
        """Who follows a layer of new tokens, but for the outermost layers."""
        return self._tellers.hand_over(step)

    def guess(self, ahead: int) -> Probabilities | None:
        """By each new token's past, by popularity for prompts. Overwritten by the next."""
        tellers = self._tellers
        return self._popular.guess(ahead) if tellers.is_prompt else tellers.guess(ahead)

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
        pupils, rows = [], []
        for part in owned(step):
            stream = self._streams.begin(part)
            stream.prompt = []
            if len(part) == 1:
                self._tokens += 1
                stream.begin(part.position == 0)
                pupils.append(stream.predictors)
                rows.append(part.start)
        self._tellers.begin(step, pupils, rows)

    def _teach(self, step: Routed) -> None:
        tellers = self._tellers
        if not tellers.is_prompt:
            for predictor in tellers.pupils[:: len(self._states)]:
                self._popular.count(predictor.ids)
            self._tutor.teach(tellers.pupils)
            return
        texts = []
        streams = (self._streams.of(part) for part in owned(step))
        for stream in (one for one in streams if len(one.prompt) == self._layers):
            text = stream.text(self._experts)
            self._tokens += text.tokens
            texts += [(predictor, text) for predictor in stream.predictors]
        self._tutor.teach(tellers.pupils, texts)
