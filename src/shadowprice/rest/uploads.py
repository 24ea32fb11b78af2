"""Files that jobs get from their submitters."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from shadowprice.rest.base import ApiRecord


class Upload(ApiRecord):
    """A stored archive; jobs of its tenant name its digest in `run.upload`."""

    digest: str = Field(description="SHA-256 of the archive, in hexadecimal")
    tenant: str | None
    bytes: int
    used: datetime = Field(description="last upload or submission with it")


class UploadLimits(ApiRecord):
    """Limits of one upload."""

    max_bytes: int
    max_entries: int = Field(description="maximum number of files, directories and links")
