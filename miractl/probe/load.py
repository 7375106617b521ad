"""What links do under load: copies from page-locked memory, watched while they run.

This happens in a child process (`python -m miractl.probe.load BYTES`), which takes the CUDA context
and every error with it when it ends: a failed page-lock cannot poison whoever asked.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from miractl.own_python import command_for
from miractl.probe import pci
from miractl.probe.cuda import CudaError, Driver
from miractl.probe.devices import LinkLoad, Load, PciPort, PinTrial
from miractl.probe.machine import Machine
from miractl.probe.nvml import Reader
from miractl.units import GIB, MIB

PATIENCE = 30.0  # a cold start takes seconds a card
SECONDS = 0.3  # of copying, for each card
CHUNK = 32 * MIB  # large enough for the full rate
BATCH = 4  # copies that are under way while the link is looked at
PINS = (64 * MIB, 256 * MIB, 1 * GIB)


@dataclass(frozen=True, slots=True)
class _Sample:
    """One look at a link."""

    generation: int | None
    width: int | None
    ports: tuple[PciPort, ...]


class _Watch:
    """Looks at the link of one card, by NVML and sysfs; each may lack."""

    def __init__(self, nvml: Any, machine: Machine, address: str) -> None:
        self._reader = Reader(nvml)
        self._machine = machine
        self._address = address
        call = ("nvmlDeviceGetHandleByPciBusId", address)
        self._handle = self._reader.ask("handle", lambda got: got, call)

    def look(self) -> _Sample:
        """The link at this moment."""
        generation = self._ask("nvmlDeviceGetCurrPcieLinkGeneration")
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth")
        ports = pci.path(self._machine, self._address)
        return _Sample(pci.valid_generation(generation), pci.valid_width(width), ports)

    def replays(self) -> int | None:
        """Packets that had to be sent again since the driver was loaded."""
        return self._ask("nvmlDeviceGetPcieReplayCounter")

    def _ask(self, call: str) -> int | None:
        answer: int | None = self._reader.ask(call, int, (call, self._handle))
        return answer


def _copy(driver: Driver, watch: _Watch) -> tuple[list[float], list[_Sample]]:
    """Seconds of each batch of copies, and a look at the link during each."""
    batches, samples = [], []
    with (
        driver.pinned(CHUNK) as source,
        driver.memory(CHUNK) as target,
        driver.event() as start,
        driver.event() as end,
    ):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            driver.record(start)
            for _ in range(BATCH):
                driver.copy(target, source, CHUNK)
            driver.record(end)
            samples.append(watch.look())
            batches.append(driver.seconds(start, end))
    return batches, samples


def _link(driver: Driver, device: int, nvml: Any, machine: Machine) -> LinkLoad:
    address = pci.normal_address(driver.address(device))
    watch = _Watch(nvml, machine, address)
    before = watch.replays()
    try:
        with driver.current(device):
            batches, samples = _copy(driver, watch)
    except CudaError as error:
        return LinkLoad(address, None, None, None, None, (), str(error))
    after = watch.replays()
    # The first batches wake the link.
    awake = batches[len(batches) // 2 :]
    return LinkLoad(
        address=address,
        rate=len(awake) * BATCH * CHUNK / sum(awake) if sum(awake) > 0 else None,
        generation=max((s.generation for s in samples if s.generation), default=None),
        width=max((s.width for s in samples if s.width), default=None),
        replays=None if before is None or after is None else after - before,
        ports=samples[-1].ports,
        error=None,
    )


def _pins(driver: Driver, at_most: int) -> Iterator[PinTrial]:
    """Ever larger pieces, none above `at_most`, up to the first that fails."""
    for size in PINS:
        if size > at_most:
            return
        try:
            with driver.pinned(size):
                yield PinTrial(size, None)
        except CudaError as error:
            yield PinTrial(size, str(error))
            return


def measure(driver: Driver, nvml: Any, machine: Machine, at_most: int) -> Load:
    """Copy to every visible card in turn, then page-lock pieces of up to `at_most` bytes."""
    devices = driver.devices()
    links = tuple(_link(driver, device, nvml, machine) for device in devices)
    if not devices:
        return Load(links, ())
    with driver.current(devices[0]):
        return Load(links, tuple(_pins(driver, at_most)))


def probe(machine: Machine, at_most: int, seconds: float | None = None) -> Load:
    """The child's measurements, within `seconds`.

    Raises TimeoutError when it does not answer, ChildProcessError when CUDA does not start or the
    child died of it, ValueError when it talks nonsense.
    """
    from miractl.probe.codec import decode

    command = command_for("miractl.probe.load", str(at_most))
    return decode(Load, json.loads(machine.run(command, seconds or PATIENCE)))


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, started; a stand-in that answers nothing where it does not start."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
    except Exception:  # the copy is worth having without it
        yield None
        return
    yield pynvml
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _main() -> None:
    try:
        driver = Driver()
    except (OSError, CudaError) as error:
        sys.exit(f"CUDA does not start: {error}")
    with _nvml() as nvml:
        load = measure(driver, nvml, Machine(), int(sys.argv[1]))
    json.dump(asdict(load), sys.stdout)


if __name__ == "__main__":
    _main()
