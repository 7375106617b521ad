"""Compare the runtime with recorded logits of tiny checkpoints, in both layouts.

    python bench/check_checkpoints.py            reads ../shared/data/model, or $MIRACTL_DATA/model

Each folder of tiny_random holds reference.json: input ids, the argmax of every position and the
first eight logits of the last one, in bfloat16. Folders of odd are broken or quantised on purpose:
what is printed is the one-line refusal, or the argmax where they can be read.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from miractl.errors import MiractlError
from miractl.parameters import PARAMETERS
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.tokenizer import quiet_transformers

DATA = Path(os.environ.get("MIRACTL_DATA", Path(__file__).parents[2] / "shared" / "data"))
TOLERANCE = 1e-2  # of the recorded bfloat16 logits
PARAMETER_VALUES = {name: parameter.default for name, parameter in PARAMETERS.items()}


def run(folder: Path, ids: list[list[int]], dtype: str) -> torch.Tensor:
    """Logits [tokens, vocabulary] with room for 60 % of the experts."""
    options = EngineOptions(
        model_path=folder,
        model_id=folder.name,
        parameters=PARAMETER_VALUES,
        device="cpu",
        dtype=dtype,
        expert_memory="60%",
        with_tokenizer=False,
    )
    engine = Engine.load(options)
    try:
        with torch.no_grad():
            logits: torch.Tensor = engine.model(torch.tensor(ids)).logits[0].float()
    finally:
        engine.close()
    return logits


def compare(folder: Path, reference: dict[str, Any]) -> str:
    """`ok ...` or `FAIL ...` for one checkpoint folder."""
    try:
        logits = run(folder, reference["input_ids"], "bfloat16")
    except MiractlError as error:
        return f"refused: {error}"
    recorded = torch.tensor(reference["last_logits_first8"])
    difference = float((logits[-1, :8] - recorded).abs().max())
    same = int((logits.argmax(dim=-1) == torch.tensor(reference["argmax"][0])).sum())
    passed = difference <= TOLERANCE and same == len(logits)
    verdict = "ok  " if passed else "FAIL"
    return f"{verdict} argmax {same} of {len(logits)} equal, logits within {difference:.1e}"


def main() -> int:
    """Print a line a checkpoint; 1 if one differs."""
    if not (DATA / "model").is_dir():
        print(f"nothing compared: {DATA / 'model'} is not there (set MIRACTL_DATA)")
        return 0
    quiet_transformers()
    failed = 0
    for reference in sorted((DATA / "model" / "tiny_random").glob("*/reference.json")):
        for layout in ("published_layout", "fused_layout"):
            verdict = compare(reference.parent / layout, json.loads(reference.read_text()))
            failed += verdict.startswith("FAIL")
            print(f"{reference.parent.name:<14} {layout:<17} {verdict}", flush=True)
    for folder in sorted((DATA / "model" / "odd").iterdir()):
        try:
            verdict = f"readable, argmax {int(run(folder, [[1, 2, 3]], 'float32')[-1].argmax())}"
        except MiractlError as error:
            verdict = f"refused: {error}"
        print(f"{folder.name:<32} {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
