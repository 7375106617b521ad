"""The process around the application: bind, load, serve, stop.

The port is bound and listened on before anything heavy is imported, so a port in use costs nothing.
The first stop signal lets open answers go on for a moment, the second ends the process at once, and
whatever happens it has ended `stop_seconds` after the first. Exit codes: 0 after SIGTERM, 130 after
Ctrl-C or a second signal of either kind, 1 when the model cannot be loaded.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import uvicorn

from miractl.errors import MiractlError, UsageError
from miractl.server.app import Application
from miractl.server.config import ServerConfig
from miractl.server.service import EngineLike, Service
from miractl.server.signals import StopSignals
from miractl.units import format_seconds

Load = Callable[[], EngineLike]
Note = Callable[[str], None]
log = logging.getLogger(__name__)
ABORT_SECONDS = 0.3  # for the last words to the open requests
REPEAT_SECONDS = 10.0  # between two lines about connections that the system refuses
CLOSE_SECONDS = 3.0  # for the engine and its threads
WRITE_SECONDS = 30.0  # for an engine that writes what it has recorded and learned
CLOSED = "Invalid file descriptor: -1"  # what selectors says of a closed socket
SPARE_HANDLES = 16  # the event loop takes three, the model's files and clients the rest


def bind(config: ServerConfig) -> socket.socket:
    """A listening socket. Raises MiractlError when the port is taken or may not be used."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"host {config.host!r} is not an address of this machine") from error
    listener = socket.socket(family, kind, proto)
    try:
        # A port that was just closed is free again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Without it another process could bind the same port until we listen.
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise _bind_error(config, error) from error
    return listener


def require_handles() -> None:
    """Raise MiractlError if few more files can be opened: asyncio would say so with a traceback."""
    try:
        with contextlib.ExitStack() as spare:
            for _ in range(SPARE_HANDLES):
                spare.enter_context(open(os.devnull))
    except OSError as error:
        raise MiractlError(
            f"a server needs {SPARE_HANDLES} more file handles: {error.strerror}",
            hint="ulimit -n 1024",
        ) from error


def _bind_error(config: ServerConfig, error: OSError) -> MiractlError:
    if error.errno == errno.EADDRINUSE:
        other = config.port + 1 if config.port < 65535 else 0
        return MiractlError(f"port {config.port} is in use", hint=f"--port {other}")
    if error.errno == errno.EACCES:
        return MiractlError(f"port {config.port} needs more rights", hint="--port 8000")
    return MiractlError(f"cannot listen on {config.host}:{config.port}: {error.strerror}")


class Process:
    """One server from its socket to its end.

    Args:
        config: Address and limits.
        load: Makes the engine; called on a thread of its own, where it may import torch.
        note: Gets lines for the operator.
        ready: Called once when the model has answered.
        signals: Those of the command, installed before this was there.
    """

    def __init__(
        self,
        config: ServerConfig,
        load: Load,
        note: Note,
        ready: Callable[[Service], None],
        signals: StopSignals | None = None,
    ) -> None:
        self.service = Service(config)
        self.app = Application(self.service, {"torch": metadata.version("torch")})
        self._config = config
        self._load = load
        self._note = note
        self._ready = ready
        self._failure: BaseException | None = None
        self._signals = signals or StopSignals(config.stop_seconds)
        self._server = _Uvicorn(self.app)

    def run(self, listener: socket.socket) -> int:
        """Serve until stopped; returns the exit code. Raises what loading raised, MiractlError."""
        require_handles()
        self._signals.stop = self.stop
        with self._signals.installed():
            asyncio.run(self._serve(listener))
        if self._failure is not None and self._signals.first is None:
            raise self._failure
        return self._signals.exit_code

    def stop(self) -> None:
        """End as after a signal, with a moment for open requests. Any thread may call."""
        self._server.should_exit = True

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors(time.monotonic))
        loaded: asyncio.Future[EngineLike] = loop.create_future()
        # Not an executor: those are waited for at the end, and a model may load for minutes.
        threading.Thread(target=self._load_into, args=(loaded, loop), daemon=True).start()
        starting = loop.create_task(self._start(loaded))
        draining = loop.create_task(self._drain())
        try:
            await self._server.serve(sockets=[listener])
        finally:
            for task in (starting, draining):
                task.cancel()
            await asyncio.gather(starting, draining, return_exceptions=True)
            loaded.cancel()
            gc.unfreeze()
            await self._close()

    async def _close(self) -> None:
        writes = self.service.engine is not None and self.service.engine.writes
        seconds = WRITE_SECONDS if writes else CLOSE_SECONDS
        if writes:
            self._signals.allow(seconds + 2)
        try:
            await asyncio.wait_for(_in_daemon(self.service.close), seconds)
        except TimeoutError:
            if writes:
                log.error("what was recorded and learned was not written within %g s", seconds)

    def _load_into(
        self, loaded: asyncio.Future[EngineLike], loop: asyncio.AbstractEventLoop
    ) -> None:
        settle: Callable[[], None]
        try:
            settle = functools.partial(loaded.set_result, self._load())
        except BaseException as error:  # handed to the main thread, which ends the process
            settle = functools.partial(loaded.set_exception, error)
        _settle(loop, loaded, settle)

    async def _start(self, loaded: asyncio.Future[EngineLike]) -> None:
        try:
            engine = await loaded
            from miractl.server.assembly import backends, endpoints, quiet

            quiet()
            await self.service.start(engine, backends(engine, self.service), self._note)
            self.app.endpoints = endpoints(self.service)
            # What is here stays: to look through it for cycles would hold everybody up for a tenth
            # of a second now and then.
            gc.collect()
            gc.freeze()
            self._ready(self.service)
        except Exception as error:
            self._failure = error
            self._server.should_exit = True

    async def _drain(self) -> None:
        while not self._server.should_exit:
            await asyncio.sleep(0.05)
        self.service.stop()
        if self._failure is not None:
            self._server.drop()
            return
        if count := self.service.open_answers:
            moment = format_seconds(self._config.drain_seconds)
            self._note(f"stopping: {count} open requests may go on for {moment}")
        await asyncio.sleep(self._config.drain_seconds)
        self.service.abort()
        await asyncio.sleep(ABORT_SECONDS)
        self._server.drop()


class LoopErrors:
    """What the event loop reports: a server out of handles hears of it thousands of times a second.

    Errors of the system are one line, at most once in `REPEAT_SECONDS`; others as asyncio has them.
    A second after it had no handle asyncio listens again, also to a socket that is closed by then:
    that is no error.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception handler."""
        error = context.get("exception")
        if isinstance(error, ValueError) and str(error) == CLOSED:
            return
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif (now := self._clock()) - self._last >= REPEAT_SECONDS:
            self._last = now
            log.error("%s: %s", context["message"], error.strerror or error)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal itself."""

    def __init__(self, app: Application) -> None:
        config = uvicorn.Config(
            app.asgi,
            log_config=None,
            log_level="error",
            lifespan="off",
            ws="none",
            server_header=False,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `StopSignals` has them."""
        yield

    def drop(self) -> None:
        """Close the connections of clients that neither read nor send, without a word."""
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


async def _in_daemon(work: Callable[[], Any]) -> None:
    """Run `work` on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        try:
            work()
        finally:
            _settle(loop, done, functools.partial(done.set_result, None))

    threading.Thread(target=run, daemon=True).start()
    await done


def _settle(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], settle: Callable[[], None]
) -> None:
    """From another thread: call `settle`, unless nobody waits for the future any more."""

    def unless_done() -> None:
        if not future.done():
            settle()

    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(unless_done)
