"""The host beside a GPU that is not there: what is computed where, and in which order.

The device's numbers are float32 decoded from the records; the host rounds activations too, so what
it computes is near, not equal.
"""

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.checkpoint.inspection import inspect_folder
from miractl.errors import MiractlError, UsageError
from miractl.native.kernels import Layer
from miractl.native.residency import State
from miractl.plan.books import PROCESS
from miractl.plan.machine import Given, machine_for
from miractl.plan.planner import plan_for
from miractl.plan.request import PlanRequest
from miractl.policy.keys import ExpertKey
from miractl.runtime import engine as engines
from miractl.runtime import mixture
from miractl.runtime.arena import SlotArena
from miractl.runtime.compute import KernelCompute
from miractl.runtime.engine import Engine
from miractl.runtime.host_compute import RETRY, WARM_UP, HostCompute
from miractl.runtime.host_experts import HostExperts
from miractl.runtime.host_tier import HostTier
from miractl.runtime.layer_proof import Recorded, record_layers, relative_error
from miractl.runtime.loading import Checkpoint
from miractl.runtime.movers import CudaMover, TierMover
from miractl.runtime.outline import Outline, read_outline
from miractl.runtime.packing import pack
from miractl.runtime.parcels import Records
from miractl.runtime.rerun import rerun
from miractl.runtime.streams import GPUS
from miractl.runtime.ticket import Course
from miractl.runtime.transfer_queue import TransferQueue
from miractl.runtime.verify import LAYER_TOLERANCE
from miractl.telemetry.trace import read_trace
from tests.runtime.fake_device import FakeDevice
from tests.runtime.models import make_model, options

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 9, 61, 30]])
STEPS = [PROMPT, torch.tensor([[9]]), torch.tensor([[4]]), torch.tensor([[61]])] * 3
RATE = 1e9  # bytes a second
FORMATS = {"int8": "i8", "int4": "i4k"}


@pytest.fixture(scope="module", params=FORMATS)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of eight experts."""
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "source", "Qwen3Moe", moe_intermediate_size=64)
    pack(folder / "source", folder / request.param, request.param)
    return folder / str(request.param)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """In the place of the CPU."""
    fake = FakeDevice(RATE)
    monkeypatch.setitem(GPUS, "cpu", lambda _: fake)
    return fake


def asked(folder: Path, host: str | None, memory: str = "50%", **changes: Any) -> Any:
    base = options(folder, memory, prefetch=changes.pop("prefetch", False))
    return dataclasses.replace(base, host_compute=host, **changes)


@pytest.fixture
def engine(packed: Path, device: FakeDevice, request: pytest.FixtureRequest) -> Iterator[Engine]:
    found = Engine.load(asked(packed, getattr(request, "param", "on")))
    yield found
    found.close()


def layers(folder: Path) -> list[Recorded]:
    """What stock transformers makes of the decoded weights."""
    outline = read_outline(folder)
    stock = Checkpoint(folder, outline).load_stock(torch.float32)
    return record_layers(stock, outline, PROMPT)


def run(engine: Engine) -> list[torch.Tensor]:
    with torch.no_grad():
        return [engine.model(step).logits for step in STEPS]


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("host", [None, "off", "auto", "on"])
def test_outputs_are_those_of_stock_layers_wherever_experts_are_computed(
    packed: Path, device: FakeDevice, host: str | None, prefetch: bool
) -> None:
    stock = layers(packed)
    engine = Engine.load(asked(packed, host, prefetch=prefetch))
    try:
        run(engine)
        limit = LAYER_TOLERANCE[FORMATS[packed.name]] if host in ("auto", "on") else 1e-5
        assert all(relative_error(engine.model, layer) < limit for layer in stock)
        cache = engine.snapshot().cache
    finally:
        engine.close()
    assert cache.misses == cache.waited + cache.copied + cache.on_host > 0
    assert (cache.on_host > 0) == (host in ("auto", "on"))
    assert host != "on" or cache.copied == cache.waited == 0


@pytest.mark.parametrize("memory", ["10%", "30%", "50%"])
def test_waves_go_by_the_host_too(packed: Path, device: FakeDevice, memory: str) -> None:
    stock = layers(packed)
    engine = Engine.load(asked(packed, "auto", memory))
    try:
        for _ in range(3):
            errors = [relative_error(engine.model, layer) for layer in stock]
            assert max(errors) < LAYER_TOLERANCE[FORMATS[packed.name]]
    finally:
        engine.close()


class TestSplits:
    """One layer's experts, each computed on the device or on the host, in any groups."""

    @pytest.fixture(scope="class")
    def parts(self, packed: Path) -> tuple[Any, ...]:
        outline = read_outline(packed)
        assert outline.manifest is not None
        source = Checkpoint(packed, outline).source
        quantized = outline.manifest.record.quantized
        assert quantized is not None
        tier = HostTier(source, len(outline.layers), 8, outline.manifest.record.nbytes)
        slots = []
        for expert in range(8):
            slots.append({name: torch.empty(shape) for name, shape in outline.shapes.items()})
            source.read(ExpertKey(1, expert), slots[-1])
        source.close()
        fake = FakeDevice(RATE)
        host = HostExperts(KernelCompute(tier, quantized, 8, None), fake)
        return outline, slots, host, fake

    @staticmethod
    def mixed(
        parts: tuple[Any, ...], x: torch.Tensor, ids: Any, here: list[list[int]], there: list[int]
    ) -> torch.Tensor:
        outline, slots, host, _ = parts
        module = outline.model.get_submodule(outline.modules[1])
        scores = torch.linspace(0.1, 1.0, ids.size).view(ids.shape)
        groups: list[list[tuple[int, Any]]] = [[(e, slots[e]) for e in group] for group in here]
        if there:
            groups.insert(1, [(expert, None) for expert in there])
        return mixture.mix(module, x, ids, scores, groups, host.beside(1, x, ids))

    @settings(deadline=None, max_examples=40)
    @given(
        tokens=st.integers(1, 6),
        seed=st.integers(0, 99),
        on_host=st.sets(st.integers(0, 7)),
        cut=st.integers(0, 8),
    )
    def test_groups_change_no_bit_and_places_little(
        self, parts: Any, packed: Path, tokens: int, seed: int, on_host: set[int], cut: int
    ) -> None:
        rng = np.random.default_rng(seed)
        ids = np.array([rng.permutation(8)[:3] for _ in range(tokens)])
        x = torch.from_numpy(rng.standard_normal((tokens, 32)).astype(np.float32))
        wanted = sorted({*ids.reshape(-1).tolist()})
        alone = [e for e in wanted if e not in on_host]
        there = [e for e in wanted if e in on_host]
        cuts = [group for group in (alone[:cut], alone[cut:]) if group]
        found = self.mixed(parts, x, ids, cuts, there)
        assert torch.equal(found, self.mixed(parts, x, ids, [[e] for e in alone], there))
        stock = self.mixed(parts, x, ids, [wanted], [])
        error = float((found - stock).norm() / stock.norm())
        assert error < LAYER_TOLERANCE[FORMATS[packed.name]]
        assert (error > 0) == bool(there)

    def test_only_the_rows_that_are_needed_go_to_the_host(self, parts: Any) -> None:
        fake: FakeDevice = parts[3]
        before = fake.fetched
        ids = np.array([[0, 1], [2, 3], [1, 4], [5, 6]])
        self.mixed(parts, torch.randn(4, 32), ids, [[0, 2, 3, 4, 5, 6]], [1])
        assert fake.fetched - before == 2


