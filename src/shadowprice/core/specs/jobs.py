"""The model of one job of a job file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    Field,
    PlainValidator,
    PositiveInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from shadowprice.core import bounds, moments
from shadowprice.core.amounts import (
    EXAMPLE_AMOUNTS,
    Amount,
    Dimension,
    Duration,
    parse_duration,
)
from shadowprice.core.bag import Bag, BagTaskGroup
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job, JobDescription, StepModel, build_bag_job, build_job
from shadowprice.core.length_history import DEFAULT_SECONDS, with_length
from shadowprice.core.specs import fields
from shadowprice.core.specs.distributions import (
    DistributionContext,
    DurationDistributionSpec,
    EmpiricalLoader,
)
from shadowprice.core.specs.faults import join_location
from shadowprice.core.specs.run import RunSpec
from shadowprice.core.specs.utilities import (
    PRIORITY_LEVELS,
    UtilitySpec,
    resolve_utility,
    with_default_utility,
)
from shadowprice.core.utility import Constant
from shadowprice.core.wording import hint_for_unknown, quote_for_display


class TaskSpec(fields.Spec):
    """Tasks of a bag that follow one distribution."""

    count: Annotated[PositiveInt, fields.max_value(bounds.TASKS)] = 1
    duration: DurationDistributionSpec


def resolve_bag(
    tasks: list[TaskSpec],
    deadline: Duration,
    miss_probability: float,
    context: DistributionContext,
    before: Fraction = Fraction(0),
) -> Bag:
    """Return the bag that a file describes.

    A deadline in units of time counts from the submission, which is ``before`` slots before the
    start of the arrival slot. A deadline in slots counts from that start. Raises InputError if a
    duration is invalid, or the deadline precedes the shortest possible duration of a task.
    """
    bounds.TASKS.check(sum(task.count for task in tasks), "tasks")
    groups, faults = [], []
    for position, task in enumerate(tasks):
        try:
            groups.append(BagTaskGroup(task.count, task.duration.distribution(context)))
        except InputError as error:
            location = f"tasks[{position}].duration"
            faults += [
                Fault(
                    location, ": ".join(filter(None, (fault.location, fault.message))), fault.hint
                )
                for fault in error.faults
            ]
    if faults:
        raise InputError(faults)
    slot = context.slot
    assert slot is not None  # a cluster has slots
    slots = deadline.in_slots(slot) - (before if deadline.on_clock else 0)
    seconds = float(slots * slot)
    for position, group in enumerate(groups):
        if group.distribution.shortest >= seconds:
            raise InputError(
                Fault(
                    "deadline",
                    f"is {seconds:g}s after the start of the arrival slot, but tasks[{position}] "
                    f"take more than {group.distribution.shortest:g}s: no number of copies helps",
                    "allow a later deadline",
                )
            )
    return Bag(tuple(groups), float(slots), miss_probability, float(slot))


_FACTORS: Final = ("epochs", "chunks", "minibatches")
"""The papers' keys for the work of a job, which is their product."""

_TRAINING = (
    "steps",
    *_FACTORS,
    "minibatch_time",
    "update_time",
    "gradient",
    "throughput",
    "family",
    "ps",
    "internal_bandwidth",
    "workers",
    "restart",
    "priority",
    "by",
    "walltime",
    "run",
)
"""Keys of training jobs, which a bag of tasks may not have."""


class WorkerRange(fields.Spec):
    """Minimum and maximum number of workers in a slot in which the job runs."""

    min: PositiveInt = 1
    max: PositiveInt | None = None


def _priority(value: Any) -> float | str:
    if isinstance(value, str) and value in PRIORITY_LEVELS:
        return value
    if isinstance(value, int | float) and abs(value) < math.inf:
        return float(bounds.NUMBER.checked(value))
    names = ", ".join(PRIORITY_LEVELS)
    raise ValueError(f"expected {names} or a number, got {quote_for_display(value)}")


def _deadline(value: object) -> Duration | str:
    """Parse a duration; keep a moment as text, because its date depends on the submission."""
    try:
        return parse_duration(value)
    except InputError:
        # Only a text like a clock time or a date gets the errors of moments.
        if not isinstance(value, str) or not (":" in value or value.count("-") > 1):
            raise
        moments.check_moment(value, "")
        return value


