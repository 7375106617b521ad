"""Into how many chunks the transfer of an expert is divided: at the end of one it can be left.

Small enough that a demand waits for little, large enough that nothing is lost. On a disk, reads of
a quarter of an int4 expert come at the rate of whole ones, and those of an eighth are slower by a
tenth (`bench/read_experts.py`). Copies over an emulated link cost nothing to begin. Those to a GPU
are queued while others run, but what it takes Python to queue one and to hear of its end, some tens
of microseconds, must not be longer than the copy before it: 2 MiB take 80 at 25 GB/s.
"""

from miractl.units import KIB, MIB

DISK_CHUNK = 1 * MIB
LINK_CHUNK = 256 * KIB  # emulated, simulated
GPU_CHUNK = 2 * MIB


def chunks_of(nbytes: int, chunk: int) -> int:
    """Chunks of about `chunk` bytes; small experts are moved in one."""
    return max(1, round(nbytes / chunk))
