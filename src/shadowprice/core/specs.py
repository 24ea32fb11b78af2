"""The models of cluster and job files: one set validates them wherever they come from.

A model holds what a file says; `ClusterSpec.resolve` and `JobSpec.resolve` turn it into what
schedulers use. Unknown keys are errors (the nearest known key is named), quantities carry their
unit, and a fault names its place and its mend.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from shadowprice.core import utility as utilities
from shadowprice.core.amounts import (
    UNLIMITED,
    Amount,
    Dimension,
    Duration,
    format_amount,
    parse_amount,
    parse_duration,
)
from shadowprice.core.cluster import BANDWIDTH, Cluster, Role, Tenant, build_cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job, StepModel, build_job

Value = TypeVar("Value")
Model = TypeVar("Model", bound=BaseModel)


def _lifted(parse: Callable[[object], Value]) -> Callable[[object], Value]:
    """Let pydantic collect what a parser refuses instead of stopping at it."""

    def validate(value: object) -> Value:
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return validate


def _positive(value: Duration) -> Duration:
    if not (value.seconds or value.slots):
        raise ValueError("it must be longer than nothing")
    return value


DurationField = Annotated[Duration, BeforeValidator(_lifted(parse_duration))]
AmountField = Annotated[Amount, BeforeValidator(_lifted(parse_amount))]
AmountsField = dict[str, AmountField]


def _rate_or_unlimited(value: object) -> Amount:
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return Amount(UNLIMITED, Dimension.RATE)
    return parse_amount(value)


LinkField = Annotated[Amount, BeforeValidator(_lifted(_rate_or_unlimited))]
Number = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Spec(BaseModel):
    """Base of everything that is read from a file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, strict=False
    )


# ---------------------------------------------------------------- cluster


class ServerSpec(Spec):
    """One server, or ``count`` equal ones."""

    name: Name
    count: PositiveInt | None = None
    role: Literal["worker", "ps", "any"] = "any"
    capacity: AmountsField

    @field_validator("capacity")
    @classmethod
    def _some_capacity(cls, capacity: dict[str, Amount]) -> dict[str, Amount]:
        if not any(amount.value for amount in capacity.values()):
            raise ValueError("a server needs some capacity, such as {gpu: 8, memory: 244GiB}")
        return capacity

    def names(self) -> list[str]:
        """Return the names of the servers: ``gpu-0, gpu-1, ...`` with a count."""
        if self.count is None:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(self.count)]


class TenantSpec(Spec):
    """A tenant and the places it owns."""

    name: Name
    share: AmountsField = Field(default_factory=dict)


class ClusterSpec(Spec):
    """A cluster file."""

    slot: DurationField
    horizon: Annotated[int, Field(ge=1, le=100_000)] = 300
    servers: Annotated[list[ServerSpec], Field(min_length=1)]
    tenants: list[TenantSpec] = Field(default_factory=list)

    def resolve(self, place: str = "cluster") -> Cluster:
        """Return the cluster that the file describes.

        Parameters
        ----------
        place : str
            What faults are prefixed with, such as the file's name.

        Raises
        ------
        InputError
            With every fault found between the parts of the file.
        """
        faults: list[Fault] = []
        if self.slot.slots or not self.slot.seconds:
            faults.append(
                Fault(f"{place}: slot", "a slot's length must be a positive time", "write 20min")
            )
        dimensions: dict[str, Dimension] = {}
        holders = [(f"servers[{at}].capacity", s.capacity) for at, s in enumerate(self.servers)]
        holders += [(f"tenants[{at}].share", t.share) for at, t in enumerate(self.tenants)]
        for where, amounts in holders:
            faults += _dimension_faults(f"{place}: {where}", amounts, dimensions)
        servers = [
            (name, Role(server.role), _plain(server.capacity))
            for server in self.servers
            for name in server.names()
        ]
        faults += _duplicates(f"{place}: servers", (name for name, _, _ in servers))
        faults += _duplicates(f"{place}: tenants", (tenant.name for tenant in self.tenants))
        owned = {name for server in self.servers for name in server.capacity}
        for at, tenant in enumerate(self.tenants):
            for name in tenant.share.keys() - owned:
                mend = f"shares are given in {', '.join(sorted(owned))}"
                where = f"{place}: tenants[{at}].share.{name}"
                faults.append(Fault(where, "no server has this resource", mend))
        if faults:
            raise InputError(faults)
        return build_cluster(
            slot_seconds=self.slot.seconds,
            horizon=self.horizon,
            servers=servers,
            dimensions=dimensions,
            tenants=[Tenant(tenant.name, _plain(tenant.share)) for tenant in self.tenants],
        )


