"""The tasks of CSD as one record of arrays."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Groups of equal tasks, as parallel arrays of shape (groups,); the equations are CSD's."""

    tasks: Integers  # number of tasks in each group
    decay: Floats  # a = -ln S(T_d)
    minimum: Floats  # of the cost curve, in seconds
    scale: Floats  # of the cost curve, in seconds
    kind: Integers  # form of the curve: `PARETO`, `WEIBULL` or `TABLE`
    shape: Floats  # parameter of the form, if it has one
    table: Integers  # row of `tables`
    tables: Floats  # tabulated curves K, dK/dx, d2K/dx2 in x = ln r, shape (tables, knots, 3)
