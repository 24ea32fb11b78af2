"""One job at the current prices of OASiS's two pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.core.schedule import Schedule
from shadowprice.policies.bags.quotes import PricedBag
from shadowprice.policies.oasis.planner import ScheduleSearch
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import PricedJob, PricedOffer, ResourceBottleneck


@dataclass(frozen=True)
class OasisPlanner:
    """Adapter of `ScheduleSearch` to the planner protocol of `policies.pricing.admission`."""

    planner: ScheduleSearch

    @property
    def boards(self) -> Sequence[PriceBoard]:
        """Boards of the worker pool and of the parameter-server pool."""
        return self.planner.workers, self.planner.servers

    def follow(self, ledger: LedgerView) -> None:
        """Update both boards from the ledger."""
        self.planner.follow(ledger)

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the job at the current prices; ``remaining`` is in progress units."""
        if job.bag is not None:
            return PricedBag(self.planner.workers, view, job)
        return OasisPricedJob(self.planner, view, job, remaining)


@dataclass(frozen=True)
class OasisPricedJob:
    """A job on two pools; implements `policies.pricing.offers.PricedJob`."""

    planner: ScheduleSearch
    view: View
    job: Job
    remaining: int

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer of largest payoff; None if no schedule completes the work."""
        work = self.remaining + more
        return self.planner.best(self.job, self.view.slot, self.view.end, work, factor)

    def prove_too_expensive(self) -> None:
        """Return None: computing the best offer takes little longer than a bound would."""

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the placement of an offer's workers and parameter servers."""
        return self.planner.schedule(self.job, self.view.slot, offer)

    def max_gain(self) -> int:
        """Return the most progress units that one slot can add."""
        return int(self.job.gains.max())

    def explain_infeasible(self) -> None:
        """Return None: the scarcest resource explains why no schedule completes the work."""

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for the job, over both pools."""
        job, view = self.job, self.view
        slots = view.end - view.slot
        boards = [(self.planner.workers, False)]
        if job.ps is not None and job.ps.any():
            boards.append((self.planner.servers, True))
        candidates = [
            (*board.scarcest(job, ps=ps, ledger=view.ledger, slots=slots), ps)
            for board, ps in boards
        ]
        # Parameter servers are needed in proportion: compare the workers that each pool allows.
        per_worker = float(job.ps_counts[-1] / job.worker_counts[-1]) if job.ps is not None else 1.0
        column, room, ps = min(
            candidates, key=lambda candidate: candidate[1] / (per_worker if candidate[2] else 1.0)
        )
        return ResourceBottleneck(
            view.cluster.resources[column],
            "parameter-server servers" if ps else "worker servers",
            "parameter servers" if ps else "workers",
            room,
        )

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the pool's resource that contributes most to a schedule's cost, and its cost."""
        if self.planner.posted is not None:
            column, paid = self.planner.posted.most_expensive(self.job, schedule)
            return f"{self.view.cluster.resources[column]}, at posted prices", paid
        best = ("", -1.0)
        for board, counts, demand in (
            (self.planner.workers, schedule.workers, self.job.worker),
            (self.planner.servers, schedule.ps, self.job.ps),
        ):
            if demand is None:
                continue
            total = board.spent(self.view.ledger, schedule, counts, demand)
            kind = "worker" if board is self.planner.workers else "parameter-server"
            column = int(np.argmax(total))
            if total[column] > best[1]:
                resource = self.view.cluster.resources[column]
                best = (f"{resource} of {kind} servers", float(total[column]))
        return best

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return a schedule's cost in each of its active slots."""
        job, active = self.job, schedule.active_slots
        if self.planner.posted is not None:
            first = int(active[0])
            costs = self.planner.posted.costs(job, first, int(active[-1]) - first + 1)
            workers = schedule.totals()[0]
            return costs[active - first, np.searchsorted(job.worker_counts, workers)]
        ledger = self.view.ledger
        total = self.planner.workers.cost_by_slot(ledger, schedule, schedule.workers, job.worker)
        if job.ps is not None:
            total += self.planner.servers.cost_by_slot(ledger, schedule, schedule.ps, job.ps)
        return total
