"""The few calls of CUDA's driver library that a copy from page-locked memory takes.

By ctypes and not by torch: this starts in a tenth of the time, works beside a torch without CUDA,
and names cards by their PCI address as the other probes do. Only child processes come here.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """A call that failed: `CUDA_ERROR_OUT_OF_MEMORY in cuMemHostAlloc`."""


class Driver:
    """CUDA, started. Raises OSError without the library, CudaError when it does not start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._call("cuInit", ctypes.c_uint(0))

    def devices(self) -> list[int]:
        """Handles of the devices that CUDA_VISIBLE_DEVICES leaves, in CUDA's order."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        handles = (ctypes.c_int * count.value)()
        for index in range(count.value):
            place = ctypes.byref(handles, index * ctypes.sizeof(ctypes.c_int))
            self._call("cuDeviceGet", place, ctypes.c_int(index))
        return list(handles)

    def address(self, device: int) -> str:
        """The PCI address of a device."""
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(32), ctypes.c_int(device))
        return text.value.decode()

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """The calls within go to `device`."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        try:
            self._call("cuCtxSetCurrent", context)
            yield
        finally:
            self._library.cuDevicePrimaryCtxRelease_v2(ctypes.c_int(device))

    @contextmanager
    def pinned(self, size: int) -> Iterator[ctypes.c_void_p]:
        """`size` bytes of page-locked host memory, in one piece."""
        pointer = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_uint(0))
        try:
            yield pointer
        finally:
            self._library.cuMemFreeHost(pointer)

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_uint64]:
        """`size` bytes of device memory."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        try:
            yield pointer
        finally:
            self._library.cuMemFree_v2(pointer)

    @contextmanager
    def event(self) -> Iterator[ctypes.c_void_p]:
        """A point in the order of work, with a time of its own."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        try:
            yield event
        finally:
            self._library.cuEventDestroy_v2(event)

    def copy(self, target: ctypes.c_uint64, source: ctypes.c_void_p, size: int) -> None:
        """Start a copy to the device; it is done when an event recorded later is."""
        stream = ctypes.c_void_p()
        self._call("cuMemcpyHtoDAsync_v2", target, source, ctypes.c_size_t(size), stream)

    def record(self, event: ctypes.c_void_p) -> None:
        """Put `event` behind what was started so far."""
        self._call("cuEventRecord", event, ctypes.c_void_p())

    def seconds(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Wait for `end`; the time from `start` to it."""
        self._call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1000

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise CudaError(f"{LIBRARY} has no {name}") from None
        if code:
            raise CudaError(f"{self._error(code)} in {name}")

    def _error(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode() if text.value else f"error {code}"
