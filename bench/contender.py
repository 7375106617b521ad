"""A child of bench/against.py with torch in it: miractl, stock transformers, or accelerate.

    python bench/contender.py KIND FOLDER [--experts eager] [--expert-memory 40%] [--offload DIR]

Speaks the protocol of all contenders: a line of JSON on stdout when the model is there, with the
bytes that were planned for the process, if any, then a line for each line on stdin, which is
{"prompt": ids, "tokens": n}.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from miractl.plan.request import PlanRequest
from miractl.profiles import load_profile
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.speed import Contender
from miractl.runtime.tokenizer import quiet_transformers
from miractl.server.planned import plan_to_serve


def ours(options: argparse.Namespace) -> tuple[Contender, int | None]:
    """A packed or published folder through miractl, with the slots that its plan gives it."""
    asked = PlanRequest(context=options.context, expert_memory=options.expert_memory)
    plan = plan_to_serve(options.folder, asked, "cpu", print)
    engine = Engine.load(
        EngineOptions(
            *(options.folder, options.folder.name, dict(load_profile("default").values)),
            device="cpu", dtype=options.dtype, slots=plan.require() if plan else None,
            with_tokenizer=False,
        )
    )  # fmt: skip
    return Contender(engine.model, engine.snapshot), plan.own_bytes if plan else None


def stock(options: argparse.Namespace) -> tuple[Contender, None]:
    """Stock transformers with everything in memory, in float32.

    The weights are loaded as they are stored and converted one by one: to be loaded in another type
    they would need twice the memory.
    """
    how: dict[str, Any] = {"experts_implementation": options.experts} if options.experts else {}
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype="auto", **how)
    return Contender(model.float().eval()), None


def accelerate(options: argparse.Namespace) -> tuple[Contender, None]:
    """Stock transformers, the layers that do not fit on disk, as accelerate offloads them."""
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.bfloat16, device_map="auto",
        max_memory={"cpu": options.cpu_memory}, offload_folder=options.offload,
    )  # fmt: skip
    return Contender(model.eval(), device=torch.device("cpu")), None  # some are on none


def main() -> None:
    """Load, then run rounds until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = {"miractl": ours, "transformers": stock, "accelerate": accelerate}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", help="transformers' experts_implementation")
    parser.add_argument("--dtype", default="auto", help="what miractl computes in, as serve has it")
    parser.add_argument("--expert-memory", help="as serve takes it; else what is free")
    parser.add_argument("--context", type=int, default=1024, help="tokens that are planned for")
    parser.add_argument("--cpu-memory", type=int, help="bytes that accelerate may keep in memory")
    parser.add_argument("--offload", help="accelerate's folder")
    options = parser.parse_args()
    quiet_transformers()
    contender, planned = kinds[options.kind](options)
    print(json.dumps({"ready": True, "planned_bytes": planned}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        contender.forget()
        contender.run(torch.tensor([request["prompt"]]), request["tokens"])
        laps = {"prefill": contender.prefill[0], "decode": contender.decode[0]}
        print(json.dumps({name: asdict(lap) for name, lap in laps.items()}), flush=True)


if __name__ == "__main__":
    main()
