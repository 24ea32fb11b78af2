"""Open jobs as rows of arrays, for policies that compare all jobs with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, Pause, Place
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.dominant_share import Widths
from shadowprice.kernels.reactive.places import LESS, MOVED, PlacementTable
from shadowprice.policies.placements import dense_placement
from shadowprice.policies.reactive.free_capacity import AvailableServers

Numbers = TypeVar("Numbers", Integers, Floats, Flags)

_MOSTLY_ZERO: Final = ("current_workers", "current_ps", "new_workers", "new_ps")
_BY_ROW: Final = ("worker", "ps", "is_placed", *_MOSTLY_ZERO)


class JobRows(AvailableServers):
    """Open jobs as rows, which are reused. A subclass may also have their placements."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.rows: dict[str, int] = {}  # row of each open job, in order of arrival
        self.jobs: list[Job | None] = []  # by row
        self.columns: dict[str, NDArray[Any]] = {}  # a policy's values of each job, by row
        self._vacant: list[int] = []

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

    def add_columns(
        self, *names: str, width: Sequence[int] = (), dtype: DTypeLike = np.int64
    ) -> None:
        """Add columns to a table without jobs; ``width`` is the shape of an entry."""
        self.columns |= {name: np.zeros((0, *width), dtype) for name in names}

    def job(self, row: int) -> Job:
        """Return the job of a row."""
        job = self.jobs[row]
        assert job is not None
        return job

    def clear(self, row: int) -> None:
        """Record that a job has no placement; a subclass has placements."""

    def _grow(self, size: int) -> None:
        """Allocate space for ``size`` rows."""
        for name, column in self.columns.items():
            self.columns[name] = enlarged(column, size)

    def _placement(self, row: int) -> Placement:
        """Return the next placement of a row."""
        raise NotImplementedError

    def in_order(self) -> Integers:
        """Return the rows in order of arrival."""
        return np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))

    def _move(self, rows: Integers, change: Integers) -> Iterator[Decision]:
        """Yield the moves of jobs to their next placements, in an order that never overbooks.

        Jobs that shrink come first. Then jobs that move to other servers are paused, and last they
        are placed. ``change`` is the kind of change of each row, of
        `shadowprice.kernels.reactive.places`.
        """
        later: list[tuple[str, Placement]] = []
        to_pause: list[str] = []
        moved = change != 0
        for row, kind in zip(rows[moved].tolist(), change[moved].tolist(), strict=True):
            job, placement = self.job(row), self._placement(row)
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
    """Open jobs as rows, with their placements as arrays over all servers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        width = (0, len(cluster.resources))
        self.worker = np.zeros(width, dtype=np.int64)
        self.ps = np.zeros(width, dtype=np.int64)  # zeros for all-reduce jobs
        places = (0, cluster.servers)
        self.current_workers = np.zeros(places, dtype=np.int64)  # current placements
        self.current_ps = np.zeros(places, dtype=np.int64)
        self.new_workers = np.zeros(places, dtype=np.int64)  # next placements
        self.new_ps = np.zeros(places, dtype=np.int64)
        self.is_placed = np.zeros(0, dtype=np.bool_)  # whether each job has a placement

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with sparse placements, because most jobs are on few servers."""
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

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        row = super().add(job)
        self.worker[row] = job.worker
        self.ps[row] = 0 if job.ps is None else job.ps
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

    def rearrange(self, rows: Integers, change: Integers) -> Iterator[Decision]:
        """Yield the moves of jobs to their next placements; see `_move`."""
        yield from self._move(rows, change)
        moved = rows[change != 0]
        self.current_workers[moved] = self.new_workers[moved]
        self.current_ps[moved] = self.new_ps[moved]
        self.is_placed[moved] = self.current_workers[moved].any(axis=1)

    def _placement(self, row: int) -> Placement:
        return dense_placement(self.new_workers[row], self.new_ps[row])

    def _grow(self, size: int) -> None:
        super()._grow(size)
        for name in _BY_ROW:
            setattr(self, name, enlarged(getattr(self, name), size))


def enlarged(array: NDArray[Any], *shape: int) -> NDArray[Any]:
    """Return an array extended by zeros; axes beyond ``shape`` keep their lengths."""
    return resized(array, (*shape, *array.shape[len(shape) :]))


def useful_counts(job: Job) -> tuple[Integers, Integers]:
    """Return the worker counts that are faster than all smaller ones, and their PS counts."""
    useful = increasing_positions(job.gains)
    return job.worker_counts[useful], job.ps_counts[useful]


def build_widths(
    rows: Integers, useful: Sequence[tuple[Integers, Integers]], alike: Sequence[int] | Integers
) -> Widths:
    """Return the `useful_counts` of rows, and their classes (``alike``), as arrays for kernels."""
    first, choices, kinds = np.zeros((3, int(rows.max()) + 1), dtype=np.int64)
    lengths = np.array([len(counts) for counts, _ in useful])
    first[rows], choices[rows], kinds[rows] = np.cumsum(lengths) - lengths, lengths, alike
    counts, ps_counts = (np.concatenate(part) for part in zip(*useful, strict=True))
    return Widths(first, choices, counts, ps_counts, kinds)


def resized(array: Numbers, shape: tuple[int, ...], value: float = 0) -> Numbers:
    """Return a copy of another shape; new entries have this value."""
    # `zeros` is lazy: pages that are never written take neither memory nor time.
    copied = np.full(shape, value, array.dtype) if value else np.zeros(shape, array.dtype)
    copy_overlap(copied, array)
    return copied


def copy_overlap(target: Numbers, source: Numbers) -> None:
    """Copy the entries whose indices exist in both arrays."""
    overlap = tuple(map(slice, map(min, target.shape, source.shape)))
    target[overlap] = source[overlap]


def increasing_positions(gains: Integers) -> Integers:
    """Return the positions of gains that exceed all earlier ones, and the first position."""
    best = np.maximum.accumulate(gains)
    return np.flatnonzero(np.diff(best, prepend=-1) > 0)
