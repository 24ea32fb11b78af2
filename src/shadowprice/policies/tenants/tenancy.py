"""Capacity units by type, server and tenant, and the units that jobs request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.arrays import Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason

DEFAULT_OWNER = "everybody"  # name of the only owner if a cluster has no tenants


@dataclass(frozen=True, slots=True)
class UnitClaim:
    """The owner and the unit types of a job."""

    tenant: int  # index of the owner
    worker_type: int  # of the units of its workers
    ps_type: int | None  # None for all-reduce training


@dataclass(frozen=True, eq=False)
class TenantShares:
    """Capacity units of a cluster and their owners."""

    cluster: Cluster
    tenants: tuple[str, ...]  # owners
    worker_types: tuple[str, ...]  # resources that count units, such as "worker" and "worker/v100"
    ps_types: tuple[str, ...]  # such as "ps" and "ps/large"
    workers: Integers  # units, shape (types, servers)
    ps: Integers
    worker_shares: Integers
    """Units that each tenant owns, in all the total of the type; shape (types, tenants)."""
    ps_shares: Integers

    @property
    def named(self) -> bool:
        """Whether the cluster names its tenants, so that they can pay each other."""
        return bool(self.cluster.tenants)

    def shares(self) -> dict[str, dict[str, int]]:
        """Return every tenant's share by type, as in a cluster file."""
        rows = [*self.worker_shares, *self.ps_shares]
        names = [*self.worker_types, *self.ps_types]
        return {
            tenant: {name: int(row[index]) for name, row in zip(names, rows, strict=True)}
            for index, tenant in enumerate(self.tenants)
        }

    @cached_property
    def _columns(self) -> tuple[list[int], list[int]]:
        column = self.cluster.column
        return [column[name] for name in self.worker_types], [
            column[name] for name in self.ps_types
        ]

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
        worker_columns, ps_columns = self._columns
        worker = self._unit_type("worker", job.worker, worker_columns)
        if isinstance(worker, Refusal):
            return worker
        if job.ps is None:
            return UnitClaim(tenant, worker, None)
        ps = self._unit_type("parameter server", job.ps, ps_columns)
        return ps if isinstance(ps, Refusal) else UnitClaim(tenant, worker, ps)

    def _unit_type(self, kind: str, demand: Integers, columns: Sequence[int]) -> int | Refusal:
        cluster = self.cluster
        demanded = [
            column
            for column in np.flatnonzero(demand).tolist()
            if (cluster.capacity[:, column] < UNLIMITED).any()
        ]
        if len(demanded) == 1 and demanded[0] in columns and demand[demanded[0]] == MILLI:
            return columns.index(demanded[0])
        names = " or ".join(cluster.resources[column] for column in columns) or "(none here)"
        demanded_names = ", ".join(cluster.resources[column] for column in demanded) or "nothing"
        return Refusal(
            RefusalReason.POLICY,
            f"a {kind} takes one place of {names} here and nothing else that servers limit, and "
            f"this one asks for {demanded_names}",
        )


def read_tenant_shares(cluster: Cluster) -> TenantShares:
    """Read units and shares from a cluster.

    If no tenant declares a share, units of each type are divided evenly, and the first tenants get
    the odd ones. If some do, a tenant without a share owns nothing and can only borrow. A cluster
    without tenants has one owner of everything. Raises `InputError` if no server has units, units
    aren't integers, or the shares of a type don't add up to its units.
    """
    types: dict[str, tuple[str, ...]] = {
        kind: tuple(r for r in cluster.resources if r == kind or r.startswith(f"{kind}/"))
        for kind in ("worker", "ps")
    }
    if not types["worker"]:
        raise InputError(
            Fault(
                "cluster: servers",
                f"count {', '.join(cluster.resources)}, and this policy counts places",
                "give servers a capacity such as {worker: 8, ps: 1}",
            )
        )
    tenants = tuple(tenant.name for tenant in cluster.tenants) or (DEFAULT_OWNER,)
    faults: list[Fault] = []
    declared = any(
        tenant.share.get(r) for tenant in cluster.tenants for r in sum(types.values(), ())
    )
    places: dict[str, Integers] = {}
    shares: dict[str, Integers] = {}
    for kind, names in types.items():
        hosts = cluster.hosts_workers if kind == "worker" else cluster.hosts_ps
        units = np.zeros((len(names), cluster.servers), np.int64)
        owned = np.zeros((len(names), len(tenants)), np.int64)
        for row, name in enumerate(names):
            column = cluster.column[name]
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
        places[kind], shares[kind] = units, owned
    if faults:
        raise InputError(faults)
    return TenantShares(
        cluster,
        tenants,
        types["worker"],
        types["ps"],
        places["worker"],
        places["ps"],
        shares["worker"],
        shares["ps"],
    )


def require_tenants(tenancy: TenantShares, jobs: Sequence[Job] | None) -> None:
    """Raise `InputError` if units belong to tenants and a known job names none."""
    if not tenancy.named or jobs is None:
        return
    orphans = [job.name for job in jobs if job.tenant is None]
    if orphans:
        shown = ", ".join(orphans[:3]) + (f" and {len(orphans) - 3} more" if orphans[3:] else "")
        raise InputError(
            Fault(
                "jobs",
                f"no tenant is given for {shown}, and the cluster's places belong to tenants",
                f"add `tenant:`, one of {', '.join(tenancy.tenants)}",
            )
        )


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
