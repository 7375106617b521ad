"""`miractl bench disk`: how fast experts come from the disk."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from miractl.cli.options import json_option
from miractl.cli.quantities import SIZE
from miractl.errors import MiractlError, UsageError
from miractl.output import Output, table
from miractl.probe.spread import Spread
from miractl.units import MIB, format_bytes, format_rate, format_share

if TYPE_CHECKING:
    from miractl.probe.disk_reads import ReadRates

SCHEMA = "miractl.bench.disk/1"
RECORD = 4 * MIB
MADE = 1024 * MIB
DEPTHS = (1, 2, 4)


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option(
    "--record",
    type=SIZE,
    help="Bytes of one read.  [default: an expert of a packed folder, else 4MiB]",
)
@click.option(
    *("--depth", "depths"),
    type=click.IntRange(1, 64),
    multiple=True,
    default=DEPTHS,
    show_default=True,
    help="Reads at once; may be repeated.",
)
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds.")
@json_option
def disk(
    path: Path, record: int | None, depths: tuple[int, ...], repeat: int, as_json: bool
) -> None:
    """Measure random reads of whole records beside sequential ones, past the page cache.

    Reads PATH, or the largest file in the folder PATH, or a file made for it and removed. Random
    reads of a packed folder are what the cache does for each expert that is not in memory.

    \b
    Examples:
      miractl bench disk ./packed
      miractl bench disk /mnt/models --record 9MiB --depth 1 --depth 8 --json
    """
    if not path.exists():
        raise UsageError(f"no file or folder {str(path)!r}", hint="miractl bench disk -h")
    out = Output(json=as_json)

    from miractl.probe.direct_file import DirectFile
    from miractl.probe.disk_rate import file_to_read
    from miractl.probe.disk_reads import measure

    size = record or _record_of(path)
    try:
        with file_to_read(str(path), MADE) as (found, made):
            file = DirectFile(Path(found))
            try:
                rates = measure(file, size, sorted(set(depths)), repeat)
            finally:
                file.close()
    except OSError as error:
        raise MiractlError(f"cannot measure {path}: {error.strerror}") from error
    facts = {
        "file": None if made else found,
        "file_bytes": file.size,
        "direct": file.is_direct,
        "record_bytes": size,
    }
    if as_json:
        rows = [_facts(rate, rates) for rate in rates]
        out.json({"schema": SCHEMA, "path": str(path), **facts, "rounds": repeat, "reads": rows})
        return
    name = "a file made for it" if made else found
    out.data(f"records of {format_bytes(size)} from {name} ({format_bytes(file.size)})")
    if not file.is_direct:
        out.warn("the file system has no direct reads, so memory may have answered")
    out.data(_table(rates))


def _record_of(path: Path) -> int:
    from miractl.checkpoint.packed import is_packed, read_manifest

    if path.is_dir() and is_packed(path):
        return read_manifest(path).record.nbytes
    return RECORD


def _shares(rate: "ReadRates", rates: "list[ReadRates]") -> float:
    """The median as a share of that of the first, sequential with the fewest reads at once."""
    return Spread.of(rate.rates).median / Spread.of(rates[0].rates).median


def _facts(rate: "ReadRates", rates: "list[ReadRates]") -> dict[str, object]:
    return {
        "order": rate.order,
        "depth": rate.depth,
        "bytes_per_second": dataclasses.asdict(Spread.of(rate.rates)),
        "of_sequential": _shares(rate, rates),
    }


def _table(rates: "list[ReadRates]") -> str:
    headers = ("order", "at once", "median", "lowest", "highest", "of the first")
    rows = []
    for rate in rates:
        spread = Spread.of(rate.rates)
        figures = [format_rate(v) for v in (spread.median, spread.low, spread.high)]
        rows.append((rate.order, rate.depth, *figures, format_share(_shares(rate, rates))))
    return table(rows, headers)
