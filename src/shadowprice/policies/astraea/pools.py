"""Pools of capacity units, on which a round opens its market, and their prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.job import Job
from shadowprice.policies.astraea.market import RoundMarket, UnitPool
from shadowprice.policies.astraea.parameters import Theta
from shadowprice.policies.astraea.prices import max_theta, min_thetas, price_table
from shadowprice.policies.tenants.gang_jobs import gang_job
from shadowprice.policies.tenants.tenancy import TenantShares, UnitClaim

NEARLY_FREE = 1.0 + 1e-9  # minimum of theta: prices are then below a millionth


class TaughtTheta(NamedTuple):
    """Theta that one job requires of its types; ``ps_type`` is None without parameter servers."""

    arrival: int
    worker_type: int
    worker: float
    ps_type: int | None
    ps: float


@dataclass(eq=False)
class TenantPool:
    """Servers with the tenants that may use them."""

    tenants: tuple[int, ...]  # their indices in the cluster
    servers: Integers  # their indices in the cluster
    workers: Integers  # units, shape (types, servers of the pool)
    ps: Integers
    worker_shares: Integers  # units that each tenant owns, shape (types, tenants of the pool)
    ps_shares: Integers
    theta: Theta
    seen_worker: list[float] = field(init=False)
    seen_ps: list[float] = field(init=False)
    taught: dict[str, TaughtTheta] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.seen_worker = [1.0] * len(self.workers)
        self.seen_ps = [1.0] * len(self.ps)

    def position(self, tenant: int) -> int:
        """Return a tenant's position in the pool."""
        return self.tenants.index(tenant)

    def max_ps(self, claim: UnitClaim) -> int:
        """Return the maximum of parameter servers of a claim's type on one server."""
        return 0 if claim.ps_type is None else int(self.ps[claim.ps_type].max(initial=0))

    def units_for(self, claim: UnitClaim) -> tuple[Integers, Integers]:
        """Return the units of a claim's types on each server."""
        ps = np.zeros_like(self.servers) if claim.ps_type is None else self.ps[claim.ps_type]
        return self.workers[claim.worker_type], ps

    def learn(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Raise theta to its definition over one more job.

        Its utility counts up to what the tenant could pay.
        """
        # The definition assumes that a job is worth at least 1 per worker-slot.
        theta = self._compute_theta(job, claim, rigid=rigid, min_price=1.0)
        _raise_thetas(self.seen_worker, self.seen_ps, theta)

    def teach(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Learn theta from an open job, until it is taken back or forgotten."""
        # Values in a service have any scale: a plain job of a minute is worth 0.02 points. At a
        # price of at least 1, a second such job would wait until the first one ends.
        self.taught[job.name] = self._compute_theta(job, claim, rigid=rigid, min_price=0.0)

    def take_back(self, name: str) -> None:
        """Undo what a job has taught, if it has."""
        self.taught.pop(name, None)

    def _compute_theta(
        self, job: Job, claim: UnitClaim, *, rigid: bool, min_price: float
    ) -> TaughtTheta:
        gang = gang_job(job, claim, self.max_ps(claim), rigid=rigid, tenant=0)
        max_workers = int(self.workers[claim.worker_type].max(initial=0))
        worker, ps = min_thetas([gang], max_workers, job.payable, min_price)
        return TaughtTheta(job.arrival, claim.worker_type, worker, claim.ps_type, ps)

    def thetas(self) -> tuple[list[float], list[float]]:
        """Return theta in force by type, of workers and of parameter servers."""
        worker, ps = list(self.seen_worker), list(self.seen_ps)
        for taught in self.taught.values():
            _raise_thetas(worker, ps, taught)
        if self.theta.worker is not None and self.theta.ps is not None:
            worker, ps = [self.theta.worker] * len(worker), [self.theta.ps] * len(ps)
        worker, ps = (
            [max(self.theta.scale * theta, NEARLY_FREE) for theta in kind] for kind in (worker, ps)
        )
        return worker, ps

    def open(self, slots: int, lost: Sequence[bool], *, pack_in_time: bool) -> RoundMarket:
        """Open an empty market on the servers that are up.

        It lasts ``slots``; ``lost`` is by server of the cluster. A theta that a service learnt from
        jobs is lowered where prices would be too high to count: a job may have any value.
        """
        up = np.array([not lost[server] for server in self.servers.tolist()], np.bool_)
        kinds = []
        for units_by_type, shares, thetas in zip(
            (self.workers, self.ps),
            (self.worker_shares, self.ps_shares),
            self.thetas(),
            strict=True,
        ):
            pools = []
            for units, owned, theta in zip(units_by_type, shares, thetas, strict=True):
                total = int(units[up].sum())
                countable = min(theta, max_theta(total, slots)) if self.taught else theta
                prices = price_table(countable, total)
                pools.append(UnitPool(np.where(up, units, 0), owned, prices, slots))
            kinds.append(pools)
        return RoundMarket(kinds[0], kinds[1], pack_in_time=pack_in_time)


def _raise_thetas(worker: list[float], ps: list[float], taught: TaughtTheta) -> None:
    """Raise thetas by type to what a job requires."""
    worker[taught.worker_type] = max(worker[taught.worker_type], taught.worker)
    if taught.ps_type is not None:
        ps[taught.ps_type] = max(ps[taught.ps_type], taught.ps)


def shared_pools(tenancy: TenantShares, theta: Theta) -> list[TenantPool]:
    """Return one pool, which all tenants share."""
    shared = TenantPool(
        tuple(range(len(tenancy.tenants))),
        np.arange(tenancy.cluster.servers),
        tenancy.workers,
        tenancy.ps,
        tenancy.worker_shares,
        tenancy.ps_shares,
        theta,
    )
    return [shared]


def theta_record(tenancy: TenantShares, pool: TenantPool) -> Mapping[str, float]:
    """Return theta in force by unit type."""
    worker, ps = pool.thetas()
    return dict(zip((*tenancy.worker_types, *tenancy.ps_types), (*worker, *ps), strict=True))
