"""Algorithm 1 of OASiS and PD-ORS: admit jobs with a positive payoff, then update the prices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

import numpy as np

from shadowprice.core import events
from shadowprice.core.arrays import Flags, Floats
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Commit, Decision, Displace, Drop, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, Status, View
from shadowprice.core.potential import planned_progress
from shadowprice.core.quote import Quote, QuoteAnswer
from shadowprice.core.refusal import Refusal, RefusalReason, RevisionRefusedError
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.placements import restarts
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import (
    LN_COST_PART,
    Carries,
    ConstantsLearner,
    LowerConstant,
    PriceConstants,
    PricePool,
    given_constants,
    limit_lower,
)
from shadowprice.policies.pricing.guarantee import guarantee
from shadowprice.policies.pricing.offers import (
    FixedPlacementSearch,
    OfferSearch,
    PricedJob,
    PricedOffer,
    PricedPlanner,
    RestartAwareSearch,
    build_refusal,
    min_acceptance_factor,
)
from shadowprice.policies.pricing.overruns import OVERRUN, SHORT, Extension, find_extension
from shadowprice.policies.pricing.parameters import GivenPrices, PriceParameters

REFUSAL_MARGIN: Final = 1e-7
"""Minimum distance of a payoff bound below 0 that proves a refusal, as a share of the utility.

