"""What a server is asked to be: address, window, limits. Pure values, checked once."""

from dataclasses import dataclass

from miractl.config import DEFAULT_CONCURRENCY, LEAST_CONTEXT, MOST_CONCURRENCY
from miractl.errors import UsageError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MOST_CONTEXT = 10_000_000  # tokens
# A token is four characters of usual text; the rest is for JSON's escapes and rare words.
BODY_BYTES_PER_TOKEN = 32
LEAST_BODY_BYTES, MOST_BODY_BYTES = 2**20, 64 * 2**20
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server. Raises UsageError for values that cannot work."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT  # 0: the system picks a free one
    context: int | None = None  # tokens of prompt and answer together; None: from the model
    max_concurrency: int = DEFAULT_CONCURRENCY  # requests that generate at the same time
    kv_memory: int | None = None  # bytes for keys and values at most; None: the usual size
    kv_blocks: int | None = None  # of their cache, by a plan; None: by `kv_memory`
    max_body_bytes: int | None = None  # of one request; None: what the window may need
    body_seconds: float = 30.0  # in which a body must have come
    drain_seconds: float = 2.5  # how long open requests may go on after a stop signal
    stop_seconds: float = 5.0  # after this the process ends whatever still runs

    def __post_init__(self) -> None:
        """Check every bound."""
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is not in 0..65535")
        if self.context is not None and not LEAST_CONTEXT <= self.context <= MOST_CONTEXT:
            raise UsageError(
                f"context {self.context} is not in {LEAST_CONTEXT}..{MOST_CONTEXT} tokens"
            )
        if not 1 <= self.max_concurrency <= MOST_CONCURRENCY:
            raise UsageError(
                f"max concurrency {self.max_concurrency} is not in 1..{MOST_CONCURRENCY}"
            )

    @property
    def max_waiting(self) -> int:
        """Requests that may wait for a place; one more is answered 429."""
        return 4 * self.max_concurrency

    def body_limit(self, context: int) -> int:
        """Bytes that the body of a request may have, for a window of so many tokens."""
        if self.max_body_bytes is not None:
            return self.max_body_bytes
        return min(MOST_BODY_BYTES, max(LEAST_BODY_BYTES, BODY_BYTES_PER_TOKEN * context))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    def url(self, port: int) -> str:
        """Address for a client on this machine, with the port that was really bound."""
        host = (
            "127.0.0.1"
            if self.host in ("0.0.0.0", "")
            else "::1"
            if self.host == "::"
            else self.host
        )
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
