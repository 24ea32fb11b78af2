"""Binary heaps of numbers: one with the largest key on top, one with the smallest."""

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined

TOP = constant(0)
"""Position of a heap's first entry, which is on top."""


@inlined
def _is_above(key: Floats, tie: Integers, a: int, b: int) -> bool:
    """Return whether ``a`` belongs above ``b``: the larger key, then the larger tie-breaker."""
    return bool(key[a] > key[b] or (key[a] == key[b] and tie[a] > tie[b]))


@inlined
def lift(heap: Integers, position: int, key: Floats, tie: Integers) -> None:
    """Restore a heap after its last entry, at ``position``, was added; see `sink`."""
    while position > 0:
        parent = (position - 1) // 2
        if not _is_above(key, tie, heap[position], heap[parent]):
            break
        heap[position], heap[parent] = heap[parent], heap[position]
        position = parent


@allocation_free
def sink(heap: Integers, size: int, key: Floats, tie: Integers) -> None:
    """Restore a heap with the largest key on top after its first entry changed.

    The first ``size`` entries of ``heap`` are distinct indices of ``key`` and ``tie``. Of entries
    with equal keys, the larger ``tie`` is above. No key is NaN.
    """
    position = 0
    entry = heap[0]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and _is_above(key, tie, heap[child + 1], heap[child]):
            child += 1
        if not _is_above(key, tie, heap[child], entry):
            break
        heap[position] = heap[child]
        position = child
    heap[position] = entry


@allocation_free
def sink_smallest(heap: Integers, size: int, position: int, key: Floats) -> None:
    """Restore a heap with the smallest key on top after the entry at ``position`` changed.

    Of entries with equal keys, the smaller index is above.
    """
    entry = heap[position]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        below = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if key[other] < key[below] or (key[other] == key[below] and other < below):
                child, below = child + 1, other
        if key[entry] < key[below] or (key[entry] == key[below] and entry < below):
            break
        heap[position] = below
        position = child
    heap[position] = entry
