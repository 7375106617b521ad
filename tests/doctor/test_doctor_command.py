"""The commands `doctor` and `env` as a user meets them."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import Result
from machine_parts import SOFTWARE
from machines import FOLDER, MACHINES

from miractl.doctor.bugreport import Redactor, block
from miractl.probe import codec
from miractl.probe.server import ask

Run = Callable[..., Result]
HEAVY = {"torch", "transformers", "textual", "numpy", "pynvml"}


@pytest.fixture
def a10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "a10-x8-idle.json"))


def test_here_and_without_heavy_imports() -> None:
    code = (
        "import sys; from miractl.cli.main import cli\n"
        "try: cli(['doctor', '--json', '--fail-on', 'never'])\n"
        f"except SystemExit: print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["schema"] == "miractl.doctor/1"
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.usefixtures("a10")
def test_single_checks_bring_their_needs_unseen(miractl: Run) -> None:
    result = miractl("doctor", "pcie.slot", "--json")
    report = json.loads(result.stdout)
    assert [check["id"] for check in report["checks"]] == ["pcie.slot"]
    assert report["checks"][0]["docs"] == "docs/checks.md#pcie-slot"
    assert report["checks"][0]["remediation"]["commands"][0].startswith("miractl serve")


@pytest.mark.usefixtures("a10")
def test_json_says_aloud_what_is_unknown(miractl: Run) -> None:
    result = miractl("doctor", "--json")
    assert result.stderr == "unknown: pcie.gen\n"


@pytest.mark.usefixtures("a10")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("doctor", "--profile", "a10"), 0),
        (("doctor", "--fail-on", "warn"), 1),
        (("doctor", "no.such"), 2),
        (("doctor", "--format", "xml"), 2),
        (("doctor", "--timeout", "0"), 2),
        (("doctor", "--profile", "a11"), 2),
        (("doctor", "profile.match"), 2),
        (("doctor", "--list"), 0),
    ],
)
def test_exit_codes(miractl: Run, args: tuple[str, ...], code: int) -> None:
    assert miractl(*args).exit_code == code


def test_a_stand_in_that_cannot_be_read(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", "/nowhere.json")
    result = miractl("doctor")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: /nowhere.json is not a recorded machine")


@pytest.mark.usefixtures("a10")
def test_plain_terminals_get_words_for_marks(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    output = miractl("doctor").stdout
    assert output.isascii()
    assert "  warn pcie.slot" in output
    assert "  ok   gpu.memory" in output


def test_a_server_that_is_away() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        assert "refused" in (ask(url).error or "")
    assert ask("no-url").status is None


@pytest.mark.parametrize("status", [200, 503])
def test_a_server_that_answers(status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    answer = ask(f"http://127.0.0.1:{server.server_port}/")
    thread.join()
    server.server_close()
    assert (answer.status, answer.body, answer.error) == (status, "/health", None)


def test_redaction() -> None:
    redact = Redactor(home="/home/alice", host="gpu-box").text
    assert redact("/home/alice/venv and /home/bob/x on gpu-box") == "~/venv and ~/x on <host>"
    assert redact("/home/alicette") == "~"
    full, short = "GPU-af7b61d8-1111-2222-3333-444444444444", "GPU-af7b61d8"
    assert redact(f"{full} {short} MIG-af7b61d8-1111") == (
        "GPU-redacted-1 GPU-redacted-1 MIG-redacted-2"
    )
    assert redact("550e8400-e29b-41d4-a716-446655440000") == "<uuid>"
    assert redact("/docker/" + "ab" * 32) == "/docker/<id>"
    assert redact("hf_abcdefghijkl https://me:pw@host/x") == "<secret> https://<secret>@host/x"


def test_a_secret_is_known_by_its_name() -> None:
    tree = Redactor().tree({"MIRACTL_API_KEY": "plain", "MIRACTL_PORT": "80", "n": [1, None]})
    assert tree == {"MIRACTL_API_KEY": "<secret>", "MIRACTL_PORT": "80", "n": [1, None]}


@pytest.mark.parametrize("name", MACHINES)
def test_a_redacted_machine_is_still_one(name: str) -> None:
    machine = codec.from_json(Redactor().tree(codec.to_json(MACHINES[name])))
    text = block(machine)
    assert text.startswith("miractl ")
    assert "1111-2222" not in text
    assert "None" not in text


def test_a_failed_probe_is_said_in_the_block() -> None:
    assert "nvml          could not collect: no answer within 5 s" in block(MACHINES["nvml-hangs"])


def test_env_command(tmp_path: Path, miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    private = replace(SOFTWARE, executable="/home/alice/venv/bin/python")
    file = tmp_path / "machine.json"
    machine = replace(MACHINES["a10-x16"], software=private)
    file.write_text(json.dumps(codec.to_json(machine)))
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(file))
    text = miractl("env").stdout
    assert "(~/venv/bin/python)" in text
    assert "GPU-redacted-1" in text
    again = tmp_path / "again.json"
    again.write_text(miractl("env", "--json").stdout)
    assert codec.load(str(again)).nvml == replace(
        machine.nvml,  # type: ignore[type-var]
        gpus=(replace(machine.nvml.gpus[0], uuid="GPU-redacted-1"),),  # type: ignore[union-attr]
    )


def test_the_page_of_checks_can_be_made() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "miractl.doctor.docs"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stdout.startswith("# Checks\n")
