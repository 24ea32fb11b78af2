"""Where open jobs stand, as entries of a server each: small whatever the number of servers."""

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
"""No job has a place that it stands on in any case."""


class Standing(Rows):
    """Open jobs in order of arrival, and where they stand.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._stood = Stood(*(np.zeros(0, np.int64) for _ in Stood._fields))
        self._next = self._stood

    def clear(self, row: int) -> None:
        """Take note that a job stands nowhere."""
        self._stood.number[row] = 0

    def stand(self, row: int, placement: Placement) -> None:
        """Take note of where a job stands."""
        stood, count = self._stood, len(placement.servers)
        self._stood = stood._replace(
            server=np.append(stood.server, placement.servers),
            workers=np.append(stood.workers, placement.workers),
            ps=np.append(stood.ps, placement.ps),
        )
        stood.first[row], stood.number[row] = len(stood.server), count

    def entries(self, row: int) -> tuple[Integers, Integers, Integers]:
        """Return the servers on which a job stands, and its workers and parameter servers there."""
        stood = self._stood
        part = slice(int(stood.first[row]), int(stood.first[row] + stood.number[row]))
        return stood.server[part], stood.workers[part], stood.ps[part]

    def held(self, jobs: Jobs, shape: tuple[int, int]) -> Integers:
        """Return what jobs hold where they stand, shape (servers, resources)."""
        stood, held = self._stood, np.zeros(shape, np.int64)
        for row in self.rows.values():
            part = slice(int(stood.first[row]), int(stood.first[row] + stood.number[row]))
            entries = stood.workers[part, None] * jobs.worker[row]
            np.add.at(held, stood.server[part], entries + stood.ps[part, None] * jobs.ps[row])
        return held

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
        """Work out where what was packed is to stand; see `kernels.revision.standing.stand`."""
        whole, self._next = stand(
            free, self.hosts_workers, self.hosts_ps, jobs, log, self._stood, fixed, least, stay
        )
        return bool(whole)

    def put_back(self, row: int, fixed: Stood) -> None:
        """Let a job stand where it does in any case, and nowhere else."""
        put = self._next
        part = slice(int(fixed.first[row]), int(fixed.first[row] + fixed.number[row]))
        put.first[row], put.number[row] = len(put.server), fixed.number[row]
        self._next = put._replace(
            server=np.append(put.server, fixed.server[part]),
            workers=np.append(put.workers, fixed.workers[part]),
            ps=np.append(put.ps, fixed.ps[part]),
        )

    def moves(self, rows: Integers) -> Flags:
        """Return which rows are to stand elsewhere than they do."""
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
        """Give whole jobs what is left where they were put; see `standing.grow`."""
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
        """Put jobs that are to stand nowhere on what is left; see `seating.seat`."""
        self._next = seat(
            free, self.hosts_workers, self.hosts_ps, jobs, rows, worth_left, terms, self._next, log,
        )  # fmt: skip

    def rearrange(self, rows: Integers) -> Iterator[Decision]:
        """Move rows, which are all that stand, to where they were put."""
        following = self._next
        yield from self._move(rows, compared(rows, self._stood, following))
        self._stood = following

    def _placement(self, row: int) -> Placement:
        put = self._next
        first = int(put.first[row])
        part = slice(first, first + int(put.number[row]))
        servers, workers, ps = (column[part].tolist() for column in put[2:])
        return Placement(tuple(servers), tuple(workers), tuple(ps))

    def _grow(self, size: int) -> None:
        stood = self._stood
        more = np.zeros(size - len(stood.first), np.int64)
        self._stood = stood._replace(
            first=np.concatenate((stood.first, more)), number=np.concatenate((stood.number, more))
        )
