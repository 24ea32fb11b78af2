"""Errors of calls to the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadowprice.core.errors import Fault, MissingExtraError, ShadowpriceError


class ServiceError(ShadowpriceError):
    """The service refused a request.

    ``record`` holds the problem details (RFC 9457). ``code`` is the machine-readable kind:
    ``not-found``, ``name-conflict``, ``forbidden``, ... ``faults`` are diagnostics with locations
    in the request, and may be empty.
    """

    def __init__(self, status: int, record: Mapping[str, Any]) -> None:
        super().__init__(str(record.get("detail") or record.get("title") or f"status {status}"))
        self.status = status
        self.code = str(record.get("code") or "error")
        self.exit_code = 2 if 400 <= status < 500 else 1
        errors = record.get("errors")
        self.faults = tuple(
            Fault(*(str(item.get(key) or "") for key in ("location", "message", "hint")))
            for item in (errors if isinstance(errors, list) else ())
            if isinstance(item, Mapping)
        )


class ServiceUnreachableError(ShadowpriceError):
    """The service is unreachable, or the connection broke; the request may have taken effect.

    Look for the job before you repeat a submission: the content of a failed, cancelled or refused
    job is a new job.
    """

    code = "unreachable"


class MissingClientError(MissingExtraError):
    """The HTTP library isn't installed; a usage error, not a failed run."""

    exit_code = 2
