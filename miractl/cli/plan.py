"""`miractl plan`: will a model run on a machine, with which settings, and how fast at most."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl.cli.link import host_option
from miractl.cli.options import (
    complete_model,
    json_option,
    parameter_options,
    profile_option,
    runtime_option,
    setting_option,
)
from miractl.cli.quantities import RATE, SECONDS, SIZE, dense_option
from miractl.config import MOST_CONCURRENCY
from miractl.errors import MiractlError, UsageError
from miractl.output import Output

if TYPE_CHECKING:
    from miractl.checkpoint.geometry import Geometry
    from miractl.plan.machine import PlanMachine
    from miractl.plan.planner import Plan
    from miractl.plan.request import PlanRequest


@click.command()
@click.argument("model", required=False, shell_complete=complete_model)
@profile_option
@setting_option("device", "expert_memory", "context", "kv_memory")
@click.option(
    "--concurrency",
    type=click.IntRange(1, MOST_CONCURRENCY),
    help="Requests that generate at the same time.  [default: serve's --max-concurrency]",
)
@dense_option
@host_option
@runtime_option("sets")
@click.option("--gpu-memory", type=SIZE, help="A GPU of this memory, 24GB, instead of this one.")
@click.option("--host-memory", type=SIZE, help="Memory for this program, 64GB.")
@click.option("--link", type=RATE, help="Rate of copies from host to GPU, 25GB/s.")
@click.option("--disk", type=RATE, help="Rate of reading the model's disk, 3GB/s.")
@click.option("--gpu-rate", type=RATE, help="Rate of the GPU reading its memory, 600GB/s.")
@click.option("--host-rate", type=RATE, help="Rate of the host reading its memory, 40GB/s.")
@click.option("--tflops", type=click.FloatRange(min=0, min_open=True), help="10^12 operations/s.")
@click.option("--cores", type=click.IntRange(min=1), help="Physical cores.")
@click.option("--headroom", type=SIZE, help="Memory to leave alone.  [default: 512MiB]")
@click.option("--p95", type=SECONDS, help="Time for a token that nearly all keep.  [default: 50ms]")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Routing trace (.npz) to replay for the hit rate, instead of an assumption.",
)
@click.option("--measure", is_flag=True, help="Measure the link and the model's disk: seconds.")
@click.option("--baseline", type=SIZE, help="Without MODEL: memory taken before any expert.")
@click.option("--expert-size", type=SIZE, help="Without MODEL: bytes of one expert.")
@parameter_options
@json_option
def command(
    model: str | None,
    profile: str,
    parameters: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether MODEL runs on a machine, with which settings, and how fast at most.

    MODEL is a folder with config.json, no weights needed, or the name of a model whose facts come
    with miractl; without it, the demo model. The machine is this one, a profile's card where there
    is no GPU, or what the options say. Every number comes with its terms. Nothing is fetched or
    loaded. Exit codes: 0 it runs, 1 it does not.

    \b
    Examples:
      miractl plan ./Qwen3-30B-A3B --profile a10 --context 4096
      miractl plan Mixtral-8x7B --gpu-memory 24GB --host-memory 64GB --link 25GB/s
      miractl plan --gpu-memory 24GB --baseline 8.2GB --expert-size 1.1GB --profile a10
    """
    from miractl.cli.serve import expert_memory_for
    from miractl.config import given, resolve_parameters, resolve_runtime, resolve_settings
    from miractl.plan.request import refuse_host, request_from
    from miractl.profiles import load_profile

    out = Output(json=as_json)
    loaded = load_profile(profile)
    settings = resolve_parameters(loaded, parameters)
    options["concurrency"] = options["concurrency"] or resolve_settings({})["max_concurrency"].value
    asked = {name: options[name] for name in ("context", "concurrency", "headroom", "kv_memory")}
    asked["sets"] = resolve_runtime(loaded, given(sets=options["sets"]))["sets"].value
    request = request_from(settings, dense=options["dense"] == "int8", **asked)
    if options["p95"] is not None:
        request = replace(request, p95=options["p95"])
    if options["expert_size"] is not None or options["baseline"] is not None:
        _staging_alone(model, loaded, options, request, out)
        return
    expert_memory = expert_memory_for(model, options["expert_memory"], out)
    request = replace(request, expert_memory=expert_memory)
    geometry, name, folder = _geometry(model, out)
    machine = _machine(loaded, options, folder)
    if options["host_compute"] in ("auto", "on"):
        card = "--profile a10 or --gpu-memory 24GB plans for a card"
        refuse_host(machine.device == "cuda", geometry.record, card)
        request = replace(request, host_compute=True)
    _plan(geometry, name, machine, request, options["trace"], out)


