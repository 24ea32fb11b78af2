"""Clusters: servers, their capacity, and the tenants that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.amounts import UNLIMITED, Dimension
from shadowprice.core.budget import Budget
from shadowprice.core.devices import GPU, gpus_of_kinds, is_device, is_gpu_kind, whole_parts
from shadowprice.core.errors import Fault, InputError

BANDWIDTH = "bandwidth"
"""The resource of the communication model; unlimited on servers that don't declare it."""

Amounts = NDArray[np.int64]


class Role(Enum):
    """The processes that a server may run."""

    WORKER = "worker"
    PS = "ps"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a share of the cluster.

    ``share`` is the owned capacity by resource, in thousandths (Astraea's q_w^u, q_p^u). The live
    service enforces the budget; simulations don't.
    """

    name: str
    share: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None


@dataclass(frozen=True, eq=False)
class Cluster:
    """The servers of a cluster, as arrays over servers and resources.

    Parameters
    ----------
    horizon : int
        Number of slots that a planner looks ahead.
    resources, dimensions : tuple
        Name of each resource and dimension of its amounts, in the order of the columns of
        ``capacity``. If servers name several kinds of GPU, ``gpu`` is a resource: the total.
    names, roles : tuple
        Name and role of each server, in the order of the rows of ``capacity``.
    capacity : ndarray of int64, shape (servers, resources)
        Amounts; 0 if a server lacks a resource, ``UNLIMITED`` for undeclared bandwidth.
    restart_seconds : Fraction
        Default time that a job loses when its placement changes.
    restart_first : bool
        Whether a job's first start also loses that time; in the papers it doesn't.
    costs : ndarray of float64, shape (servers,), or None
        Price of each server per hour, in the file's currency; None without prices.
    """

    slot_seconds: Fraction
    horizon: int
    resources: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    names: tuple[str, ...]
    roles: tuple[Role, ...]
    capacity: Amounts
    tenants: tuple[Tenant, ...] = ()
    restart_seconds: Fraction = Fraction(0)
    restart_first: bool = False
    costs: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        self.capacity.setflags(write=False)
        if self.costs is not None:
            self.costs.setflags(write=False)

    def check_plan(self, horizon: int) -> None:
        """Raise InputError if a plan's cells (servers x resources x slots) don't fit into memory.

        Call it before allocating anything of that size.
        """
        cells = horizon * self.capacity.size
        bounds.PLAN_CELLS.check(cells, "the cluster", "lower its horizon, or plan it in parts")

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.names)

    @cached_property
    def hosts_workers(self) -> NDArray[np.bool_]:
        """Whether each server may run workers, shape (servers,)."""
        return np.array([role is not Role.PS for role in self.roles], dtype=np.bool_)

    @cached_property
    def hosts_ps(self) -> NDArray[np.bool_]:
        """Whether each server may run parameter servers, shape (servers,)."""
        return np.array([role is not Role.WORKER for role in self.roles], dtype=np.bool_)

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Class of each server: equal for equal roles and capacity, shape (servers,)."""
        rows = np.column_stack([self.hosts_workers, self.hosts_ps, self.capacity])
        _, first, classes = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        # Number the classes in the order of their first servers.
        return np.argsort(np.argsort(first))[classes.reshape(-1)]

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Row of each server by name."""
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def column(self) -> Mapping[str, int]:
        """Column of each resource by name."""
        return {name: column for column, name in enumerate(self.resources)}

    def find_resource(self, name: str) -> str | None:
        """Return the resource that a request for ``name`` takes; None if no server has it.

        If all GPUs are of one kind, a request for ``gpu`` takes that kind.
        """
        if name in self.column:
            return name
        kinds = [resource for resource in self.resources if is_gpu_kind(resource)]
        return kinds[0] if name == GPU and len(kinds) == 1 else None

    @cached_property
    def _only_kind(self) -> NDArray[np.int64]:
        """Column of each server's only kind of GPU; -1 if it has none or several."""
        kinds = np.array([is_gpu_kind(name) for name in self.resources], dtype=np.bool_)
        has_kind = (self.capacity > 0) & kinds
        return np.where(has_kind.sum(axis=1) == 1, has_kind.argmax(axis=1), -1)

    def count_kinds(self, usage: Amounts, servers: NDArray[np.int64]) -> None:
        """Set the usage of each server's only kind of GPU to its usage of ``gpu``, in place.

        ``usage`` has a row for each of ``servers``. Servers with several kinds of GPU keep their
        rows, because it isn't known which kind a request for ``gpu`` got.
        """
        if GPU not in self.column:
            return
        rows = np.flatnonzero(self._only_kind[servers] >= 0)
        usage[rows, self._only_kind[servers[rows]]] = usage[rows, self.column[GPU]]

    @cached_property
    def tenant_index(self) -> Mapping[str, int]:
        """Index of each tenant by name."""
        return {tenant.name: position for position, tenant in enumerate(self.tenants)}

    def pool_scale(self, members: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return a pool's largest capacity of each resource, except `UNLIMITED`.

        The shape is (resources,). ``members`` marks the pool's servers. Price formulas use amounts
        as fractions of this maximum (design/0002-oasis.md), which is 0 if no server has a limit.
        """
        rows = self.capacity[members]
        limited = np.where(rows >= UNLIMITED, 0, rows)
        if not len(limited):
            return np.zeros(len(self.resources))
        return np.asarray(limited.max(axis=0), dtype=np.float64)

    def demand(self, amounts: Mapping[str, int], location: str = "") -> Amounts:
        """Convert amounts by name to a read-only vector of shape (resources,).

        Bandwidth is ignored if no server declares it. Shares of devices are rounded up to parts
        that can be packed; see `core.devices`. GPUs of a kind count towards ``gpu``, too. Raises
        InputError, with the key below ``location``, if no server has one of the other resources, or
        if GPUs are requested both with and without their kind.
        """
        if amounts.get(GPU) and gpus_of_kinds(amounts):
            kinds = ", ".join(name for name in amounts if is_gpu_kind(name))
            hint = f"request either gpu or {kinds}"
            raise InputError(Fault(location, "'gpu' counts GPUs of any kind", hint))
        vector = np.zeros(len(self.resources), dtype=np.int64)
        for name, amount in amounts.items():
            resource = self.find_resource(name)
            if resource is not None:
                vector[self.column[resource]] += whole_parts(amount) if is_device(name) else amount
                if is_gpu_kind(name) and GPU in self.column:
                    vector[self.column[GPU]] += whole_parts(amount)
            elif amount and name != BANDWIDTH:
                hint = f"the cluster's resources are {', '.join(self.resources)}"
                types = [item.partition("/")[2] for item in self.resources if is_gpu_kind(item)]
                if is_gpu_kind(name) and types:
                    hint = f"the cluster's GPU types are {', '.join(types)}"
                key = f"{location}.{name}" if location else ""
                raise InputError(Fault(key, f"no server has {name!r}", hint))
        vector.setflags(write=False)
        return vector


def build_cluster(
    *,
    slot_seconds: Fraction,
    horizon: int,
    servers: Sequence[tuple[str, Role, Mapping[str, int]]],
    dimensions: Mapping[str, Dimension],
    tenants: Sequence[Tenant] = (),
    restart_seconds: Fraction = Fraction(0),
    restart_first: bool = False,
    costs: Sequence[float] | None = None,
) -> Cluster:
    """Build a `Cluster` from servers as (name, role, amounts by resource).

    The resources are in the order in which servers first name them; the total of GPUs of several
    kinds is the last. Other parameters are as in `Cluster`.
    """
    # Servers of one group in the file share their mapping of amounts, which is converted once.
    groups = [list(group) for _, group in groupby(servers, key=lambda server: id(server[2]))]
    resources = tuple(dict.fromkeys(name for group in groups for name in group[0][2]))
    kinds = [name for name in resources if is_gpu_kind(name)]
    if len(kinds) > 1 and GPU not in resources:
        resources, dimensions = (*resources, GPU), {GPU: dimensions[kinds[0]], **dimensions}
    capacity = np.zeros((len(servers), len(resources)), dtype=np.int64)
    row = 0
    for group in groups:
        capacity[row : row + len(group)] = capacity_row(group[0][2], resources)
        row += len(group)
    return Cluster(
        slot_seconds=slot_seconds,
        horizon=horizon,
        resources=resources,
        dimensions=tuple(dimensions[resource] for resource in resources),
        names=tuple(name for name, _, _ in servers),
        roles=tuple(role for _, role, _ in servers),
        capacity=capacity,
        tenants=tuple(tenants),
        restart_seconds=restart_seconds,
        restart_first=restart_first,
        costs=None if costs is None else np.array(costs, dtype=np.float64),
    )


def capacity_row(amounts: Mapping[str, int], resources: Sequence[str]) -> Amounts:
    """Return a server's capacity, shape (resources,); undeclared bandwidth is unlimited.

    GPUs of a kind count towards ``gpu``, too.
    """
    gpus = gpus_of_kinds(amounts)
    amounts = {**amounts, GPU: gpus} if gpus else amounts
    row = [amounts.get(name, UNLIMITED if name == BANDWIDTH else 0) for name in resources]
    return np.array(row, dtype=np.int64)
