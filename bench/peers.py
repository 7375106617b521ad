"""Matrix products of other libraries, for bench/kernels.py to run beside ours.

Each function takes the float32 weights [N, K], inputs x[tokens, K] by number of tokens, and how
many copies to make, so that weights come from memory. It returns products by name, or raises
ImportError or OSError where the library is not there.
"""

import ctypes
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Products = dict[str, Callable[[int, int], object]]  # name: (copy, tokens) -> anything


def torch_products(weights: Floats, x: Mapping[int, Floats], copies: int) -> Products:
    """Float32 of torch, and its int8 weights with bfloat16 activations."""
    import torch

    torch.set_num_threads(1)
    w = torch.from_numpy(weights)
    inputs = {tokens: torch.from_numpy(array) for tokens, array in x.items()}
    halves = {tokens: tensor.bfloat16() for tokens, tensor in inputs.items()}
    scales = w.abs().amax(1) / 127
    codes = (w / scales[:, None]).round().to(torch.int8)
    plain = [w.clone() for _ in range(max(copies // 4, 2))]
    packed = [codes.clone() for _ in range(copies)]
    scales = scales.bfloat16()
    return {
        "torch float32": lambda i, m: torch.nn.functional.linear(inputs[m], plain[i % len(plain)]),
        "torch int8pack": lambda i, m: torch._weight_int8pack_mm(halves[m], packed[i], scales),
    }


def onnxruntime_products(weights: Floats, x: Mapping[int, Floats], copies: int) -> Products:
    """MatMulNBits with 4 bits in blocks of 32 and int8 activations."""
    import onnxruntime
    from onnx import TensorProto, helper

    rows, columns = weights.shape
    groups = weights.reshape(rows, columns // 32, 32)
    scales = np.abs(groups).max(axis=2) / np.float32(7)
    codes = (np.clip(np.rint(groups / scales[..., None]), -8, 7) + 8).astype(np.uint8)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    node = helper.make_node(
        "MatMulNBits", ["x", "B", "S"], ["y"], domain="com.microsoft", K=columns, N=rows,
        bits=4, block_size=32, accuracy_level=4,
    )  # fmt: skip
    tensors = [
        helper.make_tensor("B", TensorProto.UINT8, packed.shape, packed.tobytes(), raw=True),
        helper.make_tensor("S", TensorProto.FLOAT, [scales.size], scales.tobytes(), raw=True),
    ]
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", rows])],
        tensors,
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    sessions = [
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for _ in range(copies)
    ]
    return {"onnxruntime int4": lambda i, m: sessions[i].run(None, {"x": x[m]})}


# ggml type of the weights: name, activation type, function that quantises activations
_IK = {
    12: ("ik Q4_K", 99, "quantize_row_q8_2_x4"),
    212: ("ik Q4_K_R4", 148, "quantize_row_q8_K32"),
    208: ("ik Q8_0_R8", 99, "quantize_row_q8_2_x4"),
}


class _Init(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


def ik_products(weights: Floats, x: Mapping[int, Floats], copies: int) -> Products:
    """ik_llama.cpp's kernels, called on raw memory as its own graph does."""
    spec = find_spec("ik_llama_cpp")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'ik_llama_cpp'")
    lib = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml.so"))
    pointer, long, integer = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    lib.ggml_init.restype, lib.ggml_init.argtypes = pointer, [_Init]
    lib.ggml_init(_Init(1 << 20, None, False))
    lib.ggml_row_size.restype, lib.ggml_row_size.argtypes = ctypes.c_size_t, [integer, long]
    lib.ggml_quantize_chunk.argtypes = [integer, pointer, pointer, long, long, long, pointer]
    lib.iqk_mul_mat.restype = ctypes.c_bool
    lib.iqk_mul_mat.argtypes = [
        *(long, long, long, integer, pointer, long, integer, pointer, long),
        *(pointer, long, integer, integer),
    ]
    made = {}
    for kind, (name, activation, function) in _IK.items():
        made[name] = _ik_product(lib, kind, activation, function, weights, x, copies)
    return made


def _ik_product(
    lib: Any, kind: int, activation: int, function: str, weights: Floats, x: Mapping[int, Floats],
    copies: int,
) -> Callable[[int, int], object]:  # fmt: skip
    rows, columns = weights.shape
    row = lib.ggml_row_size(kind, columns)
    block = np.empty(rows * row, np.uint8)
    lib.ggml_quantize_chunk(kind, weights.ctypes.data, block.ctypes.data, 0, rows, columns, None)
    blocks = [block.copy() for _ in range(copies)]
    token = lib.ggml_row_size(activation, columns)
    quantize = getattr(lib, function)
    quantize.argtypes, quantize.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long], None
    codes = np.empty(max(x) * token + 64, np.uint8)
    y = np.empty((max(x), rows), np.float32)
    at = {tokens: array.ctypes.data for tokens, array in x.items()}
    places, codes_at, y_at = [b.ctypes.data for b in blocks], codes.ctypes.data, y.ctypes.data

    def product(i: int, tokens: int, _keep: object = (blocks, codes, y)) -> None:
        for t in range(tokens):
            quantize(at[tokens] + 4 * t * columns, codes_at + t * token, columns)
        if not lib.iqk_mul_mat(
            *(rows, tokens, columns, kind, places[i], row, activation, codes_at, token),
            *(y_at, rows, 0, 1),
        ):
            raise RuntimeError(f"ik has no kernel for type {kind}")

    return product