It is far above rounding errors of costs and the tolerance of the search over slots.
"""
_MIN_PRECISE_UTILITY: Final = 1e-280  # utility below which numbers lose their precision


@dataclass(frozen=True, slots=True, eq=False)
class DecisionInputs:
    """What decides about an arriving job besides the reservations. Advice compares two of these."""

    constants: Sequence[PriceConstants]  # of each pool
    divided: bool = False  # OASiS: whether servers that host both roles are divided between pools

    @property
    def key(self) -> bytes:
        """Bytes that are equal only for equal inputs."""
        lower = np.array([pool.ln_lower for pool in self.constants] + [float(self.divided)])
        return b"".join([lower.tobytes(), *(pool.ln_upper.tobytes() for pool in self.constants)])

    def ln_cheapest(self, other: DecisionInputs) -> float:
        """Return ln r, r <= 1, so that each price is at least r times that of the other inputs.

        A price is L (U / L)^y at load y between 0 and 1. So its logarithm changes by at least the
        smaller change of ln L and ln U. Prices that were 0 can't fall. ``-inf`` without a bound.
        """
        if self.divided is not other.divided:
            return -math.inf
        bound = 0.0
        for pool, other_pool in zip(self.constants, other.constants, strict=True):
            priced = ~np.isneginf(other_pool.ln_upper)
            if not priced.any():
                continue
            if not (math.isfinite(pool.ln_lower) and math.isfinite(other_pool.ln_lower)):
                return -math.inf
            change = float((pool.ln_upper[priced] - other_pool.ln_upper[priced]).min())
            bound = min(bound, pool.ln_lower - other_pool.ln_lower, change)
        return bound


class Shortfall(NamedTuple):
    """How far a refused job was from being admitted."""

    worth: float  # maximum utility of the job
    bound: float  # upper bound of the payoff of every schedule; -inf if none completes the work

    def remains(self, ln_cheapest: float) -> bool:
        """Return whether the job is certainly refused at other prices, with equal reservations.

        Let no schedule's payoff exceed P, and let each price be at least r times its former value,
        r <= 1. A schedule with utility u and cost c then has a payoff of at most
        u - r c = r (u - c) + (1 - r) u <= r P + (1 - r) u. ``ln_cheapest`` is ln r.
        """
        if math.isinf(self.bound):  # nothing fits, or a price overflows
            return ln_cheapest == 0.0
        if self.worth < _MIN_PRECISE_UTILITY:
            return False
        ratio = math.exp(ln_cheapest)
        return ratio * self.bound + (1.0 - ratio) * self.worth <= -REFUSAL_MARGIN * self.worth


REVISED: Final = "it was revised"

TIMESPAN: Final = "the end of the timespan changed"

_NO_REASON: Final = Refusal(RefusalReason.PRICE, "the reason was not computed")


class PricedAdmission(ABC):
    """Decides every job once, on arrival, by the best schedule at current prices.

    Each pool has a learner, which computes its constants, and a board, which has its prices.
    """

    name: ClassVar[str]
    """Name of the policy in messages."""
    capabilities: Capabilities = Capabilities(
        plans_ahead=True, elastic=True, prices=True, quotes=True, guarantees=True
    )

    def __init__(
        self,
        context: PolicyContext,
        parameters: PriceParameters,
        given: Sequence[GivenPrices | None],
    ) -> None:
        self._itemised = context.itemised
        self._explained = context.explained
        self._end_moves = context.end_moves
        self._parameters = parameters
        self._cluster = cluster = context.cluster
        known = parameters.prices == "offline"
        floor = LowerConstant(parameters.lower, self._alone(cluster))
        self._learners = tuple(
            ConstantsLearner(
                PricePool.of(cluster, members),
                carries,
                cluster.horizon,
                context.until,
                floor,
                known,
            )
            for carries, members in self._pools(cluster)
        )
        self._build(cluster, self._initial_constants(context, given))
        self._earned = 0.0
        self._was_disturbed = False
        """Whether an event happened that the theorems don't cover, such as a lost server."""
        self.capabilities = replace(
            self.capabilities,
            foresees=known,
            charges_restarts=parameters.restarts == "counted",
            forgets_refused=True,
        )

    @abstractmethod
    def _pools(self, cluster: Cluster) -> Sequence[tuple[Carries, Flags]]:
        """Return what processes each pool hosts, and its servers."""

    @abstractmethod
    def _alone(self, cluster: Cluster) -> StandaloneValue:
        """Return the object that computes a job's utility alone on a cluster."""

    @abstractmethod
    def _build_planner(self, cluster: Cluster, boards: Sequence[PriceBoard]) -> PricedPlanner:
        """Return a planner that uses the prices of these boards, one for each pool."""

    def _build(self, cluster: Cluster, constants: Sequence[PriceConstants]) -> None:
        boards = [
            PriceBoard(cluster, learner.pool, constant, cluster.horizon)
            for learner, constant in zip(self._learners, constants, strict=True)
        ]
        self._planner = self._build_planner(cluster, boards)

    def _initial_constants(
        self, context: PolicyContext, given: Sequence[GivenPrices | None]
    ) -> list[PriceConstants]:
        """Return the initial constants of each pool.

        ``given`` has the user's constants of each pool; None makes a pool free. Raises `InputError`
        if offline constants are requested without a job set, or a given price names an unknown
        resource.
        """
        parameters, learners = self._parameters, self._learners
        if parameters.prices == "given":
            constants = [_user_constants(self.name, prices, context.cluster) for prices in given]
            return [parameters.scaled(constant) for constant in constants]
        if parameters.prices == "offline":
            if context.known_jobs is None:
                message = "prices=offline needs the whole job set"
                hint = "use online or given"
                raise InputError(Fault(f"policy {self.name}", message, hint))
            for learner in learners:
                learner.learn_all(context.known_jobs)
        constants = [learner.constants() for learner in learners]
        alone = learners[0].floor.alone
        if parameters.prices == "offline" and parameters.lower == "clearing" and alone is not None:
            constants = limit_lower(constants, learners, alone, context.known_jobs or ())
        return [parameters.scaled(constant) for constant in constants]

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[Decision]:
        """Decide arriving jobs, extend plans that fell short, and replan displaced jobs."""
        self._was_disturbed |= not isinstance(
            event, events.JobsArrived | events.SlotBegan | events.JobsFinished
        )
        for decision in self._decide_event(view, event):
            yield decision
            if isinstance(decision, Drop):
                self._take_back(view, decision.job)

    def _decide_event(self, view: View, event: events.PolicyEvent) -> Iterator[Decision]:
        match event:
            case events.JobsArrived(_, jobs):
                self.expect(jobs)
                self._follow_slot(view)
                for job in jobs:
                    with self.as_if_learnt(view, job):
                        decision = self.weigh(view, job)[0]
                    if isinstance(decision, Commit):
                        self.learn(view, job)
                    yield decision
            case events.JobsDisplaced(_, names, server):
                reason = SHORT if server is None else f"{view.cluster.names[server]} is unavailable"
                for name in self._by_payoff(view, names):
                    yield self._replan_admitted(
                        view, view.open_jobs[name], reason, lost=server is not None
                    )
            case events.TimespanChanged():
                # Admitted jobs without a plan: their work didn't fit before the former end.
                waiting = [
                    name
                    for name, state in view.open_jobs.items()
                    if state.status is Status.QUEUED and not len(state.plan)
                ]
                for name in self._by_payoff(view, waiting):
                    yield self._replan_admitted(view, view.open_jobs[name], TIMESPAN)
            case events.PlansFellShort(_, names):
                plans = {name: view.open_jobs[name].plan for name in names}
                # Unstoppable jobs can't move, so they come first and take the capacity.
                for name in sorted(names, key=lambda name: not view.is_unstoppable(name)):
                    state = view.open_jobs.get(name)
                    # Skip a job that an earlier extension displaced: it has a new plan, or ended.
                    if state is not None and state.plan is plans[name]:
                        yield from self._extend(view, state)
            case events.JobRevised(_, job, admission=True):
                with self.as_if_learnt(view, job):  # the prices that a new job would meet
                    yield from self._readmit(view, view.open_jobs[job.name])
                self._relearn(view, job)
            case events.JobRevised(_, job):
                self._relearn(view, job)
            case events.JobCancelled(_, name):
                self._take_back(view, name)
            case _:
                return

    def expect(self, jobs: Sequence[Job]) -> None:
        """Prepare for jobs that arrive together. Called before the first one is decided."""
        del jobs

    def learn(self, view: View, job: Job) -> None:
        """Learn price constants from an admitted job, if ``prices=online``.

        ``view`` doesn't have the job's reservations yet.
        """
        if self._parameters.prices != "online":
            return
        self._learners = self._learners_at(view)
        for learner in self._learners:
            learner.learn((job,))
        self._post(view.ledger, [learner.constants() for learner in self._learners])

    def _take_back(self, view: View, name: str) -> None:
        """Post the prices as if the job had never taught, because it was dropped or cancelled."""
        if self._parameters.prices == "online":
            self._learners = tuple(learner.without(name) for learner in self._learners)
            self._follow_slot(view)

    def _relearn(self, view: View, job: Job) -> None:
        """Learn from a revised job instead of from its former version, if it is admitted."""
        state = view.open_jobs.get(job.name)
        if state is not None and state.status is Status.ADMITTED:
            self._learners = tuple(learner.without(job.name) for learner in self._learners)
            self.learn(view, job)

    def _follow_slot(self, view: View) -> None:
        """Post the prices of the view's slot, without jobs that arrived a horizon ago."""
        if self._parameters.prices == "online":
            self._learners = self._learners_at(view)
            self._post(view.ledger, [learner.constants() for learner in self._learners])

    def _learners_at(self, view: View) -> tuple[ConstantsLearner, ...]:
        """Return the learners of the view's slot, as copies."""
        if self._parameters.prices != "online":
            return self._learners
        return tuple(learner.at(view.slot) for learner in self._learners)

    def _post(self, ledger: LedgerView, constants: Sequence[PriceConstants]) -> None:
        """Post constants on the boards whose prices change."""
        for board, learnt in zip(self._planner.boards, constants, strict=True):
            scaled = self._parameters.scaled(learnt)
            if board.constants.differ(scaled):
                board.set_constants(scaled, ledger)

    def weigh(
        self, view: View, job: Job, *, measured: bool = False
    ) -> tuple[Decision, Shortfall | None]:
        """Decide an arriving job at current prices.

        With ``measured``, a refusal comes with its `Shortfall`, None if nothing proves one.
        """
        with self._lowered_on_empty(view, job):
            return self._weigh(view, job, measured=measured)

    def _weigh(self, view: View, job: Job, *, measured: bool) -> tuple[Decision, Shortfall | None]:
        self._planner.follow(view.ledger)
        priced = self._planner.quote(view, job, job.required)
        proof = None if self._explained else priced.prove_too_expensive()
        if proof is not None:
            refusal = replace(_NO_REASON, value=proof.utility, cost=proof.cost)
            short = _shortfall_below(view, job, proof.bound) if measured else None
            return Reject(job.name, refusal), short
        quote, offer = self._best_offer(priced)
        self._observe(priced)
        if offer is None or offer.payoff <= 0:  # Algorithm 1, line 4
            # A restart-aware search can miss plans, so finding none proves nothing.
            proved = offer is not None or not isinstance(quote, RestartAwareSearch)
            bound = self._payoff_bound(job, offer) if measured and proved else None
            short = None if bound is None else _shortfall_below(view, job, bound)
            if not self._explained:
                refusal = _NO_REASON
                if offer is not None:
                    refusal = replace(_NO_REASON, value=offer.utility, cost=offer.cost)
                return Reject(job.name, refusal), short
            return Reject(job.name, build_refusal(quote, offer)), short
        self._earned += offer.utility
        return _build_commit(quote, offer, itemised=self._itemised), None

    def _observe(self, quote: PricedJob) -> None:
        """Record what the search for a decided job did, for `_premises`."""
        del quote

    @property
    def terms(self) -> DecisionInputs:
        """The inputs of the next decision besides reservations."""
        return DecisionInputs([board.constants for board in self._planner.boards])

    def _payoff_bound(self, job: Job, offer: PricedOffer | None) -> float | None:
        """Return a proven upper bound of the payoff of every schedule, None without one."""
        del job, offer
        return None

    def resume(self, view: View) -> None:
        """Resync with the view's servers and timespan; learnt constants and plans stay."""
        moved = view.until != self._learners[0].until
        if moved:
            self._learners = tuple(
                learner.within(view.until, view.slot) for learner in self._learners
            )
        if moved or view.cluster is not self._cluster:
            self._was_disturbed = True
            self._cluster = view.cluster
            self._follow(view.cluster)

    def _follow(self, cluster: Cluster) -> None:
        """Rebuild learners, boards and planner for a changed cluster; keep the constants."""
        alone = self._alone(cluster)
        constants = [board.constants for board in self._planner.boards]
        self._learners = tuple(
            learner.moved(PricePool.of(cluster, members), alone)
            for learner, (_, members) in zip(self._learners, self._pools(cluster), strict=True)
        )
        if self._parameters.prices == "online":
            constants = [self._parameters.scaled(learner.constants()) for learner in self._learners]
        self._build(cluster, constants)

    @abstractmethod
    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the present price constants."""

    def _ratio_over_alpha(self) -> float:
        """Return the competitive ratio over alpha: 2 in OASiS's Theorem 4."""
        return 2.0

    def guarantee(self, jobs: Sequence[Job]) -> Mapping[str, object]:
        """Return the competitive ratio at the constants in force, and which premises held."""
        constants = [board.constants for board in self._planner.boards]
        return guarantee(
            self._learners,
            constants,
            self._alone(self._cluster),
            self._cluster,
            jobs,
            self._earned,
            self._premises(jobs),
            factor=self._ratio_over_alpha(),
        )

    def _premises(self, jobs: Sequence[Job]) -> dict[str, bool]:
        """Return the theorem's premises that follow from parameters and events."""
        charges = self.capabilities.charges_restarts
        return {
            # Learnt constants change, and the proofs need the same ones for all jobs.
            "constants_known_in_advance": self._parameters.prices != "online",
            # ``empty=admits`` sells below L, so a later job finds less capacity than in the proof.
            "empty_is_priced": self._parameters.empty == "priced",
            "schedules_are_optimal": self._searches_exactly(),
            "moves_are_free": not any(
                (charges and job.restart) or job.resumable is False
                for job in jobs
                if job.bag is None
            ),
            "undisturbed": not self._was_disturbed,
        }

    def _searches_exactly(self) -> bool:
        """Return whether each job gets a schedule with the largest payoff of all."""
        return True

    def slot_prices(self, view: View) -> Floats:
        """Return the price of each server's whole capacity in the next slot, by resource."""
        prices = np.zeros(self._cluster.capacity.shape)
        for learner, board in zip(self._learners_at(view), self._planner.boards, strict=True):
            constants = board.constants
            if self._parameters.prices == "online":
                constants = self._parameters.scaled(learner.constants())
            prices[board.servers] += board.server_totals(view.ledger, constants)
        return prices

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision on the job if it arrived now, with its best offer."""
        with self.as_if_learnt(view, job), self._lowered_on_empty(view, job):
            self._planner.follow(view.ledger)
            priced = self._planner.quote(view, job, job.required)
            if not (self._explained or explained) and priced.prove_too_expensive() is not None:
                return Quote(job.name, view.slot, QuoteAnswer.REFUSED)
            quote, offer = self._best_offer(priced)
            answer, refusal = QuoteAnswer.ADMITTED, None
            if offer is None or offer.payoff <= 0:
                answer = QuoteAnswer.REFUSED
                refusal = build_refusal(quote, offer) if explained else None
        if offer is None:
            return Quote(job.name, view.slot, answer, refusal=refusal)
        numbers = offer.completion, offer.utility, offer.cost
        expected = offer.completion if answer is QuoteAnswer.ADMITTED else None
        return Quote(job.name, view.slot, answer, *numbers, refusal=refusal, expected=expected)

    @contextmanager
    def as_if_learnt(self, view: View, job: Job) -> Iterator[None]:
        """Post the prices that the job meets on arrival, within the block."""
        with self._prices_kept(view):
            if self._parameters.prices == "online":
                learners = self._learners_at(view)
                constants = [learner.constants_with(job) for learner in learners]
                self._post(view.ledger, constants)
            yield

    @contextmanager
    def _lowered_on_empty(self, view: View, job: Job) -> Iterator[None]:
        """With ``empty=admits``, lower every L within the block until the job's payoff is positive.

        This only happens if nothing is reserved and the job could complete, but costs more than its
        utility. At the lowered prices, the plan with the largest utility per cost costs half of its
        utility.
        """
        if self._parameters.empty == "priced" or view.ledger.used.any():
            yield
            return
        self._planner.follow(view.ledger)
        quote = self._planner.quote(view, job, job.required)
        offer = quote.best()
        if offer is None or offer.payoff > 0:
            yield
            return
        factor, nearest = min_acceptance_factor(quote, offer)
        with self._prices_kept(view):
            if nearest is not None:
                for board in self._planner.boards:
                    lowered = board.constants.lowered(LN_COST_PART - math.log(factor))
                    board.set_constants(lowered, view.ledger)
            yield

    @contextmanager
    def _prices_kept(self, view: View) -> Iterator[None]:
        """Restore the present prices after the block."""
        boards = self._planner.boards
        former = [board.constants for board in boards]
        try:
            yield
        finally:
            for board, constants in zip(boards, former, strict=True):
                if board.constants is not constants:
                    board.set_constants(constants, view.ledger)

    def _by_payoff(self, view: View, names: Sequence[str]) -> list[str]:
        """Sort admitted jobs by falling payoff of the best new plan of each."""
        self._planner.follow(view.ledger)
        payoffs: dict[str, float] = {}
        for name in names:
            offer = self._requote(view, view.open_jobs[name]).best()
            payoffs[name] = -np.inf if offer is None else offer.payoff
        return sorted(names, key=lambda name: -payoffs[name])

    def _readmit(self, view: View, state: JobState) -> Iterator[Decision]:
        """Decide about the remaining work of a job whose revision needs a new admission.

        It is planned at current prices, on free capacity and the job's own reservations.
        Raises `RevisionRefusedError` if no plan has a positive payoff.
        """
        job, unstoppable = state.job, view.is_unstoppable(state.job.name)
        in_place = self._plan_in_place(view, state)
        if len(state.plan):
            # The job's own reservations must neither raise its prices nor block it.
            yield Displace(job.name, REVISED)
        self._planner.follow(view.ledger)
        payoff, commitment = -np.inf, None
        if in_place is not None:
            commitment = self._commit_plan(view, state, in_place, REVISED)
            payoff = commitment.payoff
        again = self._requote(view, state)
        offer = None if unstoppable else again.best()
        if offer is not None and offer.payoff > payoff:
            payoff = offer.payoff
            commitment = _build_commit(again, offer, message=REVISED)
        if commitment is None or payoff <= 0:
            raise RevisionRefusedError(_refuse_revision(again, offer, commitment))
        yield commitment

    def _plan_in_place(self, view: View, state: JobState) -> Schedule | None:
        """Return the rest of a plan, extended if needed; None if another job is in the way."""
        job, ahead = state.job, state.plan.from_slot(view.slot)
        charged = self.capabilities.charges_restarts
        running = view.running_placement(job.name)
        if len(ahead) and not view.is_unstoppable(job.name):
            done = planned_progress(job, ahead, running, charged=charged)
            if done >= state.remaining:
                return ahead
        extension = find_extension(view, state, charged=charged)
        return None if extension is None or extension.displaced else extension.plan

    def _extend(self, view: View, state: JobState) -> Iterator[Decision]:
        """Extend a plan that fell short in place, or replan its job if that loses less utility."""
        name = state.job.name
        charged = self.capabilities.charges_restarts
        extension = (
            None if state.job.bag is not None else find_extension(view, state, charged=charged)
        )
        if extension is None or not self._is_worthwhile(view, state, extension):
            yield Displace(name, SHORT)
            yield self._replan_admitted(view, state, SHORT)
            return
        for other in extension.displaced:
            yield Displace(other, OVERRUN)
        self._planner.follow(view.ledger)
        yield self._commit_plan(view, state, extension.plan, SHORT)
        # An unstoppable job keeps running in place, so its plan is extended like this one.
        for other in filter(view.is_unstoppable, extension.displaced):
            yield from self._extend(view, view.open_jobs[other])
        to_replan = [other for other in extension.displaced if not view.is_unstoppable(other)]
        for other in self._by_payoff(view, to_replan):
            yield self._replan_admitted(view, view.open_jobs[other], OVERRUN)

    def _commit_plan(self, view: View, state: JobState, plan: Schedule, message: str) -> Commit:
        job = state.job
        cost = float(self._planner.quote(view, job, state.remaining).slot_costs(plan).sum())
        value = utility_value(job.utility, plan.completion - job.arrival)
        return Commit(job.name, plan, value - cost, value, cost, message=message)

    def _is_worthwhile(self, view: View, state: JobState, longer: Extension) -> bool:
        """Return whether extending a job in place loses no more utility than moving it."""
        if not longer.displaced or view.is_unstoppable(state.job.name):
            return True
        self._planner.follow(view.ledger)
        job, offer = state.job, self._requote(view, state).best()
        in_place = utility_value(job.utility, longer.plan.completion - job.arrival)
        return longer.loss <= in_place - (0.0 if offer is None else offer.utility)

    def _replan_admitted(
        self, view: View, state: JobState, reason: str, *, lost: bool = False
    ) -> Decision:
        """Plan an admitted job's remaining work at any price; drop or queue it if no plan fits."""
        self._planner.follow(view.ledger)
        job = state.job
        quote = self._requote(view, state)
        offer = quote.best()
        if offer is not None:
            return _build_commit(quote, offer, message=reason)
        detail = build_refusal(quote, None)
        if detail.reason is RefusalReason.DEADLINE:
            return Drop(job.name, detail)
        if self._end_moves and view.end == view.until:  # a later end may leave room for the work
            return Queue(
                job.name,
                f"{reason}, and the rest of the job does not fit before the timespan ends: "
                f"{detail.message}",
            )
        return Drop(
            job.name,
            Refusal(
                RefusalReason.SERVER_LOST if lost else detail.reason,
                f"{reason}, and the rest of the job does not fit: {detail.message}",
                bottleneck=detail.bottleneck,
            ),
        )

    def _best_offer(self, priced: PricedJob) -> tuple[OfferSearch, PricedOffer | None]:
        """Return the best offer to a job without a plan, and the search that found it.

        Restarts can only lower the payoff. So they are only counted if it is positive without them.
        """
        offer = priced.best()
        if offer is None or offer.payoff <= 0:
            return priced, offer
        search = self._count_restarts(priced, first_start_costs=priced.view.cluster.restart_first)
        if isinstance(search, FixedPlacementSearch):
            return search, search.best()
        if isinstance(search, RestartAwareSearch) and self.capabilities.charges_restarts:
            return search, search.lengthen(offer)
        return priced, offer

    def _requote(self, view: View, state: JobState) -> OfferSearch:
        """Return the search for a job that is replanned.

        It counts restarts even with ``restarts=ignored``. The paper's plan is just long enough and
        may move in every slot, so it would fall short again and again.
        """
        priced = self._planner.quote(view, state.job, state.remaining)
        return self._count_restarts(priced, first_start_costs=restarts(view, state))

    def _count_restarts(self, priced: PricedJob, *, first_start_costs: bool) -> OfferSearch:
        """Return a search that counts restarts, or avoids them if a stopped job loses its work."""
        if priced.job.bag is not None:
            return priced
        if priced.job.resumable is False:
            return FixedPlacementSearch(
                priced, self._planner.boards, first_start_costs=first_start_costs
            )
        return (
            RestartAwareSearch(priced, first_start_costs=first_start_costs)
            if priced.job.restart
            else priced
        )


