"""Records decoded where they were copied to: the very numbers that the host would make of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from miractl.native import Format, MatrixShape, reference
from miractl.policy.keys import ExpertKey
from miractl.runtime import movers
from miractl.runtime.arena import SlotArena
from miractl.runtime.decode import dequantized
from miractl.runtime.host_tier import HostTier
from miractl.runtime.loading import Checkpoint
from miractl.runtime.movers import CudaMover, TierMover
from miractl.runtime.outline import read_outline
from miractl.runtime.packing import pack
from miractl.runtime.parcels import Records
from miractl.runtime.ticket import carry_out
from tests.native.conftest import FORMATS, normal
from tests.runtime.fake_device import FakeDevice
from tests.runtime.families import FAMILIES, make_family
from tests.runtime.models import make_model

RATE = 1e6
SIZES = {"hidden_size": 64, "moe_intermediate_size": 64}


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f"{f.name}-{f.group}")
def test_torch_decodes_to_the_bit(format_: Format) -> None:
    rng, shape = np.random.default_rng(0), MatrixShape(format_, 24, 256)
    weights = normal(rng, 24, 256, spread=0.02)
    weights[0], weights[1] = 0, np.abs(weights[1])
    weights[2, ::9] *= 1000
    weights[3] *= 1e-38
    weights[4] *= 1e20
    block = reference.quantize(weights, shape)
    found = dequantized(torch.from_numpy(block), shape)
    wanted = reference.dequantize(block, shape)
    assert found.numpy().tobytes() == np.ascontiguousarray(wanted).tobytes()


class Model:
    """A packed model of a family, and what a source makes of its experts."""

    def __init__(self, folder: Path, family: str, kind: str) -> None:
        if family in FAMILIES:
            make_family(folder / "source", family, fused=False, tied=False)
        else:
            sizes = {} if family == "GptOss" else {"moe_intermediate_size": 64}
            make_model(folder / "source", family, **sizes)
        pack(folder / "source", folder / "packed", kind)
        self.outline = read_outline(folder / "packed")
        self.source = Checkpoint(folder / "packed", self.outline).source
        assert self.outline.manifest is not None
        self.record = self.outline.manifest.record

    def wanted(self, expert: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        slot = {n: torch.empty(s, dtype=dtype) for n, s in self.outline.shapes.items()}
        self.source.read(ExpertKey(1, expert), slot)
        return slot

    def arena(self, dtype: torch.dtype) -> SlotArena:
        return SlotArena([(3, self.outline.shapes)], dtype, torch.device("cpu"))

    def tier(self) -> HostTier:
        sizes = len(self.outline.layers), self.outline.experts
        return HostTier(self.source, *sizes, self.record.nbytes)


@pytest.fixture(params=[10**6, 1000])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a copy."""
    size: int = request.param
    monkeypatch.setattr(movers, "GPU_CHUNK", size)
    return size


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["Qwen3Moe", "GptOss", "nemotron_h"])
def test_a_slot_gets_the_same_numbers_in_the_bytes_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str
) -> None:
    if family in FAMILIES:
        monkeypatch.setitem(FAMILIES, family, FAMILIES[family] | SIZES)
    model = Model(tmp_path, family, kind)
    size = model.record.nbytes
    for dtype in (torch.float32, torch.bfloat16):
        arena, device, tier = model.arena(dtype), FakeDevice(RATE, unpacking=0.5), model.tier()
        parcels = Records(arena, model.record, 2)
        ways: list[Any] = [
            *(CudaMover(model.source, parcels, ring, device) for ring in (4 * size, 1001)),
            *(CudaMover(tier, parcels, 4 * size, device), TierMover(tier, parcels, device)),
        ]
        for mover in ways:
            for slot, expert in enumerate((3, 0, 2)):
                assert carry_out(mover.move(ExpertKey(1, expert), slot, 1)) == size
            for slot, expert in enumerate((3, 0, 2)):
                wanted = model.wanted(expert, dtype)
                assert all(torch.equal(arena[slot][name], wanted[name]) for name in wanted)
            assert mover.busy_seconds == pytest.approx(3 * size / RATE)
        assert device.now == pytest.approx(len(ways) * 3 * (size / RATE + 0.5))
    model.source.close()


def test_decoding_waits_for_the_slot_and_the_copy_does_not(tmp_path: Path) -> None:
    model, device = Model(tmp_path, "Qwen3Moe", "int4"), FakeDevice(RATE, unpacking=0.5)
    mover = TierMover(model.tier(), Records(model.arena(torch.float32), model.record, 2), device)
    model.source.close()
    device.computing = 5.0
    carry_out(mover.move(ExpertKey(0, 1), 0, 1))
    assert device.finished == pytest.approx([model.record.nbytes / RATE, 5.5])
    mover.arrive(0)
    assert device.waits == [2]
    assert mover.seconds == pytest.approx(model.record.nbytes / RATE + 0.5)


def test_what_is_given_up_leaves_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movers, "GPU_CHUNK", 1000)
    model, device = Model(tmp_path, "Qwen3Moe", "int4"), FakeDevice(RATE)
    arena, tier = model.arena(torch.float32), model.tier()
    parcels = Records(arena, model.record, 2)
    mover = TierMover(tier, parcels, device)
    for _ in range(4):
        course = mover.move(ExpertKey(1, 3), 0, mover.chunks)
        assert next(course) == 2000
        course.close()
    first = mover.move(ExpertKey(1, 1), 1, mover.chunks)
    next(first)  # keeps one, and may be left
    with pytest.raises(StopIteration):
        next(mover.move(ExpertKey(1, 2), 2, mover.chunks))  # has the last one, and goes on
    assert parcels.is_free
    assert carry_out(mover.move(ExpertKey(1, 0), 0, 1)) == model.record.nbytes
    assert carry_out(first) == model.record.nbytes
    for slot, expert in enumerate((0, 1, 2)):
        wanted = model.wanted(expert, torch.float32)
        assert all(torch.equal(arena[slot][name], wanted[name]) for name in wanted)
    model.source.close()
