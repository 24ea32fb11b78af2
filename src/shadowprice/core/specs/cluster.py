"""The model of a cluster file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    field_validator,
)

from shadowprice.core import bounds
from shadowprice.core.amounts import (
    Amount,
    Dimension,
    Duration,
    format_amount,
)
from shadowprice.core.budget import PERIOD_EPOCH_MONDAY, POINT, Budget, parse_timestamp
from shadowprice.core.cluster import BANDWIDTH, Cluster, Role, Tenant, build_cluster
from shadowprice.core.devices import GPU, gpus_of_kinds, is_device
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import fields
from shadowprice.core.wording import quote_for_display

MIN_PERIOD_SECONDS: Final = 60  # minimum length of a budget's period


def some_capacity(capacity: dict[str, Amount] | None) -> dict[str, Amount] | None:
    """Return a server's capacity; raise ValueError if it contains no positive amount."""
    if capacity is not None and not any(amount.value for amount in capacity.values()):
        raise ValueError("a server needs some capacity, such as {gpu: 8, memory: 244GiB}")
    return capacity


class ServerSpec(fields.Spec):
    """One server, or ``count`` equal ones."""

    USUAL_KEYS: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cpu", "cpus", "gpu", "gpus", "mem", "memory", "resources"),
        "capacity: {gpu: 8, cpu: 64, memory: 512GiB}",
    )
    """What to write instead of keys that other schedulers use."""

    name: fields.PathSegmentName
    count: Annotated[PositiveInt, fields.max_value(bounds.SERVERS)] | None = None
    role: Literal["worker", "ps", "any"] = "any"
    capacity: fields.AmountsField
    cost: Annotated[fields.NonNegative, fields.max_value(bounds.NUMBER)] | None = None

    _some_capacity = field_validator("capacity")(some_capacity)

    def names(self) -> list[str]:
        """Return the names of the servers: ``gpu-0, gpu-1, ...`` with a count."""
        if self.count is None:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(self.count)]


def _carry(value: object) -> object:
    if value == "all":
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise InputError(f'{quote_for_display(value)} is neither a number of points nor "all"')


def _check_period(value: Duration) -> Duration:
    """Return a period; raise InputError if it isn't in whole seconds, or is out of bounds."""
    if value.slots or value.seconds.denominator != 1 or value.seconds < MIN_PERIOD_SECONDS:
        raise InputError(f"a period takes whole seconds, {MIN_PERIOD_SECONDS} at least; write 7d")
    bounds.PERIOD.checked(int(value.seconds))
    return value


class BudgetSpec(fields.Spec):
    """Points that a tenant may spend in a period."""

    points: Annotated[fields.NonNegative, fields.max_value(bounds.POINTS)]
    period: Annotated[fields.DurationField, AfterValidator(fields.as_validator(_check_period))]
    since: Annotated[datetime, BeforeValidator(fields.as_validator(parse_timestamp))] | None = None
    carry: Annotated[
        Annotated[fields.NonNegative, fields.max_value(bounds.POINTS)] | None,
        BeforeValidator(fields.as_validator(_carry)),
    ] = 0.0

    def resolve(self) -> Budget:
        """Return the budget."""
        return Budget(
            round(self.points * POINT),
            int(self.period.seconds),
            PERIOD_EPOCH_MONDAY if self.since is None else int(self.since.timestamp()),
            None if self.carry is None else round(self.carry * POINT),
        )


class TenantSpec(fields.Spec):
    """A tenant, its share of the resources, and its budget."""

    name: fields.PathSegmentName
    share: fields.AmountsField = Field(default_factory=dict)
    budget: BudgetSpec | None = None

    def resolve(self, cluster: Cluster) -> Tenant:
        """Return the tenant; its share is in the cluster's resources."""
        budget = None if self.budget is None else self.budget.resolve()
        share: dict[str, int] = {}
        for name, amount in fields.to_integer_amounts(self.share).items():
            # `gpu` and `gpu/KIND` may be one resource; then the smaller share is the tenant's.
            resource = cluster.find_resource(name) or name
            share[resource] = min(amount, share.get(resource, amount))
        return Tenant(self.name, share, budget)


