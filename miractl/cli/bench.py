"""`miractl bench`: measurements, each in a file of its own."""

import click

from miractl.cli.bench_decode import decode
from miractl.cli.bench_disk import disk
from miractl.cli.bench_link import link
from miractl.cli.bench_quality import quality
from miractl.cli.bench_serve import serve


@click.group()
def command() -> None:
    """Measure speed, a server under load, link, disk, and what packing loses.

    Everything is measured several times; shown are the median, the lowest and the highest. Figures
    of different runs compare only as far as the machine was left alone.

    \b
    Examples:
      miractl bench decode ./my-model --expert-memory 8GiB
      miractl bench serve --concurrency 8
      miractl bench disk ./packed
      miractl bench link
      miractl bench quality ./packed --text held-out.txt --against ./Qwen3-30B-A3B
    """


for _command in (decode, serve, disk, link, quality):
    command.add_command(_command)
