"""The plan that a model is served by, made before anything large is read. Imports no torch."""

from collections.abc import Callable
from pathlib import Path

from miractl.checkpoint.inspection import inspect_folder
from miractl.plan.machine import machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.request import PlanRequest
from miractl.probe.facts import HardwareSnapshot
from miractl.probe.snapshot import take


def plan_to_serve(
    folder: Path, request: PlanRequest, device: str, note: Callable[[str], None]
) -> Plan | None:
    """A plan that fits. None, after a note, where nothing can be planned and it may still run.

    Raises MiractlError for a checkpoint that cannot be used, and with the line of the ledger that
    does not fit; UsageError for a request or a device that means nothing here.
    """
    found = inspect_folder(folder)
    found.refuse()
    if found.geometry is None:
        note(f"no plan for this model ({found.faults[0].text}): slots by the weights' sizes alone")
        return None
    snapshot = take(path=str(folder))
    device = _device(snapshot, device)
    if device.startswith("cuda") and (snapshot.nvml is None or not snapshot.nvml.gpus):
        note(f"no plan, as NVML does not tell of {device}: slots by the weights' sizes alone")
        return None
    machine = machine_for(snapshot, device=device)
    if not machine.knows_memory:
        note("no plan, as the free memory is not known: slots by the weights' sizes alone")
        return None
    plan = plan_for(found.geometry, machine, request)
    plan.require()
    return plan


def _device(snapshot: HardwareSnapshot, asked: str) -> str:
    """Where torch will compute: a torch that is built without CUDA leaves no choice."""
    torch = snapshot.software.torch if snapshot.software else None
    return "cpu" if asked == "auto" and torch is not None and torch.cuda is None else asked
