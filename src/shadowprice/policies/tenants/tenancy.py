"""Whose places there are: types, places of each server, shares of each tenant, and jobs' claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal

Integers = npt.NDArray[np.int64]

EVERYBODY = "everybody"
"""Name of the one owner where a cluster has no tenants."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The places that a job asks for.

    Parameters
    ----------
    tenant : int
        Its owner.
    worker_type : int
        Type of its workers' places.
    ps_type : int or None
        Type of its parameter servers' places; None for all-reduce training.
    """

    tenant: int
    worker_type: int
    ps_type: int | None


@dataclass(frozen=True, eq=False)
class Tenancy:
    """The places of a cluster and who owns them.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    tenants : tuple of str
        Owners.
    worker_types, ps_types : tuple of str
        Resources that count places: ``worker``, ``worker/v100``; ``ps``, ``ps/large``.
    workers, ps : int64, shape (types, servers)
        Places of each type on each server.
    worker_shares, ps_shares : int64, shape (types, tenants)
        Places that each tenant owns; of each type, all of them.
    """

    cluster: Cluster
    tenants: tuple[str, ...]
    worker_types: tuple[str, ...]
    ps_types: tuple[str, ...]
    workers: Integers
    ps: Integers
    worker_shares: Integers
    ps_shares: Integers

    @property
    def named(self) -> bool:
        """Whether the cluster names its tenants, so that they can pay each other."""
        return bool(self.cluster.tenants)

    def shares(self) -> dict[str, dict[str, int]]:
        """Return every tenant's share by type, as a cluster file writes it."""
        rows = [*self.worker_shares, *self.ps_shares]
        names = [*self.worker_types, *self.ps_types]
        return {
            tenant: {name: int(row[at]) for name, row in zip(names, rows, strict=True)}
            for at, tenant in enumerate(self.tenants)
        }

    @cached_property
    def _columns(self) -> tuple[list[int], list[int]]:
        column = self.cluster.column
        return [column[name] for name in self.worker_types], [
            column[name] for name in self.ps_types
        ]

    def claim_of(self, job: Job) -> Claim | Refusal:
        """Return the places that a job asks for, or why it cannot be counted in places."""
        if not self.named:
            tenant = 0
        elif job.tenant is None:
            return Refusal(
                Reason.POLICY,
                f"it names no tenant, and places belong to tenants here: {', '.join(self.tenants)}",
            )
        else:
            tenant = self.cluster.tenant_index[job.tenant]
        worker_columns, ps_columns = self._columns
        worker = self._one_place("worker", job.worker, worker_columns)
        if isinstance(worker, Refusal):
            return worker
        if job.ps is None:
            return Claim(tenant, worker, None)
        ps = self._one_place("parameter server", job.ps, ps_columns)
        return ps if isinstance(ps, Refusal) else Claim(tenant, worker, ps)

    def _one_place(self, kind: str, demand: Integers, columns: Sequence[int]) -> int | Refusal:
        cluster = self.cluster
        asked = [
            column
            for column in np.flatnonzero(demand).tolist()
            if (cluster.capacity[:, column] < UNLIMITED).any()
        ]
        if len(asked) == 1 and asked[0] in columns and demand[asked[0]] == MILLI:
            return columns.index(asked[0])
        names = " or ".join(cluster.resources[column] for column in columns) or "(none here)"
        found = ", ".join(cluster.resources[column] for column in asked) or "nothing"
        return Refusal(
            Reason.POLICY,
            f"a {kind} takes one place of {names} here and nothing else that servers limit, and "
            f"this one asks for {found}",
        )


def tenancy_of(cluster: Cluster) -> Tenancy:
    """Read places and shares from a cluster.

    Where no tenant declares a share, places are divided evenly, type by type, odd ones to the
    first. Where some do, a tenant that declares none owns none and can only borrow. A cluster
    without tenants has one owner of everything.

    Raises
    ------
    InputError
        If no server has places, places are not whole, or the shares of a type do not add up to
        its places.
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
    tenants = tuple(tenant.name for tenant in cluster.tenants) or (EVERYBODY,)
    faults: list[Fault] = []
    declared = any(
        tenant.share.get(r) for tenant in cluster.tenants for r in sum(types.values(), ())
    )
    places: dict[str, Integers] = {}
    shares: dict[str, Integers] = {}
    for kind, names in types.items():
        hosts = cluster.hosts_workers if kind == "worker" else cluster.hosts_ps
        held = np.zeros((len(names), cluster.servers), np.int64)
        owned = np.zeros((len(names), len(tenants)), np.int64)
        for row, name in enumerate(names):
            column = cluster.column[name]
            amounts = np.where(hosts, cluster.capacity[:, column], 0)
            if cluster.dimensions[column] is not Dimension.COUNT or (amounts % MILLI).any():
                mend = f"write {name}: 8"
                faults.append(Fault("cluster: servers", f"places of {name} are not whole", mend))
            held[row] = amounts // MILLI
            total = int(held[row].sum())
            if declared:
                owned[row] = [
                    _share(tenant.name, tenant.share, name, faults) for tenant in cluster.tenants
                ]
                if owned[row].sum() != total:
                    faults.append(_mismatch(name, int(owned[row].sum()), total))
            else:
                owned[row] = total // len(tenants)
                owned[row, : total % len(tenants)] += 1
        places[kind], shares[kind] = held, owned
    if faults:
        raise InputError(faults)
    return Tenancy(
        cluster,
        tenants,
        types["worker"],
        types["ps"],
        places["worker"],
        places["ps"],
        shares["worker"],
        shares["ps"],
    )


def require_tenants(tenancy: Tenancy, jobs: Sequence[Job] | None) -> None:
    """Refuse known jobs that belong to nobody although places belong to tenants.

    Raises
    ------
    InputError
        Naming the first such jobs.
    """
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


def _mismatch(name: str, owned: int, total: int) -> Fault:
    by = f"{total - owned} too few" if owned < total else f"{owned - total} too many"
    return Fault(
        "cluster: tenants",
        f"shares of {name} add up to {owned}, the servers hold {total}: {by}",
        "shares of each type add up to its places; or declare none, to divide them evenly",
    )
