"""Continuous batching: all jobs share each step of the model. transformers does the batching.

The parts of transformers used here: `init_continuous_batching`, the manager's `add_request`,
`cancel_request`, `register_result_handler`, `get_result` and `stop`, and its list of logits
processors, which is replaced by one that gives every request its own sampling. Requests whose
tokens a pass could not compute are failed by its output router, before it looks at the pass.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.logits_process import LogitsProcessorList

from miractl.checkpoint.geometry import KvGroup
from miractl.plan import kv, needs
from miractl.runtime.losses import Losses
from miractl.server.job import Deliver, Job, Progress
from miractl.server.sampler import Sampler

log = logging.getLogger(__name__)


def blocks_for(model: Any, context: int, concurrency: int, bound: int | None) -> int:
    """Blocks of a cache that no plan has sized, as if every layer attended to everything."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = [KvGroup(config.num_hidden_layers, 2 * heads * width, None)]
    bound = kv.KV_MEMORY if bound is None else bound
    return kv.paged_cache(groups, model.dtype.itemsize, context, concurrency, bound).blocks


class _Rows(ContinuousBatchingLogitsProcessor):
    """Hands every row of a step's logits to the sampler of its request."""

    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, passed: Callable[[], None]) -> None:
        """`passed` is called after every pass of the model, on its thread."""
        self._passed = passed
        self.supported_kwargs: dict[str, type] = {}
        self.samplers: dict[str, Sampler] = {}
        self._order: list[str] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        # Invariant: transformers prepares a batch and computes it before it prepares the next one,
        # because async batching is off; rows of logits are in this order.
        self._order = [request.state.request_id for request in requests_with_new_token]
        return torch.zeros(len(self._order), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """`scores` [requests, vocabulary]; rows after the last request are padding."""
        self._passed()
        for row, request_id in zip(scores, self._order, strict=False):
            sampler = self.samplers.get(request_id)  # none: cancelled meanwhile
            if sampler is not None:
                sampler.choose_in(row)
        return scores


class BatchedBackend:
    """Jobs on one ContinuousBatchingManager."""

    name = "continuous batching"

    def __init__(self, model: Any, concurrency: int, blocks: int, losses: Losses) -> None:
        """With a key-value cache of so many blocks; requests beyond it wait, or are computed again.

        While it runs `losses` are taken here.

        Raises ValueError or another error of transformers for families it cannot batch.
        """
        self._model, self._losses = model, losses
        self._config = ContinuousBatchingConfig(
            page_size=kv.PAGE,
            num_blocks=blocks,
            # More prompt tokens a step share each expert that is brought in, but the answers of
            # others wait for the step.
            max_batch_tokens=max(needs.CHUNK, concurrency),
            max_requests_per_batch=concurrency,
            max_memory_percent=1.0,  # the plan keeps the headroom
            max_blocks_per_request=0,
            # The expert cache looks at routing decisions on the host in every layer.
            use_cuda_graph=False,
            use_async_batching=False,
            # The flash kernels would be fetched from a hub.
            auto_switch_to_flash=False,
        )
        self._start()

    def _start(self) -> None:
        greedy = GenerationConfig.from_dict({"do_sample": False, "eos_token_id": -1})
        attention = self._model.config._attn_implementation
        try:
            self._manager = self._model.init_continuous_batching(
                generation_config=greedy, continuous_batching_config=self._config
            )
        except Exception:
            # It may have switched to paged attention before it gave up.
            self._model.set_attn_implementation(attention)
            raise
        self._rows = _Rows(self._fail_the_lost)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self._rows]))
        processors.tensors_required = 1
        self._manager.logit_processor = processors
        self._losses.are_taken = True
        self._manager.start()

    def submit(self, job: Job, deliver: Deliver) -> None:
        """See Backend. Raises RuntimeError when there is no manager that runs."""
        if (reason := self.failure()) is not None:
            raise RuntimeError(reason)
        sampler = Sampler(job.sampling)
        self._rows.samplers[job.id] = sampler
        reported = 0

        def report(output: Any) -> None:
            nonlocal reported
            if job.id not in self._rows.samplers:  # cancelled: its last outputs were on their way
                return
            new = output.generated_tokens[reported:]
            reported += len(new)
            finished = output.is_finished()
            if finished:
                self._rows.samplers.pop(job.id, None)
            deliver(Progress(new, finished, sampler.error or output.error))

        self._manager.register_result_handler(job.id, report)
        accepted = self._manager.add_request(
            job.prompt,
            request_id=job.id,
            max_new_tokens=job.max_new_tokens,
            streaming=True,
            eos_token_id=sorted(job.eos) or -1,
        )
        if accepted is None:
            self.cancel(job.id)
            raise RuntimeError("the batch is stopping")

    def cancel(self, job_id: str) -> None:
        """See Backend."""
        if self._rows.samplers.pop(job_id, None) is None:
            return
        self._manager.cancel_request(job_id)
        # A cancelled request never "finishes", which is when transformers drops its handler. What
        # it still reports then falls into the common queue, that nobody else reads.
        self._manager.output_router.result_handlers.pop(job_id, None)
        while self._manager.get_result(timeout=0) is not None:
            pass

    def _fail_the_lost(self) -> None:
        """Fail the requests whose tokens the pass could not compute; the others go on."""
        if not (lost := self._losses.take()):
            return
        start = 0
        for request in self._manager.batch_processor.inputs_and_outputs.requests_in_batch:
            rows, start = range(start, start + request.query_length), start + request.query_length
            if (why := next((lost[row] for row in rows if row in lost), None)) is None:
                continue
            # Keys and values of the pass are nobody's prefix.
            request.complete_blocks.clear()
            self._manager.output_router.fail_and_deliver(request.state, RuntimeError(why))
            self._manager.cancel_request(request.state.request_id)

    def failure(self) -> str | None:
        """See Backend. A manager that died, with the requests it had, is replaced first."""
        died = self._manager.background_thread_status.fatal_error
        if died is None:
            return None
        self.close(timeout=1.0)
        try:
            self._start()
        except Exception as error:  # whatever the model raises
            return f"the batch ended ({died}) and cannot start again: {error}"
        log.warning("the batch ended (%s); a new one runs", died)
        return None

    def close(self, timeout: float) -> None:
        """See Backend. Whoever runs the model next hears of what cannot be read."""
        self._manager.stop(block=True, timeout=timeout, hard_stop=True)
        self._losses.are_taken = False
