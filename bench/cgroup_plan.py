"""Keep a plan's word: in a control group of 2 GiB, what `plan` says runs is served and not killed.

    python bench/cgroup_plan.py [--limit 2GiB] [--keep FOLDER]

Needs root and a memory controller (v1 or v2) in which groups can be made; says so and ends with
code 0 where there is none. Makes a random checkpoint larger than the group, plans it inside the
group, serves it, answers long prompts, and prints the process's peak beside the plan.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_checkpoint import make_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from miractl.units import format_bytes, parse_bytes

ROOT = Path("/sys/fs/cgroup")
CONCURRENCY, PROMPT = 2, "to be or not to be, that is the question " * 75  # 3,075 byte tokens


class Group:
    """A control group with a memory limit."""

    def __init__(self, limit: int) -> None:
        self.v1 = (ROOT / "memory").is_dir()
        own = Path("/proc/self/cgroup").read_text(encoding="ascii")
        pattern = r"^\d+:memory:/(.*)$" if self.v1 else r"^0::/(.*)$"
        found = re.search(pattern, own, re.MULTILINE)
        base = ROOT / "memory" if self.v1 else ROOT
        parent = base / found[1] if found and (base / found[1]).is_dir() else base
        self.folder = parent / f"miractl-bench-{os.getpid()}"
        self.folder.mkdir()
        try:
            self._write("memory.limit_in_bytes" if self.v1 else "memory.max", str(limit))
        except OSError:
            self.folder.rmdir()
            raise

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="ascii")

    def enter(self) -> None:
        """Move the calling process in."""
        self._write("cgroup.procs", str(os.getpid()))

    @property
    def kills(self) -> int:
        """Processes that the kernel killed for memory."""
        text = (self.folder / ("memory.oom_control" if self.v1 else "memory.events")).read_text()
        found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def close(self) -> None:
        """Remove it; its processes have ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.1)


def make_model(folder: Path) -> None:
    """A checkpoint of 2.4 GB, twice that in float32, and a tokenizer of single bytes."""
    make_checkpoint(folder, layers=8, experts=64, hidden=1024, intermediate=768)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)


def miractl(group: Group, *words: str) -> "subprocess.Popen[str]":
    """A miractl process inside the group."""
    return subprocess.Popen(
        [sys.executable, "-m", "miractl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=group.enter,
    )


def plan(group: Group, folder: Path) -> dict[str, Any]:
    """The plan as the group sees it."""
    options = ("--device", "cpu", "--concurrency", str(CONCURRENCY), "--json")
    out, err = miractl(group, "plan", str(folder), *options).communicate(timeout=120)
    if not out:
        sys.exit(f"plan said nothing: {err}")
    facts: dict[str, Any] = json.loads(out)
    return facts


@contextlib.contextmanager
def serving(group: Group, folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a server, which plans for itself, and its process id."""
    words = ["serve", str(folder), "--device", "cpu", "--port", "0"]
    words += ["--max-concurrency", str(CONCURRENCY)]
    process = miractl(group, *words)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith(("expert memory", "planned")):
                print(f"serve: {line.strip()}")
            if found := re.search(r"ready on (http://\S+)", line):
                yield found[1], process.pid
                break
        else:
            sys.exit(f"FAILED: the server ended with {process.wait()}:\n{''.join(said)}")
    finally:
        process.terminate()
        process.wait(timeout=30)


def ask(url: str) -> int:
    """Complete a long prompt; returns the tokens that it had."""
    body = {"model": "model", "prompt": PROMPT, "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        tokens: int = json.load(response)["usage"]["prompt_tokens"]
    return tokens


def check(group: Group, folder: Path, limit: int) -> None:
    """Plan, serve, compare. Exits with a message where the plan did not hold."""
    facts = plan(group, folder)
    seen = facts["machine"]["host_memory"]["value"]
    print(f"plan sees {format_bytes(seen)} of memory, {facts['machine']['host_memory']['origin']}")
    if seen != limit:
        sys.exit(f"FAILED: the limit is {format_bytes(limit)}")
    if not facts["runs"]:
        sys.exit(f"FAILED: it says no, so there is nothing to hold: {facts['refusal']}")
    lines = {line["name"]: line["bytes"] for line in facts["ledgers"][0]["lines"]}
    spent = sum(lines.values()) - lines["in use"] - lines["headroom"]
    slots = facts["slots"]
    print(f"plan says yes: {slots['slots']} slots, {format_bytes(spent)} for the process")
    with serving(group, folder) as (url, pid):
        for _ in range(3):
            print(f"answered a prompt of {ask(url)} tokens")
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        peak = int(re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[0]) * 1024
    apart = format_bytes(abs(spent - peak))
    print(f"peak of the process {format_bytes(peak)}, planned {format_bytes(spent)}: {apart} apart")
    if group.kills:
        sys.exit(f"FAILED: the kernel killed {group.kills} processes")
    print("ok: nothing was killed")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=parse_bytes, default=parse_bytes("2GiB"))
    parser.add_argument("--keep", type=Path, help="folder for the checkpoint, used again")
    args = parser.parse_args()
    try:
        group = Group(args.limit)
    except OSError as error:
        print(f"SKIPPED, nothing was checked: no control group can be made here ({error})")
        return
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.keep or Path(temporary)) / "model"
            if not (folder / "tokenizer.json").is_file():
                make_model(folder)
            check(group, folder, args.limit)
    finally:
        group.close()


if __name__ == "__main__":
    main()
