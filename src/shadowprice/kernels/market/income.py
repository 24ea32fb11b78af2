"""Division of a job's payment among the owners of its units, to the last millionth."""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import kernel


@kernel
def divide(amounts: Integers, contributions: Integers) -> Integers:
    """Divide amounts in proportion to contributions: Eq. (2), or (11) for one type of unit.

    ``amount * contribution / sum of contributions`` is rarely an integer. Each owner gets the
    integer part. The remainders, fewer than the owners, go one each to the largest fractions, ties
    to the first owner (largest remainders). Each row of the result adds up to its amount.

    ``amounts`` (slots,) are payments >= 0. ``contributions`` (slots, owners) are the unused units
    >= 0 of each owner, which add up to less than 2**31 per slot. The result (slots, owners) is each
    owner's income, 0 in a slot without contributions.
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
        # amount = whole * total + remainder keeps every product below 2**62.
        whole = amounts[slot] // total
        remainder = amounts[slot] - whole * total
        undivided = amounts[slot]
        for owner in range(owners):
            contribution = contributions[slot, owner]
            product = remainder * contribution
            shares[slot, owner] = whole * contribution + product // total
            fractions[owner] = product % total
            undivided -= shares[slot, owner]
        while undivided > 0:
            largest = 0
            for owner in range(1, owners):
                if fractions[owner] > fractions[largest]:
                    largest = owner
            shares[slot, largest] += 1
            fractions[largest] = -1
            undivided -= 1
    return shares
