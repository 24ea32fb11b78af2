"""Division of what a job pays among the owners of the places it uses, to the last unit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowprice.kernels.jit import kernel

Integers = npt.NDArray[np.int64]


@kernel
def divide(amounts: Integers, contributions: Integers) -> Integers:
    """Divide amounts in proportion to contributions: Eq. (2), or (11) for one type of place.

    ``amount * contribution / sum of contributions`` is rarely a whole number of units. Each owner
    gets its whole part; the units left over, fewer than there are owners, go one each to those
    with the largest fractions, ties to the owner named first (largest remainders). Nothing is
    lost or made: each row of the result adds up to its amount.

    Parameters
    ----------
    amounts : int64, shape (slots,)
        What is paid in each slot, not negative.
    contributions : int64, shape (slots, owners)
        Unused places of each owner in each slot, not negative, adding up to less than 2**31; some
        positive wherever the amount is.

    Returns
    -------
    int64, shape (slots, owners)
        What each owner receives; nothing in a slot in which nobody contributes.
    """
    slots, owners = contributions.shape
    shares = np.zeros((slots, owners), np.int64)
    fractions = np.zeros(owners, np.int64)
    for slot in range(slots):
        total = 0
        for owner in range(owners):
            total += contributions[slot, owner]
        if total == 0 or amounts[slot] == 0:
            continue
        # amount = whole * total + rest keeps every product below 2**62.
        whole = amounts[slot] // total
        rest = amounts[slot] - whole * total
        left = amounts[slot]
        for owner in range(owners):
            contribution = contributions[slot, owner]
            product = rest * contribution
            shares[slot, owner] = whole * contribution + product // total
            fractions[owner] = product % total
            left -= shares[slot, owner]
        while left > 0:
            largest = 0
            for owner in range(1, owners):
                if fractions[owner] > fractions[largest]:
                    largest = owner
            shares[slot, largest] += 1
            fractions[largest] = -1
            left -= 1
    return shares
