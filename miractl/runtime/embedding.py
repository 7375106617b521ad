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

    @property
    def weight(self) -> torch.Tensor:
        """Shape, type and device of the table; its numbers are NaN."""
        return self._numbers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ids [...]: [..., H]. Raises IndexError for an id beyond the table, MiractlError."""
        unique, places = torch.unique(ids, return_inverse=True)
        numbers = unique.tolist()
        if numbers and not 0 <= numbers[0] <= numbers[-1] < len(self._rows):
            raise IndexError(f"tokens {numbers[0]} to {numbers[-1]} of {len(self._rows)}")
        weight = self._rows[numbers].to(self.weight.dtype)
        found: torch.Tensor = self._look_up({"weight": weight}, (places,))
        return found


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
