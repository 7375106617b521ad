"""Learning on a thread of its own, in C, beside whatever the caller computes."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from miractl.native.learner import Learner
from miractl.native.library import library, short_calls
from miractl.native.predictor import Predictor
from miractl.native.replay import Routing, check_sizes, routing_struct


class Pupil(Protocol):
    """Who learns from the last token when it is through."""

    address: int  # of the structure in C
    kind: int  # as in brain.h


class _Lesson(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("pupil", "text")),
        ("kind", ctypes.c_int32),
    ]


class _Rating(ctypes.Structure):
    worth: int
    step: float

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("learners", "starts", "ids", "probabilities")),
        *(("worth", ctypes.c_void_p), ("nearer", ctypes.c_double), ("step", ctypes.c_double)),
        ("voters", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("count", "layer", "voter_count")),
    ]


class Course:
    """Learners of streams that take their steps together, sharing their tables."""

    def __init__(
        self,
        learners: Sequence[Learner],
        voters: Sequence[Learner],
        worth: NDArray[np.float64],
        nearer: float,
    ) -> None:
        """The scores of `voters` make the `worth` [layers, experts].

        `nearer`: what a score gains in a step, because what it foresees comes nearer.
        """
        count = len(learners)
        self.learners, self._voters, self._worth = tuple(learners), tuple(voters), worth
        self._addresses = [
            (ctypes.c_void_p * len(some))(*(one.address for one in some))
            for some in (learners, voters)
        ]
        self._starts = np.zeros(count, np.uint8)
        told, votes = (ctypes.addressof(some) for some in self._addresses)
        self._told = _Rating(
            *(told, self._starts.ctypes.data),
            worth=worth.ctypes.data,
            nearer=nearer,
            voters=votes,
            count=count,
            voter_count=len(voters),
        )
        self.address = ctypes.addressof(self._told)  # valid as long as the course lives
        native = short_calls()
        self._rate, self._weigh = native.mira_rate, native.mira_weigh

    def begin(self, step: int) -> None:
        """A step begins."""
        self._told.step = step

    def weigh(self, layer: int) -> None:
        """Set the worth of a layer: the log-odds that any of the voters uses an expert soon."""
        self._told.layer = layer
        self._weigh(self.address)

    def rate(self, layer: int, ids: int, probabilities: int) -> bool:
        """One layer of one more token of each; False, and nothing done, for unknown experts.

        `ids` and `probabilities` are addresses of int64 and float32 [streams, k]. What the tokens
        teach is left to a lesson.
        """
        told = self._told
        told.layer, told.ids, told.probabilities = layer, ids, probabilities
        return not self._rate(self.address)


class Tutor:
    """The thread. Nothing of a pupil that it teaches may be touched before `wait`."""

    def __init__(self) -> None:
        """Raises MiractlError without the library, MemoryError if there is no thread to be had."""
        native = library()
        self._tutor = native.mira_tutor_new()
        if not self._tutor:
            raise MemoryError("no thread to learn on")
        self._teach, self._wait = native.mira_teach, native.mira_tutor_wait
        self._is_teaching = False
        self._lessons = (_Lesson * 0)()
        self._pupils: Sequence[Pupil] | None = None  # whose lessons those are, without texts
        self._texts: Any = None  # what the thread looks at beside
        self.close = weakref.finalize(self, native.mira_tutor_free, self._tutor)

    def teach(
        self, pupils: Sequence[Pupil], texts: Sequence[tuple[Learner | Predictor, Routing]] = ()
    ) -> None:
        """Learn from the last token of `pupils`, then from whole texts; returns at once.

        Nothing is learned after `close`, which ends the thread after its lessons, as does the end
        of this object. Raises ValueError for a text of another model.
        """
        if not self.close.alive:
            return
        if texts or pupils is not self._pupils:
            self._prepare(pupils, texts)
        self._is_teaching = True
        self._teach(self._tutor, ctypes.addressof(self._lessons), len(self._lessons))

    def _prepare(
        self, pupils: Sequence[Pupil], texts: Sequence[tuple[Learner | Predictor, Routing]]
    ) -> None:
        for pupil, text in texts:
            check_sizes("pupil", pupil.state, text)
        structs = [routing_struct(text) for _, text in texts]
        wanted = [_Lesson(one.address, None, one.kind) for one in pupils]
        wanted += [
            _Lesson(one.address, ctypes.addressof(struct), one.kind)
            for (one, _), struct in zip(texts, structs, strict=True)
        ]
        self.wait()  # until then the thread looks at those before
        self._lessons = (_Lesson * len(wanted))(*wanted)
        self._pupils, self._texts = None if texts else pupils, (structs, pupils, texts)

    def wait(self) -> None:
        """Return when the lessons are over."""
        if self._is_teaching and self.close.alive:
            self._wait(self._tutor)
        self._is_teaching = False
