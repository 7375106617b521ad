"""The token embedding left in its file: a token needs one row, and the table has an expert's place.

Rows are read through the page cache, which keeps those that come often as long as nobody needs the
memory. A file that was cut or written to fails the request, as it does for experts.
"""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from miractl.checkpoint.encoding import PLAIN, StoredTensor
from miractl.runtime.files import CheckpointFiles, TableRows


class StoredEmbedding(torch.nn.Module):
    """An embedding module, scaled ones too, that looks up the rows of each call in a file."""

    def __init__(self, module: Any, rows: TableRows) -> None:
        """Results have the type of the module's weight, of which nothing else is used."""
        super().__init__()
        module.padding_idx = None  # means something to gradients alone
        # Not a submodule: its weight stands for numbers that are not in memory.
        self._look_up = partial(torch.func.functional_call, module)
        self._rows = rows
        self._numbers: torch.Tensor = module.weight.detach()
        self._dtype, self._is_plain = self._numbers.dtype, _is_plain(module)

    @property
    def weight(self) -> torch.Tensor:
        """Shape, type and device of the table; its numbers are NaN."""
        return self._numbers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ids [...]: [..., H]. Raises IndexError for an id beyond the table, MiractlError."""
        numbers = ids.reshape(-1).tolist()
        unique = numbers if len(numbers) == 1 else sorted(set(numbers))
        if unique and not 0 <= unique[0] <= unique[-1] < len(self._rows):
            raise IndexError(f"tokens {unique[0]} to {unique[-1]} of {len(self._rows)}")
        weight = self._rows[unique].to(self._dtype)
        if self._is_plain and len(numbers) == 1:
            return weight.view(*ids.shape, -1)
        place = dict(zip(unique, range(len(unique)), strict=True))
        places = torch.tensor([place[number] for number in numbers], dtype=torch.int64)
        found: torch.Tensor = self._look_up({"weight": weight}, (places.view(ids.shape),))
        return found


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
