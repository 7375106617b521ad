"""What a model is computed on, in which type and by how many threads."""

import math

import torch

from miractl.errors import UsageError
from miractl.probe import cpu
from miractl.probe.machine import Machine
from miractl.runtime.outline import Outline

THREADED_WEIGHTS = 2**20  # of one expert
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """`auto` is the first CUDA device if torch can use one, else the CPU. Raises UsageError."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", hint="--device auto, cpu or cuda:0") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"{name} is not there: torch sees {torch.cuda.device_count()} CUDA devices",
            hint="miractl doctor",
        )
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, bfloat16 on a GPU.

    CPUs without bf16 units multiply bf16 matrices several times slower than float32 ones.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}", hint=f"one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def pick_threads(outline: Outline, asked: int | None = None) -> int:
    """Threads of each operation on the CPU: as OMP_NUM_THREADS says, or as asked.

    Otherwise small experts get one: there is nothing to divide, and threads that wait for each
    other on a busy machine made the demo model up to eight times slower.
    """
    processors = cpu.probe(Machine())
    if (given := processors.omp_num_threads or asked) is not None:
        return given
    weights = max(sum(map(math.prod, shapes.values())) for shapes in outline.kinds)
    return 1 if weights < THREADED_WEIGHTS else processors.threads
