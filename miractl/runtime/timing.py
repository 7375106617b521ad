"""What steps are held against: bytes that moved and have to be read, rates of the machine."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from miractl.probe import memory_rate as probe
from miractl.runtime.cache import ExpertCache
from miractl.runtime.dense import DenseLinear
from miractl.runtime.embedding import is_tied
from miractl.telemetry.timeline import Machine, Moved
from miractl.units import MIB

if TYPE_CHECKING:
    from miractl.runtime.engine import Engine

MOST_READ = 512 * MIB  # to measure the memory by


def moved(cache: ExpertCache) -> Moved:
    """Totals since the start."""
    stats = cache.transfers.stats
    on_disk = cache.transfers.source == "disk"
    with cache.lock:
        return Moved(
            hits=int(cache.residency.hits.sum()),
            misses=int(cache.residency.misses.sum()),
            late=cache.residency.bets.late,
            disk_bytes=stats.bytes if on_disk else 0,
            link_bytes=0 if on_disk else stats.bytes,
            copy_seconds=stats.busy_seconds,
        )


def dense_weights(model: torch.nn.Module) -> list[npt.NDArray[np.uint8]]:
    """All that every step reads, as bytes: of an embedding that is no head it reads only rows."""
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    spared = None if is_tied(model) else embedding.data_ptr()  # type: ignore[arg-type]
    found = {
        tensor.data_ptr(): tensor.detach().reshape(-1).view(torch.uint8).numpy()
        for tensor in model.parameters()
        if tensor.data_ptr() != spared and tensor.is_contiguous()
    }
    blocks = [m.block for m in model.modules() if isinstance(m, DenseLinear)]
    return [*found.values(), *blocks]


def memory_rate(model: torch.nn.Module, threads: int) -> float | None:
    """Bytes a second at which the host's kernels can read; None for a GPU's memory."""
    if next(model.parameters()).device.type != "cpu":
        return None
    arrays, left = [], MOST_READ
    for array in sorted(dense_weights(model), key=lambda a: -a.nbytes):
        arrays.append(array[:left])
        left -= arrays[-1].nbytes
        if left <= 0:
            break
    return probe.probe(arrays, threads)


def machine(engine: "Engine", rate: float | None) -> Machine:
    """The engine's bytes and rates."""
    cache, model = engine.cache, engine.model
    cpu = model.device.type == "cpu"
    return Machine(
        device=str(model.device),
        threads=torch.get_num_threads(),
        dense_bytes=sum(array.nbytes for array in dense_weights(model)) if cpu else 0,
        expert_bytes=engine.plan.expert_bytes,
        memory_rate=rate,
        transfer_source=cache.transfers.source,
        transfer_rate=cache.transfers.stats.peak_bytes_per_second,
    )
