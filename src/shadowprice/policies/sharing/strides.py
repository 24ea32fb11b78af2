"""Gandiva_fair's two mechanisms: gang-aware stride scheduling, and trading of fast places for slow.

Chaudhary et al., "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep
Learning" (EuroSys 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that wants to run in the coming slot.

    Parameters
    ----------
    name : str
        The job.
    tenant : int
        Its owner.
    workers : int
        Workers it runs with, all or none.
    """

    name: str
    tenant: int
    workers: int


class Strides:
    """Split stride: a tenant's tickets buy places, whatever jobs it splits them over.

    A tenant's *pass* grows by one over its tickets for every place it uses in a slot; the tenant
    with the lowest pass chooses next, and runs the job of its own that has used least. A gang that
    no longer fits is left out for the slot and keeps its claim: every slot is filled anew, so
    whoever is furthest behind chooses into an empty cluster and no gang starves.

    Parameters
    ----------
    tickets : sequence of int
        Tickets of each tenant, not negative; one without tickets gets what the others leave.
    """

    def __init__(self, tickets: Sequence[int]) -> None:
        self._unit = math.lcm(*(count for count in tickets if count), 1)
        self._stride = [self._unit // count if count else 0 for count in tickets]
        self._pass = [0] * len(tickets)
        self._used: dict[str, int] = {}
        self._active: set[int] = set()

    def fill(self, claims: Iterable[Claim], fits: Callable[[Claim], bool]) -> list[Claim]:
        """Choose the jobs of one slot and charge their tenants.

        Parameters
        ----------
        claims : iterable of Claim
            Every job that could run.
        fits : callable
            Places a job in what is left of the slot; False if it cannot.

        Returns
        -------
        list of Claim
            Those that run, in the order in which they were placed.
        """
        queues: dict[int, list[Claim]] = {}
        for claim in claims:
            queues.setdefault(claim.tenant, []).append(claim)
        self._welcome(set(queues))
        used = {
            claim.name: self._used.get(claim.name, 0)
            for queue in queues.values()
            for claim in queue
        }
        for queue in queues.values():
            queue.sort(key=lambda claim: (used[claim.name], claim.name), reverse=True)
        chosen = []
        while queues:
            tenant = min(queues, key=lambda each: (not self._stride[each], self._pass[each], each))
            claim = queues[tenant].pop()
            if not queues[tenant]:
                del queues[tenant]
            if fits(claim):
                chosen.append(claim)
                self._pass[tenant] += claim.workers * self._stride[tenant]
                used[claim.name] += claim.workers
        # Jobs that are gone are forgotten with their claims.
        self._used = used
        return chosen

    def _welcome(self, present: set[int]) -> None:
        # Idle time is not saved up: who comes back starts no further behind than those who stayed.
        stayed = [self._pass[tenant] for tenant in present & self._active]
        for tenant in present - self._active:
            self._pass[tenant] = max(self._pass[tenant], min(stayed, default=0))
        self._active = present


def trade(
    shares: npt.NDArray[np.float64], speeds: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Exchange fast places for slow ones between tenants who value them differently.

    For each pair of types, fastest first, the tenant that gains least from the faster type gives
    its places of it to the one that gains most, who pays in slower places, at the second highest
    gain among those who could buy (the seller's own gain being the least price): section 5 of the
    paper, a second-price rule, so that overstating a speed-up does not move the price one pays.

    Parameters
    ----------
    shares : float64, shape (tenants, types)
        Places each tenant may use, types from slow to fast.
    speeds : float64, shape (tenants, types)
        Speed of each tenant's jobs on each type, positive.

    Returns
    -------
    float64, shape (tenants, types)
        Shares after trading: as many places of each type in all, and nobody's ``shares * speeds``
        adds up to less than before.
    """
    traded = shares.astype(np.float64)
    types = shares.shape[1]
    for fast in range(types - 1, 0, -1):
        for slow in range(fast):
            _trade_pair(traded, speeds[:, fast] / speeds[:, slow], fast, slow)
    return traded


def _trade_pair(
    traded: npt.NDArray[np.float64], gains: npt.NDArray[np.float64], fast: int, slow: int
) -> None:
    while True:
        sellers = np.flatnonzero(traded[:, fast] > 0)
        buyers = np.flatnonzero(traded[:, slow] > 0)
        if not (sellers.size and buyers.size):
            return
        seller = sellers[np.argmin(gains[sellers])]
        buyer = buyers[np.argmax(gains[buyers])]
        if gains[buyer] <= gains[seller]:
            return
        rivals = gains[buyers[buyers != buyer]]
        price = max(float(rivals.max(initial=0.0)), float(gains[seller]))
        if traded[seller, fast] * price <= traded[buyer, slow]:
            # The seller is sold out: exactly nothing is left, so that the loop ends.
            places, paid = traded[seller, fast], traded[seller, fast] * price
            left_fast, left_slow = 0.0, traded[buyer, slow] - paid
        else:
            places, paid = traded[buyer, slow] / price, traded[buyer, slow]
            left_fast, left_slow = traded[seller, fast] - places, 0.0
        traded[seller, fast], traded[buyer, slow] = left_fast, left_slow
        traded[buyer, fast] += places
        traded[seller, slow] += paid
