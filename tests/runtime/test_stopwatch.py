"""Every moment of a step belongs to exactly one part."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from miractl.probe.direct_file import DirectFile
from miractl.runtime.sequences import Sequences
from miractl.runtime.stopwatch import Stopwatch, watch
from miractl.telemetry.timeline import Account, Moved
from tests.runtime.models import load, make_model


class Time:
    """A clock that moves when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def stopwatch_on(time: Time, reads: list[int | None], moved: list[Moved]) -> Stopwatch:
    return Stopwatch(lambda: moved[0], time, lambda: reads[0])


def one_step(stopwatch: Stopwatch, time: Time, goes_on: bool, **parts: float) -> None:
    stopwatch.step_begins(1, 1, goes_on)
    for part, seconds in parts.items():
        stopwatch.begin(part)
        time.spend(seconds)
    stopwatch.step_ends()


def test_parts_add_up_to_the_step_with_what_came_between(time):
    reads, moved = [0], [Moved()]
    stopwatch = stopwatch_on(time, reads, moved)
    one_step(stopwatch, time, False, attention=1.0, router=0.5, waiting=2.0)
    time.spend(0.25)
    moved[0], reads[0] = Moved(hits=3, disk_bytes=70), 4096
    one_step(stopwatch, time, True, attention=1.0, hits=4.0)
    first, second = stopwatch.steps
    assert first.parts["waiting"] == 2.0
    assert first.seconds == sum(first.parts.values()) == 3.5
    assert second.parts["between"] == 0.25
    assert second.seconds == sum(second.parts.values()) == 5.25
    assert (second.moved, second.os_bytes) == (Moved(hits=3, disk_bytes=70), 4096)


def test_waiting_for_a_request_is_no_part_of_its_first_step(time):
    stopwatch = stopwatch_on(time, [None], [Moved()])
    one_step(stopwatch, time, False, attention=1.0)
    time.spend(3600.0)
    one_step(stopwatch, time, False, attention=2.0)
    assert stopwatch.steps[-1].seconds == 2.0
    assert stopwatch.steps[-1].os_bytes is None


def test_a_pass_that_failed_leaves_nothing_to_the_next(time):
    stopwatch = stopwatch_on(time, [0], [Moved()])
    stopwatch.step_begins(1, 1, False)
    stopwatch.begin("waiting")
    time.spend(9.0)  # and the model raised
    one_step(stopwatch, time, True, attention=2.0)
    assert [step.seconds for step in stopwatch.steps] == [2.0]


class Model(torch.nn.Module):
    """A router beside experts, and a head."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.block, self.head, self.time = torch.nn.Module(), torch.nn.Identity(), time
        self.block.gate = TopKRouter()

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.time.spend(1.0)
        self.block.gate(x)
        self.time.spend(2.0)
        stopwatch = self.stopwatch
        stopwatch.begin("decide")
        self.block.gate(x)  # look-ahead: part of the deciding
        self.time.spend(4.0)
        stopwatch.begin("attention")
        self.time.spend(8.0)
        self.head(x)
        self.time.spend(16.0)
        return x


class TopKRouter(torch.nn.Identity):
    """Named as routers are."""


def test_routers_and_head_punch_the_clock(time):
    model = Model(time)
    model.stopwatch = stopwatch_on(time, [0], [Moved()])
    sequences = Sequences()
    sequences.watch(model)
    watch(model, [model.block], sequences, model.stopwatch)
    model(torch.zeros(1, 1, dtype=torch.int64))
    (step,) = model.stopwatch.steps
    used = {part: seconds for part, seconds in step.parts.items() if seconds}
    assert used == {"attention": 9.0, "router": 2.0, "decide": 4.0, "head": 16.0}


def test_layers_that_run_outside_of_a_pass_are_not_timed(time):
    stopwatch = stopwatch_on(time, [0], [Moved()])
    stopwatch.begin("decide")
    time.spend(5.0)
    one_step(stopwatch, time, False, attention=2.0)
    assert [step.seconds for step in stopwatch.steps] == [2.0]


@torch.no_grad()
def test_bytes_from_files_are_those_that_the_kernel_counts(
    tmp_path: Path, miractl: Callable[..., Result]
) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", hidden_size=128, moe_intermediate_size=128)
    packed = tmp_path / "packed"
    assert miractl("pack", str(tmp_path / "source"), "-o", str(packed)).exit_code == 0
    file = DirectFile(packed / "experts.bin")
    file.close()
    if not file.is_direct:
        pytest.skip("no direct reads here: the page cache answers")
    engine = load(packed, 4)
    ids = torch.arange(1, 40)[None]
    engine.model.generate(ids, max_new_tokens=2)  # the code itself is read from the disk, once
    engine.stopwatch.steps.clear()
    engine.model.generate(ids, max_new_tokens=24)
    account = Account.of(list(engine.stopwatch.steps))
    engine.close()
    assert account.os_bytes is not None
    assert account.moved.disk_bytes > 24 * engine.plan.expert_bytes
    assert account.os_bytes == pytest.approx(account.moved.disk_bytes, rel=0.02)