# Of a layer: hits are computed, then the host computes, for which the device is waited for once;
# then copies are waited for. The next wave begins with a decision.
WAVE = r"(hits compute )?(misses fetch deliver )?(waiting (wait )+misses compute )*"
ORDER = re.compile(f"{WAVE}(decide {WAVE})*sum")


def test_hits_wait_for_nobody_and_the_host_for_no_copy(
    engine: Engine, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine)
    outputs, host, note = mixture._outputs, engine.cache._host, device.log.append
    assert host is not None
    monkeypatch.setattr(mixture, "_outputs", lambda *args: (note("compute"), outputs(*args))[1])
    monkeypatch.setattr(engine.cache, "_punch", note)
    # Of missing experts one is left to the host and not copied for later, the others are copied.
    monkeypatch.setattr(host._host, "choose", lambda absent, *_: set(absent[:1]))
    monkeypatch.setattr(host, "_fill", lambda key, _: engine.cache.residency.release(key))
    host._filling.clear()
    device.log.clear()
    run(engine)
    layers = [layer.strip() for layer in " ".join(device.log).split("layer")[1:]]
    assert len(layers) == 3 * len(STEPS)
    assert all(map(ORDER.fullmatch, layers))
    for part in ("hits", "fetch", "wait "):
        assert any(part in layer for layer in layers)
    assert any("hits" in layer and "fetch" in layer and "waiting" in layer for layer in layers)


def test_records_are_copied_from_where_they_lie(engine: Engine, device: FakeDevice) -> None:
    queue = engine.cache.transfers
    assert isinstance(queue, TransferQueue)
    assert isinstance(queue.mover, TierMover)
    record = engine.outline.manifest.record.nbytes  # type: ignore[union-attr]
    (tier,) = device.locked
    assert tier.nbytes == 24 * record
    before = device.pinned_bytes
    ticket = queue.submit(ExpertKey(2, 5), 3)
    queue.wait(ticket)
    assert ticket.state is State.DONE
    assert device.pinned_bytes == before
    assert ticket.moved == record
    wanted = {name: torch.empty(shape) for name, shape in engine.outline.shapes.items()}
    engine.source.read(ExpertKey(2, 5), wanted)
    assert all(torch.equal(engine.arena[3][name], wanted[name]) for name in wanted)  # type: ignore[index]


