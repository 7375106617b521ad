"""Record how the demo model routes while it writes: the trace that `miractl replay` shows.

    python -m miractl.demo.record --out miractl/demo/trace.npz

Six domains, twice each: one text after another, then two side by side. Sampled at temperature 0.7
with a fixed seed; the expert cache has a quarter of the experts.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from miractl.paths import DEMO_MODEL
from miractl.profiles import load_profile
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.tokenizer import quiet_transformers

PROMPTS = (
    "static int sqlite3VdbeExec(\n  Vdbe *p                    /* The VDBE */\n){\n",
    "def read_header(self, path, encoding=None):\n    ",
    "And it came to pass in those days, that the king",
    "ROMEO:\nWhat light is this that",
    "Natalia has 48 apples. She gives half of them to her friends and then buys 12 more. How many",
    "子曰：學而時習之",
)
TOKENS = 240


@torch.no_grad()
def write(engine: Engine, prompts: list[str]) -> None:
    """Let the model write, side by side where prompts have equal lengths."""
    ids = [engine.tokenizer(prompt)["input_ids"] for prompt in prompts]
    shortest = min(map(len, ids))
    engine.model.generate(  # type: ignore[operator]
        torch.tensor([each[:shortest] for each in ids]),
        attention_mask=torch.ones(len(ids), shortest, dtype=torch.int64),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=True,
        temperature=0.7,
        top_k=0,
    )


def main() -> None:
    """Record, then store compressed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    path: Path = parser.parse_args().out
    quiet_transformers()
    torch.manual_seed(0)
    options = EngineOptions(
        *(DEMO_MODEL, "miractl-demo", dict(load_profile("default").values)),
        expert_memory="25%",
        record_trace=path,
    )
    engine = Engine.load(options)
    for prompt in PROMPTS:
        write(engine, [prompt])
    for prompt, other in zip(PROMPTS[::2], PROMPTS[1::2], strict=True):
        write(engine, [prompt, other])
    engine.close()
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main()
