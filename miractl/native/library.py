"""The compiled kernels: found beside this file, tested, and set to the best instruction set.

An install without a C compiler has none; `why_not` says so, and whoever needs them asks first.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from miractl.errors import MiractlError

PATH = Path(__file__).with_name("libmiractl.so")
ABI = 17  # MIRA_ABI of miractl_native.h
# What the self-test yields on every processor, or its kernels compute something else.
SELF_TEST = 0xE8BE8F3F0F0E27A1
ISAS = ("scalar", "avx2", "vnni", "neon")  # by the library's numbers
PREFERRED = ("vnni", "avx2", "neon", "scalar")

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
_DOUBLE = ctypes.c_double
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mira_abi": (_INT, ()),
    "mira_matrix_bytes": (_SIZE, (_ADDRESS,)),
    "mira_expert_bytes": (_SIZE, (_ADDRESS,)),
    "mira_quantize": (_INT, (_ADDRESS,) * 3),
    "mira_dequantize": (None, (_ADDRESS,) * 3),
    "mira_isa_supported": (_INT, (_INT,)),
    "mira_isa_use": (None, (_INT,)),
    "mira_isa_used": (_INT, ()),
    "mira_self_test": (ctypes.c_uint64, ()),
    "mira_pool_new": (_ADDRESS, (_INT,)),
    "mira_pool_free": (None, (_ADDRESS,)),
    "mira_multiply": (_INT, (_ADDRESS,) * 3 + (_INT, _ADDRESS, _INT, _ADDRESS)),
    "mira_combine": (None, (_ADDRESS,) * 3 + (_INT,) * 3 + (_ADDRESS,)),
    "mira_add": (None, (_ADDRESS, _ADDRESS, ctypes.c_int64)),
    "mira_rotate": (None, (_ADDRESS,) * 5),
    "mira_rms_norm": (None, (_ADDRESS,) * 3 + (_INT, _ADDRESS)),
    "mira_attend": (None, (_ADDRESS,) * 6),
    "mira_attention_half": (
        _INT,
        (_ADDRESS,) * 3 + (_INT,) + (_ADDRESS,) * 3 + (ctypes.c_int64,) + (_ADDRESS,) * 2,
    ),
    "mira_route": (_INT, (_ADDRESS,) * 4 + (_INT,) + (_ADDRESS,) * 3),
    "mira_learn": (None, (_ADDRESS, _INT, _INT, _ADDRESS, _ADDRESS)),
    "mira_tutor_new": (_ADDRESS, ()),
    "mira_tutor_free": (None, (_ADDRESS,)),
    "mira_tutor_wait": (None, (_ADDRESS,)),
    "mira_teach": (None, (_ADDRESS, _ADDRESS, _INT)),
    "mira_rate": (_INT, (_ADDRESS,)),
    "mira_weigh": (None, (_ADDRESS,)),
    "mira_begin": (None, (_ADDRESS, _INT)),
    "mira_predict": (None, (_ADDRESS, _INT)),
    "mira_confirm": (None, (_ADDRESS, _INT, _ADDRESS)),
    "mira_foresee": (None, (_ADDRESS,) * 3),
    "mira_recall": (_DOUBLE, (_ADDRESS, _INT, _ADDRESS, _INT)),
    "mira_markov_count": (_INT, (_ADDRESS, _INT, _INT, _ADDRESS, _ADDRESS, _INT)),
    "mira_teller_follow": (_INT, (_ADDRESS, _INT, _ADDRESS)),
    "mira_teller_tell": (None, (_ADDRESS, _INT, _INT)),
    "mira_lookahead": (None, (_ADDRESS,)),
    "mira_warm": (None, (_ADDRESS,)),
    "mira_heat_record": (_INT, (_ADDRESS, _INT, _ADDRESS, _INT)),
    "mira_replay": (_INT, (_ADDRESS,) * 6),
    "mira_share": (None, (_ADDRESS,)),
    "mira_note": (None, (_ADDRESS,)),
    "mira_ask": (_INT, (_ADDRESS,)),
    "mira_ask_again": (_INT, (_ADDRESS,)),
    "mira_place": (_INT, (_ADDRESS, _INT)),
    "mira_call_in": (None, (_ADDRESS, _INT)),
    "mira_drop": (None, (_ADDRESS, _INT, _INT)),
    "mira_stage": (None, (_ADDRESS, _INT, _ADDRESS, _INT)),
    "mira_release": (None, (_ADDRESS, _INT, _INT)),
    "mira_end_transit": (None, (_ADDRESS,)),
    "mira_bets_choose": (_INT, (_ADDRESS,) * 5),
    "mira_bets_judge": (None, (_ADDRESS, _INT, _ADDRESS, _INT, _DOUBLE)),
    "mira_bets_account": (None, (_ADDRESS, _DOUBLE, _DOUBLE, _DOUBLE)),
    "mira_keep": (None, (_ADDRESS,)),
    "mira_decide": (_INT, (_ADDRESS,)),
    "mira_ahead_place": (_INT, (_ADDRESS, _INT, _ADDRESS)),
    "mira_ahead_follow": (_INT, (_ADDRESS,) * 3),
    "mira_bets_calibrated": (_DOUBLE, (_ADDRESS, _INT, _DOUBLE)),
    "mira_timeline": (_INT, (_ADDRESS,) * 8),
    "mira_layer": (
        _INT,
        (_ADDRESS,) * 3 + (_INT, _ADDRESS, _INT, _ADDRESS, _INT) + (_ADDRESS,) * 3,
    ),
}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Either the library, or the reason why there is none."""

    library: ctypes.CDLL | None = None
    short_calls: ctypes.PyDLL | None = None
    reason: str | None = None
    failed: tuple[str, ...] = ()  # instruction sets that did not pass the self-test


