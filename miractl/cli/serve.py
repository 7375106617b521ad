"""`miractl serve`: an OpenAI-compatible server on the bundled runtime."""

import functools
import logging
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl import paths
from miractl.cli.link import link_options
from miractl.cli.options import (
    log_options,
    parameter_options,
    policy_option,
    profile_option,
    runtime_options,
    setting_option,
)
from miractl.cli.quantities import dense_option
from miractl.errors import UsageError
from miractl.outfile import check_kept
from miractl.output import Output
from miractl.server.signals import StopSignals, exit_now
from miractl.units import TIB, format_bytes

if TYPE_CHECKING:
    from miractl.plan.planner import Plan
    from miractl.plan.request import PlanRequest
    from miractl.server.config import ServerConfig
    from miractl.server.service import EngineLike, Service

DEMO_ID = "miractl-demo"
DEMO_EXPERT_MEMORY = "40%"
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
MOST_EXPERT_MEMORY = 1024 * TIB  # more is a slip of the keyboard


@click.command()
@click.argument("model", required=False)
@profile_option
@setting_option("host", "port", "device", "expert_memory", "context", "kv_memory")
@setting_option("max_concurrency")
@runtime_options
@dense_option
@link_options
@policy_option
@click.option(
    "--warm-heat",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Start with what an earlier run has learned of the experts; written at the end.",
)
@click.option(
    "--record-trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Record which experts every token chooses, for miractl replay.",
)
@log_options
@parameter_options
def command(
    model: str | None,
    profile: str,
    host: str,
    port: int,
    device: str,
    expert_memory: str | None,
    context: int | None,
    kv_memory: int | None,
    dense: str,
    emulate_link: float | None,
    host_compute: str | None,
    max_concurrency: int,
    sets: int | None,
    threads: int | None,
    policy: str | None,
    warm_heat: Path | None,
    record_trace: Path | None,
    log_level: str,
    log_format: str,
    parameters: dict[str, Any],
) -> None:
    """Serve MODEL, a folder with a checkpoint, over an OpenAI-compatible HTTP API.

    Without MODEL it is the small demo model that comes with miractl. What does not fit is refused
    before anything is loaded, with what to turn down; miractl plan shows the whole account. Ctrl-C
    or SIGTERM ends the server within five seconds, a second one at once. Exit codes: 0 after
    SIGTERM, 130 after Ctrl-C or a second signal, 1 when the port is in use or the model does not
    fit or load.

    \b
    Examples:
      miractl serve --profile a10
      miractl serve ./Qwen3-30B-A3B --expert-memory 8GiB --port 8080
      miractl serve --expert-memory 25% --set cache_threshold=0.4
    """
    from miractl import log
    from miractl.config import given, resolve_parameters, resolve_runtime, values_of
    from miractl.plan.request import request_from
    from miractl.profiles import load_profile
    from miractl.server.config import ServerConfig

    log.configure(log_level, log_format)
    check_device(device)
    if expert_memory is not None:
        check_expert_memory(expert_memory)
    for option, target in (("--warm-heat", warm_heat), ("--record-trace", record_trace)):
        if target is not None and not target.parent.is_dir():
            raise UsageError(f"{option}: no folder {str(target.parent)!r}")
    check_kept(warm_heat, record_trace)
    loaded = load_profile(profile)
    settings = resolve_parameters(loaded, parameters)
    layout = values_of(resolve_runtime(loaded, given(sets=sets, threads=threads)))
    path, model_id = locate(model)
    config = ServerConfig(host, port, context, max_concurrency, kv_memory)
    out = _Lines() if log_format == "json" else Output()
    expert_memory = expert_memory_for(model, expert_memory, out)
    request = request_from(
        settings,
        context=context,
        concurrency=max_concurrency,
        # Behind an emulated link slots take no memory, and all experts are in RAM.
        expert_memory=expert_memory if emulate_link is None else "100%",
        kv_memory=kv_memory,
        dense=dense == "int8",
        host_compute=emulate_link is None and host_compute in ("auto", "on"),
        sets=layout["sets"],
    )
    options = {
        "model_path": path,
        "model_id": model_id,
        "device": device,
        "expert_memory": expert_memory,
        "dense": dense,
        "emulate_link": emulate_link,
        "host_compute": host_compute,
        "parameters": values_of(settings),
        **layout,
        "profile": loaded.name,
        "policy": policy,
        "warm_heat": warm_heat,
        "record_trace": record_trace,
    }
    signals = StopSignals(config.stop_seconds)
    with signals.installed():
        _serve(config, options, request, out, signals)


class _Lines(Output):
    """With JSON lines asked for, what is said in words goes to the log too."""

    def note(self, text: str) -> None:
        """Log a line."""
        logging.getLogger("miractl.serve").info("%s", text.strip())

    def warn(self, text: str) -> None:
        """Log a warning."""
        logging.getLogger("miractl.serve").warning("%s", text.strip())


