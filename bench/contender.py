"""A child of bench/against.py with torch in it: miractl, stock transformers, or accelerate.

    python bench/contender.py KIND FOLDER [--experts eager] [--expert-memory 40%] [--offload DIR]

Speaks the protocol of all contenders: a line of JSON on stdout when the model is there, then a line
for each line on stdin, which is {"prompt": ids, "tokens": n}.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from miractl.profiles import load_profile
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.speed import Contender
from miractl.runtime.tokenizer import quiet_transformers


def ours(options: argparse.Namespace) -> Contender:
    """A packed or published folder through miractl."""
    engine = Engine.load(
        EngineOptions(
            *(options.folder, options.folder.name, dict(load_profile("default").values)),
            device="cpu", expert_memory=options.expert_memory, with_tokenizer=False,
        )
    )  # fmt: skip
    return Contender(engine.model, engine.snapshot)


def stock(options: argparse.Namespace) -> Contender:
    """Stock transformers with everything in memory."""
    how: dict[str, Any] = {"experts_implementation": options.experts} if options.experts else {}
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32, **how)
    return Contender(model.eval())


def accelerate(options: argparse.Namespace) -> Contender:
    """Stock transformers, the layers that do not fit on disk, as accelerate offloads them."""
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.bfloat16, device_map="auto",
        max_memory={"cpu": options.cpu_memory}, offload_folder=options.offload,
    )  # fmt: skip
    return Contender(model.eval())


def main() -> None:
    """Load, then run rounds until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = {"miractl": ours, "transformers": stock, "accelerate": accelerate}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", help="transformers' experts_implementation")
    parser.add_argument("--expert-memory", help="as serve takes it; else what is free")
    parser.add_argument("--cpu-memory", type=int, help="bytes that accelerate may keep in memory")
    parser.add_argument("--offload", help="accelerate's folder")
    options = parser.parse_args()
    quiet_transformers()
    contender = kinds[options.kind](options)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        contender.forget()
        contender.run(torch.tensor([request["prompt"]]), request["tokens"])
        laps = {"prefill": contender.prefill[0], "decode": contender.decode[0]}
        facts = {
            name: {"tokens": lap.tokens, "seconds": lap.seconds, "cpu_seconds": lap.cpu_seconds}
            for name, lap in laps.items()
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
