"""Posted prices in a file: a price for every limit of every pool in every slot.

`shadowprice bound --prices FILE` writes them, and ``oasis --set prices=fixed:FILE`` decides with
them. The file is JSON: the limits of each pool, and one row ``[slot, pool, limit, price]`` for
every positive price. A price is the utility per slot for all that the limit allows.

Every placement obeys linear limits on the total capacity of a pool. The plain limits are the
resources: the demands add up to at most the capacities. But a process can't be split over servers:
50 servers of 4 GPUs host 50 workers of 3 GPUs, not 66. So there are stronger limits. For a
nondecreasing superadditive function u on [0, 1] and processes on a server of capacity c, with C the
largest capacity,

    sum of u(demand / C) <= u(sum of demands / C) <= u(c / C),

so the sum over the servers is one more limit for each function u. The functions are those of Fekete
and Schepers (*New classes of fast lower bounds for bin packing problems*, Mathematical Programming
91, 2001): for k = 1, 2, ...,

    u_k(x) = x if (k + 1) x is an integer, else floor((k + 1) x) / k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule

MAX_DFF_K: Final = 4  # maximum k of the functions u_k (dual feasible functions)


@dataclass(frozen=True, slots=True)
class CapacityLimit:
    """One limit of a pool: u(demand / C), summed over its processes, is at most ``total``."""

    resource: int  # column of the resource
    parts: int  # k of the function u_k; 0 for the resource itself, u(x) = x
    reference: int  # C, the largest capacity of a server of the pool
    total: Fraction  # sum of u(capacity / C) over all servers

    def share(self, demands: Integers) -> float:
        """Return the share of the limit that one process with these demands takes."""
        weight = _weight(int(demands[self.resource]), self.reference, self.parts)
        return float(weight / self.total)


def _weight(demand: int, reference: int, parts: int) -> Fraction:
    """Return u(demand / C), where ``reference`` is C and ``parts`` is k."""
    x = Fraction(demand, reference)
    if not parts or x >= 1:
        return min(x, Fraction(1)) if parts else x
    scaled = (parts + 1) * x
    if scaled.denominator == 1:
        return x
    return Fraction(scaled.numerator // scaled.denominator, parts)


def build_limits(cluster: Cluster, members: Flags) -> list[CapacityLimit]:
    """Return the limits of a pool's servers; unlimited and absent resources have none."""
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


FORMAT = "shadowprice-prices"
VERSION = 1

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]


class _LimitRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    resource: str
    parts: Annotated[int, Field(ge=0, le=64)]
    reference: Annotated[int, Field(gt=0)]
    total: Annotated[str, Field(pattern=r"^\d{1,40}(/\d{1,40})?$")]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["shadowprice-prices"]
    version: Literal[1]
    slot_seconds: str
    resources: list[str]
    pools: Annotated[list[list[_LimitRecord]], Field(min_length=1, max_length=2)]
    first: Index
    slots: Annotated[int, Field(ge=0, le=10_000_000)]
    prices: list[tuple[Index, Index, Index, Price]]


