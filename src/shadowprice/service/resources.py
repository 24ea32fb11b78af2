"""Builds REST resources from records whose fields mostly have the same names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from shadowprice.service.clock import to_datetime_or_none

Resource = TypeVar("Resource", bound=BaseModel)


def build_resource(model: type[Resource], record: object, **values: Any) -> Resource:
    """Return a resource with ``values``, and with a record's fields for the rest.

    Times of the record, in nanoseconds since 1970, are converted to UTC.
    """
    for name, is_time in _fields(model):
        if name not in values:
            value = getattr(record, name)
            values[name] = to_datetime_or_none(value) if is_time else value
    return model(**values)


@cache
def _fields(model: type[BaseModel]) -> Sequence[tuple[str, bool]]:
    """Return the names of a model's fields, and whether each is a time."""
    times = (datetime, datetime | None)
    return [(name, field.annotation in times) for name, field in model.model_fields.items()]
