"""Small random markets for OASiS, for the planner and its slow twins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger, LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.policies.oasis.policy import OasisPlanner, OasisPricedJob, server_pools
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import PriceConstants, PricePool
from tests.oracles.oasis import Side
from tests.support.workloads import make_cluster, random_job


@dataclass(frozen=True)
class Window:
    """The part of a view that offers depend on."""

    slot: int
    end: int
    ledger: LedgerView
    cluster: Cluster


@dataclass(frozen=True)
class Market:
    """A partly reserved cluster with prices.

    `low` and `high` are L and U of the worker pool and of the PS pool.
    """

    on: Cluster
    ledger: Ledger
    low: tuple[float, float]
    high: tuple[list[float], list[float]]

    @property
    def members(self) -> tuple[Any, Any]:
        return server_pools(self.on, halved=True)

    def planner(self, *, literal: bool = False, gap: float = 0.0) -> OasisPlanner:
        """Return a planner with the prices of the ledger."""
        boards = [
            PriceBoard(
                self.on,
                PricePool.of(self.on, members),
                PriceConstants(float(np.log(low)), np.log(high)),
                self.on.horizon,
            )
            for members, low, high in zip(self.members, self.low, self.high, strict=True)
        ]
        planner = OasisPlanner(boards, self.on.slot_seconds, literal=literal, gap=gap)
        planner.follow(LedgerView(self.ledger))
        return planner

    def priced(
        self, job: Job, remaining: int, *, slots: int | None = None, **options: Any
    ) -> OasisPricedJob:
        """Return a job at these prices, planned over all slots of the ledger or the first ones."""
        start = self.ledger.start
        end = self.ledger.end if slots is None else start + slots
        view: Any = Window(start, end, LedgerView(self.ledger), self.on)
        return OasisPricedJob(self.planner(**options), view, job, remaining)

    def sides(self) -> tuple[Side, Side]:
        """Return the two pools in the form of the twins."""
        workers, servers = (
            Side.of(members, self.on.capacity, self.ledger.capacity, self.ledger.used, low, high)
            for members, low, high in zip(self.members, self.low, self.high, strict=True)
        )
        return workers, servers

    def with_prices(self, factor: float, upper_factor: float = 1.0) -> Market:
        """Return the market with L scaled by `factor`, and U by both factors."""
        return replace(
            self,
            low=(self.low[0] * factor, self.low[1] * factor),
            high=tuple(  # type: ignore[arg-type]  # two of them
                [max(low * factor, u * factor * upper_factor) for u in high]
                for low, high in zip(self.low, self.high, strict=True)
            ),
        )

    def on_cluster(self, cluster: Cluster, extra: int = 0) -> Market:
        """Return the market with the same reservations on a larger cluster.

        ``extra`` servers come last in ``on``; the others keep their rows.
        """
        ledger = Ledger(cluster, cluster.horizon, self.ledger.start)
        rows = self.on.servers
        assert cluster.servers == rows + extra
        ledger.used[:, :rows] = self.ledger.used
        ledger.versions[:] += 1
        return replace(self, on=cluster, ledger=ledger)


def random_market(rng: np.random.Generator, horizon: int) -> Market:
    """Return a cluster with random reservations, and sometimes a lost server."""
    cluster = make_cluster(
        int(rng.integers(1, 4)),
        int(rng.integers(1, 3)),
        int(rng.choice([0, 0, 2, 3])),
        gpus=int(rng.integers(1, 5)),
        horizon=horizon,
    )
    ledger = Ledger(cluster, horizon)
    ledger.advance(int(rng.integers(0, 3)))
    crowded = rng.random()
    for slot in range(ledger.start, ledger.end):
        for server in range(cluster.servers):
            if rng.random() < crowded:
                share = rng.random(len(cluster.resources)) * rng.choice([0.3, 1.0])
                held = np.where(
                    cluster.capacity[server] < 2**62, cluster.capacity[server] * share, 0
                )
                plan = Schedule.of([(slot, server, 1, 0)])
                ledger.reserve(f"{slot}/{server}", plan, held.astype(np.int64), None)
    if rng.random() < 0.15:
        ledger.lose(int(rng.integers(cluster.servers)))
    low = 10.0 ** rng.uniform(-3, 1.3, 2)
    high = [(one * 10.0 ** rng.uniform(0, 3, len(cluster.resources))).tolist() for one in low]
    return Market(cluster, ledger, (float(low[0]), float(low[1])), (high[0], high[1]))


def random_case(seed: int, horizon: int = 5, *, linear: bool = False) -> tuple[Market, Job, int]:
    """Return a market, a job, and its remaining work."""
    rng = np.random.default_rng(seed)
    market = random_market(rng, horizon)
    job = random_job(market.on, rng, "job", latest=market.ledger.start)
    while linear and job.gains.tolist() != list(range(1, job.chunks + 1)):
        job = random_job(market.on, rng, "job", latest=market.ledger.start)
    part = rng.random() if rng.random() < 0.2 else 1.0
    return market, job, max(1, int(job.required * part))
