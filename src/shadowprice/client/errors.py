"""What a call of the service can end in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadowprice.core.errors import Fault, MissingExtraError, ShadowpriceError


class ServiceError(ShadowpriceError):
    """The service refused a call.

    Parameters
    ----------
    status : int
        Status of its answer.
    record : mapping
        The problem as it was told (RFC 9457).

    Attributes
    ----------
    status : int
        The same.
    code : str
        Machine-readable kind: ``not-found``, ``name-conflict``, ``forbidden``, ...
    faults : tuple of Fault
        Everything found wrong with what was sent, where there are places to name.
    """

    def __init__(self, status: int, record: Mapping[str, Any]) -> None:
        super().__init__(str(record.get("detail") or record.get("title") or f"status {status}"))
        self.status = status
        self.code = str(record.get("code") or "error")
        self.exit_code = 2 if 400 <= status < 500 else 1
        errors = record.get("errors")
        self.faults = tuple(
            Fault(*(str(one.get(key) or "") for key in ("location", "message", "hint")))
            for one in (errors if isinstance(errors, list) else ())
            if isinstance(one, Mapping)
        )


class UnreachableError(ShadowpriceError):
    """There is no service at the address, or the connection broke; what was asked may be done.

    Submissions can be sent again: the same name and content is the same job.
    """

    code = "unreachable"


class MissingClientError(MissingExtraError):
    """The library that speaks to the service is not installed; the call is wrong, not the run."""

    exit_code = 2
