"""The one place where kernels meet the compiler."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile a function over plain arrays, cached on disk.

    Fast-math stays off: kernels compare prices, and a comparison that decides an admission must
    not depend on how the compiler reorders a sum. ``NUMBA_DISABLE_JIT=1`` runs the same code
    interpreted.

    Parameters
    ----------
    function : callable
        A function of arrays and scalars that numba's nopython mode accepts.

    Returns
    -------
    callable
        The compiled function, with the type of the original.
    """
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))
