"""What is remembered of each sequence, for as long as it is seen."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from miractl.policy.routing import Segment

T = TypeVar("T")
MOST = 256  # sequences; whoever was seen longest ago is forgotten


class Streams(Generic[T]):
    """One value for each living sequence, made by `new` when it begins."""

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._of: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def of(self, segment: Segment) -> T:
        """The sequence's value; a new one where it is not known."""
        found = self._of.get(segment.sequence)
        if found is None:
            found = self._of[segment.sequence] = self._new()
            if len(self._of) > MOST:
                self._of.popitem(last=False)
        self._of.move_to_end(segment.sequence)
        return found

    def begin(self, segment: Segment) -> T:
        """As `of`, at the first layer: a sequence that begins has no past."""
        if segment.position == 0:
            self._of.pop(segment.sequence, None)
        return self.of(segment)