PriorityField = Annotated[
    float | str,
    PlainValidator(_priority),
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string", "enum": list(PRIORITY_LEVELS)}]}
    ),
]
DeadlineField = Annotated[
    Duration | str,
    PlainValidator(fields.as_validator(_deadline)),
    WithJsonSchema({"type": "string", "maxLength": bounds.QUANTITY.maximum}),
]


_DEMAND: Final = "worker: {gpu: 1}, the resources of one worker"
_COMMAND: Final = "run: {command: [python, train.py]}"
_STEP_TIME: Final = "steps and minibatch_time, the time of a step on one worker"
_WORKERS: Final = "workers: {min: 1, max: 4}"

_DIMENSION_TEXTS: Final = {
    Dimension.COUNT: "a count",
    Dimension.BYTES: "bytes",
    Dimension.RATE: "a rate",
}


class JobSpec(fields.Spec):
    """One job of a job file."""

    USUAL_KEYS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("gpu", "gpus", "cpu", "cpus", "mem", "memory", "resources"), _DEMAND),
        **dict.fromkeys(("args", "cmd", "entrypoint", "script"), _COMMAND),
        **dict.fromkeys(
            ("duration", "length", "run_time", "runtime", "step_time", "time"), _STEP_TIME
        ),
        **dict.fromkeys(("nodes", "num_workers", "parallelism", "replicas"), _WORKERS),
        **dict.fromkeys(("max_time", "time_limit", "timeout"), "walltime: 8h"),
        **dict.fromkeys(("account", "namespace", "project", "team"), "tenant: NAME"),
        "command": _COMMAND,
    }
    """What to write instead of keys that other schedulers use."""

    name: fields.Name
    tenant: fields.Name | None = None
    arrival: fields.DurationField = Duration()
    steps: PositiveInt | None = Field(
        None,
        description="mini-batches of the whole job, over all workers; takes the place of epochs, "
        "chunks and minibatches",
    )
    epochs: PositiveInt = 1
    chunks: Annotated[PositiveInt, fields.max_value(bounds.CHUNKS)] = Field(
        1, description="chunks of the data; also the maximum number of workers"
    )
    minibatches: PositiveInt = Field(
        1, description="mini-batches of one chunk in one epoch; the total is `steps`"
    )
    minibatch_time: fields.DurationField | None = None
    update_time: fields.DurationField | None = None
    gradient: fields.AmountField | None = None
    worker: fields.AmountsField
    ps: fields.AmountsField | None = None
    internal_bandwidth: fields.LinkField | None = None
    utility: UtilitySpec | None = None
    workers: WorkerRange | None = None
    throughput: (
        Annotated[
            dict[PositiveInt, fields.NonNegative],
            fields.max_length(bounds.WORKER_COUNTS),
            fields.DISTINCT_COUNTS,
        ]
        | None
    ) = None
    family: fields.Name | None = None
    tasks: (
        Annotated[
            list[TaskSpec], Field(min_length=1), fields.max_length(bounds.TASKS, fail_fast=True)
        ]
        | None
    ) = None
    deadline: fields.DurationField | None = None
    miss_probability: float | None = None
    labels: Annotated[dict[str, str], fields.max_length(bounds.LABELS)] = Field(
        default_factory=dict
    )
    restart: fields.DurationField | None = None
    priority: PriorityField = 0.0
    by: DeadlineField | None = None
    walltime: fields.DurationField | None = None
    run: RunSpec | None = None

    @field_validator("worker")
    @classmethod
    def _asks_for_something(cls, worker: dict[str, Amount]) -> dict[str, Amount]:
        if not any(amount.value for amount in worker.values()):
            raise ValueError("a worker needs something, such as {gpu: 1, memory: 16GiB}")
        return worker

    @field_validator("miss_probability")
    @classmethod
    def _is_a_probability(cls, value: float | None) -> float | None:
        if value is not None and not 0.0 < value < 1.0:
            raise ValueError(
                f"{value:g} is outside (0, 1); write for example 0.05 (0 is impossible with any "
                "number of copies, and 1 is no constraint)"
            )
        return value

    @model_validator(mode="after")
    def _training_or_tasks(self) -> JobSpec:
        if self.tasks is None:
            for name in ("deadline", "miss_probability"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` belongs to a bag of tasks; give `tasks`, or a utility of kind "
                        "deadline"
                    )
            return self
        foreign = [name for name in _TRAINING if name in self.model_fields_set]
        if foreign:
            raise ValueError(f"a bag of `tasks` does not train; leave out {', '.join(foreign)}")
        for name in ("deadline", "miss_probability"):
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` is missing: a bag of tasks needs it to choose copies")
        assert self.deadline is not None
        fields.check_positive(self.deadline)
        return self

    @property
    def has_unknown_length(self) -> bool:
        """Whether the job states no speed, so that a service predicts how long it takes."""
        return self.tasks is None and self.throughput is None and self.minibatch_time is None

    @property
    def max_workers(self) -> int:
        """Maximum number of workers: stated, else ``chunks``, or by ``throughput`` with ``steps``.

        A job with ``steps`` that states neither runs with 1 worker.
        """
        if self.workers is not None and self.workers.max is not None:
            return self.workers.max
        if self.steps is None:
            return self.chunks
        return max(self.throughput or (), default=1)

    @model_validator(mode="after")
    def _one_amount_of_work(self) -> JobSpec:
        given = [f"`{name}`" for name in _FACTORS if name in self.model_fields_set]
        if self.steps is not None and given:
            raise ValueError(
                f"`steps` takes the place of {', '.join(given)}, and counts all mini-batches of "
                f"the job; remove {', '.join(given)}"
            )
        return self

    @model_validator(mode="after")
    def _one_utility(self) -> JobSpec:
        if self.utility is None:
            return self
        if self.by is not None:
            raise ValueError(
                "`by` is the deadline of the default utility; leave out `utility`, or write "
                "{kind: deadline, value: ..., by: ...}"
            )
        if isinstance(self.priority, str):
            raise ValueError(
                "a named `priority` is a multiple of the default utility; leave out `utility`, or "
                "write a number"
            )
        return self

    @model_validator(mode="after")
    def _one_speed(self) -> JobSpec:
        if self.tasks is not None:
            return self
        linear = ("minibatch_time", "update_time", "gradient", "internal_bandwidth")
        given = [name for name in linear if getattr(self, name) is not None]
        if self.throughput is not None and given:
            raise ValueError(f"`throughput` takes the place of {', '.join(given)}; leave those out")
        if self.throughput is None and self.minibatch_time is None:
            if self.family is not None:
                raise ValueError(
                    "the curve of `family` is missing: a job file needs `families:` with a "
                    "library, a service needs `--families`; otherwise give throughput, too"
                )
            given += [name for name in _FACTORS if name in self.model_fields_set]
            if given:
                raise ValueError(
                    f"how fast it trains is missing; give minibatch_time or throughput (a job "
                    f"without {', '.join(given)} may leave it out: a service predicts its length)"
                )
        for duration in (self.minibatch_time, self.walltime):
            if duration is not None:
                fields.check_positive(duration)
        curve = self.throughput or ()
        if self.steps is None and max(curve, default=0) > self.chunks:
            raise ValueError(
                f"`throughput` lists {max(curve)} workers, but no more than `chunks` = "
                f"{self.chunks} can run; state the work as `steps`, or raise chunks (and lower "
                "minibatches, which are those of one chunk)"
            )
        return self

    @model_validator(mode="after")
    def _sensible_workers(self) -> JobSpec:
        if self.workers is None:
            return self
        maximum = self.max_workers
        if self.workers.min > maximum:
            limit = f"workers.max {maximum}"
            if self.workers.max is None:
                limit = (
                    f"chunks {maximum}; state the work as `steps`, or raise chunks"
                    if self.steps is None
                    else f"the default maximum of {maximum}; give workers.max"
                )
            raise ValueError(f"workers.min {self.workers.min} is above {limit}")
        if self.steps is None and maximum > self.chunks:
            raise ValueError(
                f"workers.max {maximum} is above chunks {self.chunks}; state the work as `steps`, "
                "or raise chunks"
            )
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

    def resolve(
        self,
        cluster: Cluster,
        measured: EmpiricalLoader | None = None,
        *,
        submitted: int | None = None,
        length: float | None = None,
    ) -> Job:
        """Return the job with the numbers that schedulers use on a cluster.

        A job that states no utility gets the default one (`with_default_utility`). ``measured``
        reads distributions from files; if it is None, they are refused. ``submitted`` is in
        nanoseconds since 1970, None in a simulation, which has no calendar. ``length`` is the
        predicted length, in seconds, of a job that states none. If it is None, as in a simulation,
        such a job is refused.

        Raises InputError if the cluster has no such resource or tenant, or the numbers contradict
        each other.
        """
        for part in (self.worker, self.ps or {}):
            self._check_dimensions(part, cluster)
        if self.tenant is not None and cluster.tenants and self.tenant not in cluster.tenant_index:
            hint = hint_for_unknown(
                self.tenant, cluster.tenant_index, "add it to the cluster's tenants"
            )
            raise InputError(Fault("tenant", f"unknown tenant {self.tenant!r}", hint))
        first_slot, before = moments.arrival_slot(self.arrival.in_slots(cluster.slot_seconds))
        bounds.SLOT.check(first_slot, "arrival")
        if self.run is not None:
            self.run.resolve(cluster.slot_seconds)  # only a check; executors resolve it again
        by = self._deadline_in_slots(cluster, before, submitted)
        utility = (
            Constant(0.0)  # replaced below, because the default depends on the resolved work
            if self.utility is None
            else resolve_utility(self.utility, cluster.slot_seconds, before)
        )
        walltime = None if self.walltime is None else self.walltime.in_slots(cluster.slot_seconds)
        described: JobDescription = {
            "name": self.name,
            "arrival": first_slot,
            "worker": cluster.demand(fields.to_integer_amounts(self.worker), "worker"),
            "utility": utility,
            "tenant": self.tenant,
            "labels": self.labels,
            "before_arrival": float(before),
            "priority": PRIORITY_LEVELS[self.priority].number
            if isinstance(self.priority, str)
            else self.priority,
            "walltime": None if walltime is None else math.ceil(walltime),
        }
        if self.tasks is not None:
            assert self.deadline is not None
            assert self.miss_probability is not None
            context = DistributionContext(cluster.slot_seconds, measured)
            bag = resolve_bag(self.tasks, self.deadline, self.miss_probability, context, before)
            return self._with_default_utility(build_bag_job(bag, **described), cluster, by)
        speed: StepModel | dict[int, Fraction]
        if self.has_unknown_length:
            if length is None:
                hint = "give the time of a mini-batch, or of the whole job if it has no `steps`"
                problem = "is missing: only a live service predicts how long a job takes"
                raise InputError(Fault("minibatch_time", problem, hint))
            # Any speed will do, because `with_length` below replaces the work.
            speed = StepModel(Fraction(DEFAULT_SECONDS, self.steps or 1))
        elif self.throughput is not None:
            speed = {count: Fraction(str(rate)) for count, rate in self.throughput.items()}
        else:
            assert self.minibatch_time is not None
            update = self.update_time.in_seconds(cluster.slot_seconds) if self.update_time else 0
            speed = StepModel(
                self.minibatch_time.in_seconds(cluster.slot_seconds),
                Fraction(update),
                self.gradient.value if self.gradient else 0,
            )
        # A job with steps may use any number of workers, so each mini-batch is a chunk.
        factors = (
            (self.epochs, self.chunks, self.minibatches)
            if self.steps is None
            else (1, self.steps, 1)
        )
        min_workers = 1 if self.workers is None else self.workers.min
        self._check_choices(cluster)
        job = build_job(
            epochs=factors[0],
            chunks=factors[1],
            minibatches=factors[2],
            speed=speed,
            ps=None
            if self.ps is None
            else cluster.demand(fields.to_integer_amounts(self.ps), "ps"),
            slot_seconds=cluster.slot_seconds,
            worker_bandwidth=self.worker[BANDWIDTH].value if BANDWIDTH in self.worker else 0,
            ps_bandwidth=self.ps[BANDWIDTH].value if self.ps and BANDWIDTH in self.ps else 0,
            internal_bandwidth=self.internal_bandwidth.value if self.internal_bandwidth else 0,
            worker_range=(min_workers, self.max_workers),
            restart_seconds=self._restart(cluster),
            **described,
        )
        job = self._with_default_utility(job, cluster, by)
        if self.has_unknown_length and length is not None:
            return with_length(job, length / float(cluster.slot_seconds))
        return job

    def _deadline_in_slots(
        self, cluster: Cluster, before: Fraction, submitted: int | None
    ) -> float | None:
        """Return the deadline ``by`` in slots after the arrival slot; None without one."""
        if self.by is None:
            return None
        span = self.by
        if isinstance(span, str):
            if submitted is None:
                hint = "write the time from the submission, such as 6h"
                raise InputError(Fault("by", "a simulation has no calendar", hint))
            moment = moments.parse_moment_ahead(span, submitted, cluster.slot_seconds, "by")
            span = Duration(seconds=Fraction(moment - submitted, moments.SECOND), on_clock=True)
        return moments.deadline_in_slots(span, cluster.slot_seconds, before)

    def _with_default_utility(self, job: Job, cluster: Cluster, by: float | None) -> Job:
        """Return the job with the default utility, unless it states one."""
        if self.utility is not None:
            return job
        named = self.priority if isinstance(self.priority, str) else "normal"
        multiple = PRIORITY_LEVELS[named].multiple
        worker = fields.to_integer_amounts(self.worker)
        return with_default_utility(job, worker, cluster.slot_seconds, multiple, by)

    def _restart(self, cluster: Cluster) -> Fraction:
        """Return the time lost when the placement changes: the job's own, or the cluster's."""
        if self.restart is None:
            return cluster.restart_seconds
        seconds = self.restart.in_seconds(cluster.slot_seconds)
        if seconds > cluster.slot_seconds:
            hint = "lower it, or lengthen the cluster's slot"
            raise InputError(Fault("restart", "is longer than a slot", hint))
        return seconds

    def _check_choices(self, cluster: Cluster) -> None:
        """Raise InputError for too many worker counts, before arrays of that size are allocated."""
        if self.throughput is not None:
            worker_counts = len(self.throughput)
        else:
            min_workers = 1 if self.workers is None else self.workers.min
            worker_counts = self.max_workers - min_workers + 1
        hint = "narrow `workers: {min, max}`"
        bounds.WORKER_COUNTS.check(worker_counts, "workers", hint)
        choices = worker_counts * cluster.horizon
        bounds.CHOICES.check(choices, "workers", f"{hint}, or lower the horizon")

    @staticmethod
    def _check_dimensions(amounts: Mapping[str, Amount], cluster: Cluster) -> None:
        for name, amount in amounts.items():
            resource = cluster.find_resource(name)
            if resource is not None:
                expected = cluster.dimensions[cluster.column[resource]]
                if amount.value and amount.dimension is not expected:
                    raise InputError(
                        f"{name} is given as {amount}, but servers state it as "
                        f"{_DIMENSION_TEXTS[expected]}; write it like {EXAMPLE_AMOUNTS[expected]}"
                    )
            elif name == BANDWIDTH and amount.dimension is not Dimension.RATE:
                raise InputError(f"bandwidth is given as {amount}; write it like 10Gbps")


def resolve_jobs(
    specs: Sequence[tuple[str, JobSpec]], cluster: Cluster, measured: EmpiricalLoader | None = None
) -> tuple[list[tuple[str, Job]], list[Fault]]:
    """Resolve the jobs of a file; return the valid ones in file order, and the faults of others.

    Each job is a pair of its location in the file and its model or result.
    """
    jobs: list[tuple[str, Job]] = []
    faults: list[Fault] = []
    for location, spec in specs:
        try:
            jobs.append((location, spec.resolve(cluster, measured)))
        except InputError as error:
            for fault in error.faults:
                path = f".{fault.location}" if fault.location else ""
                faults.append(replace(fault, location=join_location(location, path)))
    return jobs, faults
