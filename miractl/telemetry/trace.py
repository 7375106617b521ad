"""A recorded routing trace: which experts each token chose in each MoE layer, token after token.

The file is an .npz with `topk_ids` [tokens, MoE layers, k] and, where known, `topk_probs` (or
`topk_weights`) of the same shape, `seq_lens` (tokens of each text) and `first_pos` (position of the
first of them), `steps` [tokens] (the step that computed a token: tokens of a prompt together,
requests beside each other; they count from 0 and rise within a text), `rows` [tokens] (where in its
step a token stood), `gate_seconds` [steps, MoE layers] (when a layer's routing was known), `tape`
[bytes] (what decisions were told, whole numbers of eight bytes, deflated) and `meta`, a JSON object
with `model`, `experts` and `layer_indices`. `miractl.telemetry.recorder` writes them.
"""

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.errors import UsageError
from miractl.telemetry.served import Served, counts_from

Ids = npt.NDArray[np.int64]  # [tokens, layers, k]
Floats = npt.NDArray[np.float32]
Steps = npt.NDArray[np.int64]  # [tokens]
HINT = "record one: miractl serve --record-trace FILE"
EXPERT_NAMES = ("experts", "n_experts", "n_routed_experts", "num_experts")
MOST_RESERVE = 2048  # slots beside those of residents
BLOCK = 2**16  # bytes of a tape that are inflated at a time
LAYER_NAMES = ("layer_indices", "moe_layer_indices", "layers")


@dataclass(frozen=True, slots=True)
class Trace:
    """Routing of consecutive tokens, ids [tokens, layers, k]; None is what the file does not say.

    `probabilities` have the shape of `ids`; `lengths` are the tokens of each text, in order, and
    sum to the tokens; `first_positions` belong to them. `steps` [tokens], `gate_seconds`
    [steps, layers].
    """

    name: str
    ids: Ids
    probabilities: Floats | None = None
    lengths: tuple[int, ...] | None = None
    model: str | None = None
    experts: int | None = None
    layer_indices: tuple[int, ...] | None = None
    first_positions: tuple[int, ...] | None = None
    steps: Steps | None = None
    gate_seconds: npt.NDArray[np.float64] | None = None
    slots: tuple[int, tuple[int, ...]] | None = None  # and the ways of each set, when recorded
    expert_bytes: int | None = None  # of an expert in its slot, when recorded
    rows: Steps | None = None  # [tokens]: where in its step each stood
    tape: bytes | None = None  # what decisions were told, deflated
    served: Served | None = None  # how the server decided that recorded
    counts: Mapping[str, int] | None = None  # what it had counted by the end of the recording
    lost: str | None = None  # why the recording has not all that was decided on

    def tape_numbers(self) -> Iterator[int]:
        """The tape's. Raises UsageError where it is damaged."""
        inflate, rest, tape = zlib.decompressobj(), b"", self.tape or b""
        for at in range(0, len(tape), BLOCK):
            try:
                block = rest + inflate.decompress(tape[at : at + BLOCK])
            except zlib.error:
                raise UsageError(f"trace {self.name}: the tape is damaged", hint=HINT) from None
            whole = len(block) // 8 * 8
            rest = block[whole:]
            yield from np.frombuffer(block[:whole], "<i8").tolist()


