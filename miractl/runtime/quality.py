"""What packing cost: bits per byte of a text, and the error of every expert's matrices."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from miractl.checkpoint.packed import read_manifest
from miractl.errors import MiractlError, UsageError
from miractl.policy.keys import ExpertKey
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from miractl.runtime.pack_job import describe_source
from miractl.runtime.tokenizer import load_tokenizer
from miractl.units import counted

WINDOW = 512  # tokens that are predicted from each other
WORST = 5  # experts that are named
NOISE = 2  # standard errors within which a change says nothing

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, slots=True)
class Text:
    """Windows of a text, [1, n] token ids each, and the bytes that their predicted tokens are.

    They are a sample of the `fitting` windows that the text has.
    """

    name: str
    windows: tuple[torch.Tensor, ...]
    nbytes: int
    fitting: int

    @property
    def predicted(self) -> int:
        """Tokens that are predicted: all but the first of each window."""
        return sum(window.shape[1] - 1 for window in self.windows)

    @property
    def sample(self) -> str:
        """How much of the text was read, in words."""
        return f"{len(self.windows):,} of {counted(self.fitting, 'window')}"


@dataclass(frozen=True, slots=True)
class ExpertError:
    """How far one matrix is from the source's: Frobenius norms, relative, and one weight."""

    layer: int  # real index
    expert: int
    parameter: str
    relative: float  # |difference| / |weights|
    largest: float  # of one weight's difference, in root mean squares of the weights


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured. `source` and `errors` only where there is a source to compare with.

    `noise` is the standard error of `change` over the windows, None for a single one.
    """

    text: Text
    bits_per_byte: float
    source: float | None = None
    noise: float | None = None
    errors: tuple[ExpertError, ...] = ()  # one a matrix, the largest first

    @property
    def change(self) -> float | None:
        """Bits per byte beside the source's: 0.01 is 1 % worse."""
        return None if self.source is None else self.bits_per_byte / self.source - 1

    @property
    def caveat(self) -> str:
        """What the change can be worth, in words."""
        if self.noise is None:
            return "one window alone: a small change may be noise"
        return f"a change below {NOISE * self.noise:.3%} is noise of which windows were read"


