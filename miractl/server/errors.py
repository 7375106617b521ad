"""Errors of the HTTP interface: a status and the error object that OpenAI clients understand."""

from typing import Any

SHOWN = 200  # characters of what a client sent, at most, in what it is told


class ApiError(Exception):
    """A request that is answered with an error object instead of a result."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """OpenAI's family of the error, from the status."""
        families = {429: "rate_limit_error", 503: "service_unavailable_error"}
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return families.get(self.status, default)

    def to_json(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        return {
            "error": {
                "message": _sendable(self.message),
                "type": self.type,
                "param": None if self.param is None else shorten(_sendable(self.param)),
                "code": self.code,
            }
        }


def shorten(text: str) -> str:
    """What a client sent, for an error: its beginning where it is long."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _sendable(text: str) -> str:
    """UTF-8 has no half of a surrogate pair, JSON has."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def still_loading() -> ApiError:
    """503 for everything that needs the model before it has answered once."""
    return ApiError(
        503, "the model is still loading", code="model_loading", headers={"Retry-After": "1"}
    )


def shutting_down() -> ApiError:
    """503 for whatever a stopping server cannot finish."""
    headers = {"Connection": "close"}
    return ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)
