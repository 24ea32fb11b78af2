"""What the servers of a pool can hold together, as linear limits on what stands on them.

The plain limits are the resources: demands sum to no more than the capacities. But servers are
whole machines: of workers that take 3 of a server's 4 GPUs, 50 servers carry 50, not 66. For a
superadditive function u on [0, 1] and items that share a server of capacity c,

    sum of u(demand / C) <= u(sum of demands / C) <= u(c / C),

so with u summed over the servers every such function is one more limit that all placements obey.
The functions used are those of Fekete and Schepers (*New classes of fast lower bounds for bin
packing problems*, Mathematical Programming 91, 2001): for k = 1, 2, ...,

    u_k(x) = x if (k + 1) x is whole, else floor((k + 1) x) / k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FINEST: Final = 4
"""Largest k."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a pool.

    Parameters
    ----------
    resource : int
        Column of the resource.
    parts : int
        The function's k; 0 for the resource itself.
    reference : int
        C: the largest capacity of a server of the pool.
    total : Fraction
        What all servers hold together.
    """

    resource: int
    parts: int
    reference: int
    total: Fraction

    def weight(self, demand: int) -> Fraction:
        """Return u(demand / C)."""
        return _weight(demand, self.reference, self.parts)

    def share(self, demands: NDArray[np.int64]) -> float:
        """Return which share of the limit one item of a demand takes."""
        return float(self.weight(int(demands[self.resource])) / self.total)


def _weight(demand: int, reference: int, parts: int) -> Fraction:
    x = Fraction(demand, reference)
    if not parts or x >= 1:
        return min(x, Fraction(1)) if parts else x
    scaled = (parts + 1) * x
    if scaled.denominator == 1:
        return x
    return Fraction(scaled.numerator // scaled.denominator, parts)


def limits_of(cluster: Cluster, members: NDArray[np.bool_]) -> list[Limit]:
    """Return the limits of the servers that are members of a pool.

    A resource of which a server has any number, or none has any, limits nothing.
    """
    limits = []
    for resource in range(len(cluster.resources)):
        capacities = cluster.capacity[members, resource]
        if not len(capacities) or not capacities.any() or bool((capacities >= UNLIMITED).any()):
            continue
        reference = int(capacities.max())
        sizes, counts = np.unique(capacities, return_counts=True)
        for parts in range(FINEST + 1):
            total = sum(
                (
                    int(count) * _weight(int(size), reference, parts)
                    for size, count in zip(sizes, counts, strict=True)
                ),
                start=Fraction(0),
            )
            limits.append(Limit(resource, parts, reference, total))
    return limits


def shares(limits: Sequence[Limit], demand: Integers | None) -> Floats:
    """Return which share of each limit one item of a demand takes, shape (limits,)."""
    if demand is None:
        return np.zeros(len(limits))
    return np.array([limit.share(demand) for limit in limits])
