"""Train the demo model: a small Qwen3-MoE on six text domains.

    python -m miractl.demo.train --corpora DIR --out miractl/demo/model

DIR holds one `NAME.txt` or `NAME.txt.xz` a domain. Experts are fine-grained (32 a layer, top-4)
and the load-balancing loss is weak, so that domains come to use different experts: the demo model
exists to show an expert cache at work, and a router that spreads everything evenly shows nothing.
The result is written in the layout that model hubs publish: one tensor an expert and projection,
two shards, an index.
"""

import argparse
import json
import lzma
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCAB_SIZE = 2048
END_OF_TEXT = "<|endoftext|>"
# A base model has no roles: the template only joins the messages; a chat continues their text.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
HELD_OUT = 0.03  # the tail of each corpus is never trained on


@dataclass(frozen=True)
class Domain:
    """One corpus: its name, training text and held-out text."""

    name: str
    train: str
    held_out: str


def read_domains(folder: Path) -> list[Domain]:
    """Read every corpus of `folder`, sorted by name."""
    domains = []
    for path in sorted([*folder.glob("*.txt"), *folder.glob("*.txt.xz")]):
        raw = path.read_bytes()
        raw = lzma.decompress(raw) if path.suffix == ".xz" else raw
        text = raw.decode(errors="replace")
        cut = int(len(text) * (1 - HELD_OUT))
        domains.append(Domain(path.name.split(".")[0], text[:cut], text[cut:]))
    if not domains:
        raise SystemExit(f"no *.txt or *.txt.xz in {folder}")
    return domains


def train_tokenizer(domains: list[Domain]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over an equal share of each domain."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.train[:1_000_000] for d in domains), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def demo_config() -> Qwen3MoeConfig:
    """6 layers, 32 experts of 3 x 160 x 64 weights (60 KiB in bf16), top-4."""
    settings: dict[str, Any] = {  # the checked signature lacks some of them
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 160,
        "intermediate_size": 320,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 1024,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "router_aux_loss_coef": 0.002,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    config = Qwen3MoeConfig(**settings)
    config.architectures = ["Qwen3MoeForCausalLM"]
    return config


class Crops:
    """Random windows of the token streams, one domain each.

    Half of them start at the beginning of a line, as prompts do; the rest start anywhere.
    """

    def __init__(self, streams: list[np.ndarray], starts: list[np.ndarray], seed: int) -> None:
        self._streams, self._starts = streams, starts
        self._rng = np.random.default_rng(seed)

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """Token ids [rows, length]; domains take turns, so every batch holds all of them."""
        out = np.empty((rows, length), dtype=np.int64)
        for row in range(rows):
            domain = (row + int(self._rng.integers(len(self._streams)))) % len(self._streams)
            stream, starts = self._streams[domain], self._starts[domain]
            last = len(stream) - length
            if self._rng.random() < 0.5:
                at = min(int(self._rng.choice(starts)), last)
            else:
                at = int(self._rng.integers(last))
            out[row] = stream[at : at + length]
        return torch.from_numpy(out)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a text and the positions at which a paragraph (or a `def`) begins."""
    ids: list[int] = []
    starts: list[int] = []
    for piece in paragraphs(text):
        starts.append(len(ids))
        ids.extend(tokenizer(piece, add_special_tokens=False).input_ids)
    return np.array(ids, dtype=np.int32), np.array(starts)


def paragraphs(text: str) -> Iterator[str]:
    """Lines that start at the margin, each with what is indented or blank below it."""
    block: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        if block and size > 60 and not line[:1].isspace():
            yield "".join(block)
            block, size = [], 0
        block.append(line)
        size += len(line)
    yield "".join(block)


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up over 2 %, then cosine to a twentieth."""
    if progress < 0.02:
        return peak * progress / 0.02
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (progress - 0.02) / 0.98)))


def train(
    model: Qwen3MoeForCausalLM, crops: Crops, minutes: float, rows: int, length: int, peak: float
) -> dict[str, float]:
    """Train for a wall-clock budget; returns steps, tokens and seconds."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=peak,
        betas=(0.9, 0.98),
    )
    started, steps = time.monotonic(), 0
    while (progress := (time.monotonic() - started) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, peak)
        ids = crops.batch(rows, length)
        loss = model(ids, labels=ids, output_router_logits=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 25 == 0:
            rate = steps * rows * length / (time.monotonic() - started)
            print(
                f"{progress:6.1%}  step {steps}  loss {loss.item():.3f}  {rate:.0f} tok/s",
                flush=True,
            )
    return {
        "steps": steps,
        "tokens": steps * rows * length,
        "seconds": time.monotonic() - started,
    }


def save(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """bf16, per-expert tensors, shards of at most 8 MiB."""
    tokenizer.save_pretrained(out)
    model.bfloat16()
    model.save_pretrained(out, max_shard_size="8MB")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--peak-lr", type=float, default=3e-3)
    parser.add_argument("--experts-implementation", default="grouped_mm")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    domains = read_domains(args.corpora)
    tokenizer = train_tokenizer(domains)
    encoded = [encode(tokenizer, d.train) for d in domains]
    print({d.name: len(ids) for d, (ids, _) in zip(domains, encoded, strict=True)}, flush=True)
    crops = Crops([ids for ids, _ in encoded], [starts for _, starts in encoded], args.seed)
    model = Qwen3MoeForCausalLM._from_config(
        demo_config(), experts_implementation=args.experts_implementation
    )
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    facts = train(model, crops, args.minutes, args.rows, args.length, args.peak_lr)
    args.out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, args.out)
    facts |= {"rows": args.rows, "length": args.length, "peak_lr": args.peak_lr, "seed": args.seed}
    (args.out / "training.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
