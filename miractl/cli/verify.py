"""`miractl verify`: the proof that outputs equal the stock model's."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from miractl.cli.options import json_option, policy_option
from miractl.errors import MiractlError
from miractl.output import Output
from miractl.paths import DEMO_MODEL

if TYPE_CHECKING:
    from miractl.runtime.verify import Case


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@policy_option
@json_option
def command(model: Path | None, policy: str | None, as_json: bool) -> None:
    """Prove that outputs equal those of the stock model.

    Runs MODEL (default: the bundled demo model) in float32 through stock transformers and through
    miractl with a small cache, with barely enough slots, in waves and with predictions that are
    always wrong; then once with wrong experts on purpose, which has to be noticed. Experts that are
    computed from int8 or int4 records round their inputs too: layers have to be near those of the
    decoded weights, and every cache has to give the same bits.

    \b
    Examples:
      miractl verify
      miractl verify ./my-model --policy lru --json
    """
    folder = model or DEMO_MODEL
    from miractl.checkpoint.folder import require_model

    require_model(folder, "miractl verify ./my-model")
    out = Output(json=as_json)
    out.note(f"verifying {folder.name}: the same inputs through stock transformers and miractl")

    from miractl.profiles import load_profile  # torch takes seconds: only now
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.tokenizer import quiet_transformers
    from miractl.runtime.verify import verify

    quiet_transformers()
    values = dict(load_profile("default").values)
    options = EngineOptions(folder, folder.name, values, policy=policy)
    cases = []
    for case in verify(options):
        cases.append(case)
        if not as_json:
            out.data(_line(out, case))
    worst = max((c for c in cases if not c.control), key=lambda c: c.difference)
    passed = all(case.passed for case in cases)
    if as_json:
        rows = [{**dataclasses.asdict(case), "passed": case.passed} for case in cases]
        facts = {
            "passed": passed,
            "largest_difference": worst.difference,
            "tolerance": worst.limit,
        }
        out.json({"schema": "miractl.verify/1", "model": str(folder), **facts, "cases": rows})
    else:
        out.data(
            f"\nlargest difference to stock transformers: {worst.difference:.1e}"
            f" (limit {worst.limit:.0e})"
        )
    if not passed:
        failed = ", ".join(case.name for case in cases if not case.passed)
        raise MiractlError(f"outputs differ from the stock model: {failed}")


def _line(out: Output, case: "Case") -> str:
    mark = out.mark("ok" if case.passed else "fail")
    text = "same text" if case.same_text else "other text"
    noticed = " (noticed, as it must be)" if case.control and case.passed else ""
    return (
        f"{mark} {case.name:<34} difference {case.difference:.1e}, {text}{noticed} · "
        f"{case.slots} slots, {case.hits} hits, {case.misses} misses, "
        f"{case.waves} waves, {case.wasted} wasted prefetches"
    )
