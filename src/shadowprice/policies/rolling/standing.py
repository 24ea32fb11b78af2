"""Placements of open jobs as entries of one server each, whatever the number of servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision
from shadowprice.core.schedule import Placement
from shadowprice.kernels.revision.chains import Stood
from shadowprice.kernels.revision.coming import Terms
from shadowprice.kernels.revision.growing import grow
from shadowprice.kernels.revision.jobs import Jobs
from shadowprice.kernels.revision.plans import Log
from shadowprice.kernels.revision.seating import seat
from shadowprice.kernels.revision.standing import compared, stand
from shadowprice.policies.reactive.table import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

NOWHERE: Final = Stood(*(np.zeros(0, np.int64) for _ in Stood._fields))
"""No pinned placements."""


class Standing(Rows):
    """Open jobs in order of arrival, with their current and next placements."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._stood = Stood(*(np.zeros(0, np.int64) for _ in Stood._fields))
        self._next = self._stood

    def clear(self, row: int) -> None:
        """Record that a job has no placement."""
        self._stood.number[row] = 0

    def stand(self, row: int, placement: Placement) -> None:
        """Record the placement of a job."""
        stood, count = self._stood, len(placement.servers)
        self._stood = stood._replace(
            server=np.append(stood.server, placement.servers),
            workers=np.append(stood.workers, placement.workers),
            ps=np.append(stood.ps, placement.ps),
        )
        stood.first[row], stood.number[row] = len(stood.server), count

    def entries(self, row: int) -> tuple[Integers, Integers, Integers]:
        """Return the servers of a job's placement, and its workers and PS on each."""
        stood = self._stood
        part = slice(int(stood.first[row]), int(stood.first[row] + stood.number[row]))
        return stood.server[part], stood.workers[part], stood.ps[part]

    def held(self, jobs: Jobs, shape: tuple[int, int]) -> Integers:
        """Return the usage of all current placements, shape (servers, resources)."""
        stood, usage = self._stood, np.zeros(shape, np.int64)
        for row in self.rows.values():
            part = slice(int(stood.first[row]), int(stood.first[row] + stood.number[row]))
            entries = stood.workers[part, None] * jobs.worker[row]
            np.add.at(usage, stood.server[part], entries + stood.ps[part, None] * jobs.ps[row])
        return usage

    def put(
        self,
        free: Integers,
        jobs: Jobs,
        log: Log,
        fixed: Stood = NOWHERE,
        least: Integers = NOWHERE.first,
        *,
        stay: bool,
    ) -> bool:
        """Compute the next placements; return False if a level of the log didn't fit.

        See `kernels.revision.standing.stand`.
        """
        complete, self._next = stand(
            free, self.hosts_workers, self.hosts_ps, jobs, log, self._stood, fixed, least, stay
        )
        return bool(complete)

    def put_back(self, row: int, fixed: Stood) -> None:
        """Replace the next placement of a job with its pinned one."""
        following = self._next
        part = slice(int(fixed.first[row]), int(fixed.first[row] + fixed.number[row]))
        following.first[row], following.number[row] = len(following.server), fixed.number[row]
        self._next = following._replace(
            server=np.append(following.server, fixed.server[part]),
            workers=np.append(following.workers, fixed.workers[part]),
            ps=np.append(following.ps, fixed.ps[part]),
        )

    def moves(self, rows: Integers) -> Flags:
        """Return which rows change their placement."""
        return np.asarray(compared(rows, self._stood, self._next) != 0)

    def grow(
        self,
        free: Integers,
        jobs: Jobs,
        rows: Integers,
        worth_left: Floats,
        terms: Terms,
        log: Log,
    ) -> None:
        """Scale co-located jobs up into the free capacity of their servers; see `growing.grow`."""
        following = self._next
        grow(free, jobs, rows, worth_left, terms, following, log)

    def seat(
        self,
        free: Integers,
        jobs: Jobs,
        rows: Integers,
        worth_left: Floats,
        terms: Terms,
        log: Log,
    ) -> None:
        """Place paused jobs on the free capacity; see `seating.seat`."""
        self._next = seat(
            free, self.hosts_workers, self.hosts_ps, jobs, rows, worth_left, terms, self._next, log,
        )  # fmt: skip

    def rearrange(self, rows: Integers) -> Iterator[Decision]:
        """Yield the moves of all running rows to their next placements."""
        following = self._next
        yield from self._move(rows, compared(rows, self._stood, following))
        self._stood = following

    def _placement(self, row: int) -> Placement:
        following = self._next
        first = int(following.first[row])
        part = slice(first, first + int(following.number[row]))
        servers, workers, ps = (column[part].tolist() for column in following[2:])
        return Placement(tuple(servers), tuple(workers), tuple(ps))

    def _grow(self, size: int) -> None:
        stood = self._stood
        added = np.zeros(size - len(stood.first), np.int64)
        self._stood = stood._replace(
            first=np.concatenate((stood.first, added)), number=np.concatenate((stood.number, added))
        )
