"""The base of every model, and the problem details of a refused request."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ApiRecord(BaseModel):
    """A value that the service sends. Keys that this version doesn't know are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    @property
    def record(self) -> dict[str, Any]:
        """The value as plain JSON types, with its unknown keys."""
        return self.model_dump(mode="json")


class ApiPage(ApiRecord):
    """A page of a listing."""

    next: int | None = Field(description="cursor of the next page")


class Diagnostic(ApiRecord):
    """One problem of a request: its location, and a hint."""

    location: str
    message: str
    hint: str


class Problem(ApiRecord):
    """Problem details (RFC 9457): why a request was refused."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="machine-readable kind of the problem")
    errors: list[Diagnostic] = Field(default_factory=list)
