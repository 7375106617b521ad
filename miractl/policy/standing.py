"""What residents are worth, and who of each layer is worth least: who has to go if somebody has."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from miractl.policy.keys import ExpertKey


class Standing:
    """Worth of the residents, infinite for others; where somebody has to go only these count."""

    def __init__(self, worth: npt.NDArray[np.float64], sets: Sequence[Sequence[int]]) -> None:
        """`worth` [layers, experts] is the policy's own table, `sets` the layers of each set."""
        layers, experts = worth.shape
        self.keys = [[ExpertKey(layer, e) for e in range(experts)] for layer in range(layers)]
        self.layers = [np.array(own, int) for own in sets]
        self.resident = np.zeros(worth.shape, bool)
        self._worth, self._standing = worth, np.full(worth.shape, np.inf)
        self._rows = list(self._standing)
        self._least = np.full(layers, np.inf)
        self._loser = [0] * layers

    def enter(self, key: ExpertKey) -> None:
        """An expert is resident from now on."""
        self.resident[key] = True
        self._rows[key.layer][key.expert] = self._worth[key]
        self._rank(key.layer)

    def leave(self, key: ExpertKey) -> None:
        """A resident is none any more."""
        self.resident[key] = False
        self._rows[key.layer][key.expert] = np.inf
        self._rank(key.layer)

    def renew(self, layer: int | None) -> None:
        """The worth of a layer has changed; None: of all layers."""
        if layer is not None:
            np.copyto(self._rows[layer], self._worth[layer], where=self.resident[layer])
            self._rank(layer)
            return
        np.copyto(self._standing, self._worth, where=self.resident)
        for each in range(len(self._rows)):
            self._rank(each)

    def least_of(self, index: int, layer: int) -> tuple[np.float64, ExpertKey]:
        """The least worthy resident of a set, the first of equals; infinite if there is none.

        `layer` is one of the set's.
        """
        layers = self.layers[index]
        if len(layers) > 1:
            layer = int(layers[self._least[layers].argmin()])
        return self._least[layer], self.keys[layer][self._loser[layer]]

    @contextmanager
    def kept(self, needed: Collection[ExpertKey]) -> Iterator[None]:
        """For a while these experts, all of one layer, cannot be given up."""
        layer = next((key.layer for key in needed), 0)
        row = self._rows[layer]
        experts = [key.expert for key in needed]
        before = row[experts]
        row[experts] = np.inf
        self._rank(layer)
        yield
        row[experts] = before
        self._rank(layer)

    def _rank(self, layer: int) -> None:
        """Find the least worthy resident of a layer."""
        row = self._rows[layer]
        loser = self._loser[layer] = int(row.argmin())
        self._least[layer] = row[loser]
