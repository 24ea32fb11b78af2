"""Problem details (RFC 9457): codes and titles, and conversion from errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.rest import Diagnostic, Problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = {"Retry-After": "10"}  # header of responses to requests that may succeed later

TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "input": (422, "Invalid request"),
    "malformed": (400, "Malformed request"),
    "too-large": (413, "Content too large"),
    "unsupported-media-type": (415, "Unsupported media type"),
    "unauthenticated": (401, "Unauthorized"),
    "forbidden": (403, "Forbidden"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "Method not allowed"),
    "conflict": (409, "Conflict"),
    "budget": (409, "Insufficient points"),
    "refused": (409, "Refused"),
    "name-conflict": (409, "Name conflict"),
    "unsupported": (409, "Not supported by the policy or the executor"),
    "overloaded": (429, "Service overloaded; retry later"),
    "tenant-limit": (429, "Tenant limit exceeded"),
    "internal": (500, "Internal error"),
    "policy": (500, "Policy error"),
    "storage": (503, "Store unavailable"),
    "memory": (503, "Out of memory; retry later"),
    "standby": (503, "Standby instance"),
    "stopping": (503, "Service stopping"),
}
"""Status and title by code."""


class ProblemError(ShadowpriceError):
    """An error whose response has a status and title by code (`TITLES`), and headers."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return TITLES[self.code][0]

    def to_resource(self) -> Problem:
        """Return the problem details of the response."""
        status, title = TITLES[self.code]
        return Problem(
            type=f"urn:shadowprice:problem:{self.code}",
            title=title,
            status=status,
            detail=str(self),
            code=self.code,
            errors=[
                Diagnostic(location=fault.location, message=fault.message, hint=fault.hint)
                for fault in self.faults
            ],
        )


def tenant_limit_problem(detail: str, hint: str) -> ProblemError:
    """Return the problem for a request that would exceed a limit of its tenant."""
    faults = [Fault("tenant", detail, hint)]
    return ProblemError("tenant-limit", detail, faults=faults, headers=RETRY_AFTER)


def problem_from_error(error: BaseException) -> ProblemError:
    """Return the problem for an error. It gives no details of an unexpected error."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, MemoryError):
        detail = "the service has too little memory for this request"
        return ProblemError("memory", detail, headers=RETRY_AFTER)
    if isinstance(error, InputError):
        return ProblemError("input", str(error), faults=error.faults)
    if isinstance(error, ShadowpriceError):
        code = error.code if error.code in {"policy", "storage"} else "conflict"
        return ProblemError(code, str(error))
    return ProblemError("internal", "unexpected error; see the log of the service")
