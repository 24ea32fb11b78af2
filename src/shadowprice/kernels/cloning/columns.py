"""The tasks of CSD as one record of arrays."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Groups of equal tasks, as parallel arrays.

    Attributes
    ----------
    tasks : ndarray of int64, shape (groups,)
        Number of tasks in each.
    decay : ndarray of float64, shape (groups,)
        a = -ln S(T_d).
    minimum, scale : ndarray of float64, shape (groups,)
        Of the cost curve, in seconds.
    kind : ndarray of int64, shape (groups,)
        Form of the curve: ``PARETO``, ``WEIBULL`` or ``TABLE``.
    shape : ndarray of float64, shape (groups,)
        Its parameter if it has one.
    table : ndarray of int64, shape (groups,)
        Its row of ``tables``.
    tables : ndarray of float64, shape (tables, knots, 3)
        Tabulated curves.
    """

    tasks: Integers
    decay: Floats
    minimum: Floats
    scale: Floats
    kind: Integers
    shape: Floats
    table: Integers
    tables: Floats
