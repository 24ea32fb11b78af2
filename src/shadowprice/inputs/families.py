"""Libraries of measured curves: the speed of jobs by family, for jobs not measured yet.

    families:
      resnet50: {throughput: {1: 12.4, 2: 23.9, 4: 44.0}, restart: 20s}

`shadowprice profile --family` writes them. A job file names a library in its own folder at its
head, ``families: FILE``, or contains one there; a live service is started with one (``serve
--families``). A job then takes its curve by ``family: resnet50``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, PositiveInt

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, validate
from shadowprice.core.specs.fields import DurationField, Name, Number, max_length
from shadowprice.core.wording import closest_match, quote_for_display
from shadowprice.inputs.text import load_yaml

Curve = Annotated[
    dict[PositiveInt, Annotated[Number, Field(ge=0)]],
    Field(min_length=1),
    max_length(bounds.WORKER_COUNTS),
]


class FamilySpec(Spec):
    """Measured speed and restart cost of a family's jobs."""

    throughput: Curve
    restart: DurationField | None = None
    measured: Annotated[str, max_length(bounds.TEXT)] | None = None
    """Date and machine of the measurement, as text for people."""


class FamiliesSpec(Spec):
    """Content of a library."""

    families: Annotated[dict[Name, FamilySpec], max_length(bounds.WORKER_COUNTS)]


Families = Mapping[str, Mapping[str, Any]]
"""Families by name, as the library writes them."""


def read_families(path: Path) -> Families:
    """Read a library (YAML).

    Raises
    ------
    InputError
        With every problem of the file.
    """
    return parse_families(load_yaml(path), str(path))


def parse_families(document: object, place: str) -> Families:
    """Return the families of a library's content.

    Raises
    ------
    InputError
        With every problem of the library.
    """
    spec, faults = validate(FamiliesSpec, document, place)
    if spec is None:
        raise InputError(faults)
    assert isinstance(document, Mapping)
    return {str(name): dict(entry) for name, entry in document["families"].items()}


FAMILIES_HINT: Final = "name a library at the head of the file: families: families.yaml"


def with_family(
    record: Any, families: Families, place: str, *, without: str = FAMILIES_HINT
) -> Any:
    """Return a job's record with the curve of its family, unless it states its own speed.

    Worker counts above the job's ``chunks`` are left out, because the job can't run with them; a
    job with ``steps`` takes the whole curve. A record that isn't a mapping is returned unchanged.
    ``place`` is the location of the job in errors, and ``without`` the hint if there is no library.

    Raises
    ------
    InputError
        If the library has no such family, or all its worker counts are above ``chunks``.
    """
    if not isinstance(record, Mapping) or "family" not in record:
        return record
    if "throughput" in record or "minibatch_time" in record:
        return record
    name = record["family"]
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        similar = closest_match(name, families) if isinstance(name, str) else None
        hint = f"did you mean {similar!r}?" if similar else _known(families) or without
        raise InputError(
            Fault(f"{place}.family", f"unknown family {quote_for_display(name)}", hint)
        )
    chunks = record.get("chunks", 1)
    max_workers = chunks if isinstance(chunks, int) and not isinstance(chunks, bool) else 1
    if record.get("steps") is not None:
        max_workers = max(family["throughput"])
    curve = {str(n): speed for n, speed in family["throughput"].items() if n <= max_workers}
    if not curve:
        min_workers = min(family["throughput"])
        raise InputError(
            Fault(
                f"{place}.family",
                f"was measured with {min_workers} workers or more",
                "state the work as `steps`, or raise chunks",
            )
        )
    restart = {"restart": family["restart"]} if "restart" in family else {}
    return {**restart, **record, "throughput": curve}


def _known(families: Families) -> str:
    return f"the library has {', '.join(sorted(families)[:10])}" if families else ""
