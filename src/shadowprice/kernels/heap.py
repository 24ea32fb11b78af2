"""A binary heap of numbers with the largest key on top."""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@inlined
def _above(key: Floats, a: int, b: int) -> bool:
    """Return whether ``a`` belongs above ``b``: the larger key, the higher number on ties."""
    return bool(key[a] > key[b] or (key[a] == key[b] and a > b))


@inlined
def lift(heap: Ints, place: int, key: Floats) -> None:
    """Restore a heap after its last entry, at ``place``, was added; see `sink`."""
    while place > 0:
        parent = (place - 1) // 2
        if not _above(key, heap[place], heap[parent]):
            break
        heap[place], heap[parent] = heap[parent], heap[place]
        place = parent


@kernel
def sink(heap: Ints, size: int, key: Floats) -> None:
    """Restore a heap after its first entry changed.

    The first ``size`` entries of ``heap`` are the heap: distinct numbers, whose keys ``key`` has,
    without NaN.
    """
    place = 0
    entry = heap[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _above(key, heap[child + 1], heap[child]):
            child += 1
        if not _above(key, heap[child], entry):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry
