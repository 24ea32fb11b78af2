"""Replay of a run's arrivals without an engine, if arrivals are its only events.

A policy that decides each job on arrival, by prices, only reads reservations, the slot and its
prices. If plans hold (no incidents, no restarts, exact execution), an engine only lets time pass
between two arrivals. Most arrivals need no new decision either, because decisions are cached. The
decision is the same for equal reservations and prices. A job that was far too expensive is also
refused at slightly different prices (`policies.pricing.admission.Shortfall`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

import numpy as np

from shadowprice.core.events import Commit, Decision, Reject
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Schedule
from shadowprice.engine.state import EngineState
from shadowprice.engine.validation import EmptyClusterCheck
from shadowprice.engine.view import EngineView
from shadowprice.policies.pricing.admission import DecisionInputs, PricedAdmission, Shortfall
from shadowprice.policies.pricing.constants import PriceContribution
from shadowprice.simulator.driver import SimulationCheckpoints
from shadowprice.simulator.execution import ExactExecution
from shadowprice.simulator.scenario import Scenario

_MAX_CACHED: Final = 100_000  # maximum size of a cache, which is then cleared
_MAX_PROOFS: Final = 8  # maximum cached refusals of a job at the same reservations


def can_replay_arrivals(scenario: Scenario) -> bool:
    """Return whether plans hold in a scenario, if it has no incidents."""
    return type(scenario.execution) is ExactExecution and all(
        job.bag is None and not job.restart for job in scenario.jobs
    )


Arrival = tuple[int, Job]  # a job with its index in the file


@dataclass(slots=True)
class _CachedDecisions:
    decisions: dict[bytes, Decision] = field(default_factory=dict)  # by `DecisionInputs.key`
    refused: list[tuple[DecisionInputs, Shortfall]] = field(default_factory=list)


class DecisionCache:
    """Cache of decisions on the jobs of a scenario, by reservations.

    Reservations are the set of reserved plans, identified by a number. The number of no plans is 0.
    A plan that is added to a set gives a new number, by the set's number, the job and the plan.
    """

    def __init__(self, scenario: Scenario) -> None:
        # Contributions of each job to the price constants.
        self.contributions: dict[tuple[object, ...], PriceContribution | None] = {}
        self.checkpoints: SimulationCheckpoints | None = None  # for a policy that foresees nothing
        self._check = EmptyClusterCheck(scenario.cluster)
        # The jobs that policies decide on, by arrival slot, in file order.
        self.arriving: dict[int, list[Arrival]] = {}
        for position, job in enumerate(scenario.jobs):
            if self.fits(job):
                self.arriving.setdefault(job.arrival, []).append((position, job))
        self._numbers: dict[tuple[int, int, bytes], int] = {}
        self._by_job: dict[tuple[int, int], _CachedDecisions] = {}
        self._count = 0

    def fits(self, job: Job) -> bool:
        """Return whether a job fits the empty cluster; no policy decides on other jobs."""
        return self._check(job) is None

    def decisions_at(self, reservations: int, position: int) -> _CachedDecisions:
        """Return the cached decisions on a job, given the number of the reservations."""
        cached = self._by_job.get((reservations, position))
        if cached is None:
            if len(self._by_job) >= _MAX_CACHED:
                self._by_job.clear()
            cached = self._by_job[reservations, position] = _CachedDecisions()
        return cached

    def number_with(self, reservations: int, position: int, plan: Schedule) -> int:
        """Return the number of the reservations after a job's plan is added."""
        digest = b"".join(
            part.tobytes() for part in (plan.slots, plan.servers, plan.workers, plan.ps)
        )
        key = (reservations, position, digest)
        if key not in self._numbers:
            if len(self._numbers) >= _MAX_CACHED:
                self._numbers.clear()
            self._count += 1  # never reused, so a cleared entry can't be confused with a new one
            self._numbers[key] = self._count
        return self._numbers[key]


_REFUSED: Final = Reject("", Refusal(RefusalReason.PRICE, "as it was at other prices"))


