"""Servers, what they hold, and the tenants that share them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from shadowprice.core.errors import InputError

BANDWIDTH = "bandwidth"
"""The resource that the communication model reads; undeclared, it is unlimited."""

Amounts = NDArray[np.int64]


class Role(Enum):
    """What a server may carry."""

    WORKER = "worker"
    PS = "ps"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One owner of a share of the cluster.

    Parameters
    ----------
    name : str
        Name that jobs refer to.
    share : mapping of str to int
        Places owned, by resource name, in thousandths (Astraea's q_w^u, q_p^u).
    budget : Budget or None
        What it may spend, None without limit; the live service keeps to it, simulations do not.
    """

    name: str
    share: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None


@dataclass(frozen=True, eq=False)
class Cluster:
    """The servers of a cluster, as arrays over servers and resources.

    Parameters
    ----------
    slot_seconds : Fraction
        Length of a time slot.
    horizon : int
        Slots a planner looks ahead.
    resources : tuple of str
        Resource names, in the order of the columns of ``capacity``.
    dimensions : tuple of Dimension
        What each resource's amounts count.
    names : tuple of str
        Server names, in the order of the rows of ``capacity``.
    roles : tuple of Role
        What each server may carry.
    capacity : ndarray of int64, shape (servers, resources)
        Amounts; 0 where a server lacks a resource, ``UNLIMITED`` for undeclared bandwidth.
    tenants : tuple of Tenant
        Owners of shares, empty where the cluster has none.
    restart_seconds : Fraction
        Time that jobs lose when their placement changes, unless they say otherwise.
    restart_first : bool
        Whether a job's first start loses its restart as well; it costs nothing in the papers.
    costs : ndarray of float64, shape (servers,), or None
        Money that each server costs an hour, in the file's currency; None where no price is stated.
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
        """Refuse a plan with more cells (servers x resources x slots) than fit into memory.

        Raises
        ------
        InputError
            Naming the bound; to be called before anything of that size is allocated.
        """
        cells = horizon * self.capacity.size
        bounds.CELLS.check(cells, "the cluster", "lower its horizon, or plan it in parts")

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.names)

    @cached_property
    def hosts_workers(self) -> NDArray[np.bool_]:
        """Which servers may carry workers, shape (servers,)."""
        return np.array([role is not Role.PS for role in self.roles], dtype=np.bool_)

    @cached_property
    def hosts_ps(self) -> NDArray[np.bool_]:
        """Which servers may carry parameter servers, shape (servers,)."""
        return np.array([role is not Role.WORKER for role in self.roles], dtype=np.bool_)

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Number of each server's kind: equal role and equal capacity, shape (servers,)."""
        carries = np.stack([self.hosts_workers, self.hosts_ps], axis=1)
        other = np.ones(self.servers, dtype=np.bool_)
        other[1:] = (carries[1:] != carries[:-1]).any(axis=1)
        other[1:] |= (self.capacity[1:] != self.capacity[:-1]).any(axis=1)
        # Equal servers mostly stand side by side: one of each such row is looked at.
        seen: dict[tuple[Role, bytes], int] = {}
        firsts = np.flatnonzero(other)
        kinds = [
            seen.setdefault((self.roles[row], self.capacity[row].tobytes()), len(seen))
            for row in firsts.tolist()
        ]
        return np.repeat(np.array(kinds, dtype=np.int64), np.diff(firsts, append=self.servers))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Row of each server by name."""
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def column(self) -> Mapping[str, int]:
        """Column of each resource by name."""
        return {name: column for column, name in enumerate(self.resources)}

    @cached_property
    def tenant_index(self) -> Mapping[str, int]:
        """Position of each tenant by name."""
        return {tenant.name: position for position, tenant in enumerate(self.tenants)}

    def pool_scale(self, members: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the largest capacity of each resource within a pool of servers.

        Amounts in price formulas are shares of it (papers' README, reading 4).

        Parameters
        ----------
        members : ndarray of bool, shape (servers,)
            The servers of the pool.

        Returns
        -------
        ndarray of float64, shape (resources,)
            The largest limited capacity, 0 where no server of the pool has any.
        """
        rows = self.capacity[members]
        limited = np.where(rows >= UNLIMITED, 0, rows)
        if not len(limited):
            return np.zeros(len(self.resources))
        return np.asarray(limited.max(axis=0), dtype=np.float64)

    def demand(self, amounts: Mapping[str, int]) -> Amounts:
        """Return amounts by name as a vector over this cluster's resources.

        Parameters
        ----------
        amounts : mapping of str to int
            Amounts by resource name; bandwidth that no server declares is unlimited everywhere
            and left out.

        Returns
        -------
        ndarray of int64, shape (resources,)
            The demand, read-only.

        Raises
        ------
        InputError
            If a resource is asked for that no server of the cluster has.
        """
        vector = np.zeros(len(self.resources), dtype=np.int64)
        for name, amount in amounts.items():
            if name in self.column:
                vector[self.column[name]] = amount
            elif amount and name != BANDWIDTH:
                known = ", ".join(self.resources)
                raise InputError(f"no server has {name!r}; the cluster's resources are {known}")
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
    """Lay out servers given by name as the arrays of a `Cluster`.

    Parameters
    ----------
    slot_seconds : Fraction
        Length of a slot.
    horizon : int
        Slots a planner looks ahead.
    servers : sequence of (name, role, amounts by resource)
        The servers in their order.
    dimensions : mapping of str to Dimension
        What the amounts of each resource count.
    tenants : sequence of Tenant
        Owners of shares.
    restart_seconds : Fraction
        Time that jobs lose when their placement changes, unless they say otherwise.
    restart_first : bool
        Whether a job's first start loses that as well.
    costs : sequence of float, optional
        What each server costs an hour.

    Returns
    -------
    Cluster
        The cluster; resources keep the order in which servers first name them.
    """
    resources = tuple(dict.fromkeys(_resource_names(servers)))
    capacity = np.zeros((len(servers), len(resources)), dtype=np.int64)
    row = 0
    for _, equal in groupby(servers, key=lambda server: id(server[2])):
        held = [amounts for _, _, amounts in equal]
        capacity[row : row + len(held)] = [
            held[0].get(resource, UNLIMITED if resource == BANDWIDTH else 0)
            for resource in resources
        ]
        row += len(held)
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


def _resource_names(servers: Sequence[tuple[str, Role, Mapping[str, int]]]) -> Iterator[str]:
    for _, equal in groupby(servers, key=lambda server: id(server[2])):
        yield from next(equal)[2]
