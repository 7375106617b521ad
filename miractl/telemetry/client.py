"""HTTP client of a running server: asks for facts and turns every failure into one line."""

import http.client
import ipaddress
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from miractl.errors import MiractlError, UsageError
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.timeline import Timeline

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = 5.0  # seconds
_LARGEST_ANSWER = 2**26  # bytes; 94 layers of 512 experts take 8 MiB
_T = TypeVar("_T")


class ServerLoadingError(MiractlError):
    """The server is there and its model is not ready yet."""


def parse_url(text: str) -> str:
    """The server's base address, without a slash or the `/v1` of OpenAI clients at the end.

    Raises UsageError unless it is an http or https address with a host.
    """
    hint = f"write it like {DEFAULT_URL}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not the address of a server: {error}", hint=hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{text!r} is not the address of a server", hint=hint)
    if (
        parts.query
        or parts.fragment
        or "@" in parts.netloc
        or not text.isprintable()
        or " " in text
    ):
        raise UsageError(f"{text!r} has more than scheme, host, port and path", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


class Client:
    """Questions to one server. Every method raises MiractlError with one line on failure."""

    def __init__(self, url: str = DEFAULT_URL, timeout: float = TIMEOUT) -> None:
        self.url = parse_url(url)
        self._timeout = timeout
        # A proxy of the environment must not stand between a user and the machine they sit at.
        proxies: dict[str, str] | None = {} if self.is_local else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    @property
    def is_local(self) -> bool:
        """Whether the address is this machine's own."""
        return _is_loopback(urlsplit(self.url).hostname or "")

    def status(self) -> Snapshot:
        """What the server says of itself now."""
        return self._decode("/v1/status", Snapshot.from_json)

    def experts(self) -> ExpertTable:
        """Every expert's history."""
        return self._decode("/v1/experts", ExpertTable.from_json)

    def timeline(self, last: int) -> Timeline:
        """Where the time of the last steps went."""
        return self._decode(f"/v1/timeline?last={last}", Timeline.from_json)

    def health(self) -> str:
        """`ok`; raises ServerLoadingError while the model loads."""
        return self._decode("/health", lambda data: str(data["status"]))

    def _decode(self, path: str, decode: Callable[[dict[str, Any]], _T]) -> _T:
        body = self._get(path)
        hint = "is it a miractl server, of this version?"
        try:
            data = json.loads(body)
        except ValueError:
            raise MiractlError(f"{self.url}{path} answered no JSON", hint=hint) from None
        if not isinstance(data, dict):
            raise MiractlError(f"{self.url}{path} answered JSON of another service", hint=hint)
        try:
            return decode(data)
        except KeyError as error:
            message = f"{self.url}{path} lacks the field {error}"
            raise MiractlError(message, hint=hint) from None
        except (ValueError, TypeError) as error:
            raise MiractlError(f"{self.url}{path}: {error}", hint=hint) from None

    def _get(self, path: str) -> bytes:
        try:
            with self._opener.open(self.url + path, timeout=self._timeout) as answer:
                return bytes(answer.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from None

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> MiractlError:
        """The server answered with an error status; `/health` and the other paths word it apart."""
        with error:
            try:
                answer = json.loads(error.read(_LARGEST_ANSWER))
            except (ValueError, OSError, http.client.HTTPException):
                answer = None
        answer = answer if isinstance(answer, dict) else {}
        reason = answer.get("error")
        reason = reason if isinstance(reason, dict) else {}
        if error.code == 503 and "loading" in str(answer.get("status") or reason.get("code")):
            hint = "ask again in a few seconds"
            return ServerLoadingError(f"{self.url} is still loading its model", hint=hint)
        words = " ".join(str(reason.get("message") or error.reason).split())
        message = f"{self.url}{path} answered {error.code}: {words}"
        return MiractlError(message, hint="is it a miractl server, of this version?")

    def _failure(self, error: Exception) -> MiractlError:
        """No answer came."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ConnectionRefusedError):
            message = f"no miractl server at {self.url}"
            return MiractlError(message, hint="start one with: miractl serve")
        if isinstance(cause, TimeoutError):
            message = f"the server at {self.url} did not answer within {self._timeout:g} s"
            return MiractlError(message, hint="is it busy, or is another service there?")
        if isinstance(cause, socket.gaierror):
            host = urlsplit(self.url).hostname
            return MiractlError(f"no machine is called {host!r}", hint="check --url")
        if isinstance(cause, http.client.HTTPException):
            message = f"what answers at {self.url} does not speak HTTP"
            return MiractlError(message, hint="check the port in --url")
        return MiractlError(f"cannot reach {self.url}: {cause}", hint="check --url")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
