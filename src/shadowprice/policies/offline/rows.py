"""Columns and rows that programs of `offline` share: totals of a slot, and its servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.offline.problem import JobRequest, Problem
from shadowprice.policies.placements import fit_counts

Terms = list[tuple[int, int]]  # a sum: columns, each with its integral coefficient


@dataclass(frozen=True, slots=True)
class Totals:
    """A job's workers and parameter servers in one slot, as sums of columns."""

    workers: Terms
    ps: Terms
    gains: Terms
    maximum: int  # upper limit of the sum of the columns of `workers`


def add_totals(
    program: LinearProgram, problem: Problem, slot: int, request: JobRequest
) -> Totals | None:
    """Add columns for the totals of a job in a slot; None if it can't run there even alone."""
    job, free = request.job, problem.free[slot]
    workers = int(fit_counts(free, job.worker, problem.hosts_workers).sum())
    ps = 0 if job.ps is None else int(fit_counts(free, job.ps, problem.hosts_ps).sum())
    add = _add_number if request.linear else _add_choices
    return add(program, request, workers, ps)


def _add_number(
    program: LinearProgram, request: JobRequest, workers: int, ps: int
) -> Totals | None:
    """Add one integer for the workers and one for the parameter servers."""
    job = request.job
    maximum = min(job.max_workers, request.required, workers)
    if job.ps is not None:
        maximum = min(maximum, ps * job.ps_bandwidth // job.worker_bandwidth)
    if maximum <= 0:
        return None
    n = program.column(upper=maximum)
    if job.ps is None:
        return Totals([(n, 1)], [], [(n, 1)], maximum)
    # (6): z B >= n b; (7) follows, as b <= B. Its integral points (z, n) lie below the rows.
    z = program.column(upper=job.ps_needed(maximum))
    corners = _upper_hull(
        [
            (count, min(maximum, count * job.ps_bandwidth // job.worker_bandwidth))
            for count in range(job.ps_needed(maximum) + 1)
        ]
    )
    for (z0, n0), (z1, n1) in pairwise(corners):
        add_limit(program, [(n, z1 - z0), (z, n0 - n1)], (z1 - z0) * n0 - (n1 - n0) * z0)
    if len(corners) <= job.ps_needed(maximum):  # an integral point below the rows breaks (6)
        program.row([z, n], [1.0, -job.worker_bandwidth / job.ps_bandwidth], lower=0)
    return Totals([(n, 1)], [(z, 1)], [(n, 1)], maximum)


def _upper_hull(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the corners of the least concave function above points of ascending x."""
    corners: list[tuple[int, int]] = []
    for x, y in points:
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return corners


def _add_choices(
    program: LinearProgram, request: JobRequest, workers: int, ps: int
) -> Totals | None:
    """Add a binary for every allowed number of workers, of which at most one may be 1."""
    job = request.job
    totals = Totals([], [], [], 1)
    for count, needed, gain in zip(
        job.worker_counts.tolist(), job.ps_counts.tolist(), job.gains.tolist(), strict=True
    ):
        if count > workers or needed > ps:
            continue
        column = program.column(upper=1)
        totals.workers.append((column, count))
        totals.gains.append((column, gain))
        if needed:
            totals.ps.append((column, needed))
    return totals if totals.workers else None


def add_servers(
    program: LinearProgram, problem: Problem, slot: int, users: Iterable[tuple[int, Totals]]
) -> None:
    """Place totals on the servers of a slot, one by one: (4) and (5)."""
    free = problem.free[slot]
    on_server: dict[tuple[int, int], Terms] = {}
    for index, totals in users:
        job = problem.requests[index].job
        kinds = [(totals.workers, job.worker, problem.hosts_workers)]
        if job.ps is not None:
            kinds.append((totals.ps, job.ps, problem.hosts_ps))
        for terms, demand, hosts in kinds:
            fits = fit_counts(free, demand, hosts)
            hosting = [int(server) for server in np.flatnonzero(fits)]
            columns = [program.column(upper=int(fits[server])) for server in hosting]
            program.row(
                [*columns, *(column for column, _ in terms)],
                [*[1.0] * len(columns), *(-float(count) for _, count in terms)],
                lower=0,
                upper=0,
            )
            for server, column in zip(hosting, columns, strict=True):
                for r in np.flatnonzero(demand).tolist():
                    on_server.setdefault((server, r), []).append((column, int(demand[r])))
    for (server, r), terms in on_server.items():
        if free[server, r] < UNLIMITED:
            add_limit(program, terms, int(free[server, r]))


def add_limit(program: LinearProgram, terms: Terms, limit: int) -> None:
    """Add ``sum of terms <= limit``."""
    if terms:
        columns, values, upper = reduced(terms, limit)
        program.row(columns, values, upper=upper)


def reduced(terms: Terms, limit: int) -> tuple[list[int], list[float], float]:
    """Divide ``sum of terms <= limit`` by its common divisor, and return it as a row.

    With small integers the solver's tolerances can't hide an overbooking.
    """
    divisor = int(np.gcd.reduce([amount for _, amount in terms]))
    values = [float(amount // divisor) for _, amount in terms]
    return [column for column, _ in terms], values, float(limit // divisor)
