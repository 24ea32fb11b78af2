"""Astraea's batches and rounds, on one pool or a pool per tenant: Algorithms 1 and 2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shadowprice.core import events
from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Charge, Commit, Decision, Displace, Drop, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, Status, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal, RefusalReason, RevisionRefusedError
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.astraea import RoundParameters
from shadowprice.policies.astraea.market import (
    GangAward,
    Round,
    RoundMarket,
    TenantPool,
    explain_refusal,
    private_pools,
    shared_pool,
)
from shadowprice.policies.astraea.prices import lemma3_sigma, lemma_1_rounds, max_theta, performance
from shadowprice.policies.placements import restarts
from shadowprice.policies.pricing.overruns import OVERRUN, SHORT, find_extension
from shadowprice.policies.tenants.tenancy import (
    MICRO,
    GangJob,
    TenantShares,
    UnitClaim,
    gang_job,
    infeasibility,
    min_gang_slots,
    read_tenant_shares,
    require_tenants,
)


class RoundCalendar:
    """All rounds in order, without an end: the geometric intervals of Algorithm 1.

    The paper counts slots from 1 and divides time at tau_0 = 1, tau_1 = 2, tau_2 = 4, ... (Section
    4.2 prints ``tau_l = 2^(l-1)`` beside these values, but the values and the example are ``2^l``).
    Batch ``l`` collects the arrivals r in [tau_{l-1}, tau_l) and is decided at time tau_l. It runs
    in (lambda tau_l, lambda tau_{l+1}], as lambda rounds of tau_l slots (Algorithm 2, line 4). The
    input line of Algorithm 3 prints another interval, which would overlap the next batch.

    Slots here count from 0: arrival slot ``a`` is the paper's ``r = a + 1``, and the instant tau_l
    is the start of slot tau_l. Batches and rounds are contiguous and don't overlap. Rounds double
    until the next length would exceed ``longest`` slots. Later batches keep that length, and
    collect the jobs that arrived before their start.

    ``rounds`` is lambda, the number of rounds in a batch. Raises `InputError` if it is below 1 or
    ``longest`` below 2.
    """

    def __init__(self, rounds: int, longest: int) -> None:
        if rounds < 1 or longest < 2:
            raise InputError("Astraea needs lambda of at least 1 and a horizon of at least 2 slots")
        self._rounds = rounds
        self._max_exponent = longest.bit_length() - 1

    def __iter__(self) -> Iterator[Round]:
        return map(self.round, itertools.count())

    def round(self, index: int) -> Round:
        """Return the round at a position from 0."""
        batch, number = index // self._rounds + 1, index % self._rounds
        exponent = min(batch, self._max_exponent)
        # First slot of the batch: lambda 2^batch, then lambda 2^exponent more for each batch.
        begin = ((batch - exponent + 1) * self._rounds) << exponent
        collected = (1 << batch) - 1 if batch == exponent else begin
        start = begin + (number << exponent)
        return Round(batch, number, start, start + (1 << exponent), collected)


_SMALL_RISE: Final = 0.1
"""Maximum rise of ln(price + 1) by one gang at which gangs are small; sigma is then off by 5 %."""


@dataclass(slots=True)
class _Waiting:
    """A job that no round has scheduled yet, or that lost its placement (``displaced``).

    ``passed_over`` counts rounds on demand that didn't schedule it, although it was the oldest job.
    """

    job: Job
    claim: UnitClaim
    displaced: bool = False
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class _Running:
    """A scheduled gang. It starts in slot ``begin``; ``round_end`` is the end of its round."""

    award: GangAward
    begin: int
    pool: TenantPool
    round_end: int
    passed_over: int


class RoundPolicy:
    """Collects jobs in batches and schedules each batch in rounds.

    With ``sharing``, all tenants are in one pool and lend each other unused units for payment.
    Otherwise, each has a pool of its own servers.

    A round is decided when it starts, and a gang never moves. A gang that loses a server returns to
    its batch and keeps its progress. A gang that takes longer than stated keeps its units, even
    into the next round. Gangs that had reserved these units return to their batch. For each further
    slot of borrowed units it pays the price of its last slot, so understated work isn't cheaper.

    The paper's rounds grow from slot 0. A service that has run for long would start jobs only once
    in a horizon. So it uses rounds on demand: a round begins when jobs wait and no round is in
    progress. A round is in progress while one of its gangs runs or is planned before its end. Jobs
    that arrive in the meantime join the round if they can end within it. So all units are free at
    a round's end, as in the paper, and a tenant waits for its share for at most one round.
    """

    def __init__(
        self, context: PolicyContext, parameters: RoundParameters, *, sharing: bool
    ) -> None:
        self.parameters = parameters
        self.sharing = sharing
        tenancy = read_tenant_shares(context.cluster)
        self._build_pools(tenancy)
        self._rigid = parameters.workers == "rigid"
        require_tenants(tenancy, context.known_jobs)
        has_known_jobs = bool(context.known_jobs)
        if parameters.theta.source == "known":
            for job in context.known_jobs or ():
                claim = tenancy.claim_of(job)
                if isinstance(claim, UnitClaim):
                    self._pool_of[claim.tenant].learn(job, claim, rigid=self._rigid)
        self._learns = parameters.theta.source == "online" or (
            parameters.theta.source == "known" and not has_known_jobs
        )
        self.lemma = self._compute_lemma_1(context.known_jobs or ())
        if parameters.rounds != "lemma":
            self.rounds = parameters.rounds
        elif self.lemma is not None:
            self.rounds = self.lemma
        else:
            message = "Lemma 1's value needs known jobs with positive utility"
            raise InputError(Fault("lambda", message, "give a number"))
        # Rounds fit the ledger's window, which has one horizon of slots.
        self.longest = 1 << (max(context.cluster.horizon, 1).bit_length() - 1)
        self._check_given_theta()
        self._on_demand = parameters.calendar == "demand" or (
            parameters.calendar == "auto" and context.known_jobs is None
        )
        self._calendar = RoundCalendar(self.rounds, self.longest)
        self._round = 0  # position of the next round in the calendar
        self._changed = False  # whether an event may let a waiting job join a round on demand
        self._waiting: dict[str, _Waiting] = {}
        self._running: dict[str, _Running] = {}
        self._completed_by = 0  # end of all gangs so far, for Theorem 1
        self._completed = 0  # number of completed jobs
        # Premises of Lemma 3 and Theorem 1 that gangs and events can break.
        self._gangs_are_small = self._utility_covers_slots = self._undisturbed = True
        self._markets: list[tuple[TenantPool, RoundMarket, Round]] = []
        self.capabilities = Capabilities(
            plans_ahead=True,
            charges=sharing and tenancy.named,
            prices=True,
            wakes_every_slot=True,
            local_traffic_is_free=True,
            quotes=True,
            guarantees=True,
            answers_at_once=False,
            foresees=has_known_jobs
            and (parameters.theta.source == "known" or parameters.rounds == "lemma"),
            # A job is decided within two batches, or two rounds on demand.
            patience=1
            + 2 * (context.cluster.horizon if self._on_demand else self.rounds * self.longest),
        )

    def resume(self, view: View) -> None:
        """Rebuild pools from the view's cluster. Planned jobs keep their plans; others wait.

        Raises `InputError` if the shares don't add up to the current units, or a given theta is too
        large for them.
        """
        self._undisturbed &= view.cluster is self.tenancy.cluster
        before, tenants = self.pools, self.tenancy.tenants
        self._build_pools(read_tenant_shares(view.cluster))
        pool_before = {tenants[tenant]: pool for pool in before for tenant in pool.tenants}
        for pool in self.pools:
            owner = self.tenancy.tenants[pool.tenants[0]]
            old = before[0] if self.sharing else pool_before.get(owner)
            if old is not None:
                pool.known_thetas, pool.taught = list(old.known_thetas), dict(old.taught)
        self._check_given_theta()
        if self.tenancy.tenants != tenants:
            self._running.clear()  # their payments refer to the earlier tenants
        self._markets = []
        self._changed = True
        waiting, self._waiting = self._waiting, {}
        for name, state in view.open_jobs.items():
            if state.status is Status.ARRIVED:
                continue  # the event of its arrival follows
            claim = self.tenancy.claim_of(state.job)
            if not len(state.plan) and isinstance(claim, UnitClaim):
                waited = waiting.get(name) or _Waiting(state.job, claim, displaced=True)
                self._waiting[name] = replace(waited, job=state.job, claim=claim)

    def _build_pools(self, tenancy: TenantShares) -> None:
        self.tenancy, theta = tenancy, self.parameters.theta
        self.pools = (
            [shared_pool(tenancy, theta)] if self.sharing else private_pools(tenancy, theta)
        )
        self._pool_of = {tenant: pool for pool in self.pools for tenant in pool.tenants}

    # ---------------------------------------------------------------- parameters

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, and the shares and thetas by unit type."""
        by_pool = [dict(zip(self.tenancy.types, pool.thetas(), strict=True)) for pool in self.pools]
        thetas: Mapping[str, object] = by_pool[0]
        if not self.sharing:  # a pool for each tenant
            thetas = dict(zip(self.tenancy.tenants, by_pool, strict=True))
        dumped = self.parameters.model_dump(exclude={"rounds", "theta"})
        return {
            "lambda": self.rounds,
            **dumped,
            "calendar": "demand" if self._on_demand else "doubling",
            "theta": {
                "source": self.parameters.theta.source,
                "scale": self.parameters.theta.scale,
                "in_force": thetas,
            },
            "rounds_of_lemma": self.lemma,
            "longest_round": self.longest,
            "shares": self.tenancy.shares(),
        }

    def guarantee(self, jobs: Sequence[Job]) -> Mapping[str, object]:
        """Return Lemma 3's sigma and Theorem 1's bound over the jobs that arrived.

        Lemma 3 holds if ``lemma_3_premises_held``: theta is at least its definition over the known
        jobs, and every scheduled gang was small beside its pool. Also, its utility was at least 1
        per slot of each worker and of each parameter server. Theorem 1 holds if ``premises_held``:
        Lemma 3 holds, lambda is at least Lemma 1's, rounds doubled until the last completion, and
        all jobs were completed.
        """
        bound = performance(jobs, self.rounds, self._completed_by)
        theta = self.parameters.theta
        lemma_3 = {
            "theta_is_lemma_3": theta.source == "known" and theta.scale >= 1.0,
            "gangs_are_small": self._gangs_are_small,
            "utility_covers_slots": self._utility_covers_slots,
            "undisturbed": self._undisturbed,
        }
        theorem_1 = {
            "lemma_3_premises_held": all(lemma_3.values()),
            "lambda_is_lemma_1": self.lemma is not None and self.rounds >= self.lemma,
            "rounds_double": not self._on_demand and 2**bound.batches <= self.longest,
            # The theorem bounds utilities at completion, which refused and open jobs don't have.
            "all_jobs_completed": self._completed == len(jobs),
        }
        return {
            "sigma": lemma3_sigma(*self.pools[0].max_thetas()),
            "batches": bound.batches,
            "loss_at_most": bound.loss_at_most,
            "ratio_at_least": bound.ratio_at_least,
            **lemma_3,
            **theorem_1,
            "premises_held": all(theorem_1.values()),
        }

    def _check_given_theta(self) -> None:
        """Raise `InputError` if a given theta exceeds `max_theta` of the longest round."""
        theta = self.parameters.theta
        for pool in self.pools:
            count = pool.worker_types
            for name, value, units in (
                ("worker", theta.worker, pool.units[:count]),
                ("ps", theta.ps, pool.units[count:]),
            ):
                limit = max_theta(int(units.sum(axis=1).max(initial=0)), self.longest)
                if value is not None and value * theta.scale > limit:
                    message = f"prices at {value:g} are too high to count"
                    hint = f"give at most {limit / theta.scale:.3g}"
                    raise InputError(Fault(f"theta.{name}", message, hint))

    def _compute_lemma_1(self, known: Sequence[Job]) -> int | None:
        """Return Lemma 1's lambda over the known jobs with a utility; None without any."""
        # A job's maximum ideal utility is that of ending in a round's first slot, a duration of 1.
        utilities = [float(job.utility.values(np.array([1]))[0]) for job in known]
        utilities = [utility for utility in utilities if utility > 0]
        if not utilities:
            return None
        return lemma_1_rounds(sum(utilities), min(utilities), *self.pools[0].max_thetas())

    # ---------------------------------------------------------------- events

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event; most jobs are decided at the start of a slot."""
        self._changed |= not isinstance(event, events.SlotBegan)
        self._undisturbed &= isinstance(
            event, events.SlotBegan | events.JobsArrived | events.JobsFinished
        )
        match event:
            case events.SlotBegan(slot):
                yield from self._begin_slot(view, slot)
            case events.JobsArrived(_, jobs):
                for job in jobs:
                    yield self._answer_arrival(view, job)
            case events.JobsDisplaced(_, names):
                for name in names:
                    self._return_to_batch(view, name)
            case events.PlansFellShort(_, names):
                # Unstoppable jobs can't move, so they come first and take the units.
                for name in sorted(names, key=lambda name: not view.is_unstoppable(name)):
                    yield from self._extend(view, view.open_jobs[name])
            case events.JobsFinished(_, names):
                self._completed += len(names)
                for name in names:
                    self._forget(name)
            case events.JobRevised(_, job, admission=True):
                self._check_revision(view, job)
            case events.JobCancelled(_, name):
                self._take_back(name)
                self._forget(name)

    def _forget(self, name: str) -> None:
        """Discard a job that ended, maybe while it waited because its plan had fallen short."""
        self._waiting.pop(name, None)
        self._running.pop(name, None)

    def _check_revision(self, view: View, job: Job) -> None:
        """Raise `RevisionRefusedError` if no round can schedule a revised job's processes."""
        claim = self.tenancy.claim_of(job)
        refusal = claim if isinstance(claim, Refusal) else self._infeasibility(job, claim)
        if refusal is None or self._is_postponed(view, refusal):
            return
        # Too late or without value isn't certain: the check ignores the work that is done.
        if refusal.reason in {RefusalReason.POLICY, RefusalReason.NEVER_FITS}:
            raise RevisionRefusedError(refusal)

    def _return_to_batch(self, view: View, name: str) -> None:
        """Let a job that lost its units wait for the next round."""
        running = self._running.pop(name, None)
        job = view.open_jobs[name].job
        claim = self.tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            return  # after a revision, no unit type fits its demand; `resume` tries again
        passed_over = 0 if running is None else running.passed_over
        self._waiting[name] = _Waiting(job, claim, displaced=True, passed_over=passed_over)

    def _extend(self, view: View, state: JobState) -> Iterator[Decision]:
        """Extend a gang that takes longer than stated, unless stopping it loses less utility."""
        job = state.job
        extension = find_extension(view, state, charged=self.capabilities.charges_restarts)
        if extension is None:
            return
        value = utility_value(job.utility, extension.plan.completion - job.arrival)
        if extension.displaced and not view.is_unstoppable(job.name):
            delay = self._next_start(view, job) - view.slot
            value_if_stopped = utility_value(
                job.utility, extension.plan.completion + delay - job.arrival
            )
            if extension.loss > value - value_if_stopped:
                return
        for other in extension.displaced:
            yield Displace(other, OVERRUN)
            self._return_to_batch(view, other)
        cost = self._extension_payment(job.name, extension.plan)
        charged = cost if self.capabilities.charges else None
        payoff = value - cost
        self._completed_by = max(self._completed_by, extension.plan.completion + 1)
        yield Commit(job.name, extension.plan, payoff, value, cost, charged=charged, message=SHORT)

    def _extension_payment(self, name: str, plan: Schedule) -> float:
        """Return a gang's payment for an extended plan: further slots cost as much as its last."""
        running = self._running.get(name)
        if running is None or running.award.income is None:
            return 0.0
        incomes = running.award.income.values()
        by_slot = np.sum([income.sum(axis=1) for income in incomes], axis=0)
        slots = np.unique(plan.slots) - running.begin
        return float(by_slot[np.minimum(slots, len(by_slot) - 1)].sum()) / MICRO

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would join a batch; only a round decides on its plan."""
        del explained  # reasons are always included
        return Quote.of(self._answer(view, job), view.slot)

    def _answer_arrival(self, view: View, job: Job) -> Decision:
        decision = self._answer(view, job)
        if isinstance(decision, Queue):
            claim = self.tenancy.claim_of(job)
            assert isinstance(claim, UnitClaim)
            self._waiting[job.name] = _Waiting(job, claim)
            if self._learns and self._infeasibility(job, claim) is None:
                self._pool_of[claim.tenant].teach(job, claim, rigid=self._rigid)
        return decision

    def _take_back(self, name: str) -> None:
        for pool in self.pools:
            pool.take_back(name)

    def _answer(self, view: View, job: Job) -> Queue | Reject:
        claim = self.tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            return Reject(job.name, claim)
        refusal = self._infeasibility(job, claim)
        if refusal is not None and not self._is_postponed(view, refusal):
            return Reject(job.name, refusal)
        start = max(job.arrival, view.slot)
        message = f"joins a round, in slot {start} or later"
        if not self._on_demand:
            turn = next(turn for turn in self._rounds_from(start) if turn.collected > start)
            start, message = turn.start, f"joins batch {turn.batch}, decided in slot {turn.start}"
        if view.until is not None and start >= view.until:
            return Reject(
                job.name,
                Refusal(
                    RefusalReason.TOO_LATE,
                    f"its batch begins in slot {start}, the timespan ends at {view.until}",
                    bottleneck="end of the timespan",
                ),
            )
        return Queue(job.name, message)

    def _infeasibility(self, job: Job, claim: UnitClaim) -> Refusal | None:
        """Return why no round can ever schedule a job, None if an empty round could."""
        pool = self._pool_of[claim.tenant]
        gang = gang_job(job, claim, pool.max_ps(claim), rigid=self._rigid)
        return infeasibility(job, gang, *pool.units_for(claim), self.longest, own=not self.sharing)

    def _is_postponed(self, view: View, refusal: Refusal) -> bool:
        """Return whether a job that never fits waits all the same, as j22 in section 4.2 does.

        Only until a timespan ends; otherwise it would wait forever.
        """
        never_fits = refusal.reason is RefusalReason.NEVER_FITS
        return self._rigid and view.until is not None and never_fits

    def _rounds_from(self, slot: int) -> Iterator[Round]:
        """Yield the calendar's rounds that start in a slot or later, without end."""
        turns = map(self._calendar.round, itertools.count(self._round))
        return (turn for turn in turns if turn.start >= slot)

    def _next_start(self, view: View, job: Job) -> int:
        """Return the first slot in which the next round for a job can begin."""
        if not self._on_demand:
            return next(self._rounds_from(view.slot)).start
        claim = self.tenancy.claim_of(job)
        assert isinstance(claim, UnitClaim)
        return self._round_end(view, self._pool_of[claim.tenant], view.slot) or view.slot

    def _begin_slot(self, view: View, slot: int) -> Iterator[Decision]:
        for pool in self.pools:  # an ended job teaches until a horizon after its arrival
            for name, taught in list(pool.taught.items()):
                is_old = taught.arrival <= view.slot - view.cluster.horizon
                if is_old and name not in view.open_jobs:
                    pool.take_back(name)
        if view.until is None or slot < view.until:
            rounds = self._begin_on_demand if self._on_demand else self._begin_by_calendar
            yield from rounds(view, slot)
        if self.capabilities.charges:
            yield from self._charges(view, slot)

    # ---------------------------------------------------------------- rounds

    def _begin_by_calendar(self, view: View, slot: int) -> Iterator[Decision]:
        # A simulation only skips slots while no job waits, so skipped rounds had no jobs.
        while self._calendar.round(self._round).start < slot:
            self._round += 1
        turn = self._calendar.round(self._round)
        if turn.start == slot:
            self._round += 1
            yield from self._decide_round(view, turn)

    def _decide_round(self, view: View, turn: Round) -> Iterator[Decision]:
        self._remove_ended(view, turn.start)
        self._markets = [(pool, self._open(view, pool, turn), turn) for pool in self.pools]
        gangs_by_pool: dict[TenantPool, list[GangJob]] = {}
        for waiting in self._waiting.values():
            if waiting.job.arrival < turn.collected:
                pool, gang = self._build_gang(view, waiting, turn)
                gangs_by_pool.setdefault(pool, []).append(gang)
        for pool, market, _ in self._markets:
            gangs = gangs_by_pool.get(pool, [])
            awards = market.schedule(gangs, sharing=self.sharing)
            for award in awards:
                yield self._commit(award, turn, pool)
            yield from self._postpone(view, turn, market, _unscheduled(gangs, awards))

    def _begin_on_demand(self, view: View, slot: int) -> Iterator[Decision]:
        """Begin a round in each idle pool with waiting jobs; schedule jobs in other rounds."""
        changed, self._changed = self._changed, False
        if not self._waiting:
            return
        self._remove_ended(view, slot)
        waiting: dict[TenantPool, list[_Waiting]] = {}
        for job in self._waiting.values():
            waiting.setdefault(self._pool_of[job.claim.tenant], []).append(job)
        for pool, jobs in waiting.items():
            end = self._round_end(view, pool, slot)
            # A job that didn't fit into a round only fits later if an event frees units.
            if end is None or changed:
                yield from self._decide_on_demand(view, pool, jobs, slot, end)

    def _decide_on_demand(
        self, view: View, pool: TenantPool, jobs: list[_Waiting], slot: int, end: int | None
    ) -> Iterator[Decision]:
        """Begin a round, or schedule jobs in the remaining slots of one that ends in ``end``.

        A new round is as long as its oldest job needs, because all other jobs wait for its end. If
        a round of this length schedules no job, the length of the next job is tried. A round that
        schedules no job doesn't begin.
        """
        present = Round(0, 0, slot, slot, slot)
        gangs = [self._build_gang(view, job, present)[1] for job in jobs]
        if end is None:
            limit = view.end - slot
            lengths = [self._demanded_length(gang, limit) for gang in sorted(gangs, key=_by_age)]
            if not self._any_fits(view, pool, gangs):
                lengths = lengths[:1]  # one try suffices for the reasons, and thousands may wait
        else:
            lengths = [end - slot]
        for length in dict.fromkeys(lengths):
            turn = replace(present, end=slot + length)
            market = self._open(view, pool, turn)
            awards = market.schedule(gangs, sharing=self.sharing)
            if awards:
                break
        self._markets = [entry for entry in self._markets if entry[0] is not pool]
        self._markets.append((pool, market, turn))
        for award in awards:
            yield self._commit(award, turn, pool)
        unscheduled = _unscheduled(gangs, awards)
        if awards and end is None and unscheduled:
            first = min(gangs, key=_by_age)
            if first in unscheduled:
                self._waiting[first.name].passed_over += 1
        joins = None  # only the start of a round reports why other jobs wait
        if end is None and awards:
            joins = f"waits for the next round, which begins by slot {turn.end}"
        until = math.inf if view.until is None else view.until
        too_late = {gang.name for gang in unscheduled if slot + self._min_slots(gang) > until}
        yield from self._report_unscheduled(market, unscheduled, turn, joins, too_late)

    def _any_fits(self, view: View, pool: TenantPool, gangs: Sequence[GangJob]) -> bool:
        """Return whether any job fits on the pool's available servers if nothing runs there."""
        up = np.array([not view.is_lost(server) for server in pool.servers.tolist()], np.bool_)
        for gang in gangs:
            workers, ps = pool.units_for(self._waiting[gang.name].claim)
            if (min_gang_slots(gang, workers * up, ps * up) < UNLIMITED).any():
                return True
        return False

    def _demanded_length(self, gang: GangJob, limit: int) -> int:
        """Return the length of a round for a job; it doubles each time the job was passed over."""
        slots = max(1, self._min_slots(gang))
        return min(slots << self._waiting[gang.name].passed_over, limit)

    def _round_end(self, view: View, pool: TenantPool, slot: int) -> int | None:
        """Return the end of a pool's round on demand; None if none is in progress."""
        ends = (
            running.round_end
            for name, running in self._running.items()
            # Compare tenants, because a change of servers replaces the pool objects.
            if running.round_end > slot and running.pool.tenants == pool.tenants
            if name in view.open_jobs and len(view.open_jobs[name].plan.from_slot(slot))
        )
        return max(ends, default=None)

    def _remove_ended(self, view: View, slot: int) -> None:
        """Discard gangs that have no plan from a slot on."""
        self._running = {
            name: running
            for name, running in self._running.items()
            if name in view.open_jobs and len(view.open_jobs[name].plan.from_slot(slot))
        }

    def _open(self, view: View, pool: TenantPool, turn: Round) -> RoundMarket:
        """Open a pool's market for a round, without units that existing plans reserve."""
        slots = min(turn.end, view.end) - turn.start
        lost = [view.is_lost(server) for server in range(view.cluster.servers)]
        market = pool.open(slots, lost, pack_in_time=self.parameters.ties == "pack")
        for state in view.open_jobs.values():
            plan = state.plan.from_slot(turn.start)
            claim = self.tenancy.claim_of(state.job) if len(plan) else None
            if isinstance(claim, UnitClaim) and self._pool_of[claim.tenant] is pool:
                self._reserve(market, pool, claim, plan, turn)
        return market

    def _reserve(
        self, market: RoundMarket, pool: TenantPool, claim: UnitClaim, plan: Schedule, turn: Round
    ) -> None:
        tenant = pool.position(claim.tenant)
        for slot, server, workers, ps in zip(
            plan.slots.tolist(), plan.servers, plan.workers, plan.ps, strict=True
        ):
            index, on_server = slot - turn.start, pool.servers == server
            if index >= market.slots:
                return
            market.pools[claim.worker_type].reserve(tenant, index, index + 1, on_server * workers)
            if claim.ps_type is not None:
                market.pools[claim.ps_type].reserve(tenant, index, index + 1, on_server * ps)

    def _build_gang(self, view: View, waiting: _Waiting, turn: Round) -> tuple[TenantPool, GangJob]:
        job, claim = waiting.job, waiting.claim
        state = view.open_jobs[job.name]
        pool = self._pool_of[claim.tenant]
        # Ending in the n-th slot of the round is a duration of turn.start + n - 1 - arrival.
        shift = turn.start - 1 - job.arrival if self.parameters.clock == "arrival" else 0
        gang = gang_job(
            job,
            claim,
            pool.max_ps(claim),
            remaining=state.remaining,
            # A gang never moves, so it restarts only after an interruption, or at its first start
            # if `restart_first` is set.
            restart_limit=self.longest if restarts(view, state) else 0,
            tenant=pool.position(claim.tenant),
            rigid=self._rigid,
            shift=shift,
        )
        return pool, gang

    def _commit(self, award: GangAward, turn: Round, pool: TenantPool) -> Commit:
        gang, name = award.gang, award.job.name
        passed_over = self._waiting.pop(name).passed_over
        self._running[name] = _Running(award, turn.start + gang.start, pool, turn.end, passed_over)
        # Interpreted kernels (`NUMBA_DISABLE_JIT=1`) return NumPy's integers.
        self._completed_by = max(self._completed_by, turn.start + int(gang.end))
        self._observe_gang(award, pool)
        used = np.flatnonzero(gang.workers_on + gang.ps_on)
        length = gang.end - gang.start
        plan = Schedule(
            np.repeat(np.arange(turn.start + gang.start, turn.start + gang.end), used.size),
            np.tile(pool.servers[used], length),
            np.tile(gang.workers_on[used], length),
            np.tile(gang.ps_on[used], length),
        )
        value, cost = gang.value / MICRO, gang.cost / MICRO
        charged = cost if award.lenders is not None and self.capabilities.charges else 0.0
        return Commit(name, plan, gang.payoff / MICRO, value, cost, charged=charged)

    def _observe_gang(self, award: GangAward, pool: TenantPool) -> None:
        """Record whether a scheduled gang keeps Lemma 3's premises.

        The proof assumes that one gang hardly raises ln(price + 1). It also assumes that the
        utility is at least the number of worker-slots, and of slots of parameter servers.
        """
        gang, job = award.gang, award.job
        thetas = pool.thetas()
        kinds = [(int(gang.workers_on.sum()), job.worker_type)]
        if gang.ps:
            kinds.append((int(gang.ps_on.sum()), job.ps_type))
        for taken, kind in kinds:
            rise = taken / int(pool.units[kind].sum()) * math.log(thetas[kind])
            self._gangs_are_small &= rise <= _SMALL_RISE
            slots = taken * int(gang.end - gang.start)
            self._utility_covers_slots &= int(gang.value) >= slots * MICRO

    def _charges(self, view: View, slot: int) -> Iterator[Charge]:
        """Charge running gangs for one slot, so that a gang that lost its server stops paying."""
        tenancy = self.tenancy
        for name, running in self._running.items():
            award = running.award
            index, last = slot - running.begin, award.gang.end - award.gang.start - 1
            if award.income is None or award.lenders is None or index < 0:
                continue
            if index > last:
                state = view.open_jobs.get(name)
                if state is None or not len(state.plan) or state.plan.completion < slot:
                    continue
                index = last  # its plan was extended
            payer = tenancy.tenants[award.job.tenant]
            for lender in np.flatnonzero(award.lenders[index]).tolist():
                amounts = {
                    tenancy.types[kind]: int(income[index, lender])
                    for kind, income in award.income.items()
                }
                yield Charge(name, slot, payer, tenancy.tenants[lender], amounts)

    # ---------------------------------------------------------------- unscheduled jobs

    def _postpone(
        self, view: View, turn: Round, market: RoundMarket, remaining: list[GangJob]
    ) -> Iterator[Decision]:
        """Abandon jobs that no later round can schedule; after a batch, report why jobs wait."""
        if turn.number < self.rounds - 1:
            yield from self._abandon_worthless(turn, remaining)
            return
        later = next(self._rounds_from(turn.end))
        is_over = view.until is not None and later.start >= view.until
        too_late = {gang.name for gang in remaining} if is_over else set()
        joins = f"postponed to batch {later.batch}, decided in slot {later.start}"
        yield from self._report_unscheduled(market, remaining, turn, joins, too_late)

    def _report_unscheduled(
        self,
        market: RoundMarket,
        gangs: Sequence[GangJob],
        turn: Round,
        joins: str | None,
        too_late: Collection[str],
    ) -> Iterator[Decision]:
        """Abandon jobs that are worthless or too late; queue the others with the text ``joins``."""
        yield from self._abandon_worthless(turn, gangs)
        for gang in gangs:
            if gang.name not in self._waiting:
                continue
            if gang.name in too_late:
                yield self._abandon(gang.name, self._reason(market, gang, turn))
            elif joins is not None:
                refusal = self._reason(market, gang, turn)
                yield Queue(gang.name, f"{joins}: {refusal.message}")

    def _reason(self, market: RoundMarket, gang: GangJob, turn: Round) -> Refusal:
        waiting = self._waiting[gang.name]
        never = self._infeasibility(waiting.job, waiting.claim) if self._rigid else None
        return never or explain_refusal(self.tenancy, market, gang, turn, borrow=self.sharing)

    def _abandon_worthless(self, turn: Round, remaining: Sequence[GangJob]) -> Iterator[Decision]:
        """Abandon jobs whose utility would be 0 even if they ran in this round at full speed."""
        for gang in remaining:
            if gang.values(self._min_slots(gang))[-1] > 0:
                continue
            refusal = Refusal(
                RefusalReason.NO_VALUE,
                f"its utility is 0 from slot {turn.start} on",
                value=0.0,
                cost=0.0,
                bottleneck="its utility",
            )
            yield self._abandon(gang.name, refusal)

    def _min_slots(self, gang: GangJob) -> int:
        """Return the minimum slots of a waiting job, at most the longest round."""
        claim = self._waiting[gang.name].claim
        min_slots = int(min_gang_slots(gang, *self._pool_of[claim.tenant].units_for(claim)).min())
        if min_slots >= UNLIMITED:
            # Its units don't exist now; assume that they return at once.
            min_slots = int(gang.colocated_slots.min())
        return min(min_slots, self.longest)

    def _abandon(self, name: str, refusal: Refusal) -> Decision:
        self._take_back(name)
        waiting = self._waiting.pop(name)
        return Drop(name, refusal) if waiting.displaced else Reject(name, refusal)

    # ---------------------------------------------------------------- prices

    def slot_prices(self, view: View) -> Floats:
        """Return the price of all units of each server in ``view.slot``, (servers, resources)."""
        cluster = self.tenancy.cluster
        prices = np.zeros(cluster.capacity.shape)
        for pool, market, turn in self._markets:
            index = view.slot - turn.start
            if not 0 <= index < market.slots:
                continue
            for name, unit_pool in zip(self.tenancy.types, market.pools, strict=True):
                price = int(unit_pool.current_prices()[index]) / MICRO
                prices[pool.servers, cluster.column[name]] += price * unit_pool.capacity
        return prices


def _unscheduled(gangs: Iterable[GangJob], awards: Iterable[GangAward]) -> list[GangJob]:
    scheduled = {award.job.name for award in awards}
    return [gang for gang in gangs if gang.name not in scheduled]


def _by_age(gang: GangJob) -> tuple[int, str]:
    return gang.arrival, gang.name


def build_astraea(context: PolicyContext, parameters: RoundParameters) -> RoundPolicy:
    """Build Astraea: jobs use own shares first, then borrow units at posted prices."""
    return RoundPolicy(context, parameters, sharing=True)


def build_batchsche(context: PolicyContext, parameters: RoundParameters) -> RoundPolicy:
    """Build BatchSche: each tenant has servers of its own, and lends no units.

    Astraea compares itself with Zhang et al., "Online Scheduling of Heterogeneous Distributed
    Machine Learning Jobs" (MobiHoc 2020), run for each tenant in its private cluster (section 5.1).
    """
    return RoundPolicy(context, parameters, sharing=False)
