"""Measure the demo model and write its card.

    python -m miractl.demo.card --corpora DIR --model miractl/demo/model

Everything in the card is measured here, on text that training did not see, or copied from the
record that training left beside the weights.
"""

import argparse
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3MoeForCausalLM

from miractl.demo.train import HELD_OUT, Domain, read_domains

WINDOW = 512
WINDOWS = 24
HOT = 8  # experts of a layer that count as a domain's hot ones
TITLES = {
    "code_c_sqlite": ("C", "SQLite sources", "public domain"),
    "code_python_stdlib": ("Python", "standard library of CPython 3.11", "PSF-2.0"),
    "en_kjv": ("Bible", "King James Bible", "public domain"),
    "en_shakespeare": ("Shakespeare", "plays, `NAME:` and speech", "public domain"),
    "maths_gsm8k": ("Arithmetic", "grade-school word problems (GSM8K)", "MIT"),
    "zh_poetry_classics": ("Chinese", "Chinese classics and poetry", "public domain"),
}
PROMPTS = {
    "code_c_sqlite": "static int ",
    "code_python_stdlib": "def ",
    "en_kjv": "And the LORD said unto ",
    "en_shakespeare": "ROMEO:\n",
    "maths_gsm8k": "Question: ",
    "zh_poetry_classics": "江南",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One domain on its held-out text. `use` is [layers, experts], each row sums to 1."""

    domain: Domain
    bits_per_byte: float
    use: npt.NDArray[np.float64]
    sample: str


@torch.no_grad()
def measure(
    model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerBase, domain: Domain
) -> Measured:
    """Bits per byte, routing and a greedy-free sample of one domain."""
    ids = tokenizer(domain.held_out, add_special_tokens=False).input_ids
    bits, nbytes = 0.0, 0
    use = np.zeros((model.config.num_hidden_layers, model.config.num_experts))
    for start in range(0, min(len(ids), WINDOW * WINDOWS) - WINDOW + 1, WINDOW):
        window = torch.tensor([ids[start : start + WINDOW]])
        out = model(window, labels=window, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits[0, :-1], window[0, 1:])
        bits += float(loss) * (WINDOW - 1) / math.log(2)
        nbytes += len(str(tokenizer.decode(window[0, 1:])).encode())
        for layer, logits in enumerate(out.router_logits):
            chosen = logits.topk(model.config.num_experts_per_tok).indices
            use[layer] += np.bincount(chosen.reshape(-1).numpy(), minlength=use.shape[1])
    return Measured(
        domain,
        bits / nbytes,
        use / use.sum(axis=1, keepdims=True),
        sample(model, tokenizer, domain.name),
    )


def sample(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    """Sixty tokens after the domain's prompt, sampled at temperature 0.7."""
    torch.manual_seed(0)
    prompt = tokenizer(PROMPTS.get(name, "\n"), return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=60, do_sample=True, temperature=0.7, top_k=40)
    text = str(tokenizer.decode(out[0], skip_special_tokens=True))
    return text.rstrip("\ufffd")


def difference(one: Measured, two: Measured) -> float:
    """Total variation distance of expert use, mean over layers: 0 the same, 1 no expert shared."""
    return float(np.abs(one.use - two.use).sum(axis=1).mean() / 2)


def shared_hot(one: Measured, two: Measured) -> float:
    """Share of the HOT most used experts of a layer that both domains have in common."""
    pairs = zip(one.use, two.use, strict=True)
    common = [len({*np.argsort(a)[-HOT:]} & {*np.argsort(b)[-HOT:]}) for a, b in pairs]
    return float(np.mean(common) / HOT)


def card(measured: list[Measured], training: dict[str, float], model: Qwen3MoeForCausalLM) -> str:
    """The card as Markdown."""
    sections = [
        _description(training, model),
        _held_out(measured),
        _routing(measured, model.config.num_experts),
        _samples(measured),
    ]
    return "\n\n".join(sections) + "\n"


def _title(m: Measured) -> str:
    return TITLES.get(m.domain.name, (m.domain.name, "", ""))[0]


def _description(training: dict[str, float], model: Qwen3MoeForCausalLM) -> str:
    c = model.config
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return f"""\
# miractl demo model

A small Mixture-of-Experts language model that shows an expert cache at work on any machine. It was
trained for miractl on six kinds of text that a router can tell apart. It writes text that looks
like its domain and means little; it is no assistant.

- Architecture: Qwen3-MoE, {c.num_hidden_layers} layers, {c.num_experts} experts a layer, \
top {c.num_experts_per_tok}, hidden size {c.hidden_size}, experts of \
3 x {c.hidden_size} x {c.moe_intermediate_size} weights; {size:.2f} M parameters, stored in bf16, \
one tensor an expert and projection.
- Tokenizer: byte-level BPE, {c.vocab_size} entries. Context: {c.max_position_embeddings} tokens, \
trained on {training["length"]:.0f}.
- Training: {training["steps"]:.0f} steps, {training["tokens"] / 1e6:.1f} M tokens in \
{training["seconds"] / 60:.0f} minutes on two CPU cores, load-balancing loss \
{c.router_aux_loss_coef}; `python -m miractl.demo.train` makes it again.
- Licence: Apache-2.0; those of the texts are in the table."""


def _held_out(measured: list[Measured]) -> str:
    lines = [
        f"## Held-out text\n\nThe last {HELD_OUT:.0%} of each text, never trained on; "
        f"{WINDOWS} windows of {WINDOW} tokens at most.\n",
        "| domain | text | licence of the text | bits per byte | experts never used |",
        "|---|---|---|---|---|",
    ]
    for m in measured:
        _, source, licence = TITLES.get(m.domain.name, ("", "", ""))
        idle = f"{int((m.use == 0).sum())} of {m.use.size}"
        lines.append(f"| {_title(m)} | {source} | {licence} | {m.bits_per_byte:.2f} | {idle} |")
    return "\n".join(lines)


def _routing(measured: list[Measured], experts: int) -> str:
    pairs = list(itertools.combinations(measured, 2))
    mean = np.mean([difference(a, b) for a, b in pairs])
    hot = np.mean([shared_hot(a, b) for a, b in pairs])
    lines = [
        f"""\
## How different the domains route

Total variation distance between two domains' use of the experts, mean over layers: 0 is the same,
1 means that no expert is shared. The mean over all pairs is {mean:.2f}. Of the {HOT} most used
experts of a layer, two domains share {hot:.0%} on average (by chance: {HOT / experts:.0%}).
""",
        f"| | {' | '.join(map(_title, measured))} |",
        f"|---|{'---|' * len(measured)}",
    ]
    for row in measured:
        cells = ["" if row is column else f"{difference(row, column):.2f}" for column in measured]
        lines.append(f"| {_title(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _samples(measured: list[Measured]) -> str:
    texts = [f"{_title(m)}:\n\n```text\n{m.sample}\n```" for m in measured]
    return "\n\n".join(["## Samples", "Sixty tokens at temperature 0.7, first try.", *texts])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    model = Qwen3MoeForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    measured = [measure(model, tokenizer, domain) for domain in read_domains(args.corpora)]
    training = json.loads((args.model / "training.json").read_text())
    (args.model / "README.md").write_text(card(measured, training, model))


if __name__ == "__main__":
    main()
