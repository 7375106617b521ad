"""A tuned profile says what was measured, keeps what was set, and can be read again."""

from pathlib import Path

import pytest

from miractl.config import Setting
from miractl.errors import MiractlError
from miractl.plan.tuned import layout_of, profile_text, tuned_profile, write_profile
from miractl.plan.tuning import Candidate, Shape
from miractl.probe.devices import Gpu, GpuLink, MemoryUse
from miractl.profiles import Profile, load_profile

SHAPE = Shape(layers=6, experts=192, top_k=4, slots=48)
SOURCE = "measured by miractl tune 2026-11-30, +8.0% over profile a10"
BASE = Profile("a10", "", {"cache_threshold": 0.25}, {"cache_threshold": "an article: A10"})
SETTINGS = {
    "cache_threshold": Setting(0.25, "profile a10"),
    "prediction_confidence": Setting(1e-05, "option"),
    "expert_layer_path": Setting("layers.*: odd # name", "env MIRACTL_EXPERT_LAYER_PATH"),
    "heat_decay_factor": Setting(0.95, "default"),
    "max_staged_experts": Setting(3, "profile a10"),
    "host": Setting("::1", "option"),  # no parameter
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    layout = layout_of(Candidate(3, 2, 2), SHAPE, has_threads=True)
    made = tuned_profile("t", "demo: 25 %, #1", BASE, SETTINGS, layout, SOURCE)
    write_profile(tmp_path / "t.yaml", made)
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["t.yaml"]
    read = load_profile(str(tmp_path / "t.yaml"))
    assert read == made
    assert read.values == {
        "cache_threshold": 0.25,
        "prediction_confidence": 1e-05,
        "expert_layer_path": "layers.*: odd # name",
        "prefetch": True,
        "sets": 3,
        "max_staged_experts": 2,
        "threads": 2,
    }
    assert read.sources["cache_threshold"] == "an article: A10"
    assert read.sources["prediction_confidence"] == "the command line"
    assert {read.sources[name] for name in layout} == {SOURCE}


def test_a_gpu_is_named_and_its_threads_are_not() -> None:
    unknown = dict.fromkeys(Gpu.__dataclass_fields__)
    parts = {"name": "NVIDIA A10", "memory": MemoryUse(24 * 2**30, 0, 0, 0)}
    link = GpuLink(None, None, None, None, None)
    gpu = Gpu(**{**unknown, **parts, "link": link})  # type: ignore[arg-type]
    layout = layout_of(Candidate(3, 0, 1), SHAPE, has_threads=False)
    assert layout == {"prefetch": False, "sets": 3}
    made = tuned_profile("t", "", BASE, {}, layout, SOURCE, gpu)
    assert made.hardware.matches("NVIDIA A10")
    assert "  memory: [24576MiB]" in profile_text(made)


def test_where_all_experts_fit_only_threads_are_written() -> None:
    whole = Shape(layers=6, experts=192, top_k=4, slots=192)
    assert layout_of(Candidate(6, 0, 2), whole, has_threads=True) == {"threads": 2}


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MiractlError, match=r"t\.yaml: No such file or directory"):
        write_profile(tmp_path / "none" / "t.yaml", BASE)
