"""Open jobs as rows of arrays, for policies that compare all jobs with each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, Pause, Place
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.dominant_share import Widths
from shadowprice.kernels.reactive.places import LESS, MOVED, PlacementTable
from shadowprice.policies.placements import dense_placement

Numbers = TypeVar("Numbers", Integers, Floats, Flags)

_MIN_SHAPES: Final = 4096
_MIN_COUNTS: Final = 1 << 18
"""Numbers of kinds of jobs, and of worker counts, up to which none is forgotten."""

_MOSTLY_ZERO: Final = ("current_workers", "current_ps", "new_workers", "new_ps")


class JobRows(ABC):
    """Open jobs in order of arrival, as rows that are reused; a subclass has their placements."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.rows: dict[str, int] = {}  # row of each open job, in order of arrival
        self.jobs: list[Job | None] = []  # by row
        self._vacant: list[int] = []
        self.hosts_workers = cluster.hosts_workers.copy()
        self.hosts_ps = cluster.hosts_ps.copy()

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        if not self._vacant:
            size = max(64, 2 * len(self.jobs))
            self._grow(size)
            self._vacant = list(range(size - 1, len(self.jobs) - 1, -1))
            self.jobs += [None] * (size - len(self.jobs))
        row = self._vacant.pop()
        self.rows[job.name] = row
        self.jobs[row] = job
        return row

    def remove(self, name: str) -> int:
        """Remove a job and its placement; return its former row."""
        row = self.rows.pop(name)
        self.clear(row)
        self.jobs[row] = None
        self._vacant.append(row)
        return row

    @abstractmethod
    def clear(self, row: int) -> None:
        """Record that a job has no placement."""

    @abstractmethod
    def _grow(self, size: int) -> None:
        """Allocate space for ``size`` rows."""

    @abstractmethod
    def _placement(self, row: int) -> Placement:
        """Return the next placement of a row."""

    def lose(self, server: int) -> None:
        """Mark a server as lost; its jobs are displaced one by one."""
        self.hosts_workers[server] = self.hosts_ps[server] = False

    def restore(self, server: int) -> None:
        """Mark a lost server as up."""
        self.hosts_workers[server] = self._cluster.hosts_workers[server]
        self.hosts_ps[server] = self._cluster.hosts_ps[server]

    def in_order(self) -> Integers:
        """Return the rows in order of arrival."""
        return np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))

    def _move(self, rows: Integers, change: Integers) -> Iterator[Decision]:
        """Yield the moves of jobs to their next placements, in an order that never overbooks.

        Jobs that shrink go first. Jobs that leave servers for others are paused in between.
        ``change`` compares each row with its current placement; see
        `shadowprice.kernels.reactive.places`.
        """
        later: list[tuple[str, Placement]] = []
        to_pause: list[str] = []
        moved = change != 0
        for row, kind in zip(rows[moved].tolist(), change[moved].tolist(), strict=True):
            job = self.jobs[row]
            assert job is not None
            placement = self._placement(row)
            if kind == LESS:
                yield Place(job.name, placement) if placement.servers else Pause(job.name)
            else:
                later.append((job.name, placement))
                if kind == MOVED:
                    to_pause.append(job.name)
        for name in to_pause:
            yield Pause(name)
        for name, placement in later:
            yield Place(name, placement)


