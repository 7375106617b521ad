"""Errors of the HTTP interface: a status and the error object that OpenAI clients understand."""

from typing import Any


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
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def still_loading() -> ApiError:
    """503 for everything that needs the model before it has answered once."""
    return ApiError(
        503, "the model is still loading", code="model_loading", headers={"Retry-After": "1"}
    )


def shutting_down() -> ApiError:
    """503 for whatever a stopping server cannot finish."""
    return ApiError(503, "the server is shutting down", code="shutting_down")
