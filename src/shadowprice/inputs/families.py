"""Libraries of measured curves: how fast jobs of a family train, for those not measured yet.

::

    families:
      resnet50: {throughput: {1: 12.4, 2: 23.9, 4: 44.0}, restart: 20s}

`shadowprice profile --family` writes them. A job file names one at its head, ``families: FILE``
(beside itself), or holds one there, and a live service is started with one (``serve --families``);
a job then takes its curve by ``family: resnet50``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, PositiveInt

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import Spec, validate
from shadowprice.core.specs.fields import DurationField, Name, Number, at_most_long
from shadowprice.core.wording import closest, shown
from shadowprice.inputs.text import load_yaml

Curve = Annotated[
    dict[PositiveInt, Annotated[Number, Field(ge=0)]],
    Field(min_length=1),
    at_most_long(bounds.WIDTHS),
]


class FamilySpec(Spec):
    """What is known of a family's jobs."""

    throughput: Curve
    restart: DurationField | None = None
    measured: Annotated[str, at_most_long(bounds.TEXT)] | None = None
    """When, and on what: for people."""


class FamiliesSpec(Spec):
    """A library."""

    families: Annotated[dict[Name, FamilySpec], at_most_long(bounds.WIDTHS)]


Families = Mapping[str, Mapping[str, Any]]
"""Families as the library writes them."""


def read_families(path: Path) -> Families:
    """Read a library (YAML).

    Raises
    ------
    InputError
        With every fault.
    """
    return parse_families(load_yaml(path), str(path))


def parse_families(document: object, place: str) -> Families:
    """Return the families of what a library holds.

    Raises
    ------
    InputError
        With every fault.
    """
    spec, faults = validate(FamiliesSpec, document, place)
    if spec is None:
        raise InputError(faults)
    assert isinstance(document, Mapping)
    return {str(name): dict(entry) for name, entry in document["families"].items()}


AT_THE_HEAD: Final = "name a library at the head of the file: families: families.yaml"


def with_family(record: Any, families: Families, place: str, *, without: str = AT_THE_HEAD) -> Any:
    """Return a job's record with the curve of its family, where it states no speed of its own.

    Numbers of workers above the job's ``chunks`` are left out: it could not run with them.

    Parameters
    ----------
    record : object
        The job as its file writes it; what is no job is returned as it is.
    families : mapping
        The library.
    place : str
        Where the job stands.
    without : str
        How to come by a library, where there is none.

    Raises
    ------
    InputError
        If the library has no such family, or none of its numbers of workers fits.
    """
    if not isinstance(record, Mapping) or "family" not in record:
        return record
    if "throughput" in record or "minibatch_time" in record:
        return record
    name = record["family"]
    known = families.get(name) if isinstance(name, str) else None
    if known is None:
        likely = closest(name, families) if isinstance(name, str) else None
        mend = f"did you mean {likely!r}?" if likely else _known(families) or without
        raise InputError(Fault(f"{place}.family", f"no family is called {shown(name)}", mend))
    chunks = record.get("chunks", 1)
    most = chunks if isinstance(chunks, int) and not isinstance(chunks, bool) else 1
    curve = {str(n): speed for n, speed in known["throughput"].items() if n <= most}
    if not curve:
        fewest = min(known["throughput"])
        raise InputError(
            Fault(f"{place}.family", f"was measured with {fewest} workers or more", "raise chunks")
        )
    restart = {"restart": known["restart"]} if "restart" in known else {}
    return {**restart, **record, "throughput": curve}


def _known(families: Families) -> str:
    return f"the library has {', '.join(sorted(families)[:10])}" if families else ""
