"""Linear layers as int8 blocks, computed by the CPU kernels instead of torch.

They are made while the model is loaded, one at a time: the loader gets a stand-in without memory,
and the module is replaced afterwards. A tied head gets a block of its own; the embedding stays.
"""

import threading
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from miractl.checkpoint.dense import HEAD, dense_shape
from miractl.checkpoint.encoding import StoredTensor
from miractl.native.kernels import Matrix, Pool, quantize
from miractl.native.layout import MatrixShape
from miractl.native.memory import Span, aligned_empty
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.packed import unpacker


class DenseLinear(torch.nn.Module):
    """y = x W^T + b with W as an int8 block."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None, pool: Pool | None) -> None:
        super().__init__()
        self.in_features, self.out_features = matrix.shape.columns, matrix.shape.rows
        self.bias = bias
        self._matrix, self._pool = matrix, pool

    @property
    def block(self) -> NDArray[np.uint8]:
        """The stored weights, as long as the module lives."""
        return self._matrix.block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [..., in_features]: [..., out_features], computed in float32."""
        rows = x.reshape(-1, self.in_features).float().contiguous()
        y = torch.empty(len(rows), self.out_features)
        given, result = (Span(t.data_ptr(), t.nbytes, t) for t in (rows, y))
        self._matrix.multiply_into(given, len(rows), result, self._pool)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)


class DenseBlocks:
    """The int8 matrices of one model, while it is being loaded."""

    def __init__(self, shapes: Mapping[str, MatrixShape], pool: Pool | None) -> None:
        """`shapes`: names of the weights, and what they become."""
        self._pool, self._lock = pool, threading.Lock()
        self._matrices: dict[str, Matrix] = {}
        self.shapes = shapes

    def lazy(
        self, files: CheckpointFiles, tensors: Mapping[str, StoredTensor], dtype: torch.dtype
    ) -> dict[str, Any]:
        """What the loader, for a model of `dtype`, is handed for tensors that become int8."""
        return {
            name: _StandIn(self, name, files, tensors[name], dtype)
            for name in self.shapes.keys() & tensors.keys()
        }

    def read(
        self, files: CheckpointFiles, tensors: Mapping[str, StoredTensor], dtype: torch.dtype
    ) -> dict[str, Any]:
        """The same for blocks that are in the files already."""
        for name in self.shapes:
            self._matrices[name] = Matrix(read_block(files, tensors[name]), self.shapes[name])
        return {name: _expanded(shape, dtype) for name, shape in self.shapes.items()}

    def add(self, name: str, weights: torch.Tensor) -> None:
        """Quantise weights [rows, columns]; threads may do so at once."""
        shape = self.shapes[name]
        matrix = Matrix(quantize(weights.float().contiguous().numpy(), shape), shape)
        with self._lock:
            self._matrices[name] = matrix

    def install(self, model: PreTrainedModel) -> None:
        """Replace the modules of the loaded model."""
        head: Any = model.get_output_embeddings()
        for name in self.shapes:
            tied = name.endswith(HEAD) and name not in self._matrices
            if tied and isinstance(head, torch.nn.Linear):
                self.add(name, head.weight.detach())
        for name, matrix in self._matrices.items():
            module = name.removesuffix(".weight")
            bias: Any = model.get_submodule(module).bias
            own = None if bias is None else bias.detach().float()
            model.set_submodule(module, DenseLinear(matrix, own, self._pool))


class _StandIn:
    """What transformers' loader takes for a slice of a file: zeros of the shape, in no memory."""

    def __init__(
        self,
        blocks: DenseBlocks,
        name: str,
        files: CheckpointFiles,
        tensor: StoredTensor,
        dtype: torch.dtype,
    ) -> None:
        self._blocks, self._name = blocks, name
        self._files, self._tensor, self._dtype = files, tensor, dtype

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        numbers = self._files.load(self._tensor)
        self._blocks.add(self._name, numbers)
        return _expanded(self._blocks.shapes[self._name], self._dtype)[index]


class DecodedTensor:
    """The numbers of a block, for a loader."""

    def __init__(self, files: CheckpointFiles, tensor: StoredTensor, shape: MatrixShape) -> None:
        self._files, self._tensor, self._shape = files, tensor, shape

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        block = read_block(self._files, self._tensor)
        return torch.from_numpy(unpacker()(block, self._shape))[index]


def dense_shapes(model: PreTrainedModel) -> dict[str, MatrixShape]:
    """Weights of a model that may become int8, by name, and what they become."""
    found = {}
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear:
            shape = dense_shape(f"{name}.weight", tuple(module.weight.shape))
            if shape is not None:
                found[f"{name}.weight"] = shape
    return found


def read_block(files: CheckpointFiles, tensor: StoredTensor) -> NDArray[np.uint8]:
    """A block of a packed folder, aligned for the kernels. Raises MiractlError."""
    block = aligned_empty(tensor.ranges[0].nbytes)
    files.read_into(torch.from_numpy(block), tensor.ranges[0])
    return block


def _expanded(shape: MatrixShape, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in the model's type: a conversion would give them memory."""
    return torch.zeros((), dtype=dtype).expand(shape.rows, shape.columns)
