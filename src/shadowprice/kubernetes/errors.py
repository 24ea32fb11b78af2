"""Errors of a connection to a Kubernetes API server."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class ConfigError(ShadowpriceError):
    """The cluster's address or credentials are invalid, or the cluster doesn't answer."""

    code = "kubernetes"
    exit_code = 2


class ApiError(ShadowpriceError):
    """A request failed.

    ``status`` is the HTTP status, 0 without a response. ``reason`` is the server's code, such as
    ``NotFound``, ``Conflict``, ``AlreadyExists`` or ``Expired``. ``message`` is for people.
    """

    code = "kubernetes"

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason

    @property
    def not_found(self) -> bool:
        """Whether the object doesn't exist."""
        return self.status == 404

    @property
    def exists(self) -> bool:
        """Whether an object of this name already exists."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Whether the object changed after it was read."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """Whether the resource version of a list or watch is too old to continue from."""
        return self.status == 410

    @property
    def refused(self) -> bool:
        """Whether the server would refuse a retry too: no right, no namespace, invalid object."""
        return self.status in {400, 401, 403, 404, 405, 413, 422}

    @property
    def passing(self) -> bool:
        """Whether a retry may succeed: no response, throttling, or a server error."""
        return self.status in {0, 408, 429} or self.status >= 500


class ApiUnreachableError(ApiError):
    """The server didn't answer; it may or may not have executed the request."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class LeadershipLostError(ApiError):
    """A write wasn't sent, because another instance may lead."""

    def __init__(self, message: str = "another instance may be the leader; not writing") -> None:
        super().__init__(0, "Deposed", message)
