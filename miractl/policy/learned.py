"""The default policy: an expert is worth the log-odds that it is used soon, as learned online.

The learner is in C (`miractl/native/src/learner.c`). What it has learned is the model's and shared;
what describes a stream of tokens, its last experts and their trails, belongs to one sequence.

One new token of a sequence is rated in each layer before its experts are looked up. Learning from
it waits until the step's last layer is rated, and is then done beside whatever follows. A prompt
is learned token by token in the same way, its last `PROMPT_TOKENS` only; while it is computed the
layers keep the scores that they had.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from miractl.native.deciding import Rule
from miractl.native.learner import Learner, LearnerState, discount_for, window_for
from miractl.native.replay import Admission, Routing
from miractl.native.tutor import Course, Tutor
from miractl.policy.keys import NOBODY
from miractl.policy.prediction import only
from miractl.policy.routing import Ids, Routed, Scores, Segment

Floats = npt.NDArray[np.float64]
PROMPT_TOKENS = 64
KEPT = ("weights", "bias", "table", "counts", "totals")
RECALLED_WEIGHT_SUMS, RECALLED_SUMS = 0.01, 3.0  # of squared gradients
STREAM_MEMORY = 64 * 2**20  # bytes for the streams of all sequences, at least two
MOST_STREAMS = 64


@dataclass(slots=True)
class _Prompt:
    """The end of a prompt, layer by layer: ids and scores [tokens, k] each."""

    learner: Learner
    rows: slice
    ids: list[Ids] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def text(self, experts: int, whole: bool) -> Routing:
        """For the learner; `whole`: it follows what the learner saw last."""
        ids, scores = np.stack(self.ids, axis=1), np.stack(self.scores, axis=1)
        starts = np.zeros(len(ids), bool)
        starts[0] = not whole
        # Routers that look experts up by the token's number may name one twice.
        return Routing(ids, experts, scores, starts, distinct=False)


class Learned:
    """Worth by a learner for `slots` experts a layer on average."""

    def __init__(
        self,
        layers: int,
        experts: int,
        top: int,
        slots: float,
        admission: Admission = Admission.WORTHIER,
    ) -> None:
        """Raises MiractlError without the native library."""
        self.admission, self.shifts, self.warms, self.rule = admission, False, False, Rule.LEARNER
        self.worth: Floats = np.zeros((layers, experts))
        self._rows_of_worth = list(self.worth)
        self._worth_at = self.worth.ctypes.data
        window = window_for(slots, top)
        self.state = LearnerState(layers, experts, top, discount_for(slots, top), window=window)
        self._nearer = math.log(float(np.float32(self.state.discount)))
        self._most = max(2, min(MOST_STREAMS, STREAM_MEMORY // self.state.stream_bytes))
        self._streams: dict[int, Learner] = {}  # by sequence, the least recently used first
        self._tutor = Tutor()
        self._course = Course([Learner(self.state)], self._nearer)  # of those with one new token
        self._sequences: tuple[int, ...] = (NOBODY,)
        self._rows: list[int] = []  # where their tokens are in the step
        self._prompts: list[_Prompt] = []
        self._learners: tuple[Learner, ...] = ()  # of the step's sequences
        self._voters: list[Learner] = []  # those of them whose scores make the worth
        self._alone = False  # one new token makes the worth
        self._step, self._last = 0, layers - 1

    def record(self, step: Routed) -> bool:
        """Rate the new tokens; at the last layer begin to learn from them and from prompts."""
        layer = step.layer
        refreshed = layer == 0 and self._begin(step)
        if self._alone and len(step.ids) == 1:
            self._rate(step)
        else:
            self._record_several(step)
        if layer == self._last:
            self.learn()
        return refreshed

    def leave(self, step: Routed, now: float) -> int:
        """As the protocol says: one token of a sequence that the step before had to itself."""
        begun = self._alone if step.layer else self._goes_on(step)
        return self._course.address if begun and len(step.ids) == 1 else 0

    def _record_several(self, step: Routed) -> None:
        """Rate the new tokens among several, and keep what is to be learned of prompts."""
        if len(self._rows) == len(step.ids):
            self._rate(step)
        elif self._rows:
            ids, scores = step.ids[self._rows], step.scores[self._rows]
            self._rate(Routed(step.layer, ids, scores, step.segments, step.step))
        if self._rows and not self._alone:
            self._weigh(step.layer)
        for prompt in self._prompts:
            prompt.ids.append(step.ids[prompt.rows])
            prompt.scores.append(step.scores[prompt.rows])

    def tables(self) -> dict[str, npt.NDArray[np.float32]]:
        """The shared tables, not to be written to."""
        self._tutor.wait()
        return {name: getattr(self.state, name) for name in KEPT}

    def recall(self, tables: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start with tables of an earlier run, but as ready to learn anew as if little was seen.

        Steps shrink with the sums of squared gradients; kept sums would hold on to what was right
        for other texts, which is worse than to start empty.
        """
        if not tables:
            return
        own = self.tables()
        for name, array in own.items():
            if name not in tables or tables[name].shape != array.shape:
                raise ValueError(f"Got no table {name} of {array.shape}")
        for name, array in own.items():
            array[:] = tables[name]
        self.state.weight_sums[:] = RECALLED_WEIGHT_SUMS
        self.state.bias_sums[:] = self.state.table_sums[:] = RECALLED_SUMS

    def close(self) -> None:
        """Stop learning."""
        self._tutor.close()

    def _begin(self, step: Routed) -> bool:
        """Take a step in; whether prompts of the step before have changed the worth of layers."""
        if self._goes_on(step):
            return False
        self._tutor.wait()
        self._step = step.step
        refreshed = any(prompt.ids for prompt in self._prompts)
        if refreshed:
            self._voters = list(self._learners)
            for layer in range(len(self.worth)):
                self._weigh(layer)
        known = [s for s in step.segments if s.sequence != NOBODY][: self._most]
        learners = {segment.sequence: self._stream(segment) for segment in known}
        tokens = [segment for segment in known if len(segment) == 1]
        self._rows = [segment.start for segment in tokens]
        sequences = tuple(segment.sequence for segment in tokens)
        if tokens and sequences != self._sequences:
            self._course = Course([learners[sequence] for sequence in sequences], self._nearer)
            self._sequences = sequences
        self._prompts = [
            _Prompt(learners[s.sequence], slice(max(s.start, s.stop - PROMPT_TOKENS), s.stop))
            for s in known
            if len(s) > 1
        ]
        self._learners = tuple(learners.values())
        ready = (
            learners[s.sequence] for s in known if len(s) == 1 or learners[s.sequence].token >= 0
        )
        self._voters = list(ready)
        self._alone = len(self._voters) == len(self._rows) == 1
        self._course.begin(self._step, self._worth_at if self._alone else 0)
        return refreshed

    def _goes_on(self, step: Routed) -> bool:
        """Take in a step that is one token of the sequence whose one token the last step was."""
        own = only(step)
        if own is None or not self._alone or self._prompts:
            return False
        if self._sequences != (own.sequence,):
            return False
        self._tutor.wait()
        self._step = step.step
        self._course.begin(self._step, self._worth_at)
        return True

    def _rate(self, step: Routed) -> None:
        """By the new tokens, which are all of `step`."""
        if not self._course.rate(step.layer, *step.addresses):
            raise self._unknown(step)

    def _unknown(self, step: Routed) -> ValueError:
        return ValueError(f"Got ids {step.ids.tolist()} of {self.state.experts} experts")

    def _nearer_by(self, layer: int) -> float:
        """Layers are scored in turn, and what an older score foresees has come nearer since."""
        return (self._step + layer / len(self.worth)) * self._nearer

    def _stream(self, segment: Segment) -> Learner:
        """The learner of a sequence; that of one not seen for long makes room for a new one."""
        learner = self._streams.pop(segment.sequence, None)
        if learner is None:
            while len(self._streams) >= self._most:
                del self._streams[next(iter(self._streams))]
            learner = Learner(self.state.beside())
        self._streams[segment.sequence] = learner
        return learner

    def _weigh(self, layer: int) -> None:
        """Worth of a layer's experts from the scores of the step's sequences.

        Of several, the log-odds that any of them uses the expert.
        """
        row, nearer = self._rows_of_worth[layer], self._nearer_by(layer)
        if len(self._voters) == 1:
            np.add(self._voters[0].rows[layer], nearer, out=row, dtype=np.float64)
        elif self._voters:
            scores = [one.rows[layer] for one in self._voters]
            absent = np.logaddexp(0, np.array(scores, np.float64)).sum(axis=0)  # -log(nobody)
            np.add(absent + np.log(-np.expm1(-absent)), nearer, out=row)

    def learn(self) -> None:
        """Begin to learn from the step's tokens and prompts."""
        learners = self._course.learners if self._rows else ()
        if not self._prompts:
            self._tutor.teach(learners)
            return
        texts = [
            (prompt.learner, prompt.text(self.state.experts, len(prompt.ids[0]) < PROMPT_TOKENS))
            for prompt in self._prompts
            if len(prompt.ids) == len(self.worth)
        ]
        self._tutor.teach(learners, texts)
