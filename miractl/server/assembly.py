"""The parts that need torch, put together. Imported only when the model has loaded."""

import logging
import os
from collections.abc import Callable

from transformers.utils.logging import disable_progress_bar, set_verbosity

from miractl.server.app import EndpointsLike
from miractl.server.batched import BatchedBackend, blocks_for
from miractl.server.handlers import Endpoints
from miractl.server.job import Backend
from miractl.server.sequential import SequentialBackend
from miractl.server.service import EngineLike, Service


def quiet() -> None:
    """Leave the operator's screen to us: no progress bars, no line for each request.

    What goes wrong in a batch is answered to its requests, so its traceback is for `--debug`.
    """
    disable_progress_bar()
    if not os.environ.get("MIRACTL_DEBUG"):
        set_verbosity(logging.CRITICAL)
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def backends(engine: EngineLike, service: Service) -> list[Callable[[], Backend]]:
    """Back-ends in the order of preference."""
    config = service.config

    def batched() -> Backend:
        asked = config.max_concurrency, config.kv_memory
        blocks = config.kv_blocks or blocks_for(engine.model, service.context, *asked)
        return BatchedBackend(engine.model, config.max_concurrency, blocks, engine.losses)

    return [
        batched,
        lambda: SequentialBackend(engine.model),
    ]


def endpoints(service: Service) -> EndpointsLike:
    """The endpoints of a service that is ready."""
    return Endpoints(service)
