"""What went wrong with a request, as RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.rest.base import Diagnostic, Problem

MEDIA_TYPE: Final = "application/problem+json"

TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "input": (422, "The request is wrong"),
    "unparsable": (400, "The request cannot be read"),
    "too-large": (413, "The request is too large"),
    "media-type": (415, "The body is not JSON"),
    "unauthenticated": (401, "A valid token is needed"),
    "forbidden": (403, "The token does not allow this"),
    "not-found": (404, "There is no such thing"),
    "method": (405, "This cannot be done here"),
    "conflict": (409, "The state does not allow this"),
    "budget": (409, "The tenant does not hold the points"),
    "name-taken": (409, "The name is taken by another job"),
    "unsupported": (409, "The policy or the executor cannot do this"),
    "too-many": (429, "Too much is waiting"),
    "internal": (500, "The service failed"),
    "policy": (500, "The policy failed"),
    "storage": (503, "The store cannot be written"),
    "standby": (503, "This instance stands by"),
    "stopping": (503, "The service is stopping"),
}
"""Status and title by code."""


class ProblemError(ShadowpriceError):
    """A request that cannot be answered as asked.

    Parameters
    ----------
    code : str
        One of `TITLES`.
    detail : str
        One sentence for a person.
    faults : sequence of Fault
        Everything found wrong, where there are places to name.
    headers : mapping of str to str
        Headers of the answer.
    """

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
        """Status of the answer."""
        return TITLES[self.code][0]

    def to_resource(self) -> Problem:
        """Return the problem details."""
        status, title = TITLES[self.code]
        return Problem(
            type=f"urn:shadowprice:problem:{self.code}",
            title=title,
            status=status,
            detail=str(self),
            code=self.code,
            errors=[
                Diagnostic(place=fault.place, message=fault.message, mend=fault.mend)
                for fault in self.faults
            ],
        )


def problem_of(error: BaseException) -> ProblemError:
    """Return what a client is told of an error."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, InputError):
        return ProblemError("input", str(error), faults=error.faults)
    if isinstance(error, ShadowpriceError):
        code = error.code if error.code in {"policy", "storage"} else "conflict"
        return ProblemError(code, str(error))
    return ProblemError("internal", "an unforeseen error; the service's log tells more")
