"""Capacity units by type, server and tenant, and jobs as gangs that request units.

A server states its units, such as ``{worker: 8, ps: 1}``. Each worker takes a unit of a worker
type, each parameter server one of a PS type. Messages to users call units *places*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Utility, utility_value

DEFAULT_OWNER = "everybody"  # name of the only owner if a cluster has no tenants


@dataclass(frozen=True, slots=True)
class UnitClaim:
    """The tenant and the unit types of a job."""

    tenant: int  # index in `TenantShares.tenants`
    worker_type: int  # index in `TenantShares.types`
    ps_type: int | None  # likewise; None for all-reduce training


@dataclass(frozen=True, eq=False)
class TenantShares:
    """Capacity units of a cluster, and what each tenant owns; worker types precede PS types."""

    cluster: Cluster
    tenants: tuple[str, ...]  # owners
    worker_types: tuple[str, ...]  # resources that count units, such as "worker" and "worker/v100"
    ps_types: tuple[str, ...]  # such as "ps" and "ps/large"
    units: Integers  # of each server, shape (types, servers)
    owned: Integers
    """Units that each tenant owns, in total all units of the type; shape (types, tenants)."""

    @property
    def types(self) -> tuple[str, ...]:
        """Resources that count units."""
        return (*self.worker_types, *self.ps_types)

    @property
    def workers(self) -> Integers:
        """Worker units of each server, shape (worker types, servers)."""
        return self.units[: len(self.worker_types)]

    @property
    def named(self) -> bool:
        """Whether the cluster names tenants. Only then can they pay each other."""
        return bool(self.cluster.tenants)

    def shares(self) -> dict[str, dict[str, int]]:
        """Return every tenant's share by unit type, as in a cluster file."""
        return {
            tenant: dict(zip(self.types, self.owned[:, index].tolist(), strict=True))
            for index, tenant in enumerate(self.tenants)
        }

    def claim_of(self, job: Job) -> UnitClaim | Refusal:
        """Return the units that a job requests, or the reason why units can't express it."""
        if not self.named:
            tenant = 0
        elif job.tenant is None:
            return Refusal(
                RefusalReason.POLICY,
                f"it names no tenant, and places belong to tenants here: {', '.join(self.tenants)}",
            )
        else:
            tenant = self.cluster.tenant_index[job.tenant]
        worker = self._unit_type("worker", job.worker, self.worker_types)
        if isinstance(worker, Refusal):
            return worker
        if job.ps is None:
            return UnitClaim(tenant, worker, None)
        ps = self._unit_type("parameter server", job.ps, self.ps_types)
        return ps if isinstance(ps, Refusal) else UnitClaim(tenant, worker, ps)

    def _unit_type(self, kind: str, demand: Integers, types: Sequence[str]) -> int | Refusal:
        cluster = self.cluster
        demanded = {
            cluster.resources[column]: int(demand[column])
            for column in np.flatnonzero(demand).tolist()
            if (cluster.capacity[:, column] < UNLIMITED).any()
        }
        for name in types:
            if demanded == {name: MILLI}:
                return self.types.index(name)
        names = " or ".join(types) or "(none here)"
        demanded_names = ", ".join(demanded) or "nothing"
        return Refusal(
            RefusalReason.POLICY,
            f"a {kind} takes one place of {names} here and nothing else that servers limit, and "
            f"this one asks for {demanded_names}",
        )


def read_tenant_shares(cluster: Cluster) -> TenantShares:
    """Read units and shares from a cluster; raise `InputError` if they aren't consistent.

    If no tenant declares a share, units of each type are divided evenly; the first tenants get the
    rest. Otherwise a tenant without a share can only borrow.
    """
    worker_types, ps_types = (
        tuple(r for r in cluster.resources if r == kind or r.startswith(f"{kind}/"))
        for kind in ("worker", "ps")
    )
    if not worker_types:
        message = f"count {', '.join(cluster.resources)}, and this policy counts places"
        hint = "give servers a capacity such as {worker: 8, ps: 1}"
        raise InputError(Fault("cluster: servers", message, hint))
    tenants = tuple(tenant.name for tenant in cluster.tenants) or (DEFAULT_OWNER,)
    faults: list[Fault] = []
    types = (*worker_types, *ps_types)
    declared = any(tenant.share.get(name) for tenant in cluster.tenants for name in types)
    units = np.zeros((len(types), cluster.servers), np.int64)
    owned = np.zeros((len(types), len(tenants)), np.int64)
    for row, name in enumerate(types):
        column = cluster.column[name]
        hosts = cluster.hosts_workers if name in worker_types else cluster.hosts_ps
        amounts = np.where(hosts, cluster.capacity[:, column], 0)
        if cluster.dimensions[column] is not Dimension.COUNT or (amounts % MILLI).any():
            hint = f"write {name}: 8"
            faults.append(Fault("cluster: servers", f"places of {name} are not whole", hint))
        units[row] = amounts // MILLI
        total = int(units[row].sum())
        if declared:
            owned[row] = [
                _share(tenant.name, tenant.share, name, faults) for tenant in cluster.tenants
            ]
            if owned[row].sum() != total:
                faults.append(_share_mismatch(name, int(owned[row].sum()), total))
        else:
            owned[row] = total // len(tenants)
            owned[row, : total % len(tenants)] += 1
    if faults:
        raise InputError(faults)
    return TenantShares(cluster, tenants, worker_types, ps_types, units, owned)


