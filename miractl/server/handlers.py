"""The two endpoints on the handlers of `transformers serve`: chat templates and response objects.

This is the only module that knows `transformers.cli.serving`, which is not a documented interface.
Taken from it: turning messages into a prompt, and the OpenAI objects. Replaced: the loading of
models (there is one, the engine's), generation (see `answer`), and the end of a request, where
transformers knows no stop strings, no `[DONE]`, no optional usage and no error objects. Its
`build_server` is left out, because it also publishes routes that load and unload models.
"""

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from openai.types import Completion, CompletionChoice
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk
from openai.types.completion_usage import CompletionUsage
from starlette.responses import JSONResponse, Response
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import Modality

from miractl.server.answer import Answer, FinishReason
from miractl.server.errors import ApiError, shorten
from miractl.server.prompts import BoundedTokenizer
from miractl.server.requests import ChatRequest, CompletionRequest, Request
from miractl.server.service import EngineLike, Service
from miractl.server.stream import EventStream, event


class _EngineModel(ModelManager):
    """Hands out the engine's model and a tokenizer, whatever is asked, and loads nothing."""

    def __init__(self, engine: EngineLike, tokenizer: BoundedTokenizer, model_id: str) -> None:
        super().__init__(device="cpu", model_timeout=-1)
        self.force_model = model_id
        self._pair = (engine.model, tokenizer)

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """Our ids have no revision."""
        return model_id

    @staticmethod
    def get_model_modality(model: Any, processor: Any = None) -> Modality:
        """Text, whatever else the model may do."""
        return Modality.LLM

    def load_model_and_processor(self, *_: Any, **__: Any) -> Any:
        """The one pair."""
        return self._pair


class _Generations:
    """In place of transformers' GenerationState: prompts stay lists, `Service` generates."""

    def use_continuous_batching(self, model: Any, modality: Any) -> bool:
        """Lists of token ids instead of tensors."""
        return True

    def get_manager(self, model_id: str, use_cb: bool = False) -> "_Generations":
        """Nothing to choose from."""
        return self

    def init_cb(self, model: Any, gen_config: Any) -> None:
        """The back-end runs already."""


