"""All experts of a packed folder in host memory, as records that the CPU kernels compute from."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from miractl.errors import MiractlError
from miractl.native.layout import RECORD_ALIGNMENT
from miractl.native.memory import aligned_empty
from miractl.plan.books import bare_ledger
from miractl.plan.ledger import Line
from miractl.plan.machine import PlanMachine
from miractl.policy.keys import ExpertKey
from miractl.runtime.packed import RECORD
from miractl.runtime.source import ExpertSource

READERS = 2  # reads under way at a time


def refuse_too_large(nbytes: int, machine: PlanMachine) -> None:
    """Raise MiractlError, with the line that does not fit, if so many bytes are not free."""
    line = Line("host tier", nbytes, "all experts, behind an emulated link")
    broken = bare_ledger(machine).with_line(line).first_break()
    if broken is not None:
        raise broken.error()


class HostTier:
    """Records [layers, experts, record], the only copy outside the file."""

    def __init__(self, source: ExpertSource, layers: int, experts: int, record: int) -> None:
        """Read them all; `record` is the bytes of one. Raises MiractlError."""
        self.nbytes, self._record, self._experts = layers * experts * record, record, experts
        try:
            room = aligned_empty(self.nbytes, RECORD_ALIGNMENT)
        except MemoryError as error:
            raise MiractlError(f"no memory for {self.nbytes} bytes of experts") from error
        self._records = torch.from_numpy(room).view(layers * experts, record)
        self._first = self._records.data_ptr()
        keys = [ExpertKey(layer, expert) for layer in range(layers) for expert in range(experts)]
        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(
                lambda key: source.read(key, {RECORD: self._records[self._number(*key)]}), keys
            ):
                pass

    def addresses(self, layer: int, group: Sequence[Sequence[int]]) -> list[int]:
        """Where the records of (expert, slot) lie, whatever the slots."""
        return [self._first + self._number(layer, expert) * self._record for expert, _ in group]

    def _number(self, layer: int, expert: int) -> int:
        return layer * self._experts + expert