def units_for(units: Integers, claim: UnitClaim) -> tuple[Integers, Integers]:
    """Return the units of a claim's worker type, and of its PS type, on each server."""
    workers = units[claim.worker_type]
    return workers, np.zeros_like(workers) if claim.ps_type is None else units[claim.ps_type]


def require_tenants(tenancy: TenantShares, jobs: Sequence[Job] | None) -> None:
    """Raise `InputError` if units belong to tenants and a known job names none."""
    if not tenancy.named or jobs is None:
        return
    orphans = [job.name for job in jobs if job.tenant is None]
    if orphans:
        shown = ", ".join(orphans[:3]) + (f" and {len(orphans) - 3} more" if orphans[3:] else "")
        message = f"no tenant is given for {shown}, and the cluster's places belong to tenants"
        hint = f"add `tenant:`, one of {', '.join(tenancy.tenants)}"
        raise InputError(Fault("jobs", message, hint))


def _share(tenant: str, share: Mapping[str, int], name: str, faults: list[Fault]) -> int:
    amount = share.get(name, 0)
    if amount % MILLI:
        faults.append(Fault(f"cluster: tenants: {tenant}.share.{name}", "is not a whole number"))
    return amount // MILLI


def _share_mismatch(name: str, owned: int, total: int) -> Fault:
    difference = f"{total - owned} too few" if owned < total else f"{owned - total} too many"
    return Fault(
        "cluster: tenants",
        f"shares of {name} add up to {owned}, the servers hold {total}: {difference}",
        "shares of each type add up to its places; or declare none, to divide them evenly",
    )


MICRO = 1_000_000  # prices and utilities are integers in millionths, so that accounts are exact
MAX_UTILITY_MICROS = 2**62  # exclusive limit of sums of prices or utilities, so that they fit int64


@dataclass(frozen=True, eq=False)
class GangJob:
    """A job in the form that rounds and gang searches use."""

    name: str
    tenant: int  # index of the owner in the market
    arrival: int
    worker_type: int
    ps_type: int  # ignored without parameter servers
    counts: Integers  # allowed numbers of workers, increasing
    spread_slots: Integers  # slots with each number of workers on several servers: Eq. (1)
    colocated_slots: Integers  # the same with all processes on one server; never more
    reach: Integers  # by number of PS: workers on other servers that these PS can serve
    utility: Callable[[Integers], Floats]  # of durations in slots; non-increasing

    @property
    def uses_ps(self) -> bool:
        """Whether the job trains with parameter servers, so that it needs at least one."""
        return self.reach.size > 0 and bool(self.reach[0] < 0)

    def values(self, slots: int) -> Integers:
        """Return the utility in millionths of each duration from 0 to ``slots`` slots.

        The duration is from the round's start to the end of the gang (line 9 of Algorithm 3),
        however long the job waited before: the paper's *ideal* revenue. Entry 0 is 0 and never
        used.
        """
        values = np.zeros(slots + 1, np.int64)
        utilities = self.utility(np.arange(1, slots + 1, dtype=np.int64)) * MICRO
        if np.abs(utilities).max(initial=0.0) >= MAX_UTILITY_MICROS:
            raise InputError(f"job {self.name!r} is worth too much to count; scale utilities down")
        values[1:] = np.rint(utilities)
        return values


