"""A child of bench/against.py: ik_llama.cpp by way of ik_llama_cpp_python.

    PEERS/bin/python bench/contender_ik.py FILE.gguf --threads 1

The protocol is that of bench/contender.py; it runs in the peers' environment, without miractl.
"""

import argparse
import json
import os
import sys
import time
from contextlib import contextmanager
from typing import Any

import numpy as np
from ik_llama_cpp import IkLlama
from ik_llama_cpp._ctypes_api import llama_batch_free, llama_get_logits_ith
from ik_llama_cpp._internals import make_batch_range, make_batch_single

_answers = os.fdopen(os.dup(1), "w")  # the library writes to stdout
os.dup2(2, 1)


def read_bytes() -> int:
    """What this process has had from the disk."""
    with open("/proc/self/io") as lines:
        return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


@contextmanager
def lap(facts: dict[str, Any], name: str, tokens: int) -> Any:
    """Take the time of a block."""
    begun, cpu, read = time.perf_counter(), time.process_time(), read_bytes()
    yield
    facts[name] = {
        "tokens": tokens,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "read_bytes": read_bytes() - read,
    }


def run(context: Any, vocabulary: int, prompt: list[int], tokens: int) -> dict[str, Any]:
    """One round: the prompt, then `tokens` more."""
    facts: dict[str, Any] = {}
    context.kv_cache_clear()

    def decode(batch: Any) -> int:
        if context.decode(batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_batch_free(batch)
        logits = np.ctypeslib.as_array(llama_get_logits_ith(context.ctx, -1), (vocabulary,))
        return int(logits.argmax())  # its own sampling is a loop in Python

    with lap(facts, "prefill", len(prompt)):
        token = decode(make_batch_range(prompt, pos_start=0, logits_last=True))
    with lap(facts, "decode", tokens):
        for step in range(tokens):
            token = decode(make_batch_single(token, len(prompt) + step))
    return facts


def main() -> None:
    """Load, then run rounds until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    llama = IkLlama(options.file, n_ctx=1024, n_threads=options.threads, verbose=False)
    print(json.dumps({"ready": True}), file=_answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        facts = run(*(llama._context, llama._model.n_vocab, request["prompt"], request["tokens"]))
        print(json.dumps(facts), file=_answers, flush=True)


if __name__ == "__main__":
    main()
