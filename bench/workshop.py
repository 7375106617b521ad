"""The engines of bench/against.py: their environments, the weights they read, their commands."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from miractl.units import GIB, format_bytes

HERE = Path(__file__).parent
NODE = "node-llama-cpp@3.22.1"
WHEELS = (["numpy", "gguf"], ["--no-deps", "ik_llama_cpp_python==0.1.5"])
ACCELERATE = 4 * GIB  # for accelerate, which holds a layer's experts twice while it loads them


@dataclass(frozen=True, slots=True)
class Contender:
    """How one engine is run: a command of the protocol of bench/contender.py."""

    name: str
    weights: str  # what they are stored as
    command: tuple[str, ...]
    files: Path  # file or folder that the weights are read from
    limit: int | None  # bytes of memory that it gets

    @property
    def largest(self) -> Path:
        """The largest of its files."""
        files = [self.files] if self.files.is_file() else self.files.iterdir()
        return max(files, key=lambda path: path.stat().st_size)


class Workshop:
    """The folder with environments and models; makes what is missing."""

    def __init__(self, data: Path, layers: int, experts: int) -> None:
        self.data, self.layers, self.experts = data.resolve(), layers, experts
        self.models = self.data / f"{layers}x{experts}"
        self.python = self.data / "peers" / "bin" / "python"

    def make(self, *words: object, of: Path) -> Path:
        """Run a command unless what it makes is there."""
        if not of.exists():
            print("making", of, flush=True)
            subprocess.run([str(word) for word in words], check=True, cwd=HERE.parent)
        return of

    def environments(self) -> None:
        """The peers' Python and node packages."""
        self.make(sys.executable, "-m", "venv", self.data / "peers", of=self.python)
        site = next((self.data / "peers" / "lib").glob("python3*")) / "site-packages"
        for words, made in zip(WHEELS, ("gguf", "ik_llama_cpp"), strict=True):
            self.make(self.python, "-m", "pip", "install", "-q", *words, of=site / made)
        node = self.data / "node" / "node_modules" / "node-llama-cpp"
        prefix = ("--prefix", self.data / "node")
        self.make("npm", "install", "--silent", "--ignore-scripts", *prefix, NODE, of=node)

    @property
    def source(self) -> Path:
        """The bfloat16 checkpoint."""
        words = ("--layers", self.layers, "--experts", self.experts, "--vocabulary", 32768)
        folder = self.models / "source"
        script = HERE / "make_checkpoint.py"
        self.make(
            sys.executable, script, folder, *words, of=folder / "model.safetensors.index.json"
        )
        return folder

    def gguf(self, kind: str) -> Path:
        """A file with every large tensor of one type."""
        out = self.models / f"{kind}.gguf"
        return self.make(
            *(self.python, HERE / "write_gguf.py", self.source, out, "--type", kind), of=out
        )

    def packed(self, kind: str) -> Path:
        """Our own folder; attention and head in int8."""
        out = self.models / kind
        kinds = ("--experts", kind, "--dense", "int8")
        return self.make(
            *(sys.executable, "-m", "miractl", "pack", self.source, "-o", out, *kinds), of=out
        )


def contenders(
    shop: Workshop, wanted: Callable[[str], object], limit: int | None, threads: int
) -> Iterator[Contender]:
    """What is compared, of names that are `wanted`; whatever these need is made."""
    ours = (sys.executable, str(HERE / "contender.py"))
    for kind in ("int4", "int8"):
        if wanted(f"miractl {kind}"):
            folder = shop.packed(kind)
            yield Contender("miractl", kind, (*ours, "miractl", str(folder)), folder, limit)
    for kind in ("Q4_K", "Q8_0"):
        if wanted(f"llama.cpp {kind}"):
            words = (str(shop.data / "node"), str(shop.gguf(kind)), str(threads))
            llama = ("node", str(HERE / "contender_llama.mjs"), *words)
            yield Contender("llama.cpp", kind, llama, shop.gguf(kind), limit)
        if wanted(f"ik_llama {kind}"):
            words = (str(HERE / "contender_ik.py"), str(shop.gguf(kind)))
            ik = (str(shop.python), *words, "--threads", str(threads))
            yield Contender("ik_llama", kind, ik, shop.gguf(kind), limit)
    if not limit and wanted("miractl float32"):
        words = (*ours, "miractl", str(shop.source), "--dtype", "float32")
        yield Contender("miractl", "float32", words, shop.source, None)
    for experts in ("eager", "grouped_mm"):
        if not limit and wanted(f"transformers {experts} float32"):
            stock = (*ours, "transformers", str(shop.source), "--experts", experts)
            yield Contender(f"transformers {experts}", "float32", stock, shop.source, None)
    if limit and wanted("accelerate bfloat16"):
        offload = ("--cpu-memory", str(limit // 2), "--offload", str(shop.models / "offload"))
        words = (*ours, "accelerate", str(shop.source), *offload)
        yield Contender("accelerate", "bfloat16", words, shop.source, limit)
        room = max(limit, ACCELERATE)
        name = f"accelerate in {format_bytes(room)}"
        yield Contender(name, "bfloat16", words, shop.source, room)