def workers_servable(
    max_ps: int, worker_bandwidth: int, ps_bandwidth: int, served: bool
) -> Integers:
    """Return by number of PS on one server how many workers on other servers they can serve: (3i).

    The result has entries for 0 to ``max_ps``; -1 if the job can't have this number of PS.
    Bandwidths are b_w and b_p in bit/s, 0 for no limit. ``served`` is whether the job trains with
    parameter servers at all.
    """
    reach = np.full(max_ps + 1, -1, np.int64)
    if not served:
        reach[0] = UNLIMITED
        return reach
    reach[1:] = UNLIMITED
    if worker_bandwidth and ps_bandwidth:
        for ps in range(1, max_ps + 1):
            reach[ps] = min(ps * ps_bandwidth // worker_bandwidth, UNLIMITED)
    return reach


def _shifted_utility(utility: Utility, shift: int, slots: Integers) -> Floats:
    """Return the utility at durations that are ``shift`` slots longer."""
    return np.asarray(utility.values(slots + shift), np.float64)


def gang_job(
    job: Job,
    claim: UnitClaim,
    max_ps: int,
    *,
    remaining: int | None = None,
    restart_limit: int = 0,
    tenant: int | None = None,
    rigid: bool = False,
    shift: int = 0,
) -> GangJob:
    """Convert a job to the form that rounds use.

    ``max_ps`` is the maximum number of units for its PS on one server. ``remaining`` are its
    progress units, None for all. If the job takes up to ``restart_limit`` slots, its first slot has
    a restart; otherwise the restart is ignored. ``tenant`` is its owner's index in the market, None
    for that in the cluster. If ``rigid``, it only runs with its maximum number of workers.
    ``shift`` is added to the durations at which its utility is taken.
    """
    first = len(job.worker_counts) - 1 if rigid else 0
    work = job.required if remaining is None else remaining
    counts = np.ascontiguousarray(job.worker_counts[first:])
    spread = _slots(work, job.gains[first:], job.moved_gains[first:], restart_limit)
    colocated = _slots(
        work, job.internal_gains[first:], job.restart_internal_gains[first:], restart_limit
    )
    return GangJob(
        name=job.name,
        tenant=claim.tenant if tenant is None else tenant,
        arrival=job.arrival,
        worker_type=claim.worker_type,
        ps_type=claim.ps_type or 0,
        counts=counts,
        spread_slots=spread,
        colocated_slots=np.minimum(colocated, spread),
        reach=workers_servable(
            max_ps, job.worker_bandwidth, job.ps_bandwidth, served=claim.ps_type is not None
        ),
        utility=partial(_shifted_utility, job.utility, shift),
    )


def _slots(remaining: int, gains: Integers, moved: Integers, restart_limit: int) -> Integers:
    """Return the slots by number of workers; ``moved`` are gains with a restart."""
    plain, with_restart = -(-remaining // gains), -(-(remaining + gains - moved) // gains)
    return np.asarray(np.where(with_restart <= restart_limit, with_restart, plain), np.int64)


def min_gang_slots(job: GangJob, workers: Integers, ps: Integers) -> Integers:
    """Return the minimum slots of each number of workers on empty servers.

    ``workers`` and ``ps`` are the units on each server. ``UNLIMITED`` if the workers can't be
    placed.
    """
    counts = job.counts
    slots = np.full(counts.size, UNLIMITED, np.int64)
    for ps_count in np.flatnonzero(job.reach >= 0).tolist():
        worker_units = workers[ps >= ps_count]
        if not worker_units.size:
            continue
        max_units, reach = int(worker_units.max()), int(job.reach[ps_count])
        spread = (counts <= workers.sum()) & (counts - np.minimum(reach, counts) <= max_units)
        spread &= reach >= 1
        slots = np.where(spread, np.minimum(slots, job.spread_slots), slots)
        fits_one = counts <= max_units
        slots = np.where(fits_one, np.minimum(slots, job.colocated_slots), slots)
    return slots


def infeasibility(
    job: Job, gang: GangJob, workers: Integers, ps: Integers, longest: int, *, own: bool
) -> Refusal | None:
    """Return why no round can ever schedule a job, None if an empty round could.

    ``gang`` is the job as if it arrived at the round's start. ``longest`` is the maximum length of
    a round. If ``own``, the units belong to the job's tenant alone.
    """
    slots = min_gang_slots(gang, workers, ps)
    best = int(np.argmin(slots))
    minimum, count = int(slots[best]), int(gang.counts[best])
    where, have, none = "the empty cluster", "has", "no server of the empty cluster"
    if own:
        where, have = "its tenant's own servers", "have"
        none = f"none of {where}"
    if minimum >= UNLIMITED:
        smallest = int(gang.counts[0])
        if smallest > workers.sum():
            total = int(workers.sum())
            message = f"needs {smallest} workers at once, {where} {have} room for {total}"
            return Refusal(RefusalReason.NEVER_FITS, message, bottleneck="places of workers")
        message = (
            f"needs a server whose parameter servers serve its {smallest} workers on other "
            f"servers; {none} can"
        )
        return Refusal(
            RefusalReason.NEVER_FITS,
            message,
            bottleneck="places and bandwidth of parameter servers",
        )
    if minimum > longest:
        return Refusal(
            RefusalReason.TOO_LATE,
            f"takes {minimum} slots at best, with {count} workers; the longest round has {longest}",
            bottleneck="length of the longest round",
            numbers={"slots": float(minimum), "longest_round": float(longest)},
        )
    if gang.values(minimum)[minimum] <= 0:
        return Refusal(
            RefusalReason.NO_VALUE,
            f"its utility is 0 after the {minimum} slots that it takes at best",
            value=utility_value(job.utility, minimum),
            cost=0.0,
            bottleneck="its utility",
        )
    return None
