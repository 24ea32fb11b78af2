"""Training jobs: what they need, how fast they run, and what finishing them is worth.

A job counts its progress in integer units, so that planner, engine and driver agree on completion
to the bit. Where all workers of a job run at one rate, the unit is a worker-slot and
``required = ceil(work * step_time)`` in exact rationals (OASiS (2), papers' README reading 1).
Where the rate differs (a measured throughput curve, or an internal rate for co-located training),
or for a job that loses time whenever it moves, the unit is a millionth of a mini-batch and a slot's
gain is rounded up to it. A bag of tasks does not train: its unit is a finished task.

A job may lose time when its placement changes (`Job.restart`): it writes a checkpoint, starts again
elsewhere and loads it. The first start is no change, unless the cluster counts it as one
(`Cluster.restart_first`). A slot before which the placement changed, or in which the job resumes
after a pause, yields progress for the rest of the slot only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.bag import Bag
from shadowprice.core.cluster import Amounts
from shadowprice.core.errors import InputError
from shadowprice.core.utility import FAMILIES, Utility, utility_record

MICRO: Final = 1_000_000
"""Progress units in a mini-batch, for jobs that do not count worker-slots."""

NO_RESTART: Final = Fraction(0)
"""The restart of a job that loses nothing when its placement changes."""


@dataclass(frozen=True, eq=False)
class Job:
    """One training job, resolved against a cluster.

    Parameters
    ----------
    name : str
        Unique name.
    arrival : int
        Slot in which the job arrives; it may run in it.
    required : int
        Progress units that complete the job.
    worker_counts : ndarray of int64, shape (choices,)
        Numbers of workers it may run with in a slot, ascending, all positive.
    gains : ndarray of int64, shape (choices,)
        Progress units of a slot with each number of workers, at the external rate.
    internal_gains : ndarray of int64, shape (choices,)
        The same when the whole job stands on one machine (PD-ORS, Fact 1).
    worker : ndarray of int64, shape (resources,)
        Demand of one worker.
    ps : ndarray of int64, shape (resources,), or None
        Demand of one parameter server; None for all-reduce training.
    ps_counts : ndarray of int64, shape (choices,)
        Fewest parameter servers for each number of workers, OASiS (6); zeros for all-reduce.
    utility : Utility
        Worth by slots from the arrival slot to the completion slot.
    tenant : str or None
        Owner.
    epochs, chunks, minibatches : int
        The data: ``epochs * chunks * minibatches`` mini-batches in all.
    step_seconds : float
        Seconds a mini-batch takes on one worker, communication included (external rate); for a
        measured curve, at the fewest workers.
    worker_bandwidth, ps_bandwidth, internal_bandwidth : int
        Bandwidths of the communication model in bit/s; 0 where it has none.
    labels : mapping of str to str
        What experiments group by (model family, utility class); no policy reads it.
    before_arrival : float
        Slots from the moment of submission to the beginning of the arrival slot, in [0, 1).
    bag : Bag or None
        The tasks of a job that does not train; see `bag_job` for what the rest then means.
    restart : Fraction
        Share of a slot that is lost when the placement changes, in [0, 1].
    resumable : bool or None
        Whether the job continues from saved progress after it is stopped; None if that is not
        known yet. Only a job that is known to continue is stopped to be moved.
    priority : float
        What its owner states; for policies that queue by priority.
    walltime : int or None
        Slots after which its owner gives a run up; for policies that plan by stated times.
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

    @property
    def work(self) -> int:
        """Mini-batches in all."""
        return self.epochs * self.chunks * self.minibatches

    @property
    def most_workers(self) -> int:
        """Largest number of workers it may run with."""
        return int(self.worker_counts[-1])

    @property
    def all_reduce(self) -> bool:
        """Whether it trains without parameter servers."""
        return self.ps is None

    @cached_property
    def two_rates(self) -> bool:
        """Whether co-location changes the rate."""
        return bool((self.internal_gains != self.gains).any())

    @cached_property
    def _choice(self) -> Mapping[int, int]:
        return {count: at for at, count in enumerate(self.worker_counts.tolist())}

    def choice_of(self, workers: int) -> int | None:
        """Return the position of a number of workers in ``worker_counts``, None if not allowed."""
        return self._choice.get(workers)

    @cached_property
    def moved_gains(self) -> NDArray[np.int64]:
        """Progress units of a slot before which the placement changed, at the external rate."""
        return _after_restart(self.gains, self.restart)

    @cached_property
    def moved_internal_gains(self) -> NDArray[np.int64]:
        """The same at the internal rate."""
        return _after_restart(self.internal_gains, self.restart)

    def gain(self, workers: int, *, colocated: bool = False, moved: bool = False) -> int:
        """Return the progress units of one slot with so many workers.

        A job that was revised while it ran may run with a number that it may not have any more,
        to the end of its slot: that counts as the next lower one that it may, or its fewest.

        Parameters
        ----------
        workers : int
            Workers running in the slot; 0 gains nothing.
        colocated : bool
            Whether all workers and parameter servers stand on one machine.
        moved : bool
            Whether the placement changed before the slot, which costs `restart`.
        """
        if workers == 0:
            return 0
        if moved and self.restart:
            gains = self.moved_internal_gains if colocated else self.moved_gains
        else:
            gains = self.internal_gains if colocated else self.gains
        choice = self._choice.get(workers)
        if choice is None:
            choice = max(0, int(np.searchsorted(self.worker_counts, workers)) - 1)
        return int(gains[choice])

    def ps_needed(self, workers: int) -> int:
        """Return the fewest parameter servers for so many workers, OASiS (6)."""
        return int(self.ps_counts[self._choice[workers]]) if workers else 0

    @cached_property
    def shortest_slots(self) -> int:
        """Fewest slots in which the job can complete, at its external rate."""
        if self.bag is not None:
            return self.bag.shortest_slots
        return -(-self.required // int(self.gains.max()))

    @cached_property
    def fastest_slots(self) -> int:
        """Fewest slots in which the job can complete, at the better of its two rates."""
        if self.bag is not None:
            return self.bag.shortest_slots
        return -(-self.required // int(self.internal_gains.max()))

    def differs_only(self, name: str, other: Job) -> bool:
        """Return whether two jobs are equal but for one field of `record`."""
        mine, others = self.record(), other.record()
        return {**mine, name: None} == {**others, name: None}

    def same_demand(self, other: Job) -> bool:
        """Return whether a worker and a parameter server of both jobs need the same."""
        if (self.ps is None) != (other.ps is None):
            return False
        same = bool((self.worker == other.worker).all())
        return same and (self.ps is None or bool((self.ps == other.ps).all()))

    def record(self) -> dict[str, object]:
        """Return the job as plain values, for the journal."""
        return {
            "name": self.name,
            "arrival": self.arrival,
            "required": self.required,
            "worker_counts": self.worker_counts.tolist(),
            "gains": self.gains.tolist(),
            "internal_gains": self.internal_gains.tolist(),
            "worker": self.worker.tolist(),
            "ps": None if self.ps is None else self.ps.tolist(),
            "ps_counts": self.ps_counts.tolist(),
            "utility": utility_record(self.utility),
            "tenant": self.tenant,
            "epochs": self.epochs,
            "chunks": self.chunks,
            "minibatches": self.minibatches,
            "step_seconds": self.step_seconds,
            "worker_bandwidth": self.worker_bandwidth,
            "ps_bandwidth": self.ps_bandwidth,
            "internal_bandwidth": self.internal_bandwidth,
            "labels": dict(self.labels),
            "before_arrival": self.before_arrival,
            "bag": None if self.bag is None else self.bag.record(),
            "restart": str(self.restart),
            "priority": self.priority,
            "walltime": self.walltime,
            **({} if self.resumable is True else {"resumable": self.resumable}),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Job:
        """Build the job that `record` described."""
        values = dict(record)
        for name in ("worker_counts", "gains", "internal_gains", "worker", "ps_counts", "ps"):
            if values[name] is not None:
                values[name] = _frozen(values[name])  # type: ignore[arg-type]  # a list of ints
        utility = dict(values["utility"])  # type: ignore[call-overload]  # the record's mapping
        values["utility"] = FAMILIES[utility.pop("kind")](**utility)
        if values.get("bag") is not None:
            values["bag"] = Bag.from_record(values["bag"])  # type: ignore[arg-type]  # a mapping
        values["restart"] = Fraction(str(values.get("restart", 0)))
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`


@dataclass(frozen=True, slots=True)
class StepModel:
    """The linear model: how long one mini-batch takes on one worker.

    ``step_time = minibatch_time + update_time + 2 * gradient / bandwidth`` (OASiS (2)).

    Parameters
    ----------
    minibatch_seconds : Fraction
        Time to compute one mini-batch.
    update_seconds : Fraction
        Synchronous update on the servers (Astraea's G_j).
    gradient_bytes : int
        Gradients sent, and parameters received, for a mini-batch.
    """

    minibatch_seconds: Fraction
    update_seconds: Fraction = Fraction(0)
    gradient_bytes: int = 0

    def step_seconds(self, bandwidth: int) -> Fraction:
        """Return the step time over a link of ``bandwidth`` bit/s.

        Communication is free where there is none (0) and where it is ``UNLIMITED``.
        """
        step = self.minibatch_seconds + self.update_seconds
        if self.gradient_bytes and 0 < bandwidth < UNLIMITED:
            step += Fraction(2 * 8 * self.gradient_bytes, bandwidth)
        return step


def build_job(
    *,
    name: str,
    arrival: int,
    epochs: int,
    chunks: int,
    minibatches: int,
    speed: StepModel | Mapping[int, Fraction],
    worker: Amounts,
    ps: Amounts | None,
    utility: Utility,
    slot_seconds: Fraction,
    worker_bandwidth: int = 0,
    ps_bandwidth: int = 0,
    internal_bandwidth: int = 0,
    worker_range: tuple[int, int] | None = None,
    tenant: str | None = None,
    labels: Mapping[str, str] | None = None,
    before_arrival: float = 0.0,
    restart_seconds: Fraction = NO_RESTART,
    priority: float = 0.0,
    walltime: int | None = None,
) -> Job:
    """Resolve what is known of a job into the numbers that schedulers use.

    Parameters
    ----------
    name, arrival, epochs, chunks, minibatches, worker, ps, utility, tenant, labels, before_arrival
        As in `Job`.
    priority, walltime
        As in `Job`.
    speed : StepModel or mapping of int to Fraction
        The linear model, or measured mini-batches/s of the whole job by number of workers.
    slot_seconds : Fraction
        Length of a slot.
    worker_bandwidth, ps_bandwidth, internal_bandwidth : int
        bit/s; 0 where the job names none. Without an internal one, co-located training is as
        fast as any other; ``UNLIMITED`` makes its communication free (Astraea (1)).
    worker_range : (int, int), optional
        Fewest and most workers in a slot in which the job runs; by default 1 to ``chunks``.
    restart_seconds : Fraction
        Time lost when the placement changes.

    Returns
    -------
    Job
        The resolved job.

    Raises
    ------
    InputError
        If no number of workers is allowed, parameter servers are slower than the workers they
        serve (OASiS (6) with (7)), a restart takes longer than a slot, or the job is too large to
        count.
    """
    restart = NO_RESTART if not restart_seconds else Fraction(restart_seconds) / slot_seconds
    if not 0 <= restart <= 1:
        raise InputError(
            f"a restart takes {float(restart_seconds):g} s, a slot {float(slot_seconds):g} s; "
            "lower restart, or lengthen the slot: a job that moves must get somewhere within a slot"
        )
    fewest, most = worker_range or (1, chunks)
    most = min(most, chunks)
    work = epochs * chunks * minibatches
    if isinstance(speed, StepModel):
        counts = _every_count(fewest, most)
        step = speed.step_seconds(worker_bandwidth)
        internal_step = speed.step_seconds(internal_bandwidth or worker_bandwidth)
        if step <= 0:
            raise InputError("a mini-batch takes no time; give minibatch_time above 0")
        if internal_step == step and not restart:
            # Worker-slots: exact, and blind to the rate. A lost share of a slot is no whole number
            # of them.
            required = _ceil(work * step / slot_seconds)
            gains = internal = counts
        else:
            required = work * MICRO
            gains = _micro_gains(counts, slot_seconds / step)
            internal = _micro_gains(counts, slot_seconds / internal_step)
        step_seconds = float(step)
    else:
        listed = sorted(count for count in speed if fewest <= count <= most and speed[count] > 0)
        counts = np.array(listed, dtype=np.int64)
        required = work * MICRO
        gains = internal = _gains(_ceil(speed[n] * slot_seconds * MICRO) for n in listed)
        step_seconds = float(listed[0] / speed[listed[0]]) if listed else 0.0
    if not len(counts):
        raise InputError(
            f"no number of workers is allowed between {fewest} and {most}; "
            "widen `workers` or add to `throughput`"
        )
    fastest = int(internal.max())
    _countable(required)
    if fastest:  # a job that makes no progress within a slot is told so where it is planned
        mend = "lower epochs, chunks or minibatches, or lengthen the slot"
        bounds.LENGTH.check(-(-required // fastest), "", mend)
    return Job(
        name=name,
        arrival=arrival,
        required=required,
        worker_counts=_frozen(counts),
        gains=_frozen(gains),
        internal_gains=_frozen(internal),
        worker=worker,
        ps=ps,
        ps_counts=_ps_counts(counts, ps is not None, worker_bandwidth, ps_bandwidth),
        utility=utility,
        tenant=tenant,
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        step_seconds=step_seconds,
        worker_bandwidth=worker_bandwidth,
        ps_bandwidth=ps_bandwidth,
        internal_bandwidth=internal_bandwidth,
        labels=labels or {},
        before_arrival=before_arrival,
        restart=restart,
        priority=priority,
        walltime=walltime,
    )


def bag_job(
    *,
    name: str,
    arrival: int,
    bag: Bag,
    worker: Amounts,
    utility: Utility,
    tenant: str | None = None,
    labels: Mapping[str, str] | None = None,
    before_arrival: float = 0.0,
) -> Job:
    """Return a bag of tasks as a job.

    Progress counts finished tasks. A copy is a worker; the one number of workers listed is that of
    a copy of every task, the fewest with which a bag can start.

    Parameters
    ----------
    name, arrival, worker, utility, tenant, labels, before_arrival
        As in `Job`; ``worker`` is what one copy takes.
    bag : Bag
        Tasks, deadline and how often it may be missed.
    """
    tasks = _frozen([bag.tasks])
    return Job(
        name=name,
        arrival=arrival,
        required=bag.tasks,
        worker_counts=tasks,
        gains=tasks,
        internal_gains=tasks,
        worker=worker,
        ps=None,
        ps_counts=_frozen([0]),
        utility=utility,
        tenant=tenant,
        chunks=bag.tasks,
        labels=labels or {},
        before_arrival=before_arrival,
        bag=bag,
    )


def _ps_counts(
    counts: NDArray[np.int64], served: bool, worker_bandwidth: int, ps_bandwidth: int
) -> NDArray[np.int64]:
    """Return ceil(workers * b / B), the fewest parameter servers of OASiS (6)."""
    if not served:
        return _frozen(np.zeros(len(counts), dtype=np.int64))
    if not worker_bandwidth or not ps_bandwidth:
        # Without a bandwidth on both sides (6) asks for nothing: one server carries the model.
        return _frozen(np.ones(len(counts), dtype=np.int64))
    if ps_bandwidth < worker_bandwidth:
        raise InputError(
            "a parameter server has less bandwidth than a worker, so (6) needs more servers than "
            "(7) allows; raise ps.bandwidth to at least worker.bandwidth"
        )
    return _frozen([-(-int(n) * worker_bandwidth // ps_bandwidth) for n in counts])


def _micro_gains(counts: NDArray[np.int64], per_worker: Fraction) -> NDArray[np.int64]:
    return _gains(_ceil(int(n) * per_worker * MICRO) for n in counts)


def _gains(values: Iterable[int]) -> NDArray[np.int64]:
    """Return progress units of a slot, refusing what an int64 would not hold."""
    return _frozen([_countable(value) for value in values])


def _countable(progress: int) -> int:
    bounds.PROGRESS.check(progress, "", "the job is too large to count; lower its numbers")
    return progress


def _after_restart(gains: NDArray[np.int64], restart: Fraction) -> NDArray[np.int64]:
    """Return what is left of a slot's gains, rounded down: nobody gets more than its time."""
    if not restart:
        return gains
    kept = 1 - restart
    return _frozen([int(gain) * kept.numerator // kept.denominator for gain in gains])


@lru_cache(maxsize=256)
def _every_count(fewest: int, most: int) -> NDArray[np.int64]:
    """Return all numbers of workers in a range; jobs of one range share them."""
    return _frozen(np.arange(fewest, most + 1, dtype=np.int64))


def _frozen(values: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    array = np.asarray(values, dtype=np.int64)
    array.setflags(write=False)
    return array


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
