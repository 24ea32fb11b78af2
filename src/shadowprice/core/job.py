"""Training jobs: their demand, speed, remaining work and utility.

Progress is an integer, so that planner, engine and driver agree exactly on completion. The unit
depends on the job:

- If all workers run at one rate, the unit is a worker-slot and
  ``required = ceil(work * step_time)`` in exact rationals (OASiS (2), see design/0002-oasis.md).
- The unit is a millionth of a mini-batch if the rate varies (a measured throughput curve, or an
  internal rate for co-located training), or if restarts lose time. A slot's gain is rounded up, so
  that rounding never costs a job another slot.
- The unit of a bag of tasks is a finished task.

A job may lose time when its placement changes (`Job.restart`): it writes a checkpoint, restarts
elsewhere and loads the checkpoint. The first start is free, unless `Cluster.restart_first` is set.
A slot that follows a change of the placement or a pause yields progress only for its remaining
time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Final, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.bag import Bag
from shadowprice.core.cluster import Amounts
from shadowprice.core.errors import InputError
from shadowprice.core.utility import FAMILIES, Utility, utility_record

MICRO: Final = 1_000_000
"""Progress units per mini-batch, for jobs that don't count worker-slots."""

NO_RESTART: Final = Fraction(0)
"""The ``restart`` of a job that loses no time when its placement changes."""