def locate(model: str | None) -> tuple[Path, str]:
    """Folder and served name of a model. Raises UsageError for what is not a folder here."""
    if model is None:
        if not (paths.DEMO_MODEL / "config.json").is_file():
            raise UsageError(
                f"the demo model is not in {paths.DEMO_MODEL}",
                hint="python -m miractl.demo.train, or: miractl serve FOLDER",
            )
        return paths.DEMO_MODEL, DEMO_ID
    from miractl.checkpoint.folder import require_model

    path = Path(model).expanduser()
    if not path.exists():
        raise UsageError(
            f"no folder {model!r}; models are served from a folder, nothing is fetched by itself",
            hint=f"hf download {model} --local-dir DIR, then: miractl serve DIR"
            if model.count("/") == 1 and not model.startswith((".", "/", "~"))
            else "miractl serve FOLDER",
        )
    require_model(path, "miractl serve FOLDER")
    return path, path.resolve().name


def expert_memory_for(model: str | None, asked: str | None, out: Output) -> str | None:
    """What is asked; a share, after a note, for the demo model where nothing is."""
    if model is not None or asked is not None:
        return asked
    out.note(
        f"the demo model is small: its experts get {DEMO_EXPERT_MEMORY} of their size, so that"
        " the cache has something to do (--expert-memory 100% for all)"
    )
    return DEMO_EXPERT_MEMORY


def check_device(device: str) -> None:
    """Raise UsageError for what names no device; whether it is there shows later."""
    if not DEVICE.fullmatch(device):
        raise UsageError(f"unknown device {device!r}", hint="--device auto, cpu or cuda:0")


def check_expert_memory(text: str) -> None:
    """Raise UsageError for what is no size and no share, or one that no model can mean."""
    from miractl.plan.slots import parse_budget

    if not 0 < parse_budget(text, TIB) <= MOST_EXPERT_MEMORY:
        raise UsageError(
            f"expert memory {text!r} is not above 0 and up to {format_bytes(MOST_EXPERT_MEMORY)}",
            hint="--expert-memory 8GiB, or 40% of all experts",
        )


def _serve(
    config: "ServerConfig",
    options: dict[str, Any],
    request: "PlanRequest",
    out: "Output",
    signals: StopSignals,
) -> None:
    from miractl.cli.main import report
    from miractl.server import words
    from miractl.server.planned import plan_to_serve
    from miractl.server.process import Process, bind

    # Whatever a library wants to fetch, it is to be asked for.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with bind(config) as listener:
        url = config.url(listener.getsockname()[1])
        out.note(words.profile_line(options["profile"], options["parameters"]))
        if not config.is_loopback:
            out.warn(
                f"{config.host} can be reached from other machines, and nobody is asked who they"
                " are"
            )
        plan = plan_to_serve(options["model_path"], request, options["device"], out.note)
        if plan is not None:
            for line in words.plan_notes(plan):
                out.note(line)
            slots, cache = plan.require(), plan.needs.kv_cache()
            options["slots"] = slots if options["emulate_link"] is None else None
            config = replace(config, kv_blocks=None if cache is None else cache.blocks)
        out.note(f"listening on {url}, loading {options['model_id']}")
        ready = functools.partial(_ready, config, options, plan, url, out)
        load = functools.partial(_load, options)
        try:
            code = Process(config, load, out.note, ready, signals).run(listener)
        except Exception as error:
            code = report(error)
        # What torch has started would take seconds to wind up.
        exit_now(code)


def _load(options: dict[str, Any]) -> "EngineLike":
    from miractl.runtime.engine import Engine, EngineOptions
    from miractl.server.assembly import quiet

    quiet()
    return Engine.load(EngineOptions(**options))


def _ready(
    config: "ServerConfig",
    options: dict[str, Any],
    plan: "Plan | None",
    url: str,
    out: "Output",
    service: "Service",
) -> None:
    """Say what runs, with which memory, and what to type next."""
    from miractl.native import why_not
    from miractl.runtime.brain import default_policy
    from miractl.runtime.facts import used_bytes
    from miractl.server import words

    assert service.engine is not None
    assert service.backend is not None
    snapshot = service.engine.snapshot()
    out.note(words.device_line(snapshot.model.device, options["device"], options["profile"]))
    if options["emulate_link"] is not None:
        out.note(words.link_line(options["emulate_link"], options["host_compute"] or "auto"))
    elif options["host_compute"] in ("auto", "on"):
        out.note(words.host_line(options["host_compute"]))
    facts = (service.backend.name, service.context, config.max_concurrency)
    for line in words.model_lines(snapshot, *facts):
        out.note(line)
    policy = options["policy"] or default_policy()
    out.note(words.policy_line(policy, options["policy"], why_not()))
    if plan is not None and plan.needs.expert == snapshot.model.expert_bytes:
        used = used_bytes(service.engine.model.device, plan.others_bytes)
        out.note(words.memory_line(plan.own_bytes, used))
    out.note(f"ready on {url}")
    prompt = "ROMEO:" if service.model_id == DEMO_ID else "Once upon a time"
    for line in words.try_lines(url, service.model_id, prompt, words.command_name(sys.argv[0])):
        out.note(line)
