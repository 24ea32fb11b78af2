"""The Lagrangian bound of a set of jobs at given prices, in a few independent lines.

It shares nothing with `shadowprice.certificate`: a table over progress units, slot by slot, gives
the work, and capacities are summed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job


def rooms(cluster: Cluster, job: Job) -> tuple[int, int]:
    """Return how many workers, and parameter servers, fit on an empty cluster."""
    results = []
    for hosts, demand in ((cluster.hosts_workers, job.worker), (cluster.hosts_ps, job.ps)):
        total = 0
        for server in np.flatnonzero(hosts).tolist():
            fits = [
                int(cluster.capacity[server, r]) // int(amount)
                for r, amount in enumerate([] if demand is None else demand)
                if amount
            ]
            total += min(fits, default=10**9)
        results.append(total)
    return results[0], results[1]


def best_payoff(cluster: Cluster, job: Job, cost: NDArray[np.float64]) -> float:
    """Return the maximum utility less cost; ``cost`` is (slots, choices) from its arrival on."""
    workers, servers = rooms(cluster, job)
    choices = [
        (choice, gain)
        for choice, gain in enumerate(np.maximum(job.gains, job.internal_gains).tolist())
        if job.worker_counts[choice] <= workers and job.ps_counts[choice] <= servers
    ]
    cheapest = {0: 0.0}  # minimum cost by progress, capped at what is required
    best = 0.0
    for slot in range(len(cost)):
        after = dict(cheapest)
        for made, paid in cheapest.items():
            for choice, gain in choices:
                now = min(job.required, made + gain)
                after[now] = min(after.get(now, np.inf), paid + float(cost[slot, choice]))
        cheapest = after
        if job.required in cheapest:
            worth = float(job.utility.values(np.array([slot]))[0])
            best = max(best, worth - cheapest[job.required])
    return best


def lagrangian_bound(
    cluster: Cluster,
    jobs: Sequence[Job],
    until: int,
    prices: NDArray[np.float64],
    resources: Sequence[int],
) -> float:
    """Return the bound at prices (until, pools, resources); one pool if any server carries both."""
    both = bool((cluster.hosts_workers & cluster.hosts_ps).any())
    everyone = cluster.hosts_workers | cluster.hosts_ps
    pools = [everyone] if both else [cluster.hosts_workers, cluster.hosts_ps]
    total = 0.0
    for pool, members in enumerate(pools):
        for index, resource in enumerate(resources):
            if cluster.capacity[members, resource].sum():
                total += float(prices[:, pool, index].sum())
    for job in jobs:
        cost = np.zeros((max(0, until - job.arrival), len(job.worker_counts)))
        sides = ((0, job.worker_counts, job.worker), (-1, job.ps_counts, job.ps))
        for pool, counts, demand in sides:
            if demand is None:
                continue
            for index, resource in enumerate(resources):
                whole = int(cluster.capacity[pools[pool], resource].sum())
                if whole:
                    share = counts * int(demand[resource]) / whole
                    cost += prices[job.arrival :, pool, index][:, None] * share
        total += best_payoff(cluster, job, cost)
    return total
