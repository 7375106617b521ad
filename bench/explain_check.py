"""Hold `miractl explain` against the clock and the operating system, on a running server.

    python bench/explain_check.py MODEL [--expert-memory 25%]

Starts cold and asks for tokens. The steps that explain knows of must cover 95 % of the time until
the answer, its parts 95 % of the steps, and its bytes from files equal within 2 % what the kernel
counts for the process (/proc/PID/io) and, as root with version 1 of control groups, for its group
(blkio). Ends with code 1 where something is apart.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from against import forget

from miractl.telemetry.client import Client
from miractl.telemetry.timeline import Account
from miractl.units import format_bytes, format_seconds, format_share

BLKIO = Path("/sys/fs/cgroup/blkio")
TOKENS, CLOSE, COVERED = 64, 0.02, 0.95


@contextlib.contextmanager
def blkio_group() -> Iterator[Path | None]:
    """A group whose reads are counted; None where there is none to make."""
    folder = BLKIO / f"miractl-explain-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()


def by_group(folder: Path) -> int:
    """Bytes that a group has read."""
    counts = (folder / "blkio.throttle.io_service_bytes").read_text()
    return sum(map(int, re.findall(r" Read (\d+)", counts)))


def by_process(pid: int) -> int:
    """Bytes that a process has read."""
    found = re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextlib.contextmanager
def serving(options: argparse.Namespace, group: Path | None) -> Iterator[tuple[str, int]]:
    """A server's address and process id."""
    words = [sys.executable, "-m", "miractl", "serve", str(options.model), "--port", "0"]
    words += ["--expert-memory", options.expert_memory, "--device", "cpu", "--context", "512"]
    words += ["--max-concurrency", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    if group is not None:
        (group / "cgroup.procs").write_text(str(process.pid))
    said = ""
    try:
        for line in process.stderr:
            said += line
            if found := re.search(r"ready on (http://\S+)", line):
                break
        else:
            sys.exit(f"the server ended with {process.wait()}: {said}")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait(60)


def main() -> int:
    """Ask, then compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--expert-memory", default="25%")
    options = parser.parse_args()
    forget(options.model)
    apart: list[str] = []
    with blkio_group() as group, serving(options, group) as (url, pid):
        body = {"prompt": "to be or not to be " * 8, "max_tokens": TOKENS, "temperature": 0}
        httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()  # rows, code
        before = by_process(pid), by_group(group) if group else 0
        last, began = Client(url).timeline(1).steps[-1].step, time.perf_counter()
        httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
        wall = time.perf_counter() - began
        steps = Client(url).timeline(4096).steps
        account = Account.of([step for step in steps if step.step > last])
        counted = {"process": by_process(pid) - before[0]}
        if group:
            counted["group"] = by_group(group) - before[1]
    parts = sum(account.parts.values()) / account.seconds
    for what, covered in (("answer", account.seconds / wall), ("steps", parts)):
        print(f"{what} covered {format_share(covered)}")
        apart += [what] if covered < COVERED else []
    print(f"{account.steps} steps, {format_seconds(wall)}")
    for what, theirs in counted.items():
        ours = account.moved.disk_bytes
        print(
            f"from files {format_bytes(ours)}, {ours / max(1, theirs):.4f} of the "
            f"{format_bytes(theirs)} that the kernel counts for the {what}"
        )
        apart += [what] if abs(ours - theirs) > CLOSE * max(ours, theirs) else []
    print(f"FAIL {', '.join(apart)}" if apart else "ok")
    return bool(apart)


if __name__ == "__main__":
    sys.exit(main())