def test_memory_that_is_not_pinned_goes_through_the_ring(
    packed: Path, device: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device.locks = False
    stock = layers(packed)
    engine = Engine.load(asked(packed, "auto"))
    try:
        assert isinstance(engine.cache.transfers.mover, CudaMover)  # type: ignore[attr-defined]
        run(engine)
        limit = LAYER_TOLERANCE[FORMATS[packed.name]]
        assert all(relative_error(engine.model, layer) < limit for layer in stock)
    finally:
        engine.close()
    told = [r.getMessage() for r in caplog.records if "page-lock" in r.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("experts go through the ring")


def test_what_the_host_cannot_compute_fails_the_step_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(engine)[0]
    run_at = Layer.run_at

    def fails(*args: Any) -> None:
        raise ValueError("no kernel")

    monkeypatch.setattr(Layer, "run_at", fails)
    with pytest.raises(ValueError, match="no kernel"):
        run(engine)
    monkeypatch.setattr(Layer, "run_at", run_at)
    again = run(engine)[0]
    limit = 10 * LAYER_TOLERANCE[engine.outline.manifest.record.quantized.shape.format.name]  # type: ignore[union-attr]
    assert (again - first).norm() / first.norm() < limit


def test_a_copy_for_later_that_fails_leaves_nothing_in_its_slot(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, step = engine.cache.transfers, STEPS[1]
    assert isinstance(queue, TransferQueue)
    broken = threading.Event()
    move = queue.mover.move

    def fails(*args: Any) -> Course:
        if broken.is_set():
            raise MiractlError("the link is gone")
        return move(*args)

    monkeypatch.setattr(queue.mover, "move", fails)
    with torch.no_grad():
        wanted = engine.model(step).logits  # all by the host
        host = engine.cache._host
        assert host is not None
        for ticket in host._filling.values():
            queue.finish(ticket)
        broken.set()
        engine.model(STEPS[2])
        for ticket in host._filling.values():
            queue.finish(ticket)
        failed = [key for key, ticket in host._filling.items() if ticket.state is State.FAILED]
        assert failed
        broken.clear()
        with pytest.raises(MiractlError, match="the link is gone"):
            engine.model(STEPS[2])
        assert not all(engine.cache.residency.is_resident(key) for key in failed)
        for _ in range(len(failed)):  # each is told once
            with contextlib.suppress(MiractlError):
                engine.model(STEPS[2])
        engine.model(STEPS[2])
        again = engine.model(step).logits
    limit = 10 * LAYER_TOLERANCE[FORMATS[engine.options.model_path.name]]
    assert (again - wanted).norm() / wanted.norm() < limit


def test_a_recording_is_decided_alike(packed: Path, device: FakeDevice, tmp_path: Path) -> None:
    engine = Engine.load(asked(packed, "auto", prefetch=True, record_trace=tmp_path / "t.npz"))
    try:
        run(engine)
    finally:
        engine.close()
    trace = read_trace(tmp_path / "t.npz")
    assert trace.served is not None
    assert (trace.served.host, trace.served.beside) == ("auto", True)
    assert trace.counts is not None
    assert rerun(trace) == dict(trace.counts)
    assert trace.counts["on_host"] > 0


def test_a_tier_that_does_not_fit_is_refused_with_its_line(
    packed: Path, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 2**16  # beside this program and a sixteenth
    small = machine_for(None, device="cpu", given=Given(host_memory=(PROCESS * 16) // 15 + left))
    monkeypatch.setattr(engines, "this_machine", lambda _: small)
    with pytest.raises(MiractlError, match=r"host tier: .* needed, .* free in memory") as refused:
        Engine.load(asked(packed, "on"))
    assert refused.value.hint == "--host-compute off"


def test_a_plan_counts_the_tier(packed: Path) -> None:
    geometry = inspect_folder(packed).geometry
    assert geometry is not None
    assert geometry.record is not None

    def plan(host: int, **asked: Any) -> Any:
        machine = machine_for(None, None, Given(gpu_memory=2 * 2**30, host_memory=host))
        return plan_for(geometry, machine, PlanRequest(**asked))

    def named(found: Any, ledger: int) -> dict[str, int]:
        return {line.name: line.bytes for line in found.ledgers[ledger].lines}

    without, beside = plan(2**30), plan(2**30, host_compute=True)
    assert "host tier" not in named(without, 1)
    assert named(without, 1)["experts, as pages"] == 24 * geometry.record.nbytes
    assert named(beside, 1)["host tier"] > 24 * geometry.record.nbytes
    assert "experts, as pages" not in named(beside, 1)
    assert named(without, 0)["landing"] > 2 * geometry.record.nbytes
    ring = named(without, 1)["staging ring"]
    assert 64 * 10**6 < ring <= 2 * PlanRequest().ring  # of records, each rounded up
    (link,) = (roof for roof in without.forecast.roofs if roof.name == "link")
    assert link.what.endswith("missing experts, as stored")
    refused = plan(without.ledgers[1].used, host_compute=True).refusal
    assert (refused.line, refused.memory) == ("host tier", "the host's memory")
    assert refused.lower == "--host-compute off"


def test_the_plan_command_shows_the_tier(packed: Path, miractl: Callable[..., Result]) -> None:
    card = ("--gpu-memory", "2GiB", "--host-memory", "1GiB")
    asked = ("plan", "--host-compute", "auto", "--context", "64")
    assert "host tier" in miractl(*asked, *card, str(packed)).stdout
    assert "stored as int8 or int4" in miractl(*asked, *card, str(packed.parent / "source")).stderr
    alone = miractl(*asked, "--device", "cpu", str(packed))
    assert alone.exit_code == 2
    assert "no device that computes beside the host" in alone.stderr


@pytest.mark.usefixtures("device")
def test_what_makes_no_sense_is_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="stored as int8 or int4"):
        Engine.load(asked(packed.parent / "source", "auto"))
    monkeypatch.setattr("miractl.checkpoint.record.why_not", lambda: "no C compiler")
    with pytest.raises(UsageError, match="needs the CPU kernels: no C compiler"):
        Engine.load(asked(packed, "auto"))


class Link:
    """A link of which copies take so long."""

    seconds_each, backlog = 5.0, 0.0


def test_the_host_is_tried_before_it_is_judged() -> None:
    host = HostCompute(Link(), is_beside=True)  # type: ignore[arg-type]
    keys, tokens = [ExpertKey(0, 1), ExpertKey(0, 2)], {1: 1, 2: 1}
    host.hit([1], tokens, 1e-6)
    for took in [100.0] * WARM_UP + [8.0]:
        assert host.rates.host_expert is None
        assert host.choose(keys, {}, tokens, 0.0) == {keys[0]}
        host.computed([1], tokens, took)
    assert host.rates.host_expert == 8.0
    assert host.choose(keys, {}, tokens, 0.0) == {keys[1]}  # beside the other's copy
    host.rates.host_expert = 20.0
    chosen = [host.choose(keys, {}, tokens, 0.0) for _ in range(RETRY)]
    assert chosen[-2:] == [set(), {keys[0]}]


def test_a_prompt_tells_less_of_the_host_than_one_token() -> None:
    host = HostCompute(Link(), is_beside=True)  # type: ignore[arg-type]
    keys = [ExpertKey(0, 1), ExpertKey(0, 2)]
    for _ in range(WARM_UP + 1):
        assert host.choose(keys, {}, {1: 9, 2: 7}, 0.0) == {keys[1]}  # who has the fewest
        host.computed([2], {2: 7}, 70.0)
    assert (host.rates.host_expert, host.rates.is_rough) == (70.0, True)
    assert host.choose(keys, {}, {1: 9, 2: 7}, 0.0) == set()
    assert host.choose(keys, {}, {1: 1, 2: 2}, 0.0) == {keys[0]}
    host.computed([1], {1: 1}, 2.0)
    assert (host.rates.host_expert, host.rates.is_rough) == (2.0, False)
    host.computed([2], {2: 7}, 14.0)
    assert host.rates.host(7) == pytest.approx(14.0)


def test_what_a_copy_takes_is_told_by_the_device(packed: Path) -> None:
    """Not what it waited for others, and with what decoding takes."""
    device = FakeDevice(1e6, unpacking=0.25)
    outline: Outline = read_outline(packed)
    assert outline.manifest is not None
    record = outline.manifest.record
    source = Checkpoint(packed, outline).source
    tier = HostTier(source, 3, 8, record.nbytes)
    source.close()
    arena = SlotArena([(2, outline.shapes)], torch.float32, torch.device("cpu"))
    queue = TransferQueue(TierMover(tier, Records(arena, record, 2), device), lambda: device.now)
    try:
        for expert in range(4):
            device.computing = device.now + 7.0
            queue.wait(queue.submit(ExpertKey(0, expert), expert % 2))
    finally:
        queue.close()
    assert device.now > 28
    assert queue.seconds_each == pytest.approx(record.nbytes / 1e6 + 0.25)
    assert queue.stats.busy_seconds == pytest.approx(4 * record.nbytes / 1e6)
