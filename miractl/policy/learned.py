"""The default policy: an expert is worth the log-odds that it is used soon, as learned online.

The learner is in C (`miractl/native/src/learner.c`). What it has learned is the model's and shared;
what describes a stream of tokens, its last experts and their trails, belongs to one sequence.

One new token of a sequence is rated in each layer before its experts are looked up. Learning from
it waits until the step's last layer is rated, and is then done beside whatever follows. A prompt
is learned token by token in the same way, its last `PROMPT_TOKENS` only; while it is computed the
layers keep the scores that they had.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from miractl.native.deciding import Rule
from miractl.native.learner import Learner, LearnerState, discount_for, window_for
from miractl.native.replay import Admission, Routing
from miractl.native.tutor import Course, Tutor
from miractl.policy.keys import NOBODY
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
        window = window_for(slots, top)
        self.state = LearnerState(layers, experts, top, discount_for(slots, top), window=window)
        self._nearer = math.log(float(np.float32(self.state.discount)))
        self._most = max(2, min(MOST_STREAMS, STREAM_MEMORY // self.state.stream_bytes))
        self._streams: dict[int, Learner] = {}  # by sequence, the least recently used first
        self._tutor = Tutor()
        self._course = self._together((), ())  # of those with one new token
        self._sequences: tuple[int, ...] = ()  # theirs
        self._rows: list[int] = []  # where their tokens are in the step
        self._prompts: list[_Prompt] = []
        self._learners: tuple[Learner, ...] = ()  # of the step's sequences
        self._is_left = False  # the step is one new token each of those whose scores make the worth
        self._step, self._last = 0, layers - 1

    def record(self, step: Routed) -> bool:
        """Rate the new tokens; at the last layer begin to learn from them and from prompts."""
        layer = step.layer
        refreshed = layer == 0 and self._begin(step)
        if len(self._rows) == len(step.ids):
            self._rate(step)
        elif self._rows:
            ids, scores = step.ids[self._rows], step.scores[self._rows]
            self._rate(Routed(layer, ids, scores, step.segments, step.step))
        for prompt in self._prompts:
            prompt.ids.append(step.ids[prompt.rows])
            prompt.scores.append(step.scores[prompt.rows])
        if layer == self._last:
            self.learn()
        return refreshed

    def leave(self, step: Routed, now: float) -> int:
        """As the protocol says: new tokens of the sequences that the step before was of."""
        begun = self._is_left if step.layer else self._goes_on(step)
        return self._course.address if begun else 0

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
            course = self._together((), self._learners)
            course.begin(self._step)
            for layer in range(len(self.worth)):
                course.weigh(layer)
        known = [s for s in step.segments if s.sequence != NOBODY][: self._most]
        learners = {segment.sequence: self._stream(segment) for segment in known}
        tokens = [segment for segment in known if len(segment) == 1]
        self._rows = [segment.start for segment in tokens]
        self._prompts = [
            _Prompt(learners[s.sequence], slice(max(s.start, s.stop - PROMPT_TOKENS), s.stop))
            for s in known
            if len(s) > 1
        ]
        self._learners = tuple(learners.values())
        self._sequences = tuple(segment.sequence for segment in tokens)
        voters = [
            learners[s.sequence] for s in known if len(s) == 1 or learners[s.sequence].token >= 0
        ]
        self._course = self._together([learners[one] for one in self._sequences], voters)
        self._course.begin(self._step)
        self._is_left = 0 < len(tokens) == len(step.ids)
        return refreshed

    def _goes_on(self, step: Routed) -> bool:
        """Take in a step that is one new token of each sequence that the last step was of."""
        sequences = tuple(segment.sequence for segment in step.segments)
        if not self._is_left or sequences != self._sequences or len(step.ids) != len(sequences):
            return False
        self._tutor.wait()
        self._step = step.step
        self._course.begin(self._step)
        return True

    def _together(self, learners: Sequence[Learner], voters: Sequence[Learner]) -> Course:
        return Course(learners, voters, self.worth, self._nearer)

    def _rate(self, step: Routed) -> None:
        """By the new tokens, which are all of `step`."""
        if not self._course.rate(step.layer, *step.addresses):
            raise self._unknown(step)

    def _unknown(self, step: Routed) -> ValueError:
        return ValueError(f"Got ids {step.ids.tolist()} of {self.state.experts} experts")

    def _stream(self, segment: Segment) -> Learner:
        """The learner of a sequence; that of one not seen for long makes room for a new one."""
        learner = self._streams.pop(segment.sequence, None)
        if learner is None:
            while len(self._streams) >= self._most:
                del self._streams[next(iter(self._streams))]
            learner = Learner(self.state.beside())
        self._streams[segment.sequence] = learner
        return learner

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
