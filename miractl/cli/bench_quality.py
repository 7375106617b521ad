"""`miractl bench quality`: what a model loses by packing."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from miractl.cli.options import json_option
from miractl.cli.progress import clear_progress, show_progress
from miractl.cli.textfile import read_text
from miractl.errors import UsageError
from miractl.output import Output, table

if TYPE_CHECKING:
    from miractl.runtime.quality import Quality

SCHEMA = "miractl.bench.quality/1"


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    required=True,
    help="UTF-8 text that the model was not trained on.",
)
@click.option(
    "--against",
    metavar="SOURCE",
    type=click.Path(path_type=Path),
    help="The checkpoint that MODEL was packed from.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2),
    default=16_384,
    show_default=True,
    help="The most tokens to measure on, in windows of 512 spread over the text.",
)
@json_option
def quality(model: Path, text: Path, against: Path | None, tokens: int, as_json: bool) -> None:
    """Measure bits per byte of MODEL on a text.

    With --against also those of the source and the error of every expert's matrices. What was
    measured of a packed model against its source is written into its card, README.md.

    \b
    Examples:
      miractl bench quality ./packed --text held-out.txt --against ./Qwen3-30B-A3B
      miractl bench quality ./my-model --text held-out.txt --json
    """
    from miractl.checkpoint.folder import require_model
    from miractl.checkpoint.packed import is_packed

    for folder in filter(None, (model, against)):
        require_model(folder, "miractl bench quality -h")
    if against is not None and not is_packed(model):
        raise UsageError(f"{model} is not packed, so it has no source", hint="leave --against out")
    content = read_text(text, "text")
    out = Output(json=as_json)

    from miractl.profiles import load_profile  # torch takes seconds: only now
    from miractl.runtime.card import write_quality
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.quality import card_section, measure
    from miractl.runtime.tokenizer import quiet_transformers

    quiet_transformers()
    options = EngineOptions(model, model.name, dict(load_profile("default").values))
    try:
        found = measure(options, text.name, content, tokens, against, show_progress)
    finally:
        clear_progress()
    if against is not None:
        write_quality(model, card_section(found))
        out.note(f"written into {model / 'README.md'}")
    if as_json:
        out.json(_facts(model, found))
    else:
        out.data(_words(found))


def _words(found: "Quality") -> str:
    from miractl.runtime.quality import WORST

    text = found.text
    lines = [
        f"{text.name}: {text.predicted:,} tokens, {text.nbytes:,} bytes, in {text.sample}",
        f"bits per byte  {found.bits_per_byte:.4f}",
    ]
    if found.source is not None:
        lines.append(f"source         {found.source:.4f}, so {found.change:+.3%} ({found.caveat})")
    if found.errors:
        rows = [
            (e.layer, e.expert, e.parameter, f"{e.relative:.2%}", f"{e.largest:.3f}")
            for e in found.errors[:WORST]
        ]
        headers = ("layer", "expert", "matrix", "error", "largest, in rms")
        lines += ["", "largest errors of experts", table(rows, headers)]
    return "\n".join(lines)


def _facts(model: Path, found: "Quality") -> dict[str, object]:
    import dataclasses

    return {
        "schema": SCHEMA,
        "model": str(model),
        "text": found.text.name,
        "tokens": found.text.predicted,
        "bytes": found.text.nbytes,
        "bits_per_byte": found.bits_per_byte,
        "source_bits_per_byte": found.source,
        "windows": len(found.text.windows),
        "windows_of_text": found.text.fitting,
        "change": found.change,
        "change_standard_error": found.noise,
        "errors": [dataclasses.asdict(error) for error in found.errors],
    }
