"""What goes wrong between this program and a Kubernetes API server."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class ConnectError(ShadowpriceError):
    """There is no way to a cluster: the call is wrong, or nobody answers there."""

    code = "kubernetes"
    exit_code = 2


class ApiError(ShadowpriceError):
    """The API server refused a request.

    Parameters
    ----------
    status : int
        Of HTTP; 0 where there was no answer.
    reason : str
        The server's own word: ``NotFound``, ``Conflict``, ``AlreadyExists``, ``Expired``.
    message : str
        What it said, for people.
    """

    code = "kubernetes"

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason

    @property
    def not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == 404

    @property
    def exists(self) -> bool:
        """Whether an object of this name is there already."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Whether the object changed since it was read."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """Whether a version of a list is too old to go on from."""
        return self.status == 410

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: the server did not answer, or has a fault."""
        return self.status in {0, 408, 429} or self.status >= 500


class UnreachableError(ApiError):
    """Nobody answered: what was asked for may have been done, or not."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class DeposedError(ApiError):
    """Another instance may lead: what was to be written was not sent."""

    def __init__(self, message: str = "another instance may lead: nothing is written") -> None:
        super().__init__(0, "Deposed", message)
