"""Into how many chunks the transfer of an expert is divided: at the end of one it can be left.

Small enough that a demand waits for little, large enough that nothing is lost. From a disk
demands are read beside a bet that is under way, so chunks save less: experts of 2.7 MB by three
reads come at the rate of whole ones (`bench/read_experts.py`), but the processor was busier by a
twentieth while decoding, and demands waited about as long. Such an expert is one read. Copies
over an emulated link cost nothing to begin. Those to a GPU are queued while others run, but what
it takes Python to queue one and to hear of its end, some tens of microseconds, must not be longer
than the copy before it: 2 MiB take 80 at 25 GB/s.
"""

from miractl.units import KIB, MIB

DISK_CHUNK = 4 * MIB
LINK_CHUNK = 256 * KIB  # emulated, simulated
GPU_CHUNK = 2 * MIB


def chunks_of(nbytes: int, chunk: int) -> int:
    """Chunks of about `chunk` bytes; small experts are moved in one."""
    return max(1, round(nbytes / chunk))
