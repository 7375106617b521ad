"""Who follows the step under way: one teller of its sequences, made anew only when they change."""

from collections.abc import Sequence
from typing import Generic

from miractl.native.teller import T, Teller
from miractl.policy.prediction import Probabilities, is_prompt
from miractl.policy.routing import Routed


class Tellers(Generic[T]):
    """The teller of a step, layer by layer; it tells only where all tokens are new ones."""

    def __init__(self, layers: int, experts: int, top_k: int, most_ahead: int) -> None:
        """It can be asked about `most_ahead` layers further on."""
        self._layers, self._sizes = layers, (top_k, experts, most_ahead)
        self._pupils: Sequence[Sequence[T]] = []
        self._rows: list[int] = []
        self._teller: Teller[T] | None = None
        self.is_prompt = False  # whether there are other tokens in the step than new ones
        self._layer = 0

    def begin(self, step: Routed, pupils: Sequence[Sequence[T]], rows: list[int]) -> None:
        """A step begins: the pupils of each sequence that is followed, and its row."""
        self.is_prompt, self._layer = is_prompt(step), 0
        if pupils != self._pupils or rows != self._rows:
            self._pupils, self._rows = pupils, rows
            self._teller = Teller(pupils, rows, *self._sizes) if pupils else None
        if self._teller is not None:
            self._teller.next_layer = 0

    @property
    def knows(self) -> bool:
        """Whether the layer observed last was followed."""
        return self._teller is not None and self._teller.next_layer == self._layer + 1

    def follow(self, step: Routed) -> None:
        """Take in a layer; where one was left out the rest of the step is, too."""
        teller, self._layer = self._teller, step.layer
        if teller is not None and teller.next_layer == step.layer:
            teller.follow(step.layer, (step.at or step.addresses)[0])

    def hand_over(self, step: Routed) -> Teller[T] | None:
        """Who is to `follow` a layer of new tokens; nobody in the outermost layers."""
        teller, layer = self._teller, step.layer
        if teller is None or self.is_prompt or teller.next_layer != layer:
            return None
        if not 0 < layer < self._layers - 1:
            return None
        self._layer, teller.next_layer = layer, layer + 1
        return teller

    def guess(self, ahead: int) -> Probabilities | None:
        """Of new tokens; None where nothing can be said."""
        teller, layer = self._teller, self._layer
        if teller is None or teller.next_layer != layer + 1:
            return None
        if layer + ahead >= self._layers or ahead > self._sizes[2]:
            return None
        return teller.tell(ahead)

    @property
    def pupils(self) -> Sequence[T]:
        """Those that were followed through all layers, one sequence's after the other's.

        The same list for as long as the sequences are the same.
        """
        teller = self._teller
        return teller.pupils if teller is not None and teller.next_layer == self._layers else []
