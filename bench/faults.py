"""What a running server does when something breaks under it: each fault is made for real.

    python bench/faults.py [MODEL] [--only PATTERN]

MODEL is a packed folder (int8 of the demo model without one), copied for every case and served with
a small cache, so that every request reads. Two cases need root: a full disk needs a mount, a disk
that hangs needs version 1 of control groups. Ends with code 1 where a request got another answer
than it should, a log has a traceback, or a server did not start again.
"""

import argparse
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from miractl.paths import DEMO_MODEL
from miractl.runtime.engine import STALLED

BLKIO = Path("/sys/fs/cgroup/blkio")
PROMPTS = ("The king and all his men", "def main(): return 1 #", "In the beginning 天地玄黄")


class Server:
    """`miractl serve` on a folder. What it says on stderr is in `said`."""

    def __init__(self, folder: Path, *words: str, **how: Any) -> None:
        command = [sys.executable, "-m", "miractl", "serve", str(folder), "--device", "cpu"]
        command += ["--expert-memory", "20%", *(() if "--port" in words else ("--port", "0"))]
        self.process = subprocess.Popen(
            [*command, *words], stderr=subprocess.PIPE, text=True, **how
        )
        self.said, self.url = "", ""
        for line in self.process.stderr or ():
            self.said += line
            if found := re.search(r"ready on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise SystemExit(f"the server ended with {self.process.wait()}: {self.said}")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.said += line

    def ask(self, prompt: str = PROMPTS[0], patience: float = 60.0) -> httpx.Response:
        """Complete a prompt."""
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=patience)

    def health(self) -> httpx.Response:
        """Ask how it is."""
        return httpx.get(f"{self.url}/health", timeout=10)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; the exit code."""
        self.process.send_signal(how)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


def expect(condition: object, what: str) -> None:
    """Raise AssertionError unless something holds."""
    if not condition:
        raise AssertionError(what)


def expect_error(answer: httpx.Response, words: str) -> None:
    """Raise AssertionError unless a request failed, in one line that says why."""
    message = answer.json().get("error", {}).get("message", "")
    expect(answer.status_code == 500, f"status {answer.status_code}, not 500")
    expect(re.search(words, message) and "\n" not in message, f"it said {message!r}")


def killed(folder: Path, work: Path) -> None:
    """Killed while it reads and records: the same command works again, and nothing is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("--port", port, "--record-trace", str(work / "trace.npz"))
    server = Server(folder, *words)
    for prompt in PROMPTS:
        threading.Thread(target=_ask_in_vain, args=(server, prompt), daemon=True).start()
    time.sleep(0.2)
    expect(server.end(signal.SIGKILL) == -signal.SIGKILL, "it was not killed")
    expect({path.name for path in work.iterdir()} == {folder.name}, "it left files behind")
    again = Server(folder, *words)
    expect(again.ask().status_code == 200, "it does not answer after a restart")
    expect(again.end() == 0 and (work / "trace.npz").is_file(), "it did not record after a restart")


def _ask_in_vain(server: Server, prompt: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        server.ask(prompt * 20)


def changed(folder: Path, work: Path, change: Callable[[Path], None], words: str) -> None:
    """The records change under it: requests that need them fail, and /health says why."""
    server = Server(folder)
    expect(server.ask().status_code == 200, "it does not answer")
    change(folder / "experts.bin")
    expect_error(server.ask(PROMPTS[1]), words)
    health = server.health()
    expect(health.status_code == 503 and "experts.bin" in health.text, health.text)
    expect(httpx.get(f"{server.url}/v1/status").status_code == 200, "it does not tell its status")
    expect(server.end() == 0, "it did not end well")
    expect("Traceback" not in server.said, server.said)


def truncated(folder: Path, work: Path) -> None:
    """Cut short."""
    changed(folder, work, lambda path: os.truncate(path, 40960), "now ends at byte|was written to")


def overwritten(folder: Path, work: Path) -> None:
    """Written to."""

    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.write(b"other")

    changed(folder, work, write, "was written to since it was opened")


def replaced(folder: Path, work: Path) -> None:
    """Replaced, then deleted with the folder: what is open is read on."""
    server = Server(folder)
    first = server.ask().json()["choices"]
    shutil.copy(folder / "experts.bin", folder / "new")
    os.replace(folder / "new", folder / "experts.bin")
    expect(server.ask(PROMPTS[1]).status_code == 200, "it fails once a file is replaced")
    shutil.rmtree(folder)
    expect(server.ask().json()["choices"] == first, "it answers another text")
    expect(server.health().status_code == 200, "it is not well")
    expect(server.end() == 0, "it did not end well")


def full_disk(folder: Path, work: Path) -> None:
    """No space for a recording: said in the log, and requests go on."""
    small = work / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", small], check=True)
    try:
        server = Server(folder, "--record-trace", str(small / "trace.npz"))
        for _ in range(8):
            expect(server.ask(PROMPTS[2] * 20).status_code == 200, "a request failed")
        expect(server.health().status_code == 200, "it is not well")
        expect(server.end() == 0, "it did not end well")
        expect(server.said.count("No space left") == 1, server.said)
        expect("Traceback" not in server.said, server.said)
        expect(not any(small.iterdir()), "it left a piece of a recording")
    finally:
        subprocess.run(["umount", small], check=True)


def no_logs(folder: Path, work: Path) -> None:
    """A full disk behind stderr: it serves without a log."""
    port = "18997"
    words = ["--device", "cpu", "--expert-memory", "20%", "--port", port]
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "miractl", "serve", str(folder), *words]
        process = subprocess.Popen(command, stderr=full)
    try:
        for _ in range(60):
            time.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
        body = {"prompt": PROMPTS[0], "max_tokens": 4}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        expect(answer.status_code == 200, answer.text)
        process.terminate()
        expect(process.wait(30) == 0, "it did not end well")
    finally:
        process.kill()


