"""Tables are sampled anew: at regular intervals, and when their guesses get worse."""

from typing import Any

from miractl.native.predictor import recall
from miractl.native.teller import Teller
from miractl.policy.prediction import Probabilities, TablePredictor, Tables, Telling
from miractl.policy.routing import Routed

FAST, SLOW = 0.02, 0.001  # rates of the averages of quality, a judged layer
DRIFT = 0.8  # of its own average, below which quality has fallen
SETTLED = 1000  # judged layers until an average means something
EVERY = 8  # guesses, of which one is judged


class Resampled:
    """A predictor whose counts fade every `interval` tokens, or as its guesses get worse.

    Quality is the share of a layer's experts that were among as many likeliest of the guess; one
    guess in `EVERY` is judged.
    """

    def __init__(self, inner: TablePredictor, interval: int) -> None:
        self.mode, self._inner, self._interval = inner.mode, inner, interval
        self._tell = inner.teller if isinstance(inner, Telling) else None
        self._tokens = 0
        self._guess: tuple[int, Probabilities] | None = None
        self._guesses = self._layer = 0
        self._is_due = False  # whether the guess that is counted last is to be judged
        self._fast = self._slow = 0.0
        self._judged = 0
        self.resampled = 0  # times

    def observe(self, step: Routed, hidden: Any) -> None:
        """Judge the guess of this layer, then pass the step on."""
        layer = self._layer = step.layer
        if self._guess is not None:
            self._judge(step)
        self._inner.observe(step, hidden)
        if layer == 0:
            self._tokens += len(step.ids)
            if self._tokens >= self._interval or self._has_drifted:
                self._inner.fade()
                self.resampled += 1
                self._tokens = self._judged = 0

    def teller(self, step: Routed) -> Teller[Any] | None:
        """The inner one's, but for layers whose guess is judged or will be."""
        tell = self._tell
        if tell is None or self._guess is not None:
            return None
        if (self._guesses + 1) % EVERY == 0:
            self._guesses += 1
            self._is_due = True  # should anybody ask for it
            return None
        found = tell(step)
        if found is not None:
            self._guesses += 1
        return found

    def guess(self, ahead: int) -> Probabilities | None:
        """As the inner one's, noted for judgement now and then."""
        found = self._inner.guess(ahead)
        if ahead == 1 and found is not None:
            self._guesses += not self._is_due
            if self._guesses % EVERY == 0:
                self._guess = self._layer + 1, found
            self._is_due = False
        return found

    def fade(self) -> None:
        """At once."""
        self._inner.fade()

    def tables(self) -> Tables:
        """The inner one's."""
        return self._inner.tables()

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        self._inner.recall(tables)

    @property
    def _has_drifted(self) -> bool:
        return self._judged >= SETTLED and self._fast < DRIFT * self._slow

    def _judge(self, step: Routed) -> None:
        noted, self._guess = self._guess, None
        if noted is None or noted[0] != step.layer:
            return
        share = recall(noted[1], step.addresses[0], step.ids.size)
        self._judged += 1
        self._fast += max(FAST, 1 / self._judged) * (share - self._fast)
        self._slow += max(SLOW, 1 / self._judged) * (share - self._slow)
