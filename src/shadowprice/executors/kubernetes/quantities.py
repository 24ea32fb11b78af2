"""Kubernetes quantities: ``500m``, ``1.5``, ``16Gi``, ``2e9``."""

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


def parse_quantity(text: object, unit: int) -> int:
    """Parse a quantity into units of 1/``unit``, rounded down; 0 if it is invalid.

    ``unit`` is 1,000 for counts and 1 for bytes.
    """
    match = _FORM.fullmatch(str(text))
    if match is None or match[1] in {"", ".", "+", "-"} or (match[3] or "") not in _UNITS:
        return 0
    value = Fraction(match[1]) * Fraction(10) ** int(match[2] or 0) * _UNITS[match[3] or ""]
    return max(0, min(int(value * unit), int(bounds.MEMORY.maximum)))


def units_per_quantity(resource: str) -> int:
    """Return the units per quantity of 1 of a resource."""
    return 1 if resource == "memory" else MILLI
