"""The C heap of the process."""

import ctypes


def give_back() -> None:
    """Return freed heap memory to the system, where the C library can (glibc).

    Loading leaves tens of megabytes of freed blocks behind; on a small machine they are wanted for
    experts.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
