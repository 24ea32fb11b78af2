"""Binary heaps of numbers: one with the largest key on top, one with the smallest."""

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined

TOP = constant(0)
"""Place of a heap's first entry."""


@inlined
def _is_above(key: Floats, tie: Integers, a: int, b: int) -> bool:
    """Return whether ``a`` belongs above ``b``: the larger key, then the larger tie-breaker."""
    return bool(key[a] > key[b] or (key[a] == key[b] and tie[a] > tie[b]))


@inlined
def lift(heap: Integers, place: int, key: Floats, tie: Integers) -> None:
    """Restore a heap after its last entry, at ``place``, was added; see `sink`."""
    while place > 0:
        parent = (place - 1) // 2
        if not _is_above(key, tie, heap[place], heap[parent]):
            break
        heap[place], heap[parent] = heap[parent], heap[place]
        place = parent


@allocation_free
def sink(heap: Integers, size: int, key: Floats, tie: Integers) -> None:
    """Restore a heap after its first entry changed.

    The first ``size`` entries of ``heap`` are the heap: distinct numbers, whose keys ``key`` has,
    without NaN, and ``tie`` the order of those with equal keys.
    """
    place = 0
    entry = heap[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _is_above(key, tie, heap[child + 1], heap[child]):
            child += 1
        if not _is_above(key, tie, heap[child], entry):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry


@allocation_free
def sink_smallest(heap: Integers, size: int, place: int, key: Floats) -> None:
    """Restore a heap, the smallest key and then the smallest number on top, below a place."""
    entry = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        below = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if key[other] < key[below] or (key[other] == key[below] and other < below):
                child, below = child + 1, other
        if key[entry] < key[below] or (key[entry] == key[below] and entry < below):
            break
        heap[place] = below
        place = child
    heap[place] = entry
