"""Run the server for a long time under mixed requests and see whether anything grows.

    python bench/soak.py [MODEL] [--minutes 30] [--expert-memory 25%] [--json FILE]

Serves MODEL (the demo model without one) with a small cache, keeps several clients busy with
prompts of all lengths, streamed and whole, some abandoned half-way, some refused, and looks at the
server every second: resident memory, threads, file handles. After the first fifth of the time,
memory must stay within 2 % of itself, and the last fifth must have no more threads and handles than
the second had. Ends with code 1 where something grew or the server answered wrongly.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

CLIENTS, WINDOW = 4, 5  # concurrent clients; the time is looked at in fifths
GROWTH = 1.02
TEXT = (
    "ROMEO: the king and all his men; def main(): return x + 1 # In the beginning 天地玄黄 "
    "for (int i = 0; i < n; i++) sum += a[i]; And it came to pass that he said unto them"
)
WORDS = TEXT.split()


class Clients:
    """Threads that ask until they are told to stop, and count what they got."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.counts, self.errors = url, Counter[str](), list[str]()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(seed + n),))
            for n in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the requests under way end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, dice: random.Random) -> None:
        while not self._stop.is_set():
            kind = dice.choice(("whole", "whole", "stream", "abandon", "refused"))
            try:
                with httpx.Client(base_url=self.url, timeout=300, trust_env=False) as client:
                    getattr(self, f"_{kind}")(client, dice)
                self.counts[kind] += 1
            except (httpx.HTTPError, AssertionError) as error:
                self.errors.append(f"{kind}: {type(error).__name__}: {error}"[:200])

    def _body(self, dice: random.Random) -> dict[str, Any]:
        prompt = " ".join(dice.choices(WORDS, k=dice.choice((1, 8, 30, 60))))
        tokens = dice.choice((1, 8, 32, 64))
        return {"prompt": prompt, "max_tokens": tokens, "temperature": dice.choice((0, 0.8))}

    def _whole(self, client: httpx.Client, dice: random.Random) -> None:
        answer = client.post("/v1/completions", json=self._body(dice))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] in ("length", "stop")

    def _stream(self, client: httpx.Client, dice: random.Random) -> None:
        body = self._body(dice) | {"stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]", lines[-1]

    def _abandon(self, client: httpx.Client, dice: random.Random) -> None:
        body = self._body(dice) | {"stream": True, "max_tokens": 64}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines(), None)

    def _refused(self, client: httpx.Client, dice: random.Random) -> None:
        body = dice.choice(({}, {"prompt": ""}, {"prompt": "x " * 100_000}, {"prompt": 1}))
        answer = client.post("/v1/completions", json=body)
        assert 400 <= answer.status_code < 500, answer.status_code


def look(process: psutil.Process) -> tuple[int, int, int]:
    """Resident bytes, threads and file handles."""
    return process.memory_info().rss, process.num_threads(), process.num_fds()


def start(model: str | None, memory: str) -> tuple[subprocess.Popen[str], str]:
    """A server on a free port, ready."""
    words = [sys.executable, "-m", "miractl", "serve", *([model] if model else [])]
    words += ["--port", "0", "--expert-memory", memory, "--max-concurrency", str(CLIENTS)]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if line.startswith("ready on "):
            threading.Thread(target=_drain, args=(server.stderr,), daemon=True).start()
            return server, line.split()[-1]
    raise SystemExit(f"the server ended with code {server.wait()}")


def _drain(stream: Any) -> None:
    for _ in stream:
        pass


def fifths(looks: list[tuple[int, int, int]]) -> list[dict[str, float]]:
    """Medians of each fifth of the time; of handles and threads the largest."""
    size = len(looks) // WINDOW
    parts = [looks[n * size : (n + 1) * size] for n in range(WINDOW)]
    return [
        {
            "rss": statistics.median(rss for rss, _, _ in part),
            "threads": max(threads for _, threads, _ in part),
            "handles": max(handles for _, _, handles in part),
        }
        for part in parts
    ]


def judge(parts: list[dict[str, float]]) -> list[str]:
    """What grew, in words; empty is well."""
    _, first, *_, last = parts
    found = []
    low, high = min(p["rss"] for p in parts[1:]), max(p["rss"] for p in parts[1:])
    if high > GROWTH * low:
        found.append(f"memory went from {low / 2**20:.1f} to {high / 2**20:.1f} MiB")
    # Connections come and go: as many as there are clients may be open in one look and not another.
    for what, spare in (("threads", 1), ("handles", 2 * CLIENTS)):
        if last[what] > first[what] + spare:
            found.append(f"{what} went from {first[what]:.0f} to {last[what]:.0f}")
    return found


def main() -> int:
    """Soak, then judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--expert-memory", default="25%")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server, url = start(options.model, options.expert_memory)
    looks: list[tuple[int, int, int]] = []
    try:
        process, clients = psutil.Process(server.pid), Clients(url, options.seed)
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and server.poll() is None:
            looks.append(look(process))
            time.sleep(1.0)
        clients.stop()
        status = httpx.get(f"{url}/v1/status", timeout=60, trust_env=False).json()
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
    parts = fifths(looks)
    problems = judge(parts) + clients.errors
    print("fifth   memory MiB  threads  handles")
    for number, part in enumerate(parts, 1):
        memory = part["rss"] / 2**20
        print(f"{number:>5}  {memory:>11.1f}  {part['threads']:>7.0f}  {part['handles']:>7.0f}")
    cache = status["cache"]
    print(
        f"{sum(clients.counts.values())} requests ({dict(clients.counts)}),"
        f" {status['work']['tokens']} tokens, {cache['hits']} of {cache['lookups']} lookups hit"
    )
    if server.returncode != 0:
        problems.append(f"the server ended with code {server.returncode}")
    if options.json:
        facts = {"fifths": parts, "requests": clients.counts, "problems": problems}
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for problem in problems[:20]:
        print(f"FAIL {problem}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
