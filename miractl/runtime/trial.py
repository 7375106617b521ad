"""One measured run in a process of its own: it loads, generates, tells, and is gone.

The processes are forked from one that has imported torch and has done nothing else, so that a run
costs what loading the model costs. This module imports no torch itself.
"""

import logging
import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from miractl.errors import MiractlError
from miractl.own_python import imports_as_here

PROMPT_TOKENS, TOKENS = 64, 32  # of a passage, at most and exactly


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run tells: tokens a second while generating, and what was loaded."""

    rate: float
    seconds: float  # of all passages that count, prompts included
    facts: dict[str, Any]  # as `runtime.speed.contenders_of` has them


def run(options: dict[str, Any], prompts: Sequence[str], passages: int) -> Measured:
    """Load with `options`, as EngineOptions has them, and go through so many passages.

    One more passage comes first and does not count. Raises MiractlError for what the run raised,
    and for a run that died.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["miractl.runtime.speed"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, options, prompts, passages), daemon=True)
    with imports_as_here():
        process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise MiractlError(
            f"a measured run of {options['model_id']} died (exit code {process.exitcode})",
            hint="less --expert-memory, if memory ran out",
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(found, Measured):
        return found
    message, hint = found
    raise MiractlError(message, hint=hint)


def _run(
    answer: Connection, options: dict[str, Any], prompts: Sequence[str], passages: int
) -> None:
    """The process: answers a Measured, or message and hint of an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends it
    logging.disable()
    try:
        answer.send(_measured(options, prompts, passages))
    except MiractlError as error:
        answer.send((error.message, error.hint))
    except Exception as error:  # a process has no other way to tell
        answer.send((" ".join(f"{type(error).__name__}: {error}".split()), None))


def _measured(options: dict[str, Any], prompts: Sequence[str], passages: int) -> Measured:
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.speed import OURS, contenders_of, measure, text_prompts
    from miractl.runtime.tokenizer import load_tokenizer, quiet_transformers

    quiet_transformers()
    tokenizer = load_tokenizer(options["model_path"])
    rounds = text_prompts(tokenizer, prompts, PROMPT_TOKENS, passages + 1)
    asked = EngineOptions(**options, with_tokenizer=False)
    with contenders_of(asked, with_stock=False) as (contenders, facts):
        measure(contenders, rounds, TOKENS, lambda *_: None)
    ours = contenders[OURS]
    generating = sum(lap.seconds for lap in ours.decode)
    tokens = sum(lap.tokens for lap in ours.decode)
    reading = sum(lap.seconds for lap in ours.prefill)
    return Measured(tokens / generating, generating + reading, facts)
