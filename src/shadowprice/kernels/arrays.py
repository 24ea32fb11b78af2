"""Types of arrays, and operations on them that numba would compile again in every kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@inlined
def copy_into(target: NDArray[np.generic], source: NDArray[np.generic]) -> None:
    """Copy ``source`` over the start of ``target``.

    ``target[:] = source`` adds numba's text of a shape error to the kernel, and with it two
    seconds of compiling its operations on strings, which are not cached.
    """
    for n in range(len(source)):
        target[n] = source[n]