def _refuse_revision(quote: OfferSearch, offer: PricedOffer | None, kept: Commit | None) -> Refusal:
    """Return why a revision is refused. ``kept`` would keep the job's placement, if possible."""
    if kept is None:
        return build_refusal(quote, offer)
    return Refusal(
        RefusalReason.PRICE,
        f"its utility by slot {kept.schedule.completion} is {kept.utility:.4g}, not above the "
        f"price of its remaining work, {kept.cost:.4g}",
        value=kept.utility,
        cost=kept.cost,
        completion=kept.schedule.completion,
    )


def _shortfall_below(view: View, job: Job, bound: float) -> Shortfall:
    return Shortfall(float(job.utility.values(np.array([view.slot - job.arrival]))[0]), bound)


def _build_commit(
    quote: OfferSearch, offer: PricedOffer, *, itemised: bool = False, message: str = ""
) -> Commit:
    schedule = quote.schedule(offer)
    costs = tuple(quote.plain.slot_costs(schedule).tolist()) if itemised else ()
    return Commit(
        quote.job.name,
        schedule,
        offer.payoff,
        offer.utility,
        offer.cost,
        copies=offer.copies,
        payoff_bound=offer.bound,
        slot_costs=costs,
        message=message,
    )


def _user_constants(name: str, prices: GivenPrices | None, cluster: Cluster) -> PriceConstants:
    if prices is None:
        return given_constants(0.0, {}, cluster.resources)
    for resource in prices.U.keys() - set(cluster.resources):
        names = ", ".join(cluster.resources)
        raise InputError(
            Fault(f"policy {name}: U.{resource}", "no server has it", f"known: {names}")
        )
    return given_constants(prices.L, prices.U, cluster.resources)
