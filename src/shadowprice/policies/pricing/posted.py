"""Posted prices in a file: a price for every limit of every pool in every slot.

A certificate (`shadowprice bound --prices FILE`) writes them and ``oasis --set prices=fixed:FILE``
decides at them. The file is JSON: the limits of each pool (`policies.pricing.limits`), and one row
``[slot, pool, limit, price]`` for every price that is not 0, in utility per slot for all that the
limit allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shadowprice.core.arrays import Floats
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.policies.pricing.limits import CapacityLimit, build_limits, shares

FORMAT = "shadowprice-prices"
VERSION = 1

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0)]


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
    first: Place
    slots: Annotated[int, Field(ge=0, le=10_000_000)]
    prices: list[tuple[Place, Place, Place, Price]]


@dataclass(frozen=True, eq=False)
class PostedPrices:
    """Prices by slot, pool and limit."""

    first: int  # slot of the first row
    prices: Floats
    """By slot, pool and limit: utility per slot for all that a limit allows. Slots beyond are
    free."""
    limits: Sequence[Sequence[CapacityLimit]]
    """Of each pool: one for all servers, or one for workers and one for PS."""

    def costs(self, job: Job, first: int, slots: int) -> Floats:
        """Return the cost of each worker count, with its parameter servers, in each slot.

        The slots are ``[first, first + slots)``; the result has a row for each.
        """
        use = np.zeros((len(job.worker_counts), *self.prices.shape[1:]))
        for pool, counts, demand in (
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
        for pool, counts, demand in ((0, workers, job.worker), (-1, ps, job.ps)):
            share = shares(self.limits[pool], demand)
            for slot, count in zip(schedule.active_slots.tolist(), counts.tolist(), strict=True):
                if self.first <= slot < self.first + len(self.prices):
                    prices = self.prices[slot - self.first, pool, : len(share)]
                    for limit, amount in zip(
                        self.limits[pool], count * share * prices, strict=True
                    ):
                        paid[limit.resource] = paid.get(limit.resource, 0.0) + float(amount)
        column = max(paid, key=lambda resource: paid[resource], default=0)
        return column, paid.get(column, 0.0)

    def document(self, cluster: Cluster) -> Mapping[str, object]:
        """Return the file's content; ``cluster`` is the one that the prices are for."""
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
    """Return the limits of a cluster's pools.

    If no server hosts both, workers and parameter servers have one pool each; otherwise there is
    one.
    """
    if bool((cluster.hosts_workers & cluster.hosts_ps).any()):
        return [build_limits(cluster, cluster.hosts_workers | cluster.hosts_ps)]
    return [build_limits(cluster, cluster.hosts_workers), build_limits(cluster, cluster.hosts_ps)]


def read_posted_prices(path: Path, cluster: Cluster) -> PostedPrices:
    """Read a file of prices for a cluster.

    Raises `InputError` if the file can't be read, is damaged, or has prices of another cluster.
    """
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
    except ValidationError as error:
        hint = "write it with `shadowprice bound --prices FILE`"
        raise InputError(Fault(str(path), "isn't a file of prices, or is damaged", hint)) from error
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
        raise InputError(Fault(str(path), "its prices are for another cluster", hint))
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
        return Fraction(-1)
