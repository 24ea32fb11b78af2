"""Linear limits on the total capacity of a pool that every placement obeys.

The plain limits are the resources: demands add up to at most the capacities. But servers are
integral: 50 servers of 4 GPUs host 50 workers of 3 GPUs, not 66. For a nondecreasing superadditive
function u on [0, 1] and processes on a server of capacity c, with C the largest capacity,

    sum of u(demand / C) <= u(sum of demands / C) <= u(c / C),

so each function u, summed over the servers, gives one more limit. The functions are those of Fekete
and Schepers (*New classes of fast lower bounds for bin packing problems*, Mathematical Programming
91, 2001): for k = 1, 2, ...,

    u_k(x) = x if (k + 1) x is an integer, else floor((k + 1) x) / k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster

MAX_DFF_K: Final = 4  # maximum k of the functions u_k (dual feasible functions)


@dataclass(frozen=True, slots=True)
class CapacityLimit:
    """One limit of a pool."""

    resource: int  # column of the resource
    parts: int  # the function's k; 0 for the resource itself
    reference: int  # C, the largest capacity of a server of the pool
    total: Fraction  # sum of u(capacity / C) over all servers

    def weight(self, demand: int) -> Fraction:
        """Return u(demand / C)."""
        return _weight(demand, self.reference, self.parts)

    def share(self, demands: Integers) -> float:
        """Return the share of the limit that one process with these demands takes."""
        return float(self.weight(int(demands[self.resource])) / self.total)


def _weight(demand: int, reference: int, parts: int) -> Fraction:
    x = Fraction(demand, reference)
    if not parts or x >= 1:
        return min(x, Fraction(1)) if parts else x
    scaled = (parts + 1) * x
    if scaled.denominator == 1:
        return x
    return Fraction(scaled.numerator // scaled.denominator, parts)


def build_limits(cluster: Cluster, members: Flags) -> list[CapacityLimit]:
    """Return the limits of the servers of a pool.

    A resource that is unlimited on some server, or absent from all, gives no limit.
    """
    limits = []
    for resource in range(len(cluster.resources)):
        capacities = cluster.capacity[members, resource]
        if not len(capacities) or not capacities.any() or bool((capacities >= UNLIMITED).any()):
            continue
        reference = int(capacities.max())
        sizes, counts = np.unique(capacities, return_counts=True)
        for parts in range(MAX_DFF_K + 1):
            total = sum(
                (
                    int(count) * _weight(int(size), reference, parts)
                    for size, count in zip(sizes, counts, strict=True)
                ),
                start=Fraction(0),
            )
            limits.append(CapacityLimit(resource, parts, reference, total))
    return limits


def shares(limits: Sequence[CapacityLimit], demand: Integers | None) -> Floats:
    """Return the share of each limit that one process of a demand takes, shape (limits,)."""
    if demand is None:
        return np.zeros(len(limits))
    return np.array([limit.share(demand) for limit in limits])