# ---------------------------------------------------------------- utilities


class ConstantSpec(Spec):
    """``value`` whenever the job finishes."""

    kind: Literal["constant"]
    value: NonNegative


class SigmoidSpec(Spec):
    """``value / (1 + exp(decay (d - target)))``."""

    kind: Literal["sigmoid"]
    value: NonNegative
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False, description="utilities never rise")]
    target: DurationField


class ReciprocalSpec(Spec):
    """``value / (1 + d)``."""

    kind: Literal["reciprocal"]
    value: NonNegative


class LinearSpec(Spec):
    """``value + slope d``, never below 0."""

    kind: Literal["linear"]
    value: NonNegative
    slope: Annotated[float, Field(le=0, allow_inf_nan=False)]


class PowerSpec(Spec):
    """``(scale / d)^exponent``."""

    kind: Literal["power"]
    scale: NonNegative
    exponent: NonNegative


class DeadlineSpec(Spec):
    """``value`` until ``by``, then nothing."""

    kind: Literal["deadline"]
    value: NonNegative
    by: DurationField


UtilitySpec = Annotated[
    ConstantSpec | SigmoidSpec | ReciprocalSpec | LinearSpec | PowerSpec | DeadlineSpec,
    Field(discriminator="kind"),
]


def resolve_utility(spec: Any, slot_seconds: Fraction) -> utilities.Utility:
    """Return the utility that a file describes, its durations counted in slots."""
    values = {
        name: float(value.in_slots(slot_seconds)) if isinstance(value, Duration) else value
        for name, value in spec
        if name != "kind"
    }
    resolved: utilities.Utility = utilities.FAMILIES[spec.kind](**values)
    return resolved


# ---------------------------------------------------------------- jobs


class WorkerRange(Spec):
    """Fewest and most workers in any slot in which the job runs."""

    min: PositiveInt = 1
    max: PositiveInt | None = None


