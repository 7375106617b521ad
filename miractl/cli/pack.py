"""`miractl pack`: a model as one contiguous record an expert."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from miractl.cli.options import json_option
from miractl.cli.quantities import dense_option
from miractl.output import Output
from miractl.units import format_bytes

if TYPE_CHECKING:
    from miractl.checkpoint.packed import Manifest

SCHEMA = "miractl.pack/1"
KINDS = ("as-is", "int8", "int4")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    *("-o", "--output", "target"),
    type=click.Path(path_type=Path),
    required=True,
    help="The folder to make; it must not be there.",
)
@click.option(
    "--experts",
    "kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="How experts are stored.",
)
@dense_option
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads that convert.  [default: processors]"
)
@json_option
def command(
    model: Path, target: Path, kind: str, dense: str, threads: int | None, as_json: bool
) -> None:
    """Pack MODEL so that an expert is one read of one aligned record.

    as-is keeps the stored numbers: outputs stay the same. int8 and int4 take about 8.1 and 4.5
    bits a weight. Other tensors are kept as they are, with --dense int8 all but the projections of
    attention and the output head. The folder gets its name when it is whole; an interrupted pack
    goes on when the same command runs again.

    \b
    Examples:
      miractl pack ./Qwen3-30B-A3B -o ./packed
      miractl pack ./Qwen3-30B-A3B -o ./packed-int4 --experts int4 --dense int8
    """
    from miractl.checkpoint.folder import require_model
    from miractl.checkpoint.packed import refuse_packing

    require_model(model, "miractl pack ./my-model -o DIR")
    refuse_packing(model, target)
    out = Output(json=as_json)

    from miractl.runtime.packing import pack
    from miractl.runtime.tokenizer import quiet_transformers  # torch takes seconds: only now

    quiet_transformers()
    bar = _Bar()
    try:
        manifest = pack(model, target, kind, dense=dense, threads=threads, progress=bar.show)
    except KeyboardInterrupt:
        bar.clear()
        out.note("interrupted; the same command goes on where this one stopped")
        raise
    finally:
        bar.clear()
    if as_json:
        out.json(_facts(manifest))
    else:
        out.data(_words(manifest))


class _Bar:
    """A line on stderr that is written over; nothing unless stderr is a terminal."""

    def __init__(self) -> None:
        self._shown = -1
        self._is_terminal = sys.stderr.isatty()

    def show(self, done: int, count: int) -> None:
        percent = 100 * done // count
        if self._is_terminal and percent != self._shown:
            self._shown = percent
            sys.stderr.write(f"\rpacking experts: {done:,} of {count:,} ({percent} %)")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown >= 0:
            sys.stderr.write("\r\033[K")
            self._shown = -1


def _words(manifest: "Manifest") -> str:
    from miractl.checkpoint.packed import describe

    return (
        f"{manifest.folder}: {manifest.count:,} experts {describe(manifest)}, "
        f"{format_bytes(manifest.record.nbytes)} each; experts {format_bytes(manifest.nbytes)}, "
        f"{format_bytes(_folder_bytes(manifest.folder))} in all"
    )


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _facts(manifest: "Manifest") -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "folder": str(manifest.folder),
        "kind": manifest.kind,
        "dense": "int8" if manifest.dense else KINDS[0],
        "experts": manifest.count,
        "record_bytes": manifest.record.nbytes,
        "expert_bytes": manifest.nbytes,
        "bytes": _folder_bytes(manifest.folder),
        "source": dict(manifest.source),
    }
