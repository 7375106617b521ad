"""The 12 parameters of the runtime, and how it is laid out: types, ranges and words of each."""

from dataclasses import dataclass
from typing import Any, Literal

from miractl.suggest import nearest

Kind = Literal["float", "int", "bool", "str"]
_TYPES: dict[Kind, type] = {"float": float, "int": int, "bool": bool, "str": str}
_NOUNS: dict[Kind, str] = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
}
_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value that can be set: its type, range and words. A None default may stay None."""

    name: str
    kind: Kind
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    low_open: bool = False  # the range is (low, high] instead of [low, high]
    choices: tuple[str, ...] = ()
    unit: str = ""  # "ms" or "MB" (10^6 bytes)

    @property
    def option(self) -> str:
        """The command-line option: `--cache-threshold`, `--prefetch/--no-prefetch`."""
        dashed = self.name.replace("_", "-")
        return f"--{dashed}/--no-{dashed}" if self.kind == "bool" else f"--{dashed}"

    @property
    def env(self) -> str:
        """The environment variable: `MIRACTL_CACHE_THRESHOLD`."""
        return f"MIRACTL_{self.name.upper()}"

    @property
    def expected(self) -> str:
        """What is accepted, in words: `a number from 0 to 1`."""
        if self.choices:
            return " or ".join(self.choices)
        noun = _NOUNS[self.kind] + (f" of {self.unit}" if self.unit else "")
        if self.low is None or self.high is None:
            return f"{noun}, {self.range}" if self.range else noun
        return f"{noun} {self.range}" if self.low_open else f"{noun} from {self.range}"

    @property
    def range(self) -> str:
        """`0 to 1`, `above 0 and up to 1`, `at least 100`, or nothing."""
        if self.low is None:
            return ""
        if self.high is None:
            return f"at least {self.low:g}"
        if self.low_open:
            return f"above {self.low:g} and up to {self.high:g}"
        return f"{self.low:g} to {self.high:g}"

    def check(self, value: Any) -> Any:
        """`value` in the parameter's type. Raises ValueError with what is expected."""
        if value is None and self.default is None:
            return None
        number = float(value) if self.kind == "float" and type(value) is int else value
        if type(number) is not _TYPES[self.kind] or not self._within(number):
            close = nearest(str(value), self.choices)
            raise ValueError(f"got {value!r} but expected {self.expected}{close}")
        return number

    def parse(self, text: str) -> Any:
        """The value that `text` means, on a command line or in the environment; as `check`."""
        if self.kind == "str":
            return self.check(text or self.default)
        try:
            value = _WORDS[text.lower()] if self.kind == "bool" else _TYPES[self.kind](text)
            return self.check(value)
        except (KeyError, ValueError):
            raise ValueError(f"got {text!r} but expected {self.expected}") from None

    def show(self, value: Any) -> str:
        """`300 ms`, `0.25`, `true`; `(none)` where nothing is set."""
        if value is None:
            return "(none)"
        text = str(value).lower() if self.kind == "bool" else str(value)
        return f"{text} {self.unit}".strip()

    def _within(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.low is None:
            return True
        # Written so that NaN is never within.
        above = value > self.low if self.low_open else value >= self.low
        return above and (self.high is None or value <= self.high)


_ALL = (
    Parameter(
        "cache_threshold", "float", 0.30, "Heat below which a resident expert goes first.", 0, 1
    ),
    Parameter(
        "prediction_window_ms", "int", 500, "Window of the heat statistics.", 10, 60000, unit="ms"
    ),
    Parameter("dma_buffer_size_mb", "int", 128, "Pinned staging ring.", 1, 65536, unit="MB"),
    Parameter(
        *("heat_decay_factor", "float", 0.95, "Heat kept after each 100 ms without use.", 0, 1),
        low_open=True,
    ),
    Parameter("max_staged_experts", "int", 4, "Experts under way at once, at most.", 0, 1024),
    Parameter(
        *("prediction_mode", "str", "lookahead", "How the next experts are predicted."),
        choices=(
            *("lookahead", "learned", "markov", "token-position", "hybrid"),
            *("popularity", "shuffle"),
        ),
    ),
    Parameter(
        *("prediction_horizon", "int", 3, "Layers to predict ahead, if the link is slow.", 1, 8),
    ),
    Parameter(
        *("prediction_confidence", "float", 0.8, "Probability to cover with candidates.", 0, 1),
        low_open=True,
    ),
    Parameter("dynamic_resampling", "bool", True, "Sample the prediction tables anew as they age."),
    Parameter(
        "resample_interval_tokens",
        "int",
        10000,
        "Tokens between two samplings.",
        100,
    ),
    Parameter(
        "expert_layer_path", "str", None, "Module path of the experts, if not found by itself."
    ),
    Parameter("prefetch", "bool", True, "Fetch predicted experts before they are asked for."),
)
PARAMETERS: dict[str, Parameter] = {parameter.name: parameter for parameter in _ALL}
_SHAPE = (
    Parameter("sets", "int", None, "Sets of slots: layer l caches in set l mod N.", 1, 1024),
    Parameter("threads", "int", None, "Threads on a CPU; OMP_NUM_THREADS wins.", 1, 1024),
)
# How the runtime is laid out, fixed once it is loaded. None: as policy, model and machine have it.
RUNTIME: dict[str, Parameter] = {setting.name: setting for setting in _SHAPE}
SECTIONS = {"parameters": PARAMETERS, "runtime": RUNTIME}  # of a profile, those that hold values
