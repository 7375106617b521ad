"""Reading a routing trace, and saying what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from miractl.errors import UsageError
from miractl.parameters import PARAMETERS
from miractl.telemetry.served import NUMBERS
from miractl.telemetry.trace import read_trace

IDS = np.array([[[0, 1], [2, 3]], [[1, 0], [3, 1]], [[0, 2], [0, 1]]], dtype=np.uint8)
DEFAULTS = {name: PARAMETERS[name].default for name in NUMBERS}
SERVED = {
    "policy": "lru",
    "ways": [2],
    "staged": 1,
    "prediction": None,
    "host": None,
    "warm": False,
    "parameters": DEFAULTS,
}

WILD = DEFAULTS | {"prediction_horizon": 9}


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path / "t.npz", **{"topk_ids": IDS, **arrays})
    return path / "t.npz"


def test_everything_a_trace_can_say(tmp_path: Path) -> None:
    meta = {"model": "m/n", "experts": 8, "layer_indices": [1, 3]}
    path = write(
        tmp_path,
        topk_probs=np.full(IDS.shape, 0.5, np.float16),
        seq_lens=np.array([2, 1]),
        first_pos=np.array([7, 9]),
        meta=json.dumps(meta),
    )
    trace = read_trace(path)
    np.testing.assert_array_equal(trace.ids, IDS)
    assert trace.probabilities is not None
    assert trace.probabilities.dtype == np.float32
    assert (trace.name, trace.model, trace.experts) == ("t.npz", "m/n", 8)
    assert (trace.lengths, trace.layer_indices) == ((2, 1), (1, 3))
    assert trace.first_positions == (7, 9)
    assert (trace.steps, trace.gate_seconds) == (None, None)


def test_when_tokens_were_computed(tmp_path: Path) -> None:
    seconds = np.array([[0.5, 0.75], [1.0, 1.25]])
    path = write(
        *(tmp_path,), seq_lens=np.array([2, 1]), steps=np.array([0, 1, 1]), gate_seconds=seconds
    )
    trace = read_trace(path)
    assert trace.steps is not None
    assert trace.steps.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(trace.gate_seconds, seconds)


def test_ids_alone_will_do(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path))
    assert (trace.probabilities, trace.lengths, trace.model) == (None, None, None)
    assert (trace.experts, trace.layer_indices) == (None, None)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"topk_ids": IDS[0]}, r"topk_ids is uint8\[2, 2\], expected whole numbers"),
        ({"topk_ids": IDS.astype(float)}, "expected whole numbers"),
        ({"topk_ids": IDS[:0]}, "expected whole numbers"),
        ({"topk_ids": IDS.astype(int) - 1}, "expert -1 of n/a"),
        ({"meta": json.dumps({"experts": 3})}, "expert 3 of 3"),
        ({"meta": "["}, "meta is no JSON object"),
        ({"meta": json.dumps({"expert_bytes": 0})}, "meta has experts of 0 bytes"),
        ({"meta": json.dumps({"expert_bytes": "2MB"})}, "meta has experts of '2MB' bytes"),
        ({"meta": json.dumps({"layer_indices": [1]})}, "1 layer indices for 2 layers"),
        ({"topk_probs": np.ones((3, 2))}, r"topk_probs is float64\[3, 2\]"),
        ({"topk_probs": np.full(IDS.shape, np.nan)}, "not all finite"),
        ({"topk_weights": -np.ones(IDS.shape)}, "not all finite and from 0"),
        ({"seq_lens": np.array([1, 1])}, "seq_lens sum to 2, topk_ids has 3"),
        ({"seq_lens": np.array([[3]])}, r"seq_lens is int64\[1, 1\]"),
        ({"seq_lens": np.array([3]), "first_pos": np.array([1, 2])}, r"first_pos is int64\[2\]"),
        ({"steps": np.array([0, 1])}, r"steps is int64\[2\], expected whole numbers from 0, \[3\]"),
        ({"steps": np.array([-1, 0, 1])}, "from 0"),
        ({"steps": np.array([1, 0, 2])}, "steps fall within a text"),
        ({"steps": np.arange(3), "gate_seconds": np.ones((2, 2))}, "3 steps, gate_seconds of 2"),
        ({"steps": np.arange(3), "gate_seconds": np.ones((3, 1))}, "gate_seconds is float64"),
        ({"rows": np.arange(2)}, r"rows is int64\[2\]"),
        ({"tape": np.arange(2)}, r"tape is int64\[2\]"),
        ({"meta": json.dumps({"served": {}})}, "meta: no 'ways'"),
        ({"meta": json.dumps({"served": SERVED | {"ways": [-1]}})}, r"meta: sets of \[-1\]"),
        ({"meta": json.dumps({"served": SERVED | {"policy": 3}})}, "meta: names"),
        ({"meta": json.dumps({"served": SERVED | {"parameters": WILD}})}, "meta: got 9 but"),
        ({"meta": json.dumps({"served": SERVED, "slots": 2, "ways": [2]})}, "do not fit 2 slots"),
        ({"meta": json.dumps({"counts": {"hits": 3}})}, "meta: counts"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_trace(write(tmp_path, **arrays))
    assert caught.value.hint == "record one: miractl serve --record-trace FILE"


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_trace(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", IDS)
    np.savez(tmp_path / "other.npz", counts=IDS)
    for name in ("text.npz", "array.npy", "other.npz"):
        with pytest.raises(UsageError, match=r"no \.npz with topk_ids"):
            read_trace(tmp_path / name)