class _Endpoint:
    """What both handlers do in our own way: they make a prompt, and put answers into words."""

    prefix: str  # of response ids

    @functools.cached_property
    def _thread(self) -> ThreadPoolExecutor:
        # One for each endpoint: more would slow each other down, and an endless chat template must
        # not hold up those who do not chat.
        return ThreadPoolExecutor(1, f"{self.prefix} prompt")

    async def prompt(self, body: dict[str, Any]) -> list[int]:
        """Token ids. A long prompt takes seconds: here the answers of others would stand still."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._prompt, body)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        # By the handler's own way as far as generation. It only awaits where it generates, so a
        # loop of its own costs nothing.
        found: list[int] = asyncio.run(self.handle_request({**body, "stream": True}, ""))
        return found

    if TYPE_CHECKING:

        async def handle_request(self, body: dict[str, Any], request_id: str) -> Any: ...

    def _validate_request(self, body: dict[str, Any]) -> None:
        """Done by `requests.parse`."""

    def _build_generation_config(self, *_: Any, **__: Any) -> None:
        """Done by `Request.sampling`."""

    def _streaming(
        self,
        request_id: str,
        model: Any,
        processor: Any,
        model_id: str,
        inputs: Any,
        *_: Any,
        **__: Any,
    ) -> list[int]:
        return list(inputs["input_ids"])

    @staticmethod
    def chunk_to_sse(chunk: Any) -> str:
        """As OpenAI sends it: no empty fields, but an explicit null as reason while it goes on."""
        body = chunk.model_dump(exclude_none=True)
        for choice in body["choices"]:
            choice.setdefault("finish_reason", None)
        return event(json.dumps(body))

    async def whole(self, answer: Answer, model_id: str) -> Response:
        """The answer in one object."""
        text, reason = "", None
        try:
            async for piece in answer.pieces():
                text, reason = text + piece.text, piece.finish_reason
        finally:
            answer.close()
        assert reason is not None
        return JSONResponse(self._whole(self._new_id(), text, model_id, reason, usage(answer)))

    async def events(self, answer: Answer, model_id: str, with_usage: bool) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        answer_id = self._new_id()
        if first := self._first(answer_id, model_id):
            yield first
        async for piece in answer.pieces():
            if piece.text:
                yield self._text(answer_id, model_id, piece.text)
            if piece.finish_reason is not None:
                yield self._end(answer_id, model_id, piece.finish_reason)
        if with_usage:
            yield self._usage(answer_id, model_id, usage(answer))

    def _new_id(self) -> str:
        # The client's request id would not do: it may repeat.
        return f"{self.prefix}-{uuid4().hex}"

    def _first(self, answer_id: str, model_id: str) -> str:
        return ""

    def _text(self, answer_id: str, model_id: str, text: str) -> str:
        raise NotImplementedError

    def _end(self, answer_id: str, model_id: str, reason: FinishReason) -> str:
        raise NotImplementedError

    def _usage(self, answer_id: str, model_id: str, usage: CompletionUsage) -> str:
        raise NotImplementedError

    def _whole(
        self, answer_id: str, text: str, model_id: str, reason: FinishReason, usage: CompletionUsage
    ) -> dict[str, Any]:
        raise NotImplementedError


class _Chat(_Endpoint, ChatCompletionHandler):  # type: ignore[misc]
    """/v1/chat/completions."""

    prefix = "chatcmpl"

    def _first(self, answer_id: str, model_id: str) -> str:
        return self._build_chunk_sse(answer_id, model=model_id, role="assistant", content="")

    def _text(self, answer_id: str, model_id: str, text: str) -> str:
        return self._build_chunk_sse(answer_id, model=model_id, content=text)

    def _end(self, answer_id: str, model_id: str, reason: FinishReason) -> str:
        return self._build_chunk_sse(answer_id, model=model_id, finish_reason=reason)

    def _usage(self, answer_id: str, model_id: str, usage: CompletionUsage) -> str:
        chunk = ChatCompletionChunk(
            id=answer_id,
            created=int(time.time()),
            model=model_id,
            choices=[],
            usage=usage,
            object="chat.completion.chunk",
        )
        return self.chunk_to_sse(chunk)

    def _whole(
        self, answer_id: str, text: str, model_id: str, reason: FinishReason, usage: CompletionUsage
    ) -> dict[str, Any]:
        return self._build_completion(answer_id, text, model_id, reason, usage)


class _Text(_Endpoint, CompletionHandler):  # type: ignore[misc]
    """/v1/completions."""

    prefix = "cmpl"

    def _text(self, answer_id: str, model_id: str, text: str) -> str:
        return self._build_chunk_sse(answer_id, model_id, text=text)

    def _end(self, answer_id: str, model_id: str, reason: FinishReason) -> str:
        return self._build_chunk_sse(answer_id, model_id, finish_reason=reason)

    def _usage(self, answer_id: str, model_id: str, usage: CompletionUsage) -> str:
        return self.chunk_to_sse(_completion(answer_id, model_id, [], usage))

    def _whole(
        self, answer_id: str, text: str, model_id: str, reason: FinishReason, usage: CompletionUsage
    ) -> dict[str, Any]:
        choice = CompletionChoice(text=text, index=0, finish_reason=reason)
        return _completion(answer_id, model_id, [choice], usage).model_dump(exclude_none=True)


class Endpoints:
    """Chat and text completion for one engine."""

    def __init__(self, service: Service) -> None:
        engine, _ = service.ready()
        self._service = service
        self._tokenizer = engine.tokenizer
        bounded = BoundedTokenizer(engine.tokenizer, service.require_room)
        parts: dict[str, Any] = {
            "model_manager": _EngineModel(engine, bounded, service.model_id),
            "generation_state": _Generations(),
        }
        self._chat = _Chat(**parts)
        self._text = _Text(**parts)

    async def chat(self, request: ChatRequest) -> Response:
        """Answer a conversation. Raises ApiError, also for a model without a chat template."""
        if not self._tokenizer.chat_template:
            raise ApiError(
                400,
                f"{self._service.model_id} has no chat template: use /v1/completions",
                code="no_chat_template",
            )
        return await self._respond(self._chat, request, {"messages": request.template_messages()})

    async def complete(self, request: CompletionRequest) -> Response:
        """Continue a text. Raises ApiError."""
        return await self._respond(self._text, request, {"prompt": request.prompt})

    async def _respond(
        self, endpoint: _Endpoint, request: Request, body: dict[str, Any]
    ) -> Response:
        model_id = self._service.model_id
        if request.model not in (None, model_id):
            message = f"no model {shorten(repr(request.model))}: this server has {model_id!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        sampling = request.sampling(self._service.default_sampling(), len(self._tokenizer))
        with self._service.place():
            prompt = await endpoint.prompt({**body, "model": model_id})
            if not prompt:
                raise ApiError(400, "the prompt is empty", code="invalid_value")
            answer = self._service.answer(prompt, request.limit, sampling, request.stop)
        if not request.stream:
            return await endpoint.whole(answer, model_id)
        return EventStream(answer, endpoint.events(answer, model_id, request.usage_in_stream))


def usage(answer: Answer) -> CompletionUsage:
    """Token counts; a token that ended the answer counts, as it was generated."""
    return CompletionUsage(
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
    )


def _completion(
    answer_id: str, model_id: str, choices: list[CompletionChoice], usage: CompletionUsage
) -> Completion:
    return Completion(
        id=answer_id,
        created=int(time.time()),
        model=model_id,
        choices=choices,
        object="text_completion",
        usage=usage,
    )