class JobSpec(Spec):
    """One job of a job file."""

    name: Name
    tenant: Name | None = None
    arrival: DurationField = Duration()
    epochs: PositiveInt = 1
    chunks: PositiveInt = 1
    minibatches: PositiveInt = 1
    minibatch_time: DurationField | None = None
    update_time: DurationField | None = None
    gradient: AmountField | None = None
    worker: AmountsField
    ps: AmountsField | None = None
    internal_bandwidth: LinkField | None = None
    utility: UtilitySpec
    workers: WorkerRange | None = None
    throughput: dict[PositiveInt, NonNegative] | None = None
    labels: dict[str, str] = Field(default_factory=dict)

    @field_validator("worker")
    @classmethod
    def _asks_for_something(cls, worker: dict[str, Amount]) -> dict[str, Amount]:
        if not any(amount.value for amount in worker.values()):
            raise ValueError("a worker needs something, such as {gpu: 1, memory: 16GiB}")
        return worker

    @model_validator(mode="after")
    def _one_speed(self) -> JobSpec:
        linear = ("minibatch_time", "update_time", "gradient", "internal_bandwidth")
        given = [name for name in linear if getattr(self, name) is not None]
        if self.throughput is not None and given:
            raise ValueError(f"`throughput` takes the place of {', '.join(given)}; leave those out")
        if self.throughput is None and self.minibatch_time is None:
            raise ValueError("how fast it trains is missing; give minibatch_time or throughput")
        if self.minibatch_time is not None:
            _positive(self.minibatch_time)
        if self.throughput is not None and max(self.throughput, default=0) > self.chunks:
            raise ValueError(
                f"`throughput` lists {max(self.throughput)} workers, but no more than `chunks` = "
                f"{self.chunks} can run; raise chunks (and lower minibatches)"
            )
        return self

    @model_validator(mode="after")
    def _sensible_workers(self) -> JobSpec:
        if self.workers is not None:
            most = self.workers.max or self.chunks
            if self.workers.min > most:
                raise ValueError(f"workers.min {self.workers.min} is above workers.max {most}")
            if most > self.chunks:
                raise ValueError(f"workers.max {most} is above chunks {self.chunks}; raise chunks")
        return self

    @model_validator(mode="after")
    def _sensible_bandwidth(self) -> JobSpec:
        outside = self.worker.get(BANDWIDTH)
        if self.gradient is not None and self.gradient.value and outside is None:
            raise ValueError("`gradient` travels over worker.bandwidth; give it, or no gradient")
        if self.gradient is not None and self.gradient.dimension is not Dimension.BYTES:
            raise ValueError("`gradient` is a size in bytes; write 241MB")
        if self.internal_bandwidth is not None:
            if self.internal_bandwidth.dimension is not Dimension.RATE:
                raise ValueError("`internal_bandwidth` is a rate; write 40Gbps, or unlimited")
            if outside is None:
                raise ValueError("`internal_bandwidth` needs worker.bandwidth to compare with")
            if self.internal_bandwidth.value < outside.value:
                raise ValueError(
                    f"`internal_bandwidth` {self.internal_bandwidth} is below worker.bandwidth "
                    f"{outside}; co-location never slows a job down, so give at least {outside}"
                )
        return self

    def resolve(self, cluster: Cluster) -> Job:
        """Return the job as schedulers see it on a cluster.

        Raises
        ------
        InputError
            If the cluster has no such resource or tenant, or the numbers contradict each other.
        """
        for part in (self.worker, self.ps or {}):
            self._check_dimensions(part, cluster)
        if self.tenant is not None and cluster.tenants and self.tenant not in cluster.tenant_index:
            known = difflib.get_close_matches(self.tenant, cluster.tenant_index, 1)
            mend = f"did you mean {known[0]!r}?" if known else "add it to the cluster's tenants"
            raise InputError(Fault("tenant", f"unknown tenant {self.tenant!r}", mend))
        arrival = self.arrival.in_slots(cluster.slot_seconds)
        speed: StepModel | dict[int, Fraction]
        if self.throughput is not None:
            speed = {count: Fraction(str(rate)) for count, rate in self.throughput.items()}
        else:
            assert self.minibatch_time is not None
            update = self.update_time.in_seconds(cluster.slot_seconds) if self.update_time else 0
            speed = StepModel(
                self.minibatch_time.in_seconds(cluster.slot_seconds),
                Fraction(update),
                self.gradient.value if self.gradient else 0,
            )
        workers = self.workers
        return build_job(
            name=self.name,
            arrival=-(-arrival.numerator // arrival.denominator),
            epochs=self.epochs,
            chunks=self.chunks,
            minibatches=self.minibatches,
            speed=speed,
            worker=cluster.demand(_plain(self.worker)),
            ps=None if self.ps is None else cluster.demand(_plain(self.ps)),
            utility=resolve_utility(self.utility, cluster.slot_seconds),
            slot_seconds=cluster.slot_seconds,
            worker_bandwidth=self.worker[BANDWIDTH].value if BANDWIDTH in self.worker else 0,
            ps_bandwidth=self.ps[BANDWIDTH].value if self.ps and BANDWIDTH in self.ps else 0,
            internal_bandwidth=self.internal_bandwidth.value if self.internal_bandwidth else 0,
            worker_range=None if workers is None else (workers.min, workers.max or self.chunks),
            tenant=self.tenant,
            labels=self.labels,
        )

    @staticmethod
    def _check_dimensions(amounts: Mapping[str, Amount], cluster: Cluster) -> None:
        for name, amount in amounts.items():
            if name in cluster.column:
                expected = cluster.dimensions[cluster.column[name]]
                if amount.value and amount.dimension is not expected:
                    wanted = format_amount(8 * 10**9, expected)
                    raise InputError(
                        f"{name} is given as {amount}, but servers count it as "
                        f"{expected.value}; write it like {wanted}"
                    )
            elif name == BANDWIDTH and amount.dimension is not Dimension.RATE:
                raise InputError(f"bandwidth is given as {amount}; write it like 10Gbps")


def resolve_jobs(
    specs: Sequence[tuple[str, JobSpec]], cluster: Cluster
) -> tuple[list[Job], list[Fault]]:
    """Resolve the jobs of a file, collecting what is wrong with each.

    Parameters
    ----------
    specs : sequence of (place, JobSpec)
        The jobs with where each was read.
    cluster : Cluster
        The cluster they are for.

    Returns
    -------
    jobs : list of Job
        Those that are right, in the order of the file.
    faults : list of Fault
        Everything wrong with the others.
    """
    jobs: list[Job] = []
    faults: list[Fault] = []
    seen: dict[str, str] = {}
    for place, spec in specs:
        if spec.name in seen:
            mend = f"the name is taken by {seen[spec.name]}; rename one"
            faults.append(Fault(f"{place}.name", f"duplicate job name {spec.name!r}", mend))
            continue
        seen[spec.name] = place
        try:
            jobs.append(spec.resolve(cluster))
        except InputError as error:
            faults += [
                Fault(f"{place}.{fault.place}" if fault.place else place, fault.message, fault.mend)
                for fault in error.faults
            ]
    return jobs, faults


# ---------------------------------------------------------------- faults


def validate(model: type[Model], value: object, place: str) -> tuple[Model | None, list[Fault]]:
    """Validate one value against a model, turning what is wrong into faults with places.

    Parameters
    ----------
    model : type of pydantic model
        What the value should be.
    value : object
        As read from the file.
    place : str
        Where it was read, such as ``jobs.yaml: jobs[3]``.

    Returns
    -------
    (model instance or None, list of Fault)
        The instance, or every fault.
    """
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        return None, [_fault(model, issue, place) for issue in error.errors()]


def _fault(model: type[BaseModel], issue: Any, place: str) -> Fault:
    location = [part for part in issue["loc"] if part not in utilities.FAMILIES]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    joint = "" if place.endswith(("]", ":")) or not path else ": "
    path = path if place.endswith("]") else path.removeprefix(".")
    where = f"{place}{joint}{path}"
    if issue["type"] == "extra_forbidden":
        key = str(location[-1])
        close = difflib.get_close_matches(key, _known_keys(model), 1, cutoff=0.5)
        mend = f"did you mean {close[0]!r}?" if close else "remove it"
        return Fault(where, "unknown key", mend)
    if issue["type"] == "missing":
        return Fault(where, "is missing")
    return Fault(where, issue["msg"].removeprefix("Value error, "))


def _known_keys(model: type[BaseModel]) -> set[str]:
    """Return the keys of a model and of everything nested in it."""
    keys: set[str] = set()
    pending: list[Any] = [model]
    seen: set[Any] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, type) and issubclass(part, BaseModel):
            if part not in seen:
                seen.add(part)
                keys |= part.model_fields.keys()
                pending += [field.annotation for field in part.model_fields.values()]
        else:
            pending += getattr(part, "__args__", ())
    return keys


def _dimension_faults(
    place: str, amounts: Mapping[str, Amount], dimensions: dict[str, Dimension]
) -> list[Fault]:
    faults = []
    for name, amount in amounts.items():
        if name == BANDWIDTH:
            dimensions.setdefault(name, Dimension.RATE)
        expected = dimensions.setdefault(name, amount.dimension)
        if amount.dimension is not expected:
            faults.append(
                Fault(
                    f"{place}.{name}",
                    f"counted as {amount.dimension.value} here, as {expected.value} elsewhere",
                    "give every server's amount in the same unit",
                )
            )
    return faults


def _duplicates(place: str, names: Iterable[str]) -> list[Fault]:
    seen: set[str] = set()
    faults = []
    for name in names:
        if name in seen:
            faults.append(Fault(place, f"duplicate name {name!r}", "rename one"))
        seen.add(name)
    return faults


def _plain(amounts: Mapping[str, Amount]) -> dict[str, int]:
    return {name: amount.value for name, amount in amounts.items()}
