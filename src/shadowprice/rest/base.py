"""The base of every model, and the problem details of a refused request."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shadowprice.short_table import MAX_FIELDS, ShortTable, format_value


class ApiRecord(BaseModel):
    """A value that the service sends. Keys that this version doesn't know are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    @property
    def record(self) -> dict[str, Any]:
        """The value as plain JSON types, with its unknown keys."""
        return self.model_dump(mode="json")

    def _repr_html_(self) -> str:
        """Return the fields that have a value as a table, without secrets.

        `repr` is one line, because lists of records show it too.
        """
        rows = [
            (str(name), format_value(value))
            for name, value in self.__repr_args__()
            if value is not None
        ]
        return ShortTable(
            type(self).__name__,
            ("field", "value"),
            rows,
            len(rows),
            max_rows=MAX_FIELDS,
            row_noun="field",
        ).html()


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
