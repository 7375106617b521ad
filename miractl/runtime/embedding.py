"""The token embedding left in its file: a token needs one row, and the table has an expert's place.

Rows are read through the page cache, which keeps those that come often as long as nobody needs the
memory. A row that cannot be read fails the requests whose tokens need it, as an expert does.
"""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from miractl.checkpoint.encoding import PLAIN, StoredTensor
from miractl.errors import MiractlError
from miractl.runtime.files import CheckpointFiles, TableRows
from miractl.runtime.losses import Losses


class StoredEmbedding(torch.nn.Module):
    """An embedding module, scaled ones too, that looks up the rows of each call in a file."""

    def __init__(self, module: Any, rows: TableRows) -> None:
        """Results have the type of the module's weight, of which nothing else is used."""
        super().__init__()
        module.padding_idx = None  # means something to gradients alone
        # Not a submodule: its weight stands for numbers that are not in memory.
        self._look_up = partial(torch.func.functional_call, module)
        self._rows = rows
        self.losses = Losses()  # where tokens go whose rows cannot be read
        self._numbers: torch.Tensor = module.weight.detach()
        self._dtype, self._is_plain = self._numbers.dtype, _is_plain(module)

    @property
    def weight(self) -> torch.Tensor:
        """Shape, type and device of the table; its numbers are NaN."""
        return self._numbers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ids [...]: [..., H]. Raises IndexError for an id beyond the table.

        Raises MiractlError for a row that cannot be read, unless losses are taken.
        """
        numbers = ids.reshape(-1).tolist()
        unique = numbers if len(numbers) == 1 else sorted(set(numbers))
        if unique and not 0 <= unique[0] <= unique[-1] < len(self._rows):
            raise IndexError(f"tokens {unique[0]} to {unique[-1]} of {len(self._rows)}")
        try:
            weight = self._rows[unique].to(self._dtype)
        except MiractlError:
            weight = self._readable(unique, numbers)
        if self._is_plain and len(numbers) == 1:
            return weight.view(*ids.shape, -1)
        place = dict(zip(unique, range(len(unique)), strict=True))
        places = torch.tensor([place[number] for number in numbers], dtype=torch.int64)
        found: torch.Tensor = self._look_up({"weight": weight}, (places.view(ids.shape),))
        return found

    def _readable(self, unique: list[int], numbers: list[int]) -> torch.Tensor:
        """Rows [len(unique), H], zeros for those that are lost, and with them tokens of the ids."""
        weight = torch.zeros(len(unique), self._numbers.shape[1], dtype=self._dtype)
        for place, own in enumerate(unique):
            try:
                weight[place] = self._rows[[own]][0]
            except MiractlError as error:
                self.losses.add((row for row, id in enumerate(numbers) if id == own), error)
        return weight


@torch.no_grad()
def _is_plain(module: Any) -> bool:
    """Whether a module answers with the very rows of its weight: some scale or norm them."""
    width = module.weight.shape[1]
    rows = torch.linspace(1, 2, 2 * width, dtype=module.weight.dtype).view(2, width)
    places = torch.tensor([[1, 0]])
    found = torch.func.functional_call(module, {"weight": rows}, (places,))
    return isinstance(found, torch.Tensor) and torch.equal(found, rows[places])


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the head is the embedding's own weight."""
    head: Any = model.get_output_embeddings()
    own: Any = model.get_input_embeddings()
    return head is not None and getattr(head, "weight", None) is own.weight


def plain_table(stored: StoredTensor | None) -> StoredTensor | None:
    """The table where rows can be read from it: numbers and no codes."""
    if stored is None or len(stored.shape) != 2 or stored.ranges[0].dtype not in PLAIN:
        return None
    return stored


def stand_in(table: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """What transformers' loader takes for the table, in no memory."""
    return torch.full((), torch.nan, dtype=dtype).expand(table.shape)


def install(model: PreTrainedModel, name: str, table: StoredTensor, files: CheckpointFiles) -> None:
    """Replace the embedding whose weight is `name`. Raises MiractlError for an unreadable file."""
    module = name.removesuffix(".weight")
    model.set_submodule(module, StoredEmbedding(model.get_submodule(module), files.rows(table)))
