"""Write a Qwen3-MoE checkpoint of bench/make_checkpoint.py as GGUF, for llama.cpp and ik_llama.

    PEERS/bin/python bench/write_gguf.py CHECKPOINT OUT.gguf --type Q4_K [--threads 2]

Run it in the environment of the peers: numpy, gguf and ik_llama_cpp_python, whose ggml quantises.
Norms and routers stay float32, everything else gets the type. The vocabulary has no words: the
benchmark feeds ids.
"""

import argparse
import ctypes
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate": "ffn_gate_inp",
}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
PLAIN = ("norm", "ffn_gate_inp")  # kept in float32


class Weights:
    """The checkpoint's bfloat16 tensors by name, float32 when asked for."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, int, list[int]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            for name, entry in header.items():
                if name != "__metadata__":
                    start = 8 + length + entry["data_offsets"][0]
                    self._places[name] = (path, start, entry["shape"])

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        path, start, shape = self._places[name]
        halves = np.fromfile(path, np.uint16, int(np.prod(shape)), offset=start)
        return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)


class Quantizer:
    """ggml's own conversion, of whichever build ik_llama_cpp_python brings."""

    def __init__(self, kind: GGMLQuantizationType) -> None:
        spec = find_spec("ik_llama_cpp")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("No module named 'ik_llama_cpp'")
        self.kind = kind
        self._lib: Any = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml.so"))
        self._lib.ggml_row_size.restype = ctypes.c_size_t
        self._lib.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_long]
        pointer, long = ctypes.c_void_p, ctypes.c_long
        self._lib.ggml_quantize_chunk.argtypes = [
            *(ctypes.c_int, pointer, pointer, long, long, long, pointer)
        ]
        self._lib.ggml_quantize_init(ctypes.c_int(int(kind)))

    def __call__(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Rows [n, columns] as rows of bytes."""
        rows, columns = weights.shape
        out = np.empty((rows, self._lib.ggml_row_size(int(self.kind), columns)), np.uint8)
        source = np.ascontiguousarray(weights)
        self._lib.ggml_quantize_chunk(
            int(self.kind), source.ctypes.data, out.ctypes.data, 0, rows, columns, None
        )
        return out


def write_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """The metadata that qwen3moe needs."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{i}>" for i in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_token_merges(["< >"])
    writer.add_eos_token_id(0)


def write(folder: Path, out: Path, kind: GGMLQuantizationType, threads: int) -> None:
    """Write the whole file."""
    config = json.loads((folder / "config.json").read_text())
    weights, quantize = Weights(folder), Quantizer(kind)
    writer = GGUFWriter(out, "qwen3moe", use_temp_file=False)
    write_facts(writer, config)

    def add(name: str, source: str) -> None:
        values = weights[source]
        if any(word in name for word in PLAIN):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values), raw_dtype=kind)

    def expert(name: str) -> NDArray[np.uint8]:
        return quantize(weights[name])

    for source, name in list(TENSORS.items())[:3]:
        add(f"{name}.weight", f"{source}.weight")
    with ThreadPoolExecutor(threads) as pool:
        for layer in range(config["num_hidden_layers"]):
            for source, name in list(TENSORS.items())[3:]:
                add(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{source}.weight")
            for source, name in EXPERTS.items():
                prefix = f"model.layers.{layer}.mlp.experts"
                names = [
                    f"{prefix}.{e}.{source}.weight" for e in range(config["num_local_experts"])
                ]
                stacked = np.stack(list(pool.map(expert, names)))
                writer.add_tensor(f"blk.{layer}.{name}.weight", stacked, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_K", help="Q8_0 or Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    kind = GGMLQuantizationType[options.type]
    write(options.checkpoint, options.out, kind, options.threads)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