class ClusterSpec(fields.Spec):
    """A cluster file."""

    slot: fields.DurationField
    horizon: Annotated[int, Field(ge=1), fields.max_value(bounds.HORIZON)] = 300
    servers: Annotated[list[ServerSpec], Field(min_length=1), fields.max_length(bounds.SERVERS)]
    tenants: Annotated[list[TenantSpec], fields.max_length(bounds.TENANTS)] = Field(
        default_factory=list
    )
    restart: fields.DurationField | None = None
    restart_first: bool | None = None

    def resolve(self, location: str = "cluster", *, starts_cost: bool = False) -> Cluster:
        """Return the cluster that the file describes.

        ``location`` is a prefix of locations, such as the file's name. ``starts_cost`` is the
        default of ``restart_first``, `Cluster.restart_first`. Raises InputError with all faults of
        the file.
        """
        self._check_size(location)
        faults: list[Fault] = []
        if self.slot.slots or not self.slot.seconds:
            faults.append(
                Fault(f"{location}: slot", "a slot's length must be a positive time", "write 20min")
            )
        restart = Fraction(0)
        if self.restart is not None and self.slot.seconds:
            restart = self.restart.in_seconds(self.slot.seconds)
            if restart > self.slot.seconds:
                hint = "lower it, or lengthen the slot"
                faults.append(Fault(f"{location}: restart", "is longer than a slot", hint))
        dimensions: dict[str, Dimension] = {}
        holders = [
            (f"servers[{index}].capacity", s.capacity) for index, s in enumerate(self.servers)
        ]
        holders += [(f"tenants[{index}].share", t.share) for index, t in enumerate(self.tenants)]
        for where, amounts in holders:
            faults += _dimension_faults(f"{location}: {where}", amounts, dimensions)
        for index, server in enumerate(self.servers):
            faults += total_faults(f"{location}: servers[{index}].capacity", server.capacity)
        # Equal servers share one mapping, because an entry may stand for 100,000 servers.
        servers = [
            (name, role, amounts)
            for server in self.servers
            for role, amounts in [(Role(server.role), fields.to_integer_amounts(server.capacity))]
            for name in server.names()
        ]
        faults += _duplicates(f"{location}: servers", [name for name, _, _ in servers])
        faults += _duplicates(f"{location}: tenants", [tenant.name for tenant in self.tenants])
        owned = {name for server in self.servers for name in server.capacity}
        owned |= {GPU for name in owned if is_device(name)}
        for index, tenant in enumerate(self.tenants):
            for name in tenant.share.keys() - owned:
                hint = f"shares are given in {', '.join(sorted(owned))}"
                where = f"{location}: tenants[{index}].share.{name}"
                faults.append(Fault(where, "no server has this resource", hint))
        if faults:
            raise InputError(faults)
        cluster = build_cluster(
            slot_seconds=self.slot.seconds,
            horizon=self.horizon,
            servers=servers,
            dimensions=dimensions,
            restart_seconds=restart,
            restart_first=starts_cost if self.restart_first is None else self.restart_first,
            costs=self._costs(),
        )
        return replace(cluster, tenants=tuple(tenant.resolve(cluster) for tenant in self.tenants))

    def _costs(self) -> list[float] | None:
        """Return the price of each server per hour; None if no server has one."""
        if all(server.cost is None for server in self.servers):
            return None
        return [server.cost or 0.0 for server in self.servers for _ in server.names()]

    def _check_size(self, location: str) -> None:
        """Raise InputError for a cluster that is too large to plan, before arrays are allocated."""
        servers = sum(server.count or 1 for server in self.servers)
        bounds.SERVERS.check(servers, f"{location}: servers")
        resources = len({name for server in self.servers for name in server.capacity})
        bounds.RESOURCES.check(resources, f"{location}: servers")
        bounds.PLAN_CELLS.check(
            servers * resources,
            f"{location}: servers",
            "plan in parts: fewer servers, or fewer resources",
        )


def total_faults(location: str, capacity: Mapping[str, Amount]) -> list[Fault]:
    """Return the fault of a server whose ``gpu`` isn't the total of the kinds that it names."""
    gpus = gpus_of_kinds(fields.to_integer_amounts(capacity))
    if not gpus or GPU not in capacity or capacity[GPU].value in (0, gpus):
        return []
    total = format_amount(gpus, Dimension.COUNT)
    message = f"{capacity[GPU]} isn't the total of the kinds, {total}"
    return [Fault(f"{location}.{GPU}", message, "name each GPU by its kind, and leave `gpu` out")]


def _dimension_faults(
    location: str, amounts: Mapping[str, Amount], dimensions: dict[str, Dimension]
) -> list[Fault]:
    faults = []
    for name, amount in amounts.items():
        if name == BANDWIDTH:
            dimensions.setdefault(name, Dimension.RATE)
        expected = dimensions.setdefault(name, amount.dimension)
        if amount.dimension is not expected:
            faults.append(
                Fault(
                    f"{location}.{name}",
                    f"counted as {amount.dimension.value} here, as {expected.value} elsewhere",
                    "give every server's amount in the same unit",
                )
            )
    return faults


def _duplicates(location: str, names: Sequence[str]) -> list[Fault]:
    if len(set(names)) == len(names):
        return []
    seen: set[str] = set()
    faults = []
    for name in names:
        if name in seen:
            faults.append(Fault(location, f"duplicate name {name!r}", "rename one"))
        seen.add(name)
    return faults
