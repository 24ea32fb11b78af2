"""ElasticFlow on one pool of GPUs, with lists of slots, without optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Plan = dict[int, int]
"""Workers by slot; slots in which the job pauses are absent."""


@dataclass
class Elastic:
    """A job: progress by number of workers, ascending, and its deadline."""

    name: str
    arrival: int
    curve: list[tuple[int, int]]
    left: int
    deadline: int | None


def share(
    free: Mapping[int, int], curve: list[tuple[int, int]], left: int, first: int, last: int
) -> Plan | None:
    """Return the plan under the smallest ceiling that completes the work in time."""
    for ceiling, _ in curve:
        plan: Plan = {}
        missing = left
        for slot in range(first, last + 1):
            if missing <= 0:
                break
            usable = [(n, gain) for n, gain in curve if n <= ceiling and n <= free[slot]]
            if usable:
                plan[slot] = usable[-1][0]
                missing -= usable[-1][1]
        if missing <= 0:
            return plan
    return None


def satisfied(
    jobs: list[Elastic], now: int, places: int
) -> tuple[dict[str, Plan | None], dict[int, int]]:
    """Plan jobs, the earliest deadline first; return the plans and the free capacity."""
    last = max((job.deadline or 0 for job in jobs), default=now)
    free = dict.fromkeys(range(now, max(last, now) + 1), places)
    plans: dict[str, Plan | None] = {}
    for job in sorted(jobs, key=lambda job: job.deadline or 0):
        assert job.deadline is not None
        plan = share(free, job.curve, job.left, now, job.deadline)
        plans[job.name] = plan
        for slot, workers in (plan or {}).items():
            free[slot] -= workers
    return plans, free


def run(
    jobs: list[Elastic], places: int, cancels: Mapping[str, int]
) -> tuple[dict[int, dict[str, int]], set[str]]:
    """Return the workers of every job in every slot, and the refused jobs."""
    ran: dict[int, dict[str, int]] = {}
    refused: set[str] = set()
    coming = sorted(jobs, key=lambda job: job.arrival)
    there: list[Elastic] = []
    promised: set[str] = set()
    standing: dict[str, int] = {}
    slot, due = 0, 0
    while coming or there:
        gone = {job.name for job in there if cancels.get(job.name, slot + 1) <= slot}
        if gone:
            there = [job for job in there if job.name not in gone]
            due = 0
        if coming and coming[0].arrival == slot:
            due = 0
        while coming and coming[0].arrival == slot:
            job = coming.pop(0)
            if job.deadline is not None:
                group = [one for one in there if one.name in promised] + [job]
                if job.deadline < slot or None in satisfied(group, slot, places)[0].values():
                    refused.add(job.name)
                    continue
                promised.add(job.name)
            there.append(job)
        if there and slot >= due:
            standing, due = _settle(there, promised, slot, places)
        standing = {n: w for n, w in standing.items() if any(job.name == n for job in there)}
        if standing:
            ran[slot] = dict(standing)
        for job in there:
            if job.name in standing:
                job.left -= dict(job.curve)[standing[job.name]]
        if any(job.left <= 0 for job in there):
            there = [job for job in there if job.left > 0]
            due = 0
        slot += 1
    return ran, refused


def _settle(
    there: list[Elastic], promised: set[str], now: int, places: int
) -> tuple[dict[str, int], int]:
    """Return the workers of each job in this slot, and the next slot to replan."""
    bound = [job for job in there if job.name in promised]
    plans, free = satisfied(bound, now, places)
    last = max(free)
    order = sorted(bound, key=lambda job: job.deadline or 0)
    order += [job for job in there if job.name not in promised]
    workers = {job.name: (plans.get(job.name) or {}).get(now, 0) for job in order}
    closed: set[str] = set()
    worth: dict[str, tuple[int, int]] = {}

    def later(job: Elastic, have: int) -> int | None:
        """GPU-time after this slot, in the capacity that other jobs leave."""
        missing = job.left - dict(job.curve).get(have, 0)
        if missing <= 0:
            return 0
        if plans.get(job.name) is None:
            fewest, gain = job.curve[0]
            return -(-missing // gain) * fewest
        own = plans[job.name] or {}
        room = {index: free[index] + own.get(index, 0) for index in range(now + 1, last + 1)}
        assert job.deadline is not None
        plan = share(room, job.curve, missing, now + 1, job.deadline)
        return None if plan is None else sum(plan.values())

    while True:
        best: Elastic | None = None
        for job in order:
            have = workers[job.name]
            steps = [n for n, _ in job.curve if n > have]
            complete = have and dict(job.curve)[have] >= job.left
            if job.name in closed or not steps or complete or steps[0] - have > free[now]:
                closed.add(job.name)
                continue
            if job.name not in worth:
                before, after = later(job, have), later(job, steps[0])
                assert after is not None
                saved = 2**31 - 1 if before is None else before - after
                worth[job.name] = saved, steps[0] - have
            saved, extra = worth[job.name]
            if best is None or saved * worth[best.name][1] > worth[best.name][0] * extra:
                best = job
        if best is None:
            break
        target = min(n for n, _ in best.curve if n > workers[best.name])
        free[now] -= target - workers[best.name]
        workers[best.name] = target
        del worth[best.name]
        if plans.get(best.name) is not None:
            for at, count in (plans[best.name] or {}).items():
                if at > now:
                    free[at] += count
            missing = best.left - dict(best.curve)[target]
            assert best.deadline is not None
            rest = share(free, best.curve, missing, now + 1, best.deadline) if missing > 0 else {}
            plans[best.name] = {now: target, **(rest or {})}
            for at, count in (rest or {}).items():
                free[at] -= count
    due = _next_change(bound, plans, workers, now)
    return {name: count for name, count in workers.items() if count}, due


def _next_change(
    bound: list[Elastic], plans: Mapping[str, Plan | None], workers: Mapping[str, int], now: int
) -> int:
    """Return the first slot in which a plan exceeds the job's limits, or changes."""
    due = 2**60
    for job in bound:
        plan = plans[job.name]
        if not plan:
            continue
        end = max(plan)
        if plan.get(now + 1, 0) > workers[job.name]:
            due = min(due, now + 1)
        changes = [
            index
            for index in range(now + 2, end + 2)
            if plan.get(index, 0) != plan.get(index - 1, 0)
        ]
        due = min([due, *changes])
    return due
