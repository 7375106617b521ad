"""What a running server answers on /health."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The answer, or why there is none. `body` is at most a few hundred characters."""

    url: str
    status: int | None
    body: str
    error: str | None


def ask(url: str, timeout: float = 2.0) -> ServerAnswer:
    """GET `url`/health; never raises for a server that is away, slow or talks nonsense."""
    # Takes longer to import than the doctor's other probes take to run.
    import urllib.error
    import urllib.request

    address = url.rstrip("/") + "/health"
    try:
        # Straight to the server: a proxy has no business with a local health check.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=timeout) as answer:
            body = answer.read(500).decode(errors="replace")
            return ServerAnswer(url, answer.status, body, None)
    except urllib.error.HTTPError as error:
        return ServerAnswer(url, error.code, error.read(500).decode(errors="replace"), None)
    except urllib.error.URLError as error:
        return ServerAnswer(url, None, "", str(error.reason))
    except Exception as error:  # whatever listens there may speak any protocol
        return ServerAnswer(url, None, "", f"{type(error).__name__}: {error}")