def _load(path: Path) -> _Loaded:
    if not path.exists():
        return _Loaded(reason="this miractl was built without its CPU kernels (no C compiler)")
    try:
        # CDLL lets go of the interpreter lock during every call, PyDLL does not.
        library, short_calls = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            for loaded in (library, short_calls):
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return _Loaded(reason=f"the CPU kernels do not load: {error}")
    if library.mira_abi() != ABI:
        return _Loaded(
            reason=f"the CPU kernels have interface {library.mira_abi()}, miractl needs {ABI}"
        )
    failed: list[str] = []
    for isa in PREFERRED:
        if not library.mira_isa_supported(ISAS.index(isa)):
            continue
        library.mira_isa_use(ISAS.index(isa))
        if library.mira_self_test() == SELF_TEST:
            return _Loaded(library, short_calls, failed=tuple(failed))
        failed.append(isa)
    return _Loaded(reason="the CPU kernels fail their self-test", failed=tuple(failed))


@cache
def _loaded() -> _Loaded:
    return _load(PATH)


def available() -> bool:
    """Whether the kernels can be used."""
    return _loaded().library is not None


def why_not() -> str | None:
    """Why the kernels cannot be used; None if they can."""
    return _loaded().reason


def failed_isas() -> tuple[str, ...]:
    """Instruction sets that this processor has and that did not pass the self-test."""
    return _loaded().failed


def library() -> ctypes.CDLL:
    """The library. Raises MiractlError if there is none."""
    found = _loaded().library
    if found is None:
        raise _missing()
    return found


def short_calls() -> ctypes.PyDLL:
    """The same for calls of microseconds: they keep the interpreter lock.

    Whoever lets go of it for as short a time may find it taken, and then waits for milliseconds.
    Raises MiractlError if there is no library.
    """
    found = _loaded().short_calls
    if found is None:
        raise _missing()
    return found


def _missing() -> MiractlError:
    return MiractlError(
        _loaded().reason or "no CPU kernels",
        hint="install a wheel for this platform, or install again with gcc or clang at hand",
    )


def supported_isas() -> list[str]:
    """Instruction sets of this processor that have kernels, the best one first."""
    return [isa for isa in PREFERRED if library().mira_isa_supported(ISAS.index(isa))]


def isa() -> str:
    """The instruction set in use."""
    return ISAS[library().mira_isa_used()]


@contextmanager
def using_isa(name: str) -> Iterator[None]:
    """Use another instruction set in this process; for tests and measurements.

    Raises ValueError if the processor does not have it.
    """
    if name not in supported_isas():
        raise ValueError(f"Got instruction set {name!r} but expected one of {supported_isas()}")
    before = library().mira_isa_used()
    library().mira_isa_use(ISAS.index(name))
    try:
        yield
    finally:
        library().mira_isa_use(before)