class ArrivalReplay:
    """Replay of arrivals under a freshly built policy.

    ``changed`` is the index of a job that `run` changes or leaves out. Its decisions aren't cached.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: PricedAdmission,
        cache: DecisionCache,
        changed: int | None = None,
    ) -> None:
        # Between two arrivals, the state has only reservations.
        state = EngineState(
            scenario.cluster, policy.capabilities, until=scenario.until, acknowledges=False
        )
        self.view, self._ledger = EngineView(state), state.ledger
        self._scenario = scenario
        self._policy = policy
        self._cache = cache
        self._changed = changed
        self._reservations = 0
        # Slot and name of jobs that complete before their plan ends, and release the rest then.
        self._early: list[tuple[int, str]] = []
        self._terms = policy.terms
        self._key = self._terms.key
        self._price_ratios: dict[DecisionInputs, float] = {}  # results of `_ln_cheapest`

    def run(
        self,
        changed: Job | None = None,
        slots: Iterable[int] = (),
    ) -> Iterator[tuple[int, Decision | None]]:
        """Decide all arrivals in order, with the ``changed`` job, or without it if that is None.

        Yields a job's index and None before the job's decision, and the index and the decision
        after it. At the end of a slot with arrivals, and of each of ``slots``, yields an index
        above all jobs' and None.
        """
        until = self._scenario.until
        arriving = self._cache.arriving
        extra = (
            {} if changed is None or not self._cache.fits(changed) else {changed.arrival: changed}
        )
        for slot in sorted({*arriving, *extra, *slots}):
            if until is not None and slot >= until:
                return
            self._pass_time(slot)
            arrivals = [
                arrival for arrival in arriving.get(slot, ()) if arrival[0] != self._changed
            ]
            if slot in extra and self._changed is not None:
                insort(arrivals, (self._changed, extra[slot]), key=itemgetter(0))
            yield from self._decide_slot(arrivals)
            yield len(self._scenario.jobs), None

    def _decide_slot(self, arrivals: Sequence[Arrival]) -> Iterator[tuple[int, Decision | None]]:
        policy = self._policy
        policy.expect([job for _, job in arrivals])
        for position, job in arrivals:
            yield position, None
            with policy.as_if_learnt(self.view, job):
                self._update_terms()
                decision = self._decide_job(position, job)
            if isinstance(decision, Commit):
                policy.learn(self.view, job)
                self._reserve(position, job, decision.schedule)
            yield position, decision

    def _pass_time(self, slot: int) -> None:
        """Begin a slot, and release the rest of the plans of jobs that completed early."""
        self._ledger.advance(slot)
        for entry in [early for early in self._early if early[0] <= slot]:
            self._early.remove(entry)
            self._ledger.release(entry[1])

    def _decide_job(self, position: int, job: Job) -> Decision:
        """Return the decision on a job, from the cache if possible."""
        policy = self._policy
        if position == self._changed:
            return policy.weigh(self.view, job)[0]
        cached = self._cache.decisions_at(self._reservations, position)
        # Cheaper than a decision: at these prices too, the job is far from an admission.
        for terms, proof in cached.refused:
            if proof.remains(self._ln_cheapest(terms)):
                return _REFUSED
        decision = cached.decisions.get(self._key)
        if decision is None:
            decision, shortfall = policy.weigh(self.view, job, measured=True)
            if (
                shortfall is not None
                and shortfall.remains(0.0)
                and len(cached.refused) < _MAX_PROOFS
            ):
                cached.refused.append((self._terms, shortfall))
            else:
                cached.decisions[self._key] = decision
        return decision

    def _update_terms(self) -> None:
        terms = self._policy.terms
        if (
            any(
                new is not old
                for new, old in zip(terms.constants, self._terms.constants, strict=True)
            )
            or terms.divided is not self._terms.divided
        ):
            self._terms, self._key = terms, terms.key
            self._price_ratios.clear()

    def _ln_cheapest(self, terms: DecisionInputs) -> float:
        ratio = self._price_ratios.get(terms)
        if ratio is None:
            ratio = self._price_ratios[terms] = self._terms.ln_cheapest(terms)
        return ratio

    def _reserve(self, position: int, job: Job, plan: Schedule) -> None:
        self._ledger.reserve(job.name, plan, job.worker, job.ps)
        self._reservations = self._cache.number_with(self._reservations, position, plan)
        completion = _completion(job, plan)
        if completion < plan.completion:
            self._early.append((completion + 1, job.name))


def _completion(job: Job, plan: Schedule) -> int:
    """Return the slot in which a plan completes the job's work at the declared rates."""
    workers, _, colocated = plan.totals()
    choices = np.searchsorted(job.worker_counts, workers)
    gains = np.where(colocated, job.internal_gains[choices], job.gains[choices])
    return int(plan.active_slots[np.searchsorted(np.cumsum(gains), job.required)])
