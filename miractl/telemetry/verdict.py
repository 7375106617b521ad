"""Which resource binds, in one sentence, from an account of steps and the machine's rates."""

from miractl.telemetry.timeline import Account, Machine, bounds
from miractl.units import format_share

SOURCES = {"disk": "the disk", "host": "the link", "emulated": "the emulated link"}
BOUND = 0.5  # share of the time from which on a resource or a part is what binds


def verdict(account: Account, machine: Machine) -> str:
    """What the time of these steps hangs on, and what would change it."""
    share = {part: seconds / account.seconds for part, seconds in account.parts.items()}
    largest = max(share, key=lambda part: share[part])
    found = bounds(account, machine)
    memory = next((bound for bound in found if bound.resource == "memory"), None)
    reads = memory is not None and memory.seconds >= BOUND * account.seconds
    if share["waiting"] >= BOUND or (largest == "waiting" and not reads):
        return (
            f"Bringing experts binds: {format_share(share['waiting'])} of the time is waiting for"
            f" {SOURCES[machine.transfer_source]}. More slots (--expert-memory) or smaller experts"
            " (miractl pack --experts int4) take it away."
        )
    if memory is not None and reads:
        return (
            f"Memory binds: reading the weights alone takes"
            f" {format_share(memory.seconds / account.seconds)} of the time at the rate of this"
            " machine's memory. Fewer bytes help: miractl pack --experts int4 --dense int8."
        )
    text = f"The largest part is {largest}, {format_share(share[largest])} of the time"
    if memory is None:
        return f"{text}; the memory's rate is not known here."
    return (
        f"{text}; reading the weights takes no more than"
        f" {format_share(memory.seconds / account.seconds)} of it: the processor's work binds,"
        " not the memory."
    )