def measure(
    options: EngineOptions,
    name: str,
    content: str,
    tokens: int,
    against: Path | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Measure a model on a text, its name and its content, in float32.

    Raises MiractlError, and UsageError for a text of less than two tokens.
    """
    options = replace(options, dtype="float32", with_tokenizer=False)
    if against is not None:
        _refuse_another_source(options.model_path, against)
    text = windows_of(options.model_path, name, content, tokens)
    if against is None:
        return Quality(text, sum(_bits(options, text, "model", progress)) / text.nbytes)
    theirs = _bits(replace(options, model_path=against), text, "source", progress)
    found = expert_errors(options.model_path, against, progress)
    errors = tuple(sorted(found, key=lambda error: -error.relative))
    ours = _bits(options, text, "model", progress)
    sums = sum(ours) / text.nbytes, sum(theirs) / text.nbytes
    return Quality(text, *sums, noise_of(ours, theirs), errors)


def noise_of(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Standard error of sum(ours) / sum(theirs) - 1 over windows, as a ratio estimator has it."""
    if len(ours) < 2:
        return None
    ratio = sum(ours) / sum(theirs)
    rest = [a - ratio * b for a, b in zip(ours, theirs, strict=True)]
    return math.sqrt(len(rest)) * statistics.stdev(rest) / sum(theirs)


def windows_of(folder: Path, name: str, content: str, tokens: int) -> Text:
    """At most `tokens` tokens of a text in windows spread evenly over it."""
    tokenizer = load_tokenizer(folder)
    ids = tokenizer(content, add_special_tokens=False, verbose=False).input_ids
    if len(ids) < 2:
        raise UsageError(f"{name} has {len(ids)} tokens: there is nothing to predict")
    length = min(WINDOW, len(ids))
    most, fitting = max(1, tokens // length), len(ids) // length
    chosen = [n * fitting // min(most, fitting) for n in range(min(most, fitting))]
    windows = tuple(torch.tensor([ids[n * length : (n + 1) * length]]) for n in chosen)
    decoded = (str(tokenizer.decode(window[0, 1:])) for window in windows)
    return Text(name, windows, sum(len(words.encode()) for words in decoded), fitting)


@torch.no_grad()
def _bits(options: EngineOptions, text: Text, what: str, progress: Progress | None) -> list[float]:
    """Bits of each window of the text."""
    engine, bits = Engine.load(options), []
    try:
        for done, window in enumerate(text.windows, start=1):
            logits = engine.model(window.to(engine.model.device)).logits[0, :-1].float().cpu()
            loss = torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum")
            bits.append(float(loss) / math.log(2))
            if progress is not None:
                progress(f"{what}: windows", done, len(text.windows))
    finally:
        engine.close()
    return bits


def expert_errors(
    folder: Path, against: Path, progress: Progress | None = None
) -> Iterator[ExpertError]:
    """The error of each matrix of each expert. Reads all experts of both models."""
    outline = read_outline(folder)
    both = [Checkpoint(path, read_outline(path)).source for path in (folder, against)]
    shapes = outline.shapes.items()
    mine, original = ({name: torch.empty(shape) for name, shape in shapes} for _ in both)
    matrices = [name for name, shape in shapes if len(shape) == 2]
    count = len(outline.layers) * outline.experts
    try:
        for number in range(count):
            key = ExpertKey(*divmod(number, outline.experts))
            for source, slot in zip(both, (mine, original), strict=True):
                source.read(key, slot)
            for name in matrices:
                yield _error(outline.layers[key.layer], key.expert, name, mine, original)
            if progress is not None:
                progress("experts", number + 1, count)
    finally:
        for source in both:
            source.close()


def _error(
    layer: int,
    expert: int,
    name: str,
    mine: dict[str, torch.Tensor],
    original: dict[str, torch.Tensor],
) -> ExpertError:
    difference, norm = mine[name] - original[name], float(original[name].norm())
    root_mean_square = norm / math.sqrt(original[name].numel())
    relative = float(difference.norm()) / norm if norm else 0.0
    largest = float(difference.abs().max()) / root_mean_square if norm else 0.0
    return ExpertError(layer, expert, name, relative, largest)


def _refuse_another_source(folder: Path, against: Path) -> None:
    """Raise MiractlError unless `against` is what `folder` was packed from."""
    told = read_manifest(folder).source
    checkpoint = Checkpoint(against, read_outline(against))
    checkpoint.source.close()
    found = describe_source(against, checkpoint)
    if any(told[name] != found[name] for name in ("config_sha256", "headers_sha256")):
        raise MiractlError(f"{folder} was not packed from {against}")


def card_section(quality: Quality) -> str:
    """What a card says of it."""
    text = quality.text
    lines = [
        f"`{text.name}`: {text.predicted:,} tokens ({text.nbytes:,} bytes) in {text.sample}, "
        "float32.",
        "",
        f"- bits per byte: {quality.bits_per_byte:.4f}",
    ]
    if quality.source is not None:
        lines.append(
            f"- of the source: {quality.source:.4f}, so {quality.change:+.3%} ({quality.caveat})"
        )
    if quality.errors:
        mean = sum(error.relative for error in quality.errors) / len(quality.errors)
        lines += [
            f"- error of an expert's matrix, |difference| / |weights|: {mean:.2%} on average",
            "",
            "| layer | expert | matrix | error | largest of one weight, in rms of the weights |",
            "|---|---|---|---|---|",
            *(
                f"| {e.layer} | {e.expert} | `{e.parameter}` | {e.relative:.2%} | {e.largest:.3f} |"
                for e in quality.errors[:WORST]
            ),
        ]
    return "\n".join(lines)
