"""All promised jobs laid out together, and what their plans leave to others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.kernels.reactive.shares import completes_fresh
from shadowprice.kernels.revision.coming import overfull
from shadowprice.kernels.revision.jobs import hull_of, ways
from shadowprice.kernels.revision.plans import enter, lay_out, lay_out_again, offer
from shadowprice.kernels.revision.rooms import rooms
from shadowprice.kernels.revision.timeline import (
    SERVERS,
    WORKERS,
    clear,
    rooms_for_copies,
    split,
)
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.beside import begin, starts_of
from shadowprice.policies.rolling.book import Book
from shadowprice.policies.rolling.layout import Layout
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.stays import Plans, Stays

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_GROUPS: Final = 512
"""Most groups of equal servers in an interval, or as many as kinds; beyond, room is given up."""
_ORDERS: Final = 3
"""Times that a job without a plan is moved to the front before its plan of before is kept."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that a job could have.

    Parameters
    ----------
    end : int
        Completion slot that was asked for.
    ceiling : int
        Its most workers, as a position on the hull.
    done : int
        Slot in which the plan completes.
    utility, cost : float
        What that is worth, and what it costs at the prices of the moment.
    """

    end: int
    ceiling: int
    done: int
    utility: float
    cost: float


class Beside(Enum):
    """Who else is there when room is counted."""

    ALL = "all"
    BAGS = "bags"
    NOBODY = "nobody"


class Planner:
    """Keeps the plans of promised jobs, each slot packed server by server.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    book : Book
        The open jobs.
    bags : BagBook
        The open bags of tasks: what their plans hold is no room for anybody else.
    quotas : Quotas
        What promises to each tenant may hold.

    Attributes
    ----------
    stays : Stays
        Promised jobs that are planned to stay where they stand; who has such a plan is laid out by
        nothing else.
    """

    def __init__(self, cluster: Cluster, book: Book, bags: BagBook, quotas: Quotas) -> None:
        self._book = book
        self.stays = Stays(cluster, book, bags, quotas)
        self._bags = bags
        self._quotas = quotas
        self._cluster = cluster
        self.shared = bool((cluster.hosts_workers & cluster.hosts_ps).any())
        kinds = cluster.kinds
        first = np.unique(kinds, return_index=True)[1]
        self._kind_free = np.ascontiguousarray(cluster.capacity[first])
        roles = cluster.hosts_workers * WORKERS + cluster.hosts_ps * SERVERS
        self._roles = roles.astype(np.int64)
        self._kind_role = self._roles[first]
        self._kind_count = np.bincount(kinds, minlength=len(first)).astype(np.int64)
        self._up = np.ones(cluster.servers, np.bool_)
        self._width = min(cluster.servers, max(_GROUPS, len(first)))
        self._current = self._new_layout(64)
        self._other = self._new_layout(64)
        self._room = np.zeros(64, np.int64)

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        del state["_other"], state["_room"]  # written before they are read
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._other = self._new_layout(self._current.most)
        self._room = np.zeros(self._current.most + 1, np.int64)
        self.reserve()

    # ---------------------------------------------------------------- state

    @property
    def layout(self) -> Layout:
        """The timeline in force."""
        return self._current

    @property
    def room(self) -> Integers:
        """Scratch space of the kernels."""
        return self._room

    def lose(self, server: int) -> None:
        """Take a server out."""
        self._up[server] = False
        self.stays.lose(server)
        self._kind_count[self._cluster.kinds[server]] -= 1

    def restore(self, server: int) -> None:
        """Bring a lost server back."""
        self._up[server] = True
        self._kind_count[self._cluster.kinds[server]] += 1

    def promised(self) -> Integers:
        """Return the rows of promised jobs, the earliest promise first; then the least slack."""
        return self._by_promise(self.owed(stays=False))

    def _by_promise(self, owed: NDArray[np.bool_]) -> Integers:
        rows = np.flatnonzero(owed)
        book, jobs = self._book, self._book.jobs
        fastest = book.most_gain(rows)
        slots = -(-jobs.left[rows] // np.maximum(fastest, 1))
        return rows[np.lexsort((rows, -slots, book.promise[rows]))].astype(np.int64)

    def owed(self, *, stays: bool = True) -> NDArray[np.bool_]:
        """Return which rows are promised, and not expected to be done with the slot under way.

        Whether those count that are planned to stay where they stand.
        """
        owed = np.asarray((self._book.promise >= 0) & (self._book.jobs.left > 0))
        if self.stays.plans and not stays:
            owed[list(self.stays.plans)] = False
        return owed

    def barred(self, now: int) -> NDArray[np.bool_]:
        """Return to which levels jobs may not rise in the coming slot; empty where to all.

        Who stays has to be done by when its plan ends. A promised job whose plan counts on a free
        start later may start now only where that makes up for it.
        """
        book, jobs = self._book, self._book.jobs
        barred = self.stays.barred(now)
        owed = self.owed(stays=False) & jobs.fresh
        rows = np.flatnonzero(owed & (self._current.log.level[: book.rows] < 0))
        if not len(rows):
            return barred
        if not len(barred):
            barred = np.zeros(jobs.gains.shape, np.bool_)
        steps = self._current.steps
        first = steps.level[rows, np.argmax(steps.level[rows] >= 0, axis=1)]
        counted = jobs.gains[rows, first] - jobs.sure[rows, first]
        barred[rows] |= jobs.gains[rows] < np.minimum(counted, jobs.left[rows])[:, None]
        return barred

    # ---------------------------------------------------------------- laying out

    def renew(
        self, now: int, *, revise: bool, steady: bool = False, least: bool = False
    ) -> list[int]:
        """Lay all promised jobs out from a slot on.

        Parameters
        ----------
        now : int
            The coming slot.
        revise : bool
            Whether plans may move; else each keeps the part of its plan that is not over.
        steady : bool
            Whether they move only where that does not complete the work any more.
        least : bool
            Whether those who stay had better hold no more than they need, as somebody asks for
            room; else they stay as they are where all can.

        Returns
        -------
        list of int
            Rows that find no plan within their promises: none, unless servers were lost or work
            was misstated.
        """
        stays, order = self.stays, self._by_promise(self.owed())
        going_on = stays.plans
        choices: Iterable[Plans] = (going_on,)
        if revise and (going_on or (self._book.loss[order] > 0.0).any()):
            going_on = stays.going_on(now)
            choices = stays.choices(
                now, order, going_on, new_only=steady and not least, least_first=least
            )
        if steady:
            choices = list(choices)
            for stays.plans in choices:
                if self._keep(now):
                    return []
        if revise:
            for stays.plans in choices:
                if self._join(now, self.promised()) is None:
                    return []
        stays.plans = going_on
        if self._keep(now):
            return []
        if going_on:
            stays.plans = {}
            if self._join(now, self.promised()) is None:
                return []
            stays.plans = going_on
        return self._lay(now, self.promised(), go_on=True)

    def admits(self, now: int, row: int, promise: int) -> int | None:
        """Lay out all promised jobs and one more together; keep that, and the promise, if it goes.

        Returns
        -------
        int or None
            A row that finds no plan then, None if all do.
        """
        book = self._book
        book.promise[row] = promise
        failed = self._join(now, self.promised())
        if failed is not None and self.stays.plans:
            # Those who hold little for long may be done sooner as they stand; or they have to move.
            stays, before = self.stays, self.stays.plans
            here = stays.choices(now, self._by_promise(self.owed()), before)
            for stays.plans in (next(here), {}):
                if self._join(now, self.promised()) is None:
                    return None
            stays.plans = before
        if failed is not None:
            book.promise[row] = -1
        return failed

    def fits(self, now: int, rows: Integers, due: Integers) -> bool:
        """Lay all promised jobs and others out together; keep that if it goes.

        Parameters
        ----------
        now : int
            The coming slot.
        rows : ndarray of int64, shape (jobs,)
            The others, who are promised nothing by that.
        due : ndarray of int64, shape (jobs,)
            Slot by the end of which each is to be complete.
        """
        book = self._book
        book.promise[rows] = due
        order = self.promised()
        # Most tries fail, and most of those by sums alone.
        capacity = (self._kind_free.astype(np.float64) * self._kind_count[:, None]).sum(axis=0)
        fits = not overfull(book.jobs, order, book.promise, now, capacity)
        fits = fits and self._join(now, order) is None
        book.promise[rows] = -1
        return fits

    def offer(self, row: int, price: Floats) -> Offer | None:
        """Return the plan of largest payoff in what the layout leaves, None if there is none.

        Parameters
        ----------
        row : int
            The job.
        price : ndarray of float64, shape (2,)
            Price of a worker and of a parameter server in a slot.
        """
        return self._offer(self._current, row, price)

    def alone(self, now: int, row: int, price: Floats) -> Offer | None:
        """Return the plan of largest payoff, were nobody else there."""
        self._clear(self._other, now, others=False)
        return self._offer(self._other, row, price)

    # ---------------------------------------------------------------- bags of tasks

    @property
    def whole(self) -> bool:
        """Whether no server is out."""
        return bool(self._up.all())

    def standing(self) -> Integers:
        """Return what training jobs hold where they stand now, shape (servers, resources)."""
        book = self._book
        return book.table.held(book.jobs, self._cluster.capacity.shape)

    def beside_bags(self, now: int, *, revise: bool) -> bool:
        """Lay promised jobs out around the plans of bags as they are now; keep that if it goes."""
        if revise and self._join(now, self.promised()) is None:
            return True
        return self._keep(now)

    def room_for_copies(self, now: int, job: Job, end: int, most: int, beside: Beside) -> Integers:
        """Return how many copies of a bag's tasks find room in each slot before ``end``.

        Parameters
        ----------
        now : int
            The coming slot.
        job : Job
            The bag.
        most : int
            Copies that are counted.
        beside : Beside
            Who is there.
        """
        layout = self._current
        if beside is not Beside.ALL:
            layout = self._other
            self._clear(layout, now, others=beside is Beside.BAGS)
        rooms = np.zeros(max(0, end - now), np.int64)
        tenant = self._quotas.row_of(self._cluster, job)
        rooms_for_copies(layout.line, job.worker.copy(), tenant, most, end, rooms)
        return rooms

    def earliest(self, row: int) -> int | None:
        """Return the first slot in which a job could complete beside the layout, worth or not."""
        jobs = self._book.jobs
        line, final = self._current.line, self._book.final
        found = []
        for way in range(ways(jobs, row)):
            known = rooms(line, jobs, row, way, final + 1, self.shared, self._room)
            top = jobs.hull[row, hull_of(jobs, row, way)[1] - 1]
            first = jobs.gains[row] if jobs.fresh[row] else jobs.sure[row]
            done = completes_fresh(
                line.start, known, self._room, jobs.sure[row], first, top, jobs.left[row], final + 1
            )
            if done >= 0:
                found.append(int(done))
        return min(found, default=None)

    def _offer(self, layout: Layout, row: int, price: Floats) -> Offer | None:
        found = offer(layout.line, self._book.jobs, row, price, self.shared, self._room)
        return None if found[0] < 0 else Offer(*found)

    def take(self, row: int, found: Offer) -> bool:
        """Enter an offer into the layout that it was made for, right after it was made."""
        layout = self._current
        entered = enter(
            layout.line, self._book.jobs, row, found.ceiling, found.done, self._room,
            layout.steps, layout.log,
        )  # fmt: skip
        if entered:
            layout.order = np.append(layout.order, row)
        return bool(entered)

    # ---------------------------------------------------------------- inside

    def _join(self, now: int, order: Integers) -> int | None:
        """Lay jobs out by promise, then with those in front that found no plan; see `admits`."""
        first = None
        for _ in range(_ORDERS):
            failed = self._lay(now, order, go_on=False)
            if not failed:
                return None
            first = failed[0] if first is None else first
            order = np.concatenate((failed, order[order != failed[0]]))
        return first

    def _lay(self, now: int, order: Integers, *, go_on: bool) -> list[int]:
        """Lay jobs out in this order; keep that if all find a plan, or if it goes on.

        Returns
        -------
        list of int
            Rows without a plan.
        """
        target = self._other
        self._clear(target, now)
        failed = np.zeros(len(order), np.int64)
        count = lay_out(
            target.line, self._book.jobs, order, self._book.promise, self.shared, go_on,
            self._room, target.steps, target.log, failed,
        )  # fmt: skip
        if count == 0 or go_on:
            target.order = order[~np.isin(order, failed[:count])]
            self._current, self._other = target, self._current
        return [int(row) for row in failed[:count]]

    def _keep(self, now: int) -> bool:
        """Carry the plans of before over to a new slot; False where that is not possible."""
        before, target = self._current, self._other
        promised = self.owed(stays=False)
        kept = before.order[promised[before.order]]
        if len(kept) < int(promised.sum()):
            return False
        self._clear(target, now)
        done = lay_out_again(
            target.line, self._book.jobs, kept, before.steps, target.steps, target.log
        )
        if done < len(kept):
            return False
        target.order = kept
        self._current, self._other = target, before
        return True

    def _clear(self, layout: Layout, now: int, *, others: bool = True) -> None:
        self.reserve()
        layout.log.used[0] = 0
        layout.log.level[:] = -1
        if others and (self._bags.plans or self.stays.plans):
            starts = starts_of(now, self._bags, self.stays)
            self._grow(4 * len(self._book.table.rows) + 16 + 2 * len(starts))
            whole = np.where(self._up[:, None], self._cluster.capacity, 0)
            begin(layout.line, starts, self._bags, self.stays, whole, self._roles, self._up)
            for row, plan in self.stays.plans.items():
                layout.log.level[row] = plan.level
        else:
            clear(layout.line, now, self._kind_count, self._kind_role, self._kind_free)
        split(layout.line, now + 1)
        layout.order = np.zeros(0, np.int64)

    def reserve(self) -> None:
        """Make room for the plans of all open jobs; what is written stays."""
        rows = self._book.rows
        self._grow(4 * len(self._book.table.rows) + 16)
        # A job is entered once, and rises by a level at least whenever it is again: in two entries.
        most = 2 * (int(self._book.jobs.levels.sum()) + rows)
        entries = min(3 * rows + int(self._kind_count.sum()) * 64, most) + 64
        for layout in (self._current, self._other):
            layout.reserve(rows, entries)

    def _grow(self, intervals: int) -> None:
        """Make room for so many intervals in both layouts; plans that are written stay."""
        if intervals <= self._current.most:
            return
        most = 1 << (intervals - 1).bit_length()
        for layout in (self._current, self._other):
            layout.grow(most)
        self._room = np.zeros(most + 1, np.int64)

    def _new_layout(self, most: int) -> Layout:
        return Layout(most, self._width, self._quotas.share, self._quotas.common)
