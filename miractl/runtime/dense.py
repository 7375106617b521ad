"""Linear layers as int8 blocks, computed by the CPU kernels instead of torch.

They are made while the model is loaded, one at a time: the loader gets a stand-in without memory,
and the module is replaced afterwards. A tied head gets a block of its own; the embedding stays.
"""

import threading
import weakref
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from miractl.checkpoint.dense import HEAD, dense_shape
from miractl.checkpoint.encoding import StoredTensor
from miractl.native.kernels import Pool
from miractl.native.layout import MatrixShape
from miractl.native.matrix import Matrix, Stack, quantize_into
from miractl.native.memory import HUGE_PAGE, Span, aligned_empty
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.packed import unpacker


class DenseLinear(torch.nn.Module):
    """y = x W^T + b with W as an int8 block."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None, shared: "SharedInput") -> None:
        """`shared` is that of all such modules under one parent."""
        super().__init__()
        self.in_features, self.out_features = matrix.shape.columns, matrix.shape.rows
        self.bias = bias
        self.matrix, self._shared = matrix, shared

    @property
    def block(self) -> NDArray[np.uint8]:
        """The stored weights, as long as the module lives."""
        return self.matrix.block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [..., in_features]: [..., out_features], computed in float32."""
        y = self._shared.product(self, x)
        if self.bias is not None:
            y += self.bias
        return y if y.dtype is x.dtype else y.to(x.dtype)


class SharedInput:
    """Siblings that are called with the same tensor, as q, k and v are: one call for all.

    Who is, shows: a module that is called with the very tensor that another was called with before
    is computed together with that one from then on, and no longer once it was called without it.
    """

    def __init__(self, pool: Pool | None) -> None:
        self._pool = pool
        self._stacks: dict[DenseLinear, tuple[list[DenseLinear], Stack]] = {}
        self._last: _Products | None = None

    def product(self, module: DenseLinear, x: torch.Tensor) -> torch.Tensor:
        """Of x [..., columns], with the matrix of a module: float32 [..., rows]."""
        last, first = self._last, module  # kept: another thread may have called meanwhile
        if last is not None and last.of(x):
            if (y := last.outputs.pop(module, None)) is not None:
                return y
            first = last.first
            self._join(first, module)
        elif last is not None and last.outputs:
            self._part(last.first, set(last.outputs))
        stack = self._stacks.get(module)
        modules, call = stack or self._remember(module, [module])
        outputs = _multiply(call, x, self._pool)
        made = dict(zip(modules, outputs, strict=True))
        y = made.pop(module)
        self._last = _Products(first, x, made)
        return y

    def _remember(
        self, first: DenseLinear, modules: list[DenseLinear]
    ) -> tuple[list[DenseLinear], Stack]:
        made = self._stacks[first] = modules, Stack([module.matrix for module in modules])
        return made

    def _join(self, first: DenseLinear, module: DenseLinear) -> None:
        modules = self._stacks[first][0]
        if module not in modules and module.matrix.shape.format == first.matrix.shape.format:
            self._remember(first, [*modules, module])

    def _part(self, first: DenseLinear, unused: set[DenseLinear]) -> None:
        self._remember(first, [m for m in self._stacks[first][0] if m not in unused])


class _Products:
    """What one call made of a tensor: outputs that nobody has asked for yet."""

    def __init__(
        self, first: DenseLinear, x: torch.Tensor, outputs: dict[DenseLinear, torch.Tensor]
    ) -> None:
        self.first, self.outputs = first, outputs
        self._x, self._version = weakref.ref(x), _version(x)

    def of(self, x: torch.Tensor) -> bool:
        """Whether it was this tensor, and it still has the values that it had."""
        return self._x() is x and self._version == _version(x)


def _version(x: torch.Tensor) -> int | None:
    """Counts what is written to a tensor; None where torch does not."""
    return None if x.is_inference() else x._version


def _multiply(stack: Stack, x: torch.Tensor, pool: Pool | None) -> list[torch.Tensor]:
    """X [..., columns] times each matrix: float32 [..., rows] of each."""
    given = x if x.dtype is torch.float32 else x.float()
    given = given.contiguous()
    *outer, columns = given.shape
    if columns != stack.columns:
        raise ValueError(f"Got x {tuple(x.shape)} but expected [..., {stack.columns}]")
    tokens = given.numel() // columns
    if len(stack.rows) == 1:
        only = torch.empty(*outer, stack.width)
        stack.multiply_at(given.data_ptr(), tokens, only.data_ptr(), pool)
        return [only]
    y = torch.empty(tokens * stack.width)
    stack.multiply_at(given.data_ptr(), tokens, y.data_ptr(), pool)
    parts = torch.split_with_sizes(y, [tokens * rows for rows in stack.rows])
    return [part.view(*outer, rows) for part, rows in zip(parts, stack.rows, strict=True)]


class DenseBlocks:
    """The int8 matrices of one model, while it is being loaded."""

    def __init__(self, shapes: Mapping[str, MatrixShape], pool: Pool | None) -> None:
        """`shapes`: names of the weights, and what they become."""
        self._pool, self._lock = pool, threading.Lock()
        self._matrices: dict[str, Matrix] = {}
        self.shapes = shapes
        self._blocks = _rooms(shapes)

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
            block = self._blocks[name]
            files.read_into(torch.from_numpy(block), tensors[name].ranges[0])
            self._matrices[name] = Matrix(block, self.shapes[name])
        return {name: _expanded(shape, dtype) for name, shape in self.shapes.items()}

    def add(self, name: str, weights: torch.Tensor) -> None:
        """Quantise weights [rows, columns]; threads may do so at once."""
        shape, block = self.shapes[name], self._blocks[name]
        quantize_into(weights.float().contiguous().numpy(), shape, Span.of(block))
        matrix = Matrix(block, shape)
        with self._lock:
            self._matrices[name] = matrix

    def install(self, model: PreTrainedModel) -> None:
        """Replace the modules of the loaded model."""
        head: Any = model.get_output_embeddings()
        for name in self.shapes:
            tied = name.endswith(HEAD) and name not in self._matrices
            if tied and isinstance(head, torch.nn.Linear):
                self.add(name, head.weight.detach())
        shared: dict[str, SharedInput] = {}
        for name, matrix in self._matrices.items():
            module = name.removesuffix(".weight")
            parent = module.rpartition(".")[0]
            bias: Any = model.get_submodule(module).bias
            own = None if bias is None else bias.detach().float()
            among = shared.setdefault(parent, SharedInput(self._pool))
            model.set_submodule(module, DenseLinear(matrix, own, among))


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
        block = aligned_empty(self._tensor.ranges[0].nbytes)
        self._files.read_into(torch.from_numpy(block), self._tensor.ranges[0])
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


def _rooms(shapes: Mapping[str, MatrixShape]) -> dict[str, NDArray[np.uint8]]:
    """Memory for each block, all of it in one piece: small ones get huge pages, too."""
    sizes = [shape.nbytes for shape in shapes.values()]  # multiples of the alignment
    whole = aligned_empty(sum(sizes), HUGE_PAGE)
    ends = np.cumsum(sizes)[:-1]
    return dict(zip(shapes, np.split(whole, ends), strict=True))


def _expanded(shape: MatrixShape, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in the model's type: a conversion would give them memory."""
    return torch.zeros((), dtype=dtype).expand(shape.rows, shape.columns)
