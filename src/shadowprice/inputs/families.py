"""Libraries of measured throughput by job family, for jobs without measurements of their own.

    families:
      resnet50: {throughput: {1: 12.4, 2: 23.9, 4: 44.0}, restart: 20s}

`shadowprice profile --family` writes a library. A job file has its families under the key
``families``, or the path of a library relative to its folder. ``serve --families`` gives the
service a library. A job with ``family: resnet50`` gets the throughput of that family.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, PositiveInt

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, validate
from shadowprice.core.specs.fields import DISTINCT_COUNTS, DurationField, Name, Number, max_length
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.inputs.text import load_yaml

Curve = Annotated[
    dict[PositiveInt, Annotated[Number, Field(ge=0)]],
    Field(min_length=1),
    max_length(bounds.WORKER_COUNTS),
    DISTINCT_COUNTS,
]


class FamilySpec(Spec):
    """Measured speed and restart cost of a family's jobs."""

    throughput: Curve
    restart: DurationField | None = None
    measured: Annotated[str, max_length(bounds.TEXT)] | None = None
    """Remark on the measurement for people, such as its date and precision."""


class FamiliesSpec(Spec):
    """Content of a library."""

    families: Annotated[dict[Name, FamilySpec], max_length(bounds.FAMILIES)]


Families = Mapping[str, Mapping[str, Any]]  # records of families by name, as in a library


def read_families(path: Path) -> Families:
    """Read a library (YAML)."""
    return parse_families(load_yaml(path), str(path))


def parse_families(document: object, location: str) -> Families:
    """Return the families in the content of a library; keys of ``throughput`` become integers."""
    spec, faults = validate(FamiliesSpec, document, location)
    if spec is None:
        raise InputError(faults)
    assert isinstance(document, Mapping)
    families = {}
    for (name, family), entry in zip(
        spec.families.items(), document["families"].values(), strict=True
    ):
        stated = entry["throughput"]
        # Keys may be quoted, as they always are in JSON. Values stay as written.
        families[name] = {
            **entry,
            "throughput": dict(zip(family.throughput, stated.values(), strict=True)),
        }
    return families


FAMILIES_HINT: Final = "name a library at the head of the file: families: families.yaml"


def with_family(
    record: Any, families: Families, location: str, *, hint_without_library: str = FAMILIES_HINT
) -> Any:
    """Return a job's record with the throughput of its family, unless it has its own speed.

    Worker counts above the job's ``chunks`` are dropped, because the job can't run with them. A job
    with ``steps`` gets all worker counts. A record that isn't a mapping is returned unchanged.

    Raises `InputError`, at ``location``, for an unknown family, and for a family with only worker
    counts above ``chunks``. ``hint_without_library`` is the hint if ``families`` is empty.
    """
    if not isinstance(record, Mapping) or "family" not in record:
        return record
    if "throughput" in record or "minibatch_time" in record:
        return record
    name = record["family"]
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        library_hint = f"the library has {', '.join(sorted(families)[:10])}"
        hint = hint_for_unknown(name, families, library_hint if families else hint_without_library)
        fault = Fault(f"{location}.family", f"unknown family {quote_for_display(name)}", hint)
        raise InputError(fault)
    chunks = record.get("chunks", 1)
    max_workers = chunks if isinstance(chunks, int) and not isinstance(chunks, bool) else 1
    if record.get("steps") is not None:
        max_workers = max(family["throughput"])  # `steps` don't limit the workers
    curve = {str(n): speed for n, speed in family["throughput"].items() if n <= max_workers}
    if not curve:
        min_workers = min(family["throughput"])
        message = f"was measured with {min_workers} workers or more"
        hint = "state the work as `steps`, or raise chunks"
        raise InputError(Fault(f"{location}.family", message, hint))
    restart = {"restart": family["restart"]} if "restart" in family else {}
    return {**restart, **record, "throughput": curve}
