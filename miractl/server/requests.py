"""What a client may ask: the two request bodies, checked completely before the model sees them.

A field is carried out, or harmless at its neutral value, or refused with its name: none is ignored
silently. `null` means absent, as OpenAI's own clients send it.
"""

import json
import re
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from miractl.server.errors import ApiError, shorten
from miractl.server.job import Sampling

MAX_TOKENS = 10_000_000  # more is a mistake; up to here the context window is the limit
COMPLETION_TOKENS = 256  # default of /v1/completions; chat runs to the model's own end

# Fields that are understood and not offered, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}

HALF_PAIR = re.compile("[\ud800-\udfff]")
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _whole_characters(value: Any) -> Any:
    """Checks a text, or the texts in a list of parts."""
    parts = value if isinstance(value, list) else [{"text": value}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    if any(isinstance(text, str) and HALF_PAIR.search(text) for text in texts):
        raise ValueError("string must be valid unicode: half of a surrogate pair stands alone")
    return value


Whole = BeforeValidator(_whole_characters)
Text = Annotated[str, Whole, Field(min_length=1)]


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _only_of_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Request(_Strict):
    """The fields both endpoints share."""

    model: Text | None = None  # absent: the one that is served
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = {}
    stop: Annotated[list[Text], BeforeValidator(_one_as_list), Field(max_length=16)] = []
    user: str | None = None  # a name for the operator's own books: it changes no answer

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "Request":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def usage_in_stream(self) -> bool:
        """Whether a streamed answer ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def limit(self, room: int) -> int:
        """Tokens the answer may have when `room` tokens are left in the window."""
        return min(room, self.max_tokens or room)

    def sampling(self, default: Sampling, vocabulary: int) -> Sampling:
        """Sampling with the model's own defaults. Raises ApiError for a bias on no token."""
        return Sampling(
            temperature=default.temperature if self.temperature is None else self.temperature,
            top_p=default.top_p if self.top_p is None else self.top_p,
            top_k=default.top_k if self.top_k is None else self.top_k,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={_token(key, vocabulary): bias for key, bias in self.logit_bias.items()},
        )


R = TypeVar("R", bound=Request)


class CompletionRequest(Request):
    """Body of /v1/completions."""

    prompt: Annotated[Text, BeforeValidator(_only_of_list)]

    def limit(self, room: int) -> int:
        """As above, with a default for text that need not end by itself."""
        return min(room, self.max_tokens or COMPLETION_TOKENS)


class TextPart(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | list[TextPart], Whole]


class ChatRequest(Request):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise ValueError("max_tokens and max_completion_tokens disagree")
            self.max_tokens = self.max_completion_tokens
        return self

    def template_messages(self) -> list[dict[str, Any]]:
        """Messages for a chat template: `developer` is the newer name of `system`."""
        messages = [message.model_dump() for message in self.messages]
        for message in messages:
            message["role"] = message["role"].replace("developer", "system")
        return messages


def parse(kind: type[R], body: bytes) -> R:
    """Check a body. Raises ApiError 400 that names the first wrong field and its value."""
    fields = _json_object(body)
    for name, allowed in NEUTRAL.items():
        value = fields.pop(name, None)
        if value is not None and not any(_same(value, neutral) for neutral in allowed):
            _refuse(name, value, allowed)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _first_error(error.errors(include_url=False)[0]) from error


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and bool(value == neutral)


def _refuse(name: str, value: Any, allowed: tuple[Any, ...]) -> NoReturn:
    only = f"; only {' or '.join(json.dumps(v) for v in allowed)} is" if allowed else ""
    message = f"{name}={_short(value)} is not supported{only}"
    raise ApiError(400, message, param=name, code="unsupported_parameter")


def _first_error(error: ErrorDetails) -> ApiError:
    param = ".".join(str(part) for part in error["loc"]) or None
    if error["type"] == "extra_forbidden":
        message = f"unknown field {shorten(repr(param))}"
        return ApiError(400, message, param=param, code="unknown_parameter")
    if error["type"] == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_required_parameter")
    message = error["msg"].removeprefix("Value error, ")
    if param is not None:
        message = f"{message[0].lower()}{message[1:]}, got {_short(error['input'])}"
        message = f"{shorten(param)}: {message}"
    return ApiError(400, message, param=param, code="invalid_value")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _token(key: str, vocabulary: int) -> int:
    # One spelling for each token, so that no two keys mean the same.
    if not TOKEN_ID.fullmatch(key) or int(key) >= vocabulary:
        message = f"logit_bias: {_short(key)} is not a token id in 0..{vocabulary - 1}"
        raise ApiError(400, message, param="logit_bias", code="invalid_value")
    return int(key)