def read_trace(path: Path) -> Trace:
    """Read and check a trace. Raises UsageError for a file that is none."""
    try:
        with path.open("rb") as file, np.load(file) as data:
            arrays = {name: data[name] for name in data.files if name in _ARRAYS}
        ids = arrays["topk_ids"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "no .npz with topk_ids"
        raise _refusal(path, reason) from None
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or not ids.size:
        raise _refusal(
            path,
            f"topk_ids is {ids.dtype}{list(ids.shape)}, expected whole numbers"
            " [tokens, MoE layers, k]",
        )
    meta = _meta(path, arrays.get("meta"))
    experts = _experts(path, ids, meta)
    indices = next((meta[name] for name in LAYER_NAMES if isinstance(meta.get(name), list)), None)
    if indices is not None and len(indices) != ids.shape[1]:
        raise _refusal(path, f"{len(indices)} layer indices for {ids.shape[1]} layers")
    if indices is not None and not all(type(index) is int and index >= 0 for index in indices):
        raise _refusal(path, f"meta: layer indices {indices}")
    lengths = _lengths(path, len(ids), arrays.get("seq_lens"))
    everybody = ids.shape[1] * (experts or int(ids.max()) + 1)
    slots = _slots(path, meta, everybody + MOST_RESERVE)
    served, counts = _server(path, meta)
    if slots and served and not served.fits(slots[0]):
        sets = f"sets of {list(served.ways)} and {served.staged} staged"
        raise _refusal(path, f"meta: {sets} do not fit {slots[0]} slots")
    steps = _steps(path, lengths or (len(ids),), arrays.get("steps"))
    rows, tape = arrays.get("rows"), arrays.get("tape")
    if rows is not None and (rows.shape != ids.shape[:1] or rows.dtype.kind not in "iu"):
        raise _refusal(path, f"rows is {rows.dtype}{list(rows.shape)}")
    if tape is not None and (tape.ndim != 1 or tape.dtype != np.uint8):
        raise _refusal(path, f"tape is {tape.dtype}{list(tape.shape)}")
    return Trace(
        path.name,
        ids.astype(np.int64),
        _probabilities(path, ids, arrays.get("topk_probs", arrays.get("topk_weights"))),
        lengths,
        str(meta["model"]) if meta.get("model") else None,
        experts,
        None if indices is None else tuple(int(index) for index in indices),
        _positions(path, lengths, arrays.get("first_pos")),
        steps,
        _seconds(path, steps, ids.shape[1], arrays.get("gate_seconds")),
        slots,
        _expert_bytes(path, meta),
        None if rows is None else rows.astype(np.int64),
        None if tape is None else tape.tobytes(),
        *(served, counts),
        str(meta["lost"]) if meta.get("lost") else None,
    )


_ARRAYS = (
    *("topk_ids", "topk_probs", "topk_weights", "seq_lens", "first_pos", "steps", "gate_seconds"),
    *("meta", "rows", "tape"),
)


def _refusal(path: Path, reason: str) -> UsageError:
    return UsageError(f"trace {path}: {reason}", hint=HINT)


def _slots(path: Path, meta: Mapping[str, Any], most: int) -> tuple[int, tuple[int, ...]] | None:
    """Slots, at `most` so many, and the ways of each set, of the server that recorded."""
    slots, ways = meta.get("slots"), meta.get("ways")
    if slots is None or ways is None:
        return None
    whole = isinstance(ways, list) and ways and all(type(way) is int and way > 0 for way in ways)
    if not whole or type(slots) is not int or not sum(ways) <= slots <= most:
        raise _refusal(path, f"meta has no division of slots in {slots!r} and {ways!r}")
    return slots, tuple(ways)


def _server(path: Path, meta: Mapping[str, Any]) -> tuple[Served | None, Mapping[str, int] | None]:
    """How the server decided that recorded, and what it counted."""
    served, counts = meta.get("served"), meta.get("counts")
    try:
        return (
            None if served is None else Served.from_json(served),
            None if counts is None else counts_from(counts),
        )
    except ValueError as error:
        raise _refusal(path, f"meta: {error}") from None


def _expert_bytes(path: Path, meta: Mapping[str, Any]) -> int | None:
    size = meta.get("expert_bytes")
    if size is not None and (type(size) is not int or size < 1):
        raise _refusal(path, f"meta has experts of {size!r} bytes")
    return size


def _meta(path: Path, stored: npt.NDArray[Any] | None) -> Mapping[str, Any]:
    if stored is None:
        return {}
    try:
        meta = json.loads(str(stored))
    except ValueError:
        meta = None
    if not isinstance(meta, dict):
        raise _refusal(path, "meta is no JSON object")
    return meta


def _experts(path: Path, ids: npt.NDArray[Any], meta: Mapping[str, Any]) -> int | None:
    low, high = int(ids.min()), int(ids.max())
    known = next((meta[name] for name in EXPERT_NAMES if isinstance(meta.get(name), int)), None)
    if low < 0 or (known is not None and high >= known):
        wrong = low if low < 0 else high
        raise _refusal(path, f"expert {wrong} of {'n/a' if known is None else known}")
    return known


def _probabilities(
    path: Path, ids: npt.NDArray[Any], stored: npt.NDArray[Any] | None
) -> Floats | None:
    if stored is None:
        return None
    if stored.shape != ids.shape or stored.dtype.kind not in "fiu":
        raise _refusal(
            path,
            f"topk_probs is {stored.dtype}{list(stored.shape)}, expected numbers"
            f" {list(ids.shape)} as topk_ids",
        )
    values: Floats = stored.astype(np.float32)
    if not np.isfinite(values).all() or float(values.min()) < 0:
        raise _refusal(path, "topk_probs are not all finite and from 0")
    return values


def _lengths(path: Path, tokens: int, stored: npt.NDArray[Any] | None) -> tuple[int, ...] | None:
    if stored is None:
        return None
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        raise _refusal(path, f"seq_lens is {stored.dtype}{list(stored.shape)}")
    lengths = tuple(int(length) for length in stored)
    if min(lengths, default=0) < 0 or sum(lengths) != tokens:
        raise _refusal(path, f"seq_lens sum to {sum(lengths)}, topk_ids has {tokens}")
    return lengths


def _positions(
    path: Path, lengths: tuple[int, ...] | None, stored: npt.NDArray[Any] | None
) -> tuple[int, ...] | None:
    if stored is None or lengths is None:
        return None
    if stored.shape != (len(lengths),) or stored.dtype.kind not in "iu":
        raise _refusal(path, f"first_pos is {stored.dtype}{list(stored.shape)}")
    return tuple(int(position) for position in stored)


def _steps(path: Path, lengths: tuple[int, ...], stored: npt.NDArray[Any] | None) -> Steps | None:
    if stored is None:
        return None
    if stored.shape != (sum(lengths),) or stored.dtype.kind not in "iu" or int(stored.min()) < 0:
        raise _refusal(
            path,
            f"steps is {stored.dtype}{list(stored.shape)}, expected whole numbers"
            f" from 0, [{sum(lengths)}]",
        )
    steps: Steps = stored.astype(np.int64)
    inside = np.ones(len(steps), bool)
    inside[np.cumsum((0, *lengths))[:-1] % len(steps)] = False  # the first of each text
    if (np.diff(steps, prepend=0) < 0)[inside].any():
        raise _refusal(path, "steps fall within a text")
    return steps


def _seconds(
    path: Path, steps: Steps | None, layers: int, stored: npt.NDArray[Any] | None
) -> npt.NDArray[np.float64] | None:
    if stored is None or steps is None:
        return None
    least = [int(steps.max()) + 1, layers]
    if stored.dtype.kind != "f" or stored.ndim != 2 or stored.shape[1] != layers:
        raise _refusal(path, f"gate_seconds is {stored.dtype}{list(stored.shape)}")
    if len(stored) < least[0]:
        raise _refusal(path, f"{least[0]} steps, gate_seconds of {len(stored)}")
    if not np.isfinite(stored).all():
        raise _refusal(path, "gate_seconds are not all numbers")
    return stored.astype(np.float64)
