"""What a client is told when a request cannot be answered, in OpenAI's form."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, EngineDeadError, EngineError, TemplateError, TurnGymError
from ..base import RequestRefusedError
from .asks import ContextLengthError
from .retries import KeyReusedError, SessionClosedError


class ApiError(TurnGymError, ValueError):
    """A request that the server refuses.

    Args:
        message: What was wanted, what came, what to do.
        status: HTTP's.
        param: The field that is wrong.
        code: OpenAI's word for it.
    """

    def __init__(self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        """OpenAI's word for the status."""
        kinds = {401: "authentication_error", 404: "not_found_error"}
        return kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        told = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}


_CODES: Sequence[tuple[type[Exception], int, str | None]] = (
    (ContextLengthError, 400, "context_length_exceeded"),
    (KeyReusedError, 422, "idempotency_key_reused"),
    (TemplateError, 400, "template_refuses"),
    (
        ConfigError,
        400,
        "misconfigured",
    ),  # such as a parser that does not fit the model, or cannot read the schemas of tools
    (SessionClosedError, 404, "session_not_found"),
    (RequestRefusedError, 400, "unsupported_parameter"),
    (EngineDeadError, 503, "engine_dead"),
    (EngineError, 500, "engine_failed"),
)


def api_error_of(error: Exception) -> ApiError:
    """Return what a client is told of an error; of one that nobody foresaw, only its kind."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return ApiError(str(error), status, code=code)
    return ApiError(f"the server failed: {type(error).__name__}; its log says more", 500, code="internal_error")
