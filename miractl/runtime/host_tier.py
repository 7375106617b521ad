"""All experts of a packed folder in host memory, as records that the CPU kernels compute from.

Beside a GPU they are also what is copied to it, from where they lie if that is pinned.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from miractl.errors import MiractlError
from miractl.native.layout import RECORD_ALIGNMENT
from miractl.native.memory import aligned_empty
from miractl.plan.books import bare_ledger
from miractl.plan.ledger import Line
from miractl.plan.machine import PlanMachine
from miractl.policy.keys import ExpertKey
from miractl.runtime.packed import RECORD
from miractl.runtime.source import ExpertSource, Views
from miractl.runtime.streams import Streams
from miractl.runtime.ticket import Course, carry_out

READERS = 2  # reads under way at a time


def refuse_too_large(nbytes: int, machine: PlanMachine, lower: str = "") -> None:
    """Raise MiractlError, with the line that does not fit, if so many bytes are not free.

    `lower`: what to turn down then.
    """
    line = Line("host tier", nbytes, "all experts, as records")
    broken = bare_ledger(machine).with_line(line).first_break()
    if broken is not None:
        raise replace(broken, lower=lower).error()


class HostTier:
    """Records [layers, experts, record], the only copy outside the file."""

    def __init__(self, source: ExpertSource, layers: int, experts: int, record: int) -> None:
        """Read them all; `record` is the bytes of one. Raises MiractlError."""
        self.nbytes, self._record, self._experts = layers * experts * record, record, experts
        try:
            room = aligned_empty(self.nbytes, RECORD_ALIGNMENT)
        except MemoryError as error:
            raise MiractlError(f"no memory for {self.nbytes} bytes of experts") from error
        self._room = room
        self._records = torch.from_numpy(room).view(layers * experts, record)
        self._first = self._records.data_ptr()
        keys = [ExpertKey(layer, expert) for layer in range(layers) for expert in range(experts)]
        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(lambda key: source.read(key, {RECORD: self.record(key)}), keys):
                pass

    def lock(self, streams: Streams) -> bool:
        """Pin all of it, so that it can be copied from where it lies; False where it cannot be."""
        return streams.lock(self._room)

    def record(self, key: ExpertKey) -> torch.Tensor:
        """Where an expert lies, uint8 [record]."""
        return self._records[self._number(*key)]

    def chunks(self, key: ExpertKey, slot: Views) -> int:
        """As ExpertSource has it, of slots that hold records."""
        return 1

    def read(self, key: ExpertKey, slot: Views) -> int:
        """As ExpertSource has it."""
        return carry_out(self.course(key, slot, 1))

    def course(self, key: ExpertKey, slot: Views, chunks: int) -> Course:
        """As ExpertSource has it."""
        slot[RECORD].copy_(self.record(key))
        yield from ()
        return self._record

    def addresses(self, layer: int, group: Sequence[Sequence[int]]) -> list[int]:
        """Where the records of (expert, slot) lie, whatever the slots."""
        return [self._first + self._number(layer, expert) * self._record for expert, _ in group]

    def _number(self, layer: int, expert: int) -> int:
        return layer * self._experts + expert