def _machine(profile: Any, options: dict[str, Any], folder: Path | None) -> "PlanMachine":
    from miractl.plan.machine import Given, machine_for
    from miractl.probe.snapshot import Measure, take

    measure = Measure(load=options["measure"], disk=options["measure"] and folder is not None)
    snapshot = take(path=str(folder or "."), measure=measure)
    tflops = options["tflops"]
    names = ("gpu_memory", "host_memory", "link", "disk", "gpu_rate", "host_rate", "cores")
    given = Given(
        compute=None if tflops is None else tflops * 1e12,
        **{name: options[name] for name in names},
    )
    return machine_for(snapshot, profile, given, options["device"])


def _geometry(model: str | None, out: Output) -> "tuple[Geometry, str, Path | None]":
    """The model's numbers, its name, and its folder if it is one here."""
    from miractl.checkpoint.inspection import inspect_folder
    from miractl.checkpoint.packed import is_packed
    from miractl.cli.serve import locate
    from miractl.plan.catalog import CONFIGS, published

    if model is not None and not Path(model).exists():
        geometry = published(model)
        if geometry is None:
            known = ", ".join(CONFIGS)
            raise UsageError(
                f"no folder {model!r} with a config.json; nothing is fetched by itself",
                hint=f"a folder, or one of {known}",
            )
        out.note(f"{model}: planned from the facts that come with miractl, not from a config.json")
        return geometry, model, None
    folder, name = locate(model)
    found = inspect_folder(folder)
    if found.geometry is None:
        fault = found.faults[0]
        raise MiractlError(fault.text, hint=fault.remedy)
    if is_packed(folder) and found.packed is None:
        raise next(fault for fault in found.faults if fault.fatal).error()
    if found.shards and not found.usable:
        out.warn(f"{folder} is not whole, the plan is for the model it should be: miractl inspect")
    return found.geometry, name, folder


def _plan(
    geometry: "Geometry",
    name: str,
    machine: "PlanMachine",
    request: "PlanRequest",
    trace: Path | None,
    out: Output,
) -> None:
    from miractl.plan.planner import plan_for
    from miractl.plan.trace import read_trace

    routed = None if trace is None else read_trace(trace, geometry)
    plan = plan_for(geometry, machine, request, routed)
    if out.is_json:
        out.json({**plan.to_json(), "name": name})
    else:
        _print(plan, name, out)
    click.get_current_context().exit(0 if plan.runs else 1)


def _print(plan: "Plan", name: str, out: Output) -> None:
    from miractl.plan.report import plan_lines, verdict, wrapped

    def marked(mark: str, color: str, text: str) -> None:
        sign = out.mark(mark)
        first, *more = wrapped(text, _width(), f"{sign} ")
        out.data("\n".join([first.replace(sign, out.style(sign, color), 1), *more]))

    for line in plan_lines(plan, name, _width()):
        out.data(line if line.startswith(" ") else out.style(line, "bold"))
    out.data("")
    for text in plan.warnings:
        marked("warn", "yellow", text)
    marked(*(("ok", "green") if plan.runs else ("fail", "red")), verdict(plan))
    out.data("\n".join(wrapped(plan.change_first, _width(), "change first: ")))


def _staging_alone(
    model: str | None, profile: Any, options: dict[str, Any], request: "PlanRequest", out: Output
) -> None:
    """The arithmetic of max_staged_experts for sizes that are given."""
    from miractl.plan.report import staging_lines
    from miractl.plan.staging import plan_staging

    if model is not None:
        raise UsageError("--baseline and --expert-size are for planning without a MODEL")
    expert, baseline = options["expert_size"], options["baseline"]
    total = options["gpu_memory"] or min(profile.hardware.memory_bytes, default=0)
    for option, value in (
        ("--expert-size", expert),
        ("--baseline", baseline),
        ("--gpu-memory", total),
    ):
        if value is None or (value <= 0 and option != "--baseline"):
            raise UsageError(
                f"{option} is missing or 0",
                hint="miractl plan --gpu-memory 24GB --baseline 8.2GB --expert-size 1.1GB",
            )
    plan = plan_staging(
        total=total,
        baseline=baseline,
        headroom=request.headroom or 0,
        kv_reserve=0,
        expert=expert,
        cap=request.cap,
        cap_name=request.cap_name,
    )
    if out.is_json:
        out.json({"schema": "miractl.plan/1", "runs": plan.limit > 0, "staging": plan.to_json()})
    else:
        for line in staging_lines(plan, _width()):
            out.data(line if line.startswith(" ") else out.style(line, "bold"))
        out.data(f"\n{plan.limit} staged at most, by {plan.binding.name}")
    click.get_current_context().exit(0 if plan.limit > 0 else 1)


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, 120))
