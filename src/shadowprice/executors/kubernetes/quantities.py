"""Quantities as Kubernetes writes them: ``500m``, ``1.5``, ``16Gi``, ``2e9``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI

_FORM: Final = re.compile(
    r"([+-]?[0-9]{0,20}(?:\.[0-9]{0,20})?)(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))"
)
_UNITS: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{name: Fraction(1000) ** n for n, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{name: Fraction(1024) ** n for n, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def units(text: object, unit: int) -> int:
    """Return a quantity in parts of one, rounded down; what is none counts as nothing.

    Parameters
    ----------
    text : object
        As an API server tells it.
    unit : int
        Parts of one: 1,000 for counts, 1 for bytes.
    """
    found = _FORM.fullmatch(str(text))
    if found is None or found[1] in {"", ".", "+", "-"} or (found[3] or "") not in _UNITS:
        return 0
    value = Fraction(found[1]) * Fraction(10) ** int(found[2] or 0) * _UNITS[found[3] or ""]
    return max(0, min(int(value * unit), int(bounds.MEMORY.most)))


def unit_of(resource: str) -> int:
    """Return how many parts of one are counted of a resource."""
    return 1 if resource == "memory" else MILLI
