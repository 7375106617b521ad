"""How fast memory gets into slots: pinned copies to a GPU, plain copies where slots are in RAM."""

import time
from dataclasses import dataclass

import torch

from miractl.units import MIB

SIZES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
SOURCE = 512 * MIB  # more than caches hold
ROUND = 512 * MIB  # bytes of one measurement


@dataclass(frozen=True, slots=True)
class CopyRates:
    """Bytes a second of each round of copies of `size` bytes."""

    size: int
    rates: tuple[float, ...]


def measure(device: torch.device, repeats: int) -> list[CopyRates]:
    """Copies of SIZES to slots on `device`, in turn. Raises torch's OutOfMemoryError.

    One thread copies: that is how an expert is moved.
    """
    room = max(SOURCE, *SIZES)
    source = torch.empty(room, dtype=torch.uint8, pin_memory=device.type == "cuda").fill_(1)
    target = torch.empty(room, dtype=torch.uint8, device=device).fill_(1)
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(repeats):
            for size, rates in taken.items():
                rates.append(_rate(source, target, size))
    finally:
        torch.set_num_threads(threads)
    return [CopyRates(size, tuple(rates)) for size, rates in taken.items()]


def _rate(source: torch.Tensor, target: torch.Tensor, size: int) -> float:
    """Bytes a second of copies from one place after the other to one after the other."""
    starts = [start % (source.numel() - size + 1) for start in range(0, ROUND, size)]
    _finish(target.device)
    begun = time.perf_counter()
    for start in starts:
        target[start : start + size].copy_(source[start : start + size], non_blocking=True)
    _finish(target.device)
    return len(starts) * size / (time.perf_counter() - begun)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