class JobTable(JobRows):
    """Open jobs in order of arrival, with placements as arrays over all servers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._shapes: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        width = (0, len(cluster.resources))
        self.worker = np.zeros(width, dtype=np.int64)
        self.ps = np.zeros(width, dtype=np.int64)  # zeros for all-reduce jobs
        # Position of a row's first useful worker count in `counts`.
        self.first = np.zeros(0, dtype=np.int64)
        self.choices = np.zeros(0, dtype=np.int64)  # number of its useful worker counts
        self.counts = np.zeros(0, dtype=np.int64)  # ascending for each job
        self.ps_counts = np.zeros(0, dtype=np.int64)
        places = (0, cluster.servers)
        self.current_workers = np.zeros(places, dtype=np.int64)  # current placements
        self.current_ps = np.zeros(places, dtype=np.int64)
        self.new_workers = np.zeros(places, dtype=np.int64)  # next placements
        self.new_ps = np.zeros(places, dtype=np.int64)
        self.is_placed = np.zeros(0, dtype=np.bool_)  # whether each job has a placement
        # Equal for jobs with equal demands and useful worker counts.
        self.alike = np.zeros(0, dtype=np.int64)
        self._alike: dict[tuple[bytes, bytes, int], int] = {}
        self._total: Floats | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with sparse placements: most jobs are on few servers."""
        state = dict(self.__dict__)
        for name in _MOSTLY_ZERO:
            array: Integers = state[name]
            nonzero = np.flatnonzero(array)
            state[name] = (array.shape, nonzero, array.ravel()[nonzero])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _MOSTLY_ZERO:
            shape, nonzero, values = state[name]
            array = np.zeros(shape, dtype=np.int64)
            array.ravel()[nonzero] = values
            setattr(self, name, array)

    @property
    def places(self) -> PlacementTable:
        """Demands, and current and next placements, for kernels."""
        return PlacementTable(
            self.worker, self.ps, self.hosts_workers, self.hosts_ps, self.current_workers,
            self.current_ps, self.new_workers, self.new_ps, self.is_placed,
        )  # fmt: skip

    @property
    def widths(self) -> Widths:
        """Useful worker counts, for kernels."""
        return Widths(self.first, self.choices, self.counts, self.ps_counts, self.alike)

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        row = super().add(job)
        self.worker[row] = job.worker
        self.ps[row] = 0 if job.ps is None else job.ps
        self._set_shape(row, job)
        if len(self._alike) > _MIN_SHAPES or len(self.counts) > _MIN_COUNTS:
            self._forget_shapes()
        return row

    def clear(self, row: int) -> None:
        """Record that a job has no placement."""
        self.current_workers[row] = self.current_ps[row] = 0
        self.is_placed[row] = False

    def set_placement(self, row: int, placement: Placement) -> None:
        """Record the placement of a job."""
        servers = list(placement.servers)
        self.clear(row)
        self.current_workers[row, servers] = placement.workers
        self.current_ps[row, servers] = placement.ps
        self.is_placed[row] = True

    def lose(self, server: int) -> None:
        """Mark a server as lost; its jobs are displaced one by one."""
        super().lose(server)
        self._total = None

    def restore(self, server: int) -> None:
        """Mark a lost server as up."""
        super().restore(server)
        self._total = None

    def total(self) -> Floats:
        """Return the total capacity of servers that are up by resource; 0 if it is unlimited."""
        if self._total is None:
            rows = self._cluster.capacity[self.hosts_workers | self.hosts_ps]
            total = rows.astype(np.float64).sum(axis=0)
            self._total = np.where((rows >= UNLIMITED).any(axis=0), 0.0, total)
        return self._total

    def rearrange(self, rows: Integers, change: Integers) -> Iterator[Decision]:
        """Yield the moves of jobs to their next placements; see `_move`."""
        yield from self._move(rows, change)
        moved = rows[change != 0]
        self.current_workers[moved] = self.new_workers[moved]
        self.current_ps[moved] = self.new_ps[moved]
        self.is_placed[moved] = self.current_workers[moved].any(axis=1)

    def _placement(self, row: int) -> Placement:
        return dense_placement(self.new_workers[row], self.new_ps[row])

    def _set_shape(self, row: int, job: Job) -> None:
        self.first[row], self.choices[row] = self._shape(job)
        demands = (self.worker[row].tobytes(), self.ps[row].tobytes(), int(self.first[row]))
        self.alike[row] = self._alike.setdefault(demands, len(self._alike))

    def _forget_shapes(self) -> None:
        """Forget shapes of jobs that left once they are most: a service sees any number of them."""
        open_counts = int(self.choices[self.in_order()].sum())
        if len(self._alike) <= 2 * len(self.rows) and len(self.counts) <= 2 * open_counts:
            return
        self._shapes, self._alike = {}, {}
        self.counts, self.ps_counts = np.zeros((2, 0), dtype=np.int64)
        for row in self.rows.values():
            job = self.jobs[row]
            assert job is not None
            self._set_shape(row, job)

    def _shape(self, job: Job) -> tuple[int, int]:
        """Return the position and number of a job's useful worker counts."""
        useful = increasing_positions(job.gains)
        counts, ps_counts = job.worker_counts[useful], job.ps_counts[useful]
        key = (counts.tobytes(), ps_counts.tobytes())
        if key not in self._shapes:
            self._shapes[key] = (len(self.counts), len(counts))
            self.counts = np.concatenate((self.counts, counts))
            self.ps_counts = np.concatenate((self.ps_counts, ps_counts))
        return self._shapes[key]

    def _grow(self, size: int) -> None:
        for name in (
            "worker",
            "ps",
            "first",
            "choices",
            "alike",
            "is_placed",
            "current_workers",
            "current_ps",
            "new_workers",
            "new_ps",
        ):
            old = getattr(self, name)
            setattr(self, name, resized(old, (size, *old.shape[1:])))


def resized(array: Numbers, shape: tuple[int, ...], value: float = 0) -> Numbers:
    """Return a copy of another shape; new entries have a value."""
    # Pages of zeros that are never written take neither memory nor time.
    copied = np.full(shape, value, array.dtype) if value else np.zeros(shape, array.dtype)
    copy_overlap(copied, array)
    return copied


def copy_overlap(target: Numbers, source: Numbers) -> None:
    """Copy the entries with indices that both arrays have."""
    overlap = tuple(map(slice, map(min, target.shape, source.shape)))
    target[overlap] = source[overlap]


def increasing_positions(gains: Integers) -> Integers:
    """Return the positions of gains that exceed all before them, the first included."""
    best = np.maximum.accumulate(gains)
    return np.flatnonzero(np.diff(best, prepend=-1) > 0)