@dataclass(frozen=True, eq=False)
class PostedPrices:
    """Prices by slot, pool and limit."""

    first: int  # slot of the first row
    prices: Floats
    """Utility per slot for all that a limit allows, by slot, pool and limit. Other slots are
    free."""
    limits: Sequence[Sequence[CapacityLimit]]
    """Limits of each pool. There is one pool for all servers, or one for workers and one for PS."""

    def costs(self, job: Job, first: int, slots: int) -> Floats:
        """Return the cost by slot, from ``first`` on, and worker count, each with its PS."""
        use = np.zeros((len(job.worker_counts), *self.prices.shape[1:]))
        for pool, counts, demand in (  # pool -1 is that of PS, or the only one
            (0, job.worker_counts, job.worker),
            (-1, job.ps_counts, job.ps),
        ):
            share = shares(self.limits[pool], demand)
            use[:, pool, : len(share)] += counts[:, None] * share
        prices = np.zeros((slots, *self.prices.shape[1:]))
        start, end = max(first, self.first), min(first + slots, self.first + len(self.prices))
        if start < end:
            prices[start - first : end - first] = self.prices[start - self.first : end - self.first]
        return np.asarray(prices.reshape(slots, -1) @ use.reshape(len(use), -1).T, dtype=np.float64)

    def most_expensive(self, job: Job, schedule: Schedule) -> tuple[int, float]:
        """Return the resource with the largest part of a schedule's cost, and that part."""
        workers, ps, _ = schedule.totals()
        paid: dict[int, float] = {}
        rows = schedule.active_slots - self.first
        priced = (rows >= 0) & (rows < len(self.prices))
        for pool, counts, demand in ((0, workers, job.worker), (-1, ps, job.ps)):
            share = shares(self.limits[pool], demand)
            total = counts[priced] @ self.prices[rows[priced], pool, : len(share)] * share
            for limit, amount in zip(self.limits[pool], total.tolist(), strict=True):
                paid[limit.resource] = paid.get(limit.resource, 0.0) + amount
        column = max(paid, key=lambda resource: paid[resource], default=0)
        return column, paid.get(column, 0.0)

    def document(self, cluster: Cluster) -> Mapping[str, object]:
        """Return the file's content; the prices are for ``cluster``."""
        rows = np.argwhere(self.prices > 0)
        return {
            "format": FORMAT,
            "version": VERSION,
            "slot_seconds": str(cluster.slot_seconds),
            "resources": list(cluster.resources),
            "pools": [
                [
                    {
                        "resource": cluster.resources[limit.resource],
                        "parts": limit.parts,
                        "reference": limit.reference,
                        "total": str(limit.total),
                    }
                    for limit in pool
                ]
                for pool in self.limits
            ],
            "first": self.first,
            "slots": len(self.prices),
            "prices": [
                [row[0] + self.first, row[1], row[2], float(self.prices[tuple(row)])]
                for row in rows.tolist()
            ],
        }


def pool_limits(cluster: Cluster) -> list[list[CapacityLimit]]:
    """Return the limits of each pool: one pool, or one per role if no server hosts both roles."""
    if bool((cluster.hosts_workers & cluster.hosts_ps).any()):
        return [build_limits(cluster, cluster.hosts_workers | cluster.hosts_ps)]
    return [build_limits(cluster, cluster.hosts_workers), build_limits(cluster, cluster.hosts_ps)]


def read_posted_prices(path: Path, cluster: Cluster) -> PostedPrices:
    """Read a file of prices; raise `InputError` if it is unreadable or for another cluster."""
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
    except ValidationError as error:
        hint = "write it with `shadowprice bound --prices FILE`"
        raise InputError(Fault(str(path), "is not a valid file of prices", hint)) from error
    expected = pool_limits(cluster)
    limits = [
        [
            CapacityLimit(
                cluster.column.get(record.resource, -1),
                record.parts,
                record.reference,
                _ratio(record.total),
            )
            for record in pool
        ]
        for pool in document.pools
    ]
    if limits != expected or document.slot_seconds != str(cluster.slot_seconds):
        hint = "write prices for this cluster with `shadowprice bound --prices FILE`"
        raise InputError(Fault(str(path), "has prices for another cluster", hint))
    prices = np.zeros((document.slots, len(expected), max(map(len, expected))))
    for slot, pool, limit, price in document.prices:
        if not (
            0 <= slot - document.first < document.slots and pool < len(expected)
        ) or limit >= len(expected[pool]):
            raise InputError(Fault(str(path), f"the price of slot {slot} is out of its range"))
        prices[slot - document.first, pool, limit] = price
    return PostedPrices(document.first, prices, expected)


def _ratio(text: str) -> Fraction:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return Fraction(-1)  # differs from every limit, so the file is refused
