"""Rounding of discovered memory capacity."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = 10  # significant binary digits that are kept

_WRITTEN: Final = (10**6, 1 << 20)  # multiples of a megabyte or mebibyte count as configured values


def round_down_memory(found: int) -> int:
    """Round a server's memory in bytes down by less than 1/512.

    Equal machines report capacities that differ by some KiB, and each would form a group of its own
    in the scheduler and on its pages. So ten binary digits are kept, which means whole GiB up to 1
    TiB. Configured values, multiples of a megabyte or mebibyte, aren't rounded.
    """
    if any(found % unit == 0 for unit in _WRITTEN):
        return found
    grain = max(0, found.bit_length() - _DIGITS)
    return found >> grain << grain
