"""Whether a server could listen on a port."""

import socket
from dataclasses import dataclass

HOST = "127.0.0.1"
NEXT = 20  # ports after the one asked for, among which a free one is looked for


@dataclass(frozen=True, slots=True)
class PortAnswer:
    """The port asked for, why it cannot be had, and a free one near it."""

    port: int
    error: str | None
    free: int | None


def _error(port: int) -> str | None:
    with socket.socket() as listener:
        # As servers do: a port that was closed a moment ago is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            return error.strerror
    return None


def ask(port: int) -> PortAnswer:
    """Try to take `port` for a moment; nothing is left behind."""
    error = _error(port)
    if error is None:
        return PortAnswer(port, None, port)
    near = range(max(port, 1023) + 1, min(max(port, 1023) + 1 + NEXT, 65536))
    return PortAnswer(port, error, next((p for p in near if _error(p) is None), None))