@dataclass(frozen=True, eq=False)
class Job:
    """A training job, resolved against a cluster.

    Parameters
    ----------
    arrival : int
        Slot in which the job arrives, and can run at the earliest.
    required : int
        Progress units that complete the job.
    worker_counts : ndarray of int64, shape (choices,)
        Allowed worker counts in a slot, ascending, all positive.
    gains, internal_gains : ndarray of int64, shape (choices,)
        Progress units per slot for each worker count. The internal rate applies if all processes of
        the job are on one server (PD-ORS, Fact 1), the external rate otherwise.
    worker, ps : ndarray of int64, shape (resources,), or None
        Demand of one worker and of one parameter server; ``ps`` is None for all-reduce training.
    ps_counts : ndarray of int64, shape (choices,)
        Minimum parameter servers for each worker count, OASiS (6); zeros for all-reduce.
    utility : Utility
        Value of completing, by slots from the arrival slot to the completion slot.
    epochs, chunks, minibatches : int
        Size of the work: ``epochs * chunks * minibatches`` mini-batches in total. A job file's
        ``steps`` are as many chunks of one mini-batch.
    step_seconds : float
        Seconds per mini-batch on one worker, including communication (external rate); for a
        measured curve, at the minimum worker count.
    worker_bandwidth, ps_bandwidth, internal_bandwidth : int
        Bandwidths of the communication model in bit/s; 0 if the model has none.
    labels : mapping of str to str
        Labels for grouping in experiments (model family, utility class); policies ignore them.
    before_arrival : float
        Slots from the submission to the start of the arrival slot, in [0, 1).
    bag : Bag or None
        The tasks of a bag; see `build_bag_job` for the meaning of the other fields.
    restart : Fraction
        Fraction of a slot that is lost when the placement changes, in [0, 1].
    priority : float
        Priority stated by the owner, for policies that queue by priority.
    walltime : int or None
        Slots after which the owner abandons a run. The live service enforces it under every policy;
        the policy `backfill` also plans with it.
    resumable : bool or None
        Whether the job resumes from saved progress after a stop; None if unknown. Only jobs with
        True are stopped in order to move them.
    points : float or None
        Points (`core.budget`) that the tenant had when the job arrived; None without a budget.
        Policies that learn prices from utilities cap the job's utility at this number.
    has_default_utility : bool
        Whether the job states no utility, and ``utility`` is the default.
    value_per_unit : float or None
        Value of the default utility for each progress unit; None if the job states a utility. It
        isn't part of `record`, because only simulations that hide lengths use it, and they do so
        before the job reaches the engine.
    predicted : bool
        Whether the amount of work is a prediction or a limit: the job may complete sooner or later.
    max_overrun : float or None
        Multiple of its stated length after which a live run is abandoned; None for no limit.
    stated_utility : Utility or None
        Utility that the tenant stated, and that completing the job earns. It is set if ``utility``
        is relative to the tenant's other jobs (`core.relative_values`).
    """

    name: str
    arrival: int
    required: int
    worker_counts: NDArray[np.int64]
    gains: NDArray[np.int64]
    internal_gains: NDArray[np.int64]
    worker: Amounts
    ps: Amounts | None
    ps_counts: NDArray[np.int64]
    utility: Utility
    tenant: str | None = None
    epochs: int = 1
    chunks: int = 1
    minibatches: int = 1
    step_seconds: float = 0.0
    worker_bandwidth: int = 0
    ps_bandwidth: int = 0
    internal_bandwidth: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    before_arrival: float = 0.0
    bag: Bag | None = None
    restart: Fraction = NO_RESTART
    priority: float = 0.0
    walltime: int | None = None
    resumable: bool | None = True
    points: float | None = None
    has_default_utility: bool = False
    value_per_unit: float | None = None
    predicted: bool = False
    max_overrun: float | None = None
    stated_utility: Utility | None = None

    @property
    def earned_utility(self) -> Utility:
        """The utility that completing the job earns: the one that its tenant stated."""
        return self.utility if self.stated_utility is None else self.stated_utility

    @property
    def worker_slots(self) -> float:
        """Worker-slots of the job's work at its minimum worker count."""
        if self.bag is not None:
            return self.bag.worker_slots
        return int(self.worker_counts[0]) * self.required / int(self.gains[0])

    @property
    def payable(self) -> float:
        """Maximum value that the tenant could pay; infinite without a budget."""
        return math.inf if self.points is None else self.points

    @property
    def work(self) -> int:
        """Total number of mini-batches."""
        return self.epochs * self.chunks * self.minibatches

    @property
    def max_workers(self) -> int:
        """Maximum worker count."""
        return int(self.worker_counts[-1])

    @property
    def all_reduce(self) -> bool:
        """Whether the job trains without parameter servers."""
        return self.ps is None

    @cached_property
    def two_rates(self) -> bool:
        """Whether co-location changes the rate."""
        return bool((self.internal_gains != self.gains).any())

    @cached_property
    def _index_by_count(self) -> Mapping[int, int]:
        return _indices(tuple(self.worker_counts.tolist()))

    def worker_count_index(self, workers: int) -> int | None:
        """Return the index of a worker count in ``worker_counts``, None if it isn't allowed."""
        return self._index_by_count.get(workers)

    @cached_property
    def moved_gains(self) -> NDArray[np.int64]:
        """Progress units of a slot that begins with a restart, at the external rate."""
        return _after_restart(self.gains, self.restart)

    @cached_property
    def restart_internal_gains(self) -> NDArray[np.int64]:
        """Progress units of a slot that begins with a restart, at the internal rate."""
        return _after_restart(self.internal_gains, self.restart)

    def gain(self, workers: int, *, colocated: bool = False, moved: bool = False) -> int:
        """Return the progress units of one slot; 0 without workers.

        If ``moved``, the slot begins with a restart, which takes the fraction `restart` of it. A
        job that was revised during a slot may run with a worker count that isn't allowed any more.
        It then gains as with the next lower allowed worker count, or with the minimum.
        """
        if workers == 0:
            return 0
        if moved and self.restart:
            gains = self.restart_internal_gains if colocated else self.moved_gains
        else:
            gains = self.internal_gains if colocated else self.gains
        index = self._index_by_count.get(workers)
        if index is None:
            index = max(0, int(np.searchsorted(self.worker_counts, workers)) - 1)
        return int(gains[index])

    def ps_needed(self, workers: int) -> int:
        """Return the minimum number of parameter servers for a worker count, OASiS (6)."""
        return int(self.ps_counts[self._index_by_count[workers]]) if workers else 0

    @cached_property
    def shortest_slots(self) -> int:
        """Minimum number of slots to complete the job, at its external rate."""
        if self.bag is not None:
            return self.bag.shortest_slots
        return -(-self.required // int(self.gains.max()))

    @cached_property
    def min_slots_colocated(self) -> int:
        """Minimum number of slots to complete the job, at the better of its two rates."""
        if self.bag is not None:
            return self.bag.shortest_slots
        return -(-self.required // int(self.internal_gains.max()))

    def differs_only(self, name: str, other: Job) -> bool:
        """Return whether the records of two jobs are equal, apart from the field ``name``."""
        mine, others = self.record(), other.record()
        return {**mine, name: None} == {**others, name: None}

    def same_demand(self, other: Job) -> bool:
        """Return whether two jobs have equal demands per worker and per parameter server."""
        if (self.ps is None) != (other.ps is None):
            return False
        same = bool((self.worker == other.worker).all())
        return same and (self.ps is None or bool((self.ps == other.ps).all()))

    def record(self) -> dict[str, object]:
        """Return the job as plain values, for the journal."""
        record: dict[str, object] = {}
        for attribute in fields(self):
            name, value = attribute.name, getattr(self, attribute.name)
            if name == "value_per_unit" or (name in _OPTIONAL and value == attribute.default):
                continue
            convert = _CONVERTERS.get(name)
            record[name] = value if convert is None or value is None else convert(value)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Job:
        """Build the job from the result of `record`."""
        values = dict(record)
        for name in _ARRAYS:
            if values[name] is not None:
                values[name] = _frozen(values[name])  # type: ignore[arg-type]  # a list of ints
        for name in ("utility", "stated_utility"):
            if name in values:
                utility = dict(values[name])  # type: ignore[call-overload]  # the record's mapping
                values[name] = FAMILIES[utility.pop("kind")](**utility)
        if values.get("bag") is not None:
            values["bag"] = Bag.from_record(values["bag"])  # type: ignore[arg-type]  # a mapping
        values["restart"] = Fraction(str(values.get("restart", 0)))
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`


_OPTIONAL: Final = {
    "resumable", "points", "has_default_utility", "predicted", "max_overrun", "stated_utility"
}  # fmt: skip
"""Fields that a record lacks if they have their default."""

_ARRAYS: Final = ("worker_counts", "gains", "internal_gains", "worker", "ps", "ps_counts")
_CONVERTERS: Final[Mapping[str, Callable[[Any], object]]] = {
    **dict.fromkeys(_ARRAYS, np.ndarray.tolist),
    **dict.fromkeys(("utility", "stated_utility"), utility_record),
    "labels": dict,
    "bag": Bag.record,
    "restart": str,
}
"""Conversion of fields to plain values; the other fields have plain values."""


def name_key(name: str) -> int:
    """Return a 64-bit hash of a job's name, for arrays; unlike `hash`, equal in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The linear model of the time for one mini-batch on one worker.

    ``step_time = minibatch_time + update_time + 2 * gradient / bandwidth`` (OASiS (2)). The update
    on the parameter servers is synchronous (Astraea's G_j). A mini-batch sends ``gradient_bytes``
    of gradients, and receives as many bytes of parameters.
    """

    minibatch_seconds: Fraction
    update_seconds: Fraction = Fraction(0)
    gradient_bytes: int = 0

    def step_seconds(self, bandwidth: int) -> Fraction:
        """Return the step time over a link of ``bandwidth`` bit/s.

        Communication takes no time if the bandwidth is 0 (undeclared) or ``UNLIMITED``.
        """
        step = self.minibatch_seconds + self.update_seconds
        if self.gradient_bytes and 0 < bandwidth < UNLIMITED:
            step += Fraction(2 * 8 * self.gradient_bytes, bandwidth)
        return step


class JobDescription(TypedDict):
    """Fields of `Job` that are the same whatever the unit of the job's progress."""

    name: str
    arrival: int
    worker: Amounts
    utility: Utility
    tenant: NotRequired[str | None]
    labels: NotRequired[Mapping[str, str]]
    before_arrival: NotRequired[float]
    priority: NotRequired[float]
    walltime: NotRequired[int | None]


def build_job(
    *,
    epochs: int,
    chunks: int,
    minibatches: int,
    speed: StepModel | Mapping[int, Fraction],
    ps: Amounts | None,
    slot_seconds: Fraction,
    worker_bandwidth: int = 0,
    ps_bandwidth: int = 0,
    internal_bandwidth: int = 0,
    worker_range: tuple[int, int] | None = None,
    restart_seconds: Fraction = NO_RESTART,
    **described: Unpack[JobDescription],
) -> Job:
    """Build a job: convert its description to the numbers that schedulers use.

    Raise `InputError` if no worker count is allowed, parameter servers have less bandwidth than
    workers (OASiS (6) with (7)), a restart takes longer than a slot, or the job exceeds a limit.

    Parameters
    ----------
    speed : StepModel or mapping of int to Fraction
        The linear model, or measured mini-batches/s of the whole job by worker count.
    worker_bandwidth, ps_bandwidth, internal_bandwidth : int
        bit/s; 0 if undeclared. Without an internal bandwidth, co-located training has the external
        rate. ``UNLIMITED`` makes its communication free (Astraea (1)).
    worker_range : (int, int), optional
        Minimum and maximum worker count of a slot in which the job runs; by default 1 to
        ``chunks``.
    restart_seconds : Fraction
        Time lost when the placement changes.
    """
    restart = NO_RESTART if not restart_seconds else Fraction(restart_seconds) / slot_seconds
    if not 0 <= restart <= 1:
        raise InputError(
            f"a restart of {float(restart_seconds):g} s is longer than a slot of "
            f"{float(slot_seconds):g} s; lower `restart`, or lengthen the slot"
        )
    min_workers, max_workers = worker_range or (1, chunks)
    work = epochs * chunks * minibatches
    if isinstance(speed, StepModel):
        counts = _every_count(min_workers, max_workers)
        step = speed.step_seconds(worker_bandwidth)
        internal_step = speed.step_seconds(internal_bandwidth or worker_bandwidth)
        if step <= 0:
            raise InputError("a mini-batch takes no time; give minibatch_time above 0")
        if internal_step == step and not restart:
            # Worker-slots are exact and independent of the rate. After a restart, a slot would gain
            # a fraction of one.
            required = math.ceil(work * step / slot_seconds)
            gains = internal = counts
        else:
            required = work * MICRO
            gains = _micro_gains(counts, slot_seconds / step)
            internal = _micro_gains(counts, slot_seconds / internal_step)
        step_seconds = float(step)
    else:
        measured_counts = sorted(
            count for count in speed if min_workers <= count <= max_workers and speed[count] > 0
        )
        slowest = min((speed[count] / count for count in measured_counts), default=Fraction(1))
        if 1 / slowest > bounds.SECONDS.maximum:
            raise InputError(
                f"a worker takes more than {bounds.SECONDS.maximum:,} seconds for a mini-batch; "
                "raise `throughput`, or write 0 for counts that can't run"
            )
        counts = np.array(measured_counts, dtype=np.int64)
        required = work * MICRO
        gains = internal = _gains(
            math.ceil(speed[n] * slot_seconds * MICRO) for n in measured_counts
        )
        step_seconds = (
            float(measured_counts[0] / speed[measured_counts[0]]) if measured_counts else 0.0
        )
    if not len(counts):
        raise InputError(
            f"no number of workers is allowed between {min_workers} and {max_workers}; "
            "widen `workers` or add to `throughput`"
        )
    fastest = int(internal.max())
    _checked_progress(required)
    if fastest:  # a job without progress within a slot is valid here: planning refuses it
        hint = "lower steps (or epochs, chunks, minibatches), or lengthen the slot"
        bounds.JOB_SLOTS.check(-(-required // fastest), "", hint)
    return Job(
        required=required,
        worker_counts=_frozen(counts),
        gains=_frozen(gains),
        internal_gains=_frozen(internal),
        ps=ps,
        ps_counts=_ps_counts(counts, ps is not None, worker_bandwidth, ps_bandwidth),
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        step_seconds=step_seconds,
        worker_bandwidth=worker_bandwidth,
        ps_bandwidth=ps_bandwidth,
        internal_bandwidth=internal_bandwidth,
        restart=restart,
        **described,
    )


def build_bag_job(bag: Bag, **described: Unpack[JobDescription]) -> Job:
    """Build a job from a bag of tasks; ``worker`` is the demand of one copy.

    Progress counts finished tasks, and a copy is a worker. The only allowed worker count is the
    number of tasks, because a bag starts with at least one copy of every task.
    """
    tasks = _frozen([bag.tasks])
    return Job(
        required=bag.tasks,
        worker_counts=tasks,
        gains=tasks,
        internal_gains=tasks,
        ps=None,
        ps_counts=_frozen([0]),
        chunks=bag.tasks,
        bag=bag,
        **described,
    )


def _ps_counts(
    counts: NDArray[np.int64], has_ps: bool, worker_bandwidth: int, ps_bandwidth: int
) -> NDArray[np.int64]:
    """Return ceil(workers * b / B), the minimum parameter servers of OASiS (6)."""
    if not has_ps:
        return _frozen(np.zeros(len(counts), dtype=np.int64))
    if not worker_bandwidth or not ps_bandwidth:
        # (6) needs a bandwidth on both sides. Without it, one parameter server holds the model.
        return _frozen(np.ones(len(counts), dtype=np.int64))
    if ps_bandwidth < worker_bandwidth:
        raise InputError(
            "a parameter server has less bandwidth than a worker, so the job would need more "
            "parameter servers than workers; raise ps.bandwidth to at least worker.bandwidth"
        )
    return _frozen([-(-int(n) * worker_bandwidth // ps_bandwidth) for n in counts])


def _micro_gains(counts: NDArray[np.int64], per_worker: Fraction) -> NDArray[np.int64]:
    return _gains(math.ceil(int(n) * per_worker * MICRO) for n in counts)


def _gains(values: Iterable[int]) -> NDArray[np.int64]:
    """Return progress units per slot; raise InputError for values above `bounds.PROGRESS`."""
    return _frozen([_checked_progress(value) for value in values])


def _checked_progress(progress: int) -> int:
    bounds.PROGRESS.check(progress, "", "the job is too large to count; lower its numbers")
    return progress


def _after_restart(gains: NDArray[np.int64], restart: Fraction) -> NDArray[np.int64]:
    """Return a slot's gains after a restart, rounded down so that no lost time is counted."""
    if not restart:
        return gains
    remaining = 1 - restart
    return _frozen([int(gain) * remaining.numerator // remaining.denominator for gain in gains])


@lru_cache(maxsize=256)
def _every_count(minimum: int, maximum: int) -> NDArray[np.int64]:
    """Return all worker counts in a range; cached, because many jobs share a range."""
    return _frozen(np.arange(minimum, maximum + 1, dtype=np.int64))


@lru_cache(maxsize=1024)
def _indices(counts: tuple[int, ...]) -> Mapping[int, int]:
    """Return the index of each worker count; shared by jobs, because callers keep many of them."""
    return {count: index for index, count in enumerate(counts)}


def _frozen(values: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    array = np.asarray(values, dtype=np.int64)
    array.setflags(write=False)
    return array
