"""What is counted of the memory that a machine turns out to have."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = 10
"""Binary digits that count."""

_WRITTEN: Final = (10**6, 1 << 20)
"""Whole megabytes of either kind are a figure that somebody wrote."""


def counted_memory(found: int) -> int:
    """Return what is counted of a server's memory: less than 1/512 less than was found.

    Machines of one kind come up with some KiB more or less, and each would be a kind of its own to
    a scheduler, that looks at servers which are alike together, and to whoever reads of them. So
    ten binary digits count: whole GiB up to 1 TiB. What somebody wrote counts as it is.

    Parameters
    ----------
    found : int
        Bytes.

    Returns
    -------
    int
        Bytes, never more.
    """
    if any(found % unit == 0 for unit in _WRITTEN):
        return found
    grain = max(0, found.bit_length() - _DIGITS)
    return found >> grain << grain
