"""Algorithms 3-5 of Astraea as plain loops over slots and servers, and problem (9) as a MILP.

An `Instance` is one job in one round: free units by slot and server, prices by slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np


@dataclass(frozen=True)
class Instance:
    """One job in one round; amounts are whole numbers, prices and values in any unit."""

    free_workers: list[list[int]]  # [slot][server]
    free_ps: list[list[int]]
    worker_price: list[int]  # [slot]
    ps_price: list[int]
    worker_limit: list[int]
    ps_limit: list[int]
    value: list[int]  # [end], entry 0 unused
    counts: list[int]
    work: int  # in units of the gain of one worker in a slot, colocated
    spread_rate: int  # gain of a worker in a slot when spread
    colocated_rate: int
    worker_bandwidth: int
    ps_bandwidth: int

    @property
    def slots(self) -> int:
        return len(self.worker_price)

    @property
    def servers(self) -> int:
        return len(self.free_workers[0])

    def slots_needed(self, count: int, colocated: bool) -> int:
        rate = self.colocated_rate if colocated else self.spread_rate
        return -(-self.work // (rate * count))


@dataclass(frozen=True)
class Plan:
    payoff: int
    start: int
    end: int
    colocated: bool
    workers_on: list[int]
    ps_on: list[int]


def breaks(instance: Instance, plan: Plan) -> str:
    """Return the constraint of (9) that a plan breaks; empty if it is feasible."""
    span = range(plan.start, plan.end)
    workers, ps = sum(plan.workers_on), sum(plan.ps_on)
    if plan.end > instance.slots or workers not in instance.counts or ps < 1:
        return "(3e), (3g) or the window"
    for slot in span:
        for server in range(instance.servers):
            if plan.workers_on[server] > instance.free_workers[slot][server]:
                return "(9a)"
            if plan.ps_on[server] > instance.free_ps[slot][server]:
                return "(9b)"
        if workers > instance.worker_limit[slot] or ps > instance.ps_limit[slot]:
            return "(3a) or (3b)"
    used = [w + z for w, z in zip(plan.workers_on, plan.ps_on, strict=True)]
    if plan.colocated != (sum(n > 0 for n in used) == 1):
        return "(3j)"
    for here, held in zip(plan.workers_on, plan.ps_on, strict=True):
        if held and (workers - here) * instance.worker_bandwidth > held * instance.ps_bandwidth:
            return "(3i)"
    rate = instance.colocated_rate if plan.colocated else instance.spread_rate
    if workers * rate * len(span) < instance.work:
        return "(3k)"
    return ""


def cost_of(instance: Instance, start: int, end: int, workers: int, ps: int) -> int:
    return sum(
        workers * instance.worker_price[slot] + ps * instance.ps_price[slot]
        for slot in range(start, end)
    )


def algorithm_3(instance: Instance, literal: bool = False) -> Plan | None:
    """Enumerate starts and numbers of workers; ``literal`` follows the paper's text exactly."""
    best = None
    for start in range(instance.slots):
        for count in instance.counts:
            spread = algorithm_4(instance, start, count, literal)
            central = algorithm_5(instance, start, count, literal)
            plan = spread
            if central is not None and (plan is None or central.payoff >= plan.payoff):
                plan = central
            if plan and plan.payoff > 0 and (best is None or plan.payoff > best.payoff):
                best = plan
    return best