def no_handles(folder: Path, work: Path) -> None:
    """More clients than handles: a line in the log, and well again once they have gone."""
    limit = (resource.RLIMIT_NOFILE, (40, 40))
    server = Server(folder, preexec_fn=lambda: resource.setrlimit(*limit))
    address = httpx.URL(server.url)
    held = [socket.create_connection((address.host, address.port)) for _ in range(40)]
    time.sleep(3)
    for each in held:
        each.close()
    expect(server.ask().status_code == 200, "it does not answer any more")
    expect(server.health().status_code == 200, "it is not well")
    expect(server.end() == 0, "it did not end well")
    expect("Too many open files" in server.said and len(server.said) < 8192, server.said[:2000])
    expect("Traceback" not in server.said, server.said)


def hanging(folder: Path, work: Path) -> None:
    """A disk that gives nothing: /health says so, and requests go on when it gives again."""
    device = os.stat(folder).st_dev
    group = BLKIO / f"miractl-faults-{os.getpid()}"
    group.mkdir()

    def rate(value: int) -> None:
        text = f"{os.major(device)}:{os.minor(device)} {value}"
        (group / "blkio.throttle.read_bps_device").write_text(text)

    server = Server(folder)
    try:
        for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
            (group / "tasks").write_text(thread.name)
        rate(1)
        asking = threading.Thread(target=_ask_in_vain, args=(server, PROMPTS[1]))
        asking.start()
        time.sleep(STALLED + 2)
        expect("no read from" in server.health().text, "it does not say that the disk hangs")
        rate(0)  # no limit
        asking.join()
        expect(server.ask().status_code == 200, "it does not answer any more")
        expect(server.health().status_code == 200, "it is not well again")
        expect(server.end() == 0, "it did not end well")
    finally:
        rate(0)
        server.end(signal.SIGKILL)
        group.rmdir()


CASES = (killed, truncated, overwritten, replaced, full_disk, no_logs, no_handles, hanging)
AS_ROOT = (full_disk, hanging)


@contextlib.contextmanager
def model(given: Path | None) -> Iterator[Path]:
    """A packed folder."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as made:
        command = [sys.executable, "-m", "miractl", "pack", str(DEMO_MODEL), "-o", f"{made}/model"]
        subprocess.run([*command, "--experts", "int8"], check=True, stdout=subprocess.DEVNULL)
        yield Path(made) / "model"


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="a pattern of names")
    options = parser.parse_args()
    failed = 0
    with model(options.model) as folder:
        for case in CASES:
            if not re.search(options.only, case.__name__):
                continue
            if case in AS_ROOT and (os.geteuid() != 0 or not BLKIO.is_dir()):
                print(f"skip  {case.__name__}: needs root and version 1 of control groups")
                continue
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                copy = Path(work) / "copy"
                shutil.copytree(folder, copy)
                try:
                    case(copy, Path(work))
                    print(f"ok    {case.__name__}", flush=True)
                except (AssertionError, httpx.HTTPError) as error:
                    failed += 1
                    print(f"FAIL  {case.__name__}: {error!r}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
