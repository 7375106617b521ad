"""The card of a packed model: what it is, what it was made from, how much it lost."""

import os
from pathlib import Path

from miractl.checkpoint.packed import KINDS, Manifest, describe
from miractl.units import format_bytes

CARD, SOURCE_CARD = "README.md", "SOURCE_README.md"
QUALITY = "## Quality"
_MEANS = dict(
    zip(
        KINDS,
        (
            "Experts hold the stored bytes of the source: outputs are the same.",
            "Experts are 8-bit codes with a 16-bit scale a group.",
            "Experts are 4-bit codes with 8-bit scales and offsets a group of 32.",
        ),
        strict=True,
    )
)


def write_card(folder: Path, manifest: Manifest) -> None:
    """Write the card of a folder, without a measured quality."""
    source = f"`{manifest.source['name']}` ({manifest.source['model_type']})"
    told = f"\nThe source's own card, with its licence, is in {SOURCE_CARD}.\n"
    text = f"""\
# {manifest.source["name"]}, {describe(manifest)}

Made from {source} by `miractl pack` {manifest.source["miractl"]}.
{_MEANS[manifest.kind]}
{_others(manifest)}

- {manifest.count:,} experts in {len(manifest.layers)} layers, one record each of \
{format_bytes(manifest.record.nbytes)} ({manifest.record.nbytes:,} bytes)
- {format_bytes(manifest.nbytes)} of experts in all

`miractl serve DIR` runs it, `miractl inspect DIR --verify-hashes` checks every byte.
{told if (folder / SOURCE_CARD).exists() else ""}
{QUALITY}

Not measured yet: `miractl bench quality DIR --text FILE --against SOURCE` does it.
"""
    _replace(folder / CARD, text)


def _others(manifest: Manifest) -> str:
    if not manifest.dense:
        return "All other tensors, routers among them, are the source's own."
    return (
        "Projections of attention and the output head are 8-bit codes too; all other tensors, "
        "routers among them, are the source's own."
    )


def write_quality(folder: Path, section: str) -> None:
    """Replace what the card says of the quality; `section` has no title."""
    path = folder / CARD
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    head = text.partition(QUALITY)[0].rstrip()
    _replace(path, f"{head}\n\n{QUALITY}\n\n{section.rstrip()}\n".lstrip())


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
