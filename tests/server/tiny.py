"""A tiny random Mixture-of-Experts model behind the engine's interface, made in a second."""

import time
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from miractl.runtime.losses import Losses
from miractl.telemetry import snapshot as facts
from miractl.telemetry.timeline import PARTS, Machine, Moved, StepTimes, Timeline

CONTEXT = 128
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 300 entries: most characters beyond ASCII take several tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        ["the cat sat on the mat", "to be or not to be", "def main(): return 1"] * 4,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=chat_template)


def tiny_model(vocabulary: int, eos: int | None) -> Qwen3MoeForCausalLM:
    """Two layers of four experts, float32, weights wide enough that logits are far apart."""
    torch.manual_seed(7)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.6,
        eos_token_id=eos,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    model.generation_config.eos_token_id = eos
    return model


class TinyEngine:
    """What `EngineLike` asks for. `delay` slows every step down; token `fail_on` raises."""

    def __init__(self, model: Any = None, tokenizer: Any = None, delay: float = 0.0) -> None:
        self.tokenizer = tokenizer or tiny_tokenizer()
        self.model = model or tiny_model(len(self.tokenizer), eos=None)
        self.steps = 0
        self.tokens = 0
        self.closed = self.writes = False
        self.broken: str | None = None
        self.losses = Losses()
        self.fail_on: int | None = None
        self.delay = delay
        self.model.register_forward_pre_hook(self._before_step, with_kwargs=True)

    def _before_step(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        if self.fail_on is not None and bool((ids == self.fail_on).any()):
            raise OSError("expert 3 of layer 1 cannot be read")
        self.steps += 1
        self.tokens += ids.numel()
        time.sleep(self.delay)

    def snapshot(self) -> facts.Snapshot:
        """Plausible figures; only the work is counted."""
        return facts.Snapshot(
            timestamp=1.0,
            uptime_seconds=2.0,
            version="0",
            profile="default",
            parameters={},
            model=facts.ModelFacts(
                "tiny",
                "qwen3_moe",
                (0, 1),
                4,
                2,
                6144,
                "cpu",
                "float32",
                1,
                "float32",
                "torch",
                "float32",
                None,
            ),
            cache=facts.CacheFacts(
                *(24576, 4, 1, 4, 4, 24576, 10, 7, 3, 1, 0, 2, 0, 1, 2, 0),
                pools=(facts.PoolFacts((0, 1), 6144, 24576, 4, 24576),),
            ),
            prefetch=facts.PrefetchFacts(True, "lookahead", 5, 3, 1, 1, 0, 6144, 2, 0, False, 0, 2),
            transfer=facts.TransferFacts("disk", 18432, 0.01, 1e9),
            switch=facts.SwitchFacts(3, 0.01, (3, *[0] * 17), 0.003, 0.004, 0.001),
            memory=facts.MemoryFacts(10**8, 24576, None, None, None, None, None),
            work=facts.WorkFacts(self.steps, self.tokens),
            layers=(facts.LayerFacts(0, 5, 4), facts.LayerFacts(1, 5, 3)),
        )

    def expert_rows(self) -> list[facts.ExpertRow]:
        """One row an expert, last layer first."""
        return [
            facts.ExpertRow(layer, expert, 0.5, expert < 2, self.tokens, 1, 1, 1, 1)
            for layer in (1, 0)
            for expert in range(4)
        ]

    def fault(self) -> str | None:
        return self.broken

    def timeline(self, last: int) -> Timeline:
        machine = Machine("cpu", 1, 1000, 100, None, "disk", None)
        parts = dict.fromkeys(PARTS, 0.0) | {"attention": 0.5}
        step = StepTimes(1, 1, 1, 1.0, 0.5, parts, Moved(hits=3, misses=1), None)
        return Timeline("tiny", machine, (step,) * min(last, 2))

    def close(self) -> None:
        """Note it."""
        self.closed = True