def algorithm_4(instance: Instance, start: int, count: int, literal: bool) -> Plan | None:
    end = start + instance.slots_needed(count, colocated=False)
    if end > instance.slots or min(instance.worker_limit[start:end]) < count:
        return None
    span = range(start, end)
    servers = range(instance.servers)
    workers = [min(instance.free_workers[t][s] for t in span) for s in servers]
    ps = [min(instance.free_ps[t][s] for t in span) for s in servers]
    beside = [min(count - 1, workers[s]) for s in servers]
    need = [
        max(1, -(-(count - beside[s]) * instance.worker_bandwidth // instance.ps_bandwidth))
        for s in servers
    ]
    # Line 8 uses the *workers'* limit for parameter servers. `literal` keeps that, and its minimum
    # of what is needed and what is free, even if less is free than needed.
    limit = min((instance.worker_limit if literal else instance.ps_limit)[start:end])
    if literal:
        need = [min(need[s], ps[s], limit) for s in servers]
        hosts = [s for s in servers if need[s] >= 1]
    else:
        hosts = [s for s in servers if need[s] <= min(ps[s], limit)]
    if not hosts:
        return None
    host = min(hosts, key=lambda s: (need[s], workers[s]))
    workers_on, ps_on = [0] * len(servers), [0] * len(servers)
    workers_on[host], ps_on[host] = beside[host], need[host]
    left = count - beside[host]
    for s in sorted((s for s in servers if s != host), key=lambda s: workers[s]):
        workers_on[s] = min(workers[s], left)
        left -= workers_on[s]
    if left:
        return None
    payoff = instance.value[end] - cost_of(instance, start, end, count, need[host])
    return Plan(payoff, start, end, False, workers_on, ps_on)


def algorithm_5(instance: Instance, start: int, count: int, literal: bool) -> Plan | None:
    end = start + instance.slots_needed(count, colocated=True)
    if end > instance.slots or min(instance.worker_limit[start:end]) < count:
        return None
    span = range(start, end)
    hosts = [
        s
        for s in range(instance.servers)
        if min(instance.free_workers[t][s] for t in span) >= count
        and min(min(instance.free_ps[t][s], instance.ps_limit[t]) for t in span) >= 1
    ]
    if not hosts:
        return None
    host = min(hosts, key=lambda s: min(instance.free_workers[t][s] for t in span))
    workers_on = [count if s == host else 0 for s in range(instance.servers)]
    ps_on = [int(s == host) for s in range(instance.servers)]
    if literal:
        # Line 12 charges the start slot's price for the whole run.
        cost = (end - start) * (count * instance.worker_price[start] + instance.ps_price[start])
    else:
        cost = cost_of(instance, start, end, count, 1)
    return Plan(instance.value[end] - cost, start, end, True, workers_on, ps_on)


def optimum(instance: Instance) -> float:
    """Return the optimum of (9) by a MILP that is independent of the enumeration; 0 if negative.

    Variables: the gang's workers and parameter servers on each server, the slots it runs in, what
    it
    uses of each server in each slot, and its end. Parameter servers may be on several servers, each
    bound by (3i). Any run of consecutive slots may be chosen, even one longer than the work needs.
    """
    return max(0.0, _solve(instance, colocated=False), _solve(instance, colocated=True))


def _solve(instance: Instance, colocated: bool) -> float:
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 1e-6)
    slots, servers = range(instance.slots), range(instance.servers)
    most_w = max(max(row) for row in instance.free_workers)
    most_p = max(max(row) for row in instance.free_ps)
    integer = highspy.HighsVarType.kInteger

    def var(upper: int, cost: float = 0.0):  # type: ignore[no-untyped-def]
        return model.addVariable(lb=0, ub=upper, obj=cost, type=integer)

    gang_w = [var(most_w) for _ in servers]
    gang_p = [var(most_p) for _ in servers]
    host_p = [var(1) for _ in servers]
    runs = [var(1) for _ in slots]
    starts = [var(1) for _ in slots]
    ends = [var(1, instance.value[t + 1]) for t in slots]
    size = [var(1) for _ in instance.counts]
    use_w = [[var(most_w, -instance.worker_price[t]) for _ in servers] for t in slots]
    use_p = [[var(most_p, -instance.ps_price[t]) for _ in servers] for t in slots]

    def total(terms):  # type: ignore[no-untyped-def]
        return model.qsum(list(terms))

    model.addConstr(total(size) == 1)
    model.addConstr(
        total(gang_w) == total(n * x for n, x in zip(instance.counts, size, strict=True))
    )
    model.addConstr(total(gang_p) >= 1)
    model.addConstr(total(starts) == 1)
    model.addConstr(total(ends) == 1)
    for t in slots:
        # x_t - x_{t-1} = start_t - end_{t-1}: one run of consecutive slots.
        before = runs[t - 1] if t else 0
        ended = ends[t - 1] if t else 0
        model.addConstr(runs[t] - before == starts[t] - ended)
        if t == instance.slots - 1:
            model.addConstr(ends[t] == runs[t])
        model.addConstr(ends[t] <= runs[t])
        model.addConstr(total(use_w[t]) <= instance.worker_limit[t])
        model.addConstr(total(use_p[t]) <= instance.ps_limit[t])
        for s in servers:
            for use, gang, most, free in (
                (use_w[t][s], gang_w[s], most_w, instance.free_workers[t][s]),
                (use_p[t][s], gang_p[s], most_p, instance.free_ps[t][s]),
            ):
                model.addConstr(use <= free)
                model.addConstr(use <= gang)
                model.addConstr(use <= most * runs[t])
                model.addConstr(gang - use <= most - most * runs[t])
    rate = instance.colocated_rate if colocated else instance.spread_rate
    model.addConstr(rate * total(use_w[t][s] for t in slots for s in servers) >= instance.work)
    widest = max(instance.counts) * instance.worker_bandwidth
    for s in servers:
        model.addConstr(gang_p[s] <= most_p * host_p[s])
        model.addConstr(host_p[s] <= gang_p[s])
        elsewhere = total(gang_w[o] for o in servers if o != s) if instance.servers > 1 else 0
        if colocated:
            model.addConstr(gang_w[s] <= most_w * host_p[s])
        elif instance.servers > 1:
            model.addConstr(
                instance.worker_bandwidth * elsewhere
                <= instance.ps_bandwidth * gang_p[s] + widest - widest * host_p[s]
            )
    if colocated:
        model.addConstr(total(host_p) == 1)
    model.maximize()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return -np.inf
    return float(model.getObjectiveValue())
