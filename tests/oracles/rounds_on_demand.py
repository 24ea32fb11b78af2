"""Rounds on demand of Astraea as plain loops over slots, jobs, starts and servers (note 4).

`Rounds` has its own state. It decides when a round begins, how long it is, who joins it, who
waits, and which payoff each gang has. Several gangs can have the maximum payoff. So it takes the
gang of the policy after it has checked that it is one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MICRO = 1_000_000


@dataclass
class Asked:
    """A job: units of work, of which a worker makes one in a slot, and its value at any time."""

    name: str
    tenant: int
    arrival: int
    work: int
    counts: list[int]
    value: int  # millionths
    done: int = 0
    passed_over: int = 0


@dataclass
class Planned:
    """Slots ``[start, end)`` on servers, and the end of the round that decided it."""

    start: int
    end: int
    on: list[int]
    round_end: int


@dataclass
class Rounds:
    """Servers with units, tenants with shares, and all jobs that are open."""

    units: list[int]
    shares: list[int]
    theta: float
    horizon: int
    lends: bool
    jobs: dict[str, Asked] = field(default_factory=dict)
    plans: dict[str, Planned] = field(default_factory=dict)

    def waiting(self, slot: int) -> list[Asked]:
        results = [job for job in self.jobs.values() if job.name not in self.plans]
        return sorted(results, key=lambda job: (job.arrival, job.name))

    # ------------------------------------------------------------ what a round sees

    def free(self, slot: int, server: int) -> int:
        used = sum(p.on[server] for p in self.plans.values() if p.start <= slot < p.end)
        return self.units[server] - used

    def taken(self, slot: int, tenant: int | None = None) -> int:
        return sum(
            sum(plan.on)
            for name, plan in self.plans.items()
            if plan.start <= slot < plan.end and tenant in (None, self.jobs[name].tenant)
        )

    def price(self, slot: int) -> int:
        share = min(self.taken(slot), sum(self.units)) / sum(self.units)
        return round(MICRO * math.expm1(share * math.log(self.theta)))

    def limit(self, job: Asked, slot: int, borrow: bool) -> int:
        if borrow:
            return sum(self.units) - self.taken(slot)
        return self.shares[job.tenant] - self.taken(slot, job.tenant)

    def payoff(self, job: Asked, start: int, end: int, count: int) -> int:
        return job.value - count * sum(self.price(slot) for slot in range(start, end))

    def greatest(self, job: Asked, slot: int, until: int, borrow: bool) -> int | None:
        """Return the maximum positive payoff of a gang in ``[slot, until)``."""
        best = None
        for start in range(slot, until):
            for count in job.counts:
                end = start + -(-(job.work - job.done) // count)
                if end > until:
                    continue
                span = range(start, end)
                if any(self.limit(job, at, borrow) < count for at in span):
                    continue
                servers = range(len(self.units))
                room = sum(max(0, min(self.free(at, on) for at in span)) for on in servers)
                payoff = self.payoff(job, start, end, count)
                if room >= count and payoff > 0 and (best is None or payoff > best):
                    best = payoff
        return best

    # ------------------------------------------------------------ rounds

    def in_progress(self, slot: int) -> int | None:
        """Return the end of the round in progress."""
        ends = [p.round_end for p in self.plans.values() if p.round_end > slot and p.end > slot]
        return max(ends, default=None)

    def begin_slot(self, slot: int, chosen: dict[str, Planned]) -> dict[str, int]:
        """Decide rounds; return the payoff of each job that gets a gang, which is in ``chosen``."""
        waiting = self.waiting(slot)
        end = self.in_progress(slot)
        if end is not None:
            return self._hold(waiting, slot, end, chosen)
        for job in waiting:
            most = max(count for count in job.counts if count <= sum(self.units))
            slots = -(-(job.work - job.done) // most) * 2**job.passed_over
            payoffs = self._hold(waiting, slot, slot + min(slots, self.horizon), chosen)
            if payoffs:
                if waiting[0].name not in payoffs:
                    waiting[0].passed_over += 1
                return payoffs
        return {}

    def _hold(
        self, waiting: list[Asked], slot: int, until: int, chosen: dict[str, Planned]
    ) -> dict[str, int]:
        payoffs: dict[str, int] = {}
        for borrow in (False, True) if self.lends else (False,):
            for job in waiting:
                if job.name in payoffs:
                    continue
                best = self.greatest(job, slot, until, borrow)
                if best is None:
                    continue
                assert job.name in chosen, f"slot {slot}: {job.name} could have {best} by {until}"
                plan = chosen[job.name]
                self._check(job, plan, slot, until, borrow, best)
                plan.round_end = until
                self.plans[job.name] = plan
                payoffs[job.name] = best
        return payoffs

    def _check(
        self, job: Asked, plan: Planned, slot: int, until: int, borrow: bool, best: int
    ) -> None:
        count, span = sum(plan.on), range(plan.start, plan.end)
        assert slot <= plan.start < plan.end <= until, (job.name, plan, slot, until)
        assert count in job.counts
        assert count * len(span) >= job.work - job.done
        for at in span:
            assert self.limit(job, at, borrow) >= count
            assert all(self.free(at, on) >= n for on, n in enumerate(plan.on))
        assert self.payoff(job, plan.start, plan.end, count) == best, (job.name, plan, best)

    # ------------------------------------------------------------ what happens in slots

    def running(self, slot: int) -> list[str]:
        return [name for name, plan in self.plans.items() if plan.start <= slot < plan.end]

    def end_slot(self, slot: int, order: list[str]) -> None:
        """Count a slot's work; extend gangs that overrun, first those that arrived first."""
        overdue = []
        for name in self.running(slot):
            job, plan = self.jobs[name], self.plans[name]
            job.done = min(job.work - 1, job.done + sum(plan.on))  # only an exit completes a job
            if plan.end == slot + 1:
                overdue.append(name)
        for name in sorted(overdue, key=order.index):
            self._extend(name, slot + 1, order)

    def _extend(self, name: str, slot: int, order: list[str]) -> None:
        plan = self.plans[name]
        plan.end = slot + 1
        in_its_way = [
            other
            for other, theirs in self.plans.items()
            if other != name and theirs.start == slot
            and any(mine and n for mine, n in zip(plan.on, theirs.on, strict=True))
        ]  # fmt: skip
        for other in sorted(in_its_way, key=order.index):
            short = [on for on, mine in enumerate(plan.on) if mine and self.free(slot, on) < 0]
            if any(self.plans[other].on[on] for on in short):
                del self.plans[other]

    def leave(self, name: str) -> None:
        """Remove a job that ended or was cancelled."""
        del self.jobs[name]
        self.plans.pop(name, None)
