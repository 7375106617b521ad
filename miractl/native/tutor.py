"""Learning on a thread of its own, in C, beside whatever the caller computes."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from miractl.native.learner import Learner
from miractl.native.library import library, short_calls
from miractl.native.replay import Routing, check_learner, routing_struct


class _Lesson(ctypes.Structure):
    _fields_ = [("learner", ctypes.c_void_p), ("text", ctypes.c_void_p)]


class _Rating(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("learners", "starts", "ids", "probabilities")),
        *(("worth", ctypes.c_void_p), ("nearer", ctypes.c_double)),
        *((name, ctypes.c_int32) for name in ("count", "layer")),
    ]


class Course:
    """Learners of streams that take their steps together, sharing their tables."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        count = len(learners)
        self.learners = tuple(learners)
        self._addresses = (ctypes.c_void_p * count)(*(one.address for one in learners))
        self._starts = np.zeros(count, np.uint8)
        self._told = _Rating(
            ctypes.addressof(self._addresses), self._starts.ctypes.data, count=count
        )
        self._told_at = ctypes.addressof(self._told)
        self._rate = short_calls().mira_rate

    def rate(
        self, layer: int, ids: int, probabilities: int, nearer: float = 0.0, worth: int = 0
    ) -> bool:
        """One layer of one more token of each; False, and nothing done, for unknown experts.

        `ids` and `probabilities` are addresses of int64 and float32 [streams, k], `worth` that of
        float64 [experts], or 0: of one stream alone it gets the scores, more by `nearer`. What the
        tokens teach is left to a lesson.
        """
        told = self._told
        told.layer, told.ids, told.probabilities = layer, ids, probabilities
        told.nearer, told.worth = nearer, worth
        return not self._rate(self._told_at)


class Tutor:
    """The thread. Nothing of a learner that it teaches may be touched before `wait`."""

    def __init__(self) -> None:
        """Raises MiractlError without the library, MemoryError if there is no thread to be had."""
        self._library = library()
        self._tutor = self._library.mira_tutor_new()
        if not self._tutor:
            raise MemoryError("no thread to learn on")
        self._taught: Any = None  # what the thread looks at

    def teach(self, learners: Sequence[Learner], texts: Sequence[tuple[Learner, Routing]]) -> None:
        """Learn from the last token of `learners`, then from whole texts; returns at once.

        Nothing is learned after `close`. Raises ValueError for a text of another model.
        """
        if self._tutor is None:
            return
        for learner, text in texts:
            check_learner(text, learner)
        structs = [routing_struct(text) for _, text in texts]
        wanted: list[tuple[int, int | None]] = [(one.address, None) for one in learners]
        wanted += [
            (one.address, ctypes.addressof(s)) for (one, _), s in zip(texts, structs, strict=True)
        ]
        lessons = (_Lesson * len(wanted))(*(_Lesson(*lesson) for lesson in wanted))
        self._library.mira_teach(self._tutor, ctypes.addressof(lessons), len(lessons))
        self._taught = lessons, structs, learners, texts

    def wait(self) -> None:
        """Return when the lessons are over."""
        if self._taught is not None:
            self._library.mira_tutor_wait(self._tutor)
            self._taught = None

    def close(self) -> None:
        """End the thread after its lessons."""
        if self._tutor:
            self._library.mira_tutor_free(self._tutor)
            self._tutor = None
