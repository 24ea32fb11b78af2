"""Forms of K in CSD's cost curve, in a module that imports no compiler."""

from typing import Final

PARETO: Final = 0
"""K(r) = r / (shape r - 1)."""
WEIBULL: Final = 1
"""K(r) = r ** (1 - 1 / shape); shape 1 is the exponential."""
TABLE: Final = 2
"""K interpolated in a table, at knots equally spaced in ln r."""

KNOT_STEP: Final = 1.0 / 32.0
"""Distance of a table's knots in ln r."""
