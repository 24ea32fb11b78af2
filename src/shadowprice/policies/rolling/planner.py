"""The joint plan of all promised jobs, and the capacity that it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.kernels.reactive.shares import completes_fresh
from shadowprice.kernels.replanning.jobs import hull_range, mode_count
from shadowprice.kernels.replanning.next_slot import exceeds_capacity
from shadowprice.kernels.replanning.plans import (
    PackingLog,
    PlannedLevels,
    best_plan,
    commit_plan,
    fitting_levels,
    plan_in_order,
    replay_plans,
)
from shadowprice.kernels.replanning.timeline import (
    INFINITE_SLOT,
    PS_ROLE,
    WORKER_ROLE,
    Timeline,
    copy_capacity,
    init_residual_timeline,
    new_timeline,
    reset,
    split_interval_at,
)
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.offers import Offer
from shadowprice.policies.rolling.open_jobs import Book
from shadowprice.policies.rolling.pinned_plans import Plans, Stays
from shadowprice.policies.rolling.quotas import Quotas

Integers = NDArray[np.int64]

_RUNS: Final = 256
"""Maximum number of runs of equal slots in a plan."""


class Layout:
    """A timeline with the plans in it.

    Pickles omit unused space.

    Parameters
    ----------
    most : int
        Maximum number of intervals.
    width : int
        Maximum number of groups of equal servers in an interval.
    share, common : ndarray of int64
        As in `Timeline`.

    Attributes
    ----------
    line : Timeline
        Free capacity over time.
    steps : PlannedLevels
        Plans by row.
    log : PackingLog
        Allocations of the first slot, in packing order.
    order : ndarray of int64, shape (planned,)
        Rows in planning order.
    """

    def __init__(self, most: int, width: int, share: Integers, common: Integers) -> None:
        self.most = most
        self.line: Timeline = new_timeline(most, width, share, common)
        self.steps = PlannedLevels(
            np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
        )
        self.log = PackingLog(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)))
        self.order = np.zeros(0, np.int64)

    def __getstate__(self) -> dict[str, object]:
        line, steps, log = self.line, self.steps, self.log
        states = int(line.used[1])
        groups = int(line.groups[:states].max(initial=0))
        runs = int(steps.runs.max(initial=0))
        entries = int(log.used[0])
        return {
            "size": (self.most, line.free.shape[1], line.share, line.common),
            "line": [
                part[: states + 1] if part is line.start else part[:states] for part in line[:4]
            ]
            + [part[:states, :groups] for part in line[4:7]]
            + [line.tenant_usage[:states]],
            "used": line.used,
            "steps": [steps.runs, steps.until[:, :runs], steps.level[:, :runs]],
            "log": [log.used, *(part[:entries] for part in log[1:4]), log.level],
            "order": self.order,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(*state["size"])  # type: ignore[misc]  # two integers, two arrays
        for array, part in zip(self.line, state["line"], strict=False):  # type: ignore[call-overload]
            array[tuple(slice(size) for size in part.shape)] = part
        self.line.used[:] = state["used"]  # type: ignore[call-overload]  # two integers
        self.steps = PlannedLevels(*state["steps"])  # type: ignore[misc]  # three arrays
        self.log = PackingLog(*state["log"])  # type: ignore[misc]  # five arrays
        self.order = state["order"]  # type: ignore[assignment]

    def reserve(self, rows: int, entries: int) -> None:
        """Allocate space for plans of ``rows`` rows and a log of ``entries``; keep the content."""
        steps, log, width = self.steps, self.log, min(self.most, _RUNS)
        if steps.until.shape != (rows, width):
            self.steps = PlannedLevels(
                _padded(steps.runs, (rows,), -1),
                _wider(steps.until, steps.runs, (rows, width)),
                _wider(steps.level, steps.runs, (rows, width)),
            )
        if len(log.row) < entries or len(log.level) < rows:
            entries = max(entries, min(2 * entries, 2 * len(log.row)))
            self.log = PackingLog(
                log.used,
                _padded(log.row, (entries,), 0),
                _padded(log.workers, (entries,), 0),
                _padded(log.ps, (entries,), 0),
                _padded(log.level, (rows,), -1),
            )

    def grow(self, most: int) -> None:
        """Allocate space for ``most`` intervals; keep the plans."""
        old = self.line
        larger = new_timeline(most, old.servers.shape[1], old.share, old.common)
        larger.used[:] = old.used
        # Copy used states only: writing to the rest, which is most of it, would delay a submission.
        states = int(old.used[1]) + 1
        for new_array, old_array in zip(larger[1:8], old[1:8], strict=True):
            used = old_array[:states]
            new_array[: len(used)] = used
        self.line, self.most = larger, most


def _padded(array: Integers, shape: tuple[int, ...], value: int) -> Integers:
    """Return a larger array that starts with the content of the old one."""
    larger_shape = tuple(map(max, array.shape, shape))
    larger = np.full(larger_shape, value, np.int64) if value else np.zeros(larger_shape, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def _wider(array: Integers, runs: Integers, shape: tuple[int, int]) -> Integers:
    """Return a larger array of zeros with the runs of each row."""
    larger = np.zeros(shape, np.int64)
    rows, count = np.flatnonzero(runs > 0), int(runs.max(initial=0))
    larger[rows, :count] = array[rows, :count]
    return larger


Flags = NDArray[np.bool_]


def starts_of(now: int, bags: BagBook, stays: Stays) -> list[int]:
    """Return the slots from ``now`` on in which the capacity beside these plans changes."""
    return sorted({now, *bags.cuts(now), *(slot for slot in stays.ends() if slot > now)})


def begin(
    line: Timeline,
    starts: list[int],
    bags: BagBook,
    stays: Stays,
    whole: Integers,
    roles: Integers,
    up: Flags,
) -> None:
    """Initialise a timeline in which only bags and pinned jobs take capacity.

    Their plans name their servers, so the capacity that they leave is known server by server.

    Parameters
    ----------
    line : Timeline
        Written.
    starts : list of int
        As of `starts_of`.
    whole : ndarray of int64, shape (servers, resources)
        Capacity of the servers; 0 for lost ones.
    roles : ndarray of int64, shape (servers,)
        Roles as in `Timeline`.
    up : ndarray of bool, shape (servers,)
        Whether each server is up.
    """
    now, cuts = starts[0], set(bags.cuts(starts[0]))
    usage = np.array([bags.held_by(slot) + stays.held_by(slot) for slot in starts], np.int64)
    end, server, amount = stays.entries()
    before = bags.held(now)
    servers, changes, first = [server[:0]], [amount[:0]], [0, 0]
    for slot in starts[1:]:
        over = end + 1 == slot
        servers.append(server[over])
        changes.append(amount[over])
        if slot in cuts:
            after = bags.held(slot)
            differ = np.flatnonzero((after != before).any(axis=1))
            servers.append(differ)
            changes.append(before[differ] - after[differ])
            before = after
        first.append(sum(map(len, servers)))
    if not init_residual_timeline(
        line, np.array(starts, np.int64), whole - bags.held(now) - stays.held(now), roles, up,
        np.array(first, np.int64), np.concatenate(servers), np.concatenate(changes), usage,
    ):  # fmt: skip
        _begin_narrow(line, starts, bags, stays, whole, roles, up, usage)


def _begin_narrow(
    line: Timeline,
    starts: list[int],
    bags: BagBook,
    stays: Stays,
    whole: Integers,
    roles: Integers,
    up: Flags,
    held: Integers,
) -> None:
    """Initialise the timeline if there are more groups than it can hold.

    The first groups in order of role and free capacity are dropped.
    """
    width = line.servers.shape[1]
    for interval, slot in enumerate(starts):
        free = np.maximum(whole - bags.held(slot) - stays.held(slot), 0)
        groups, count = np.unique(np.column_stack((roles, free))[up], axis=0, return_counts=True)
        groups, count = groups[-width:], count[-width:]
        number = len(groups)
        line.groups[interval] = number
        line.servers[interval, :number] = count
        line.role[interval, :number] = groups[:, 0]
        line.free[interval, :number] = groups[:, 1:]
        line.tenant_usage[interval] = held[interval]
        line.start[interval], line.state[interval] = slot, interval
    line.used[:] = len(starts)
    line.start[len(starts)] = INFINITE_SLOT


Floats = NDArray[np.float64]

_GROUPS: Final = 512
"""Maximum groups of equal servers in an interval, or as many as kinds; others are dropped."""
_ORDERS: Final = 3
"""Maximum number of planning orders that are tried before a joint plan is given up."""


class Beside(Enum):
    """Plans that count as using capacity: all, those of bags and pinned jobs, or none."""

    ALL = "all"
    BAGS = "bags"
    NOBODY = "nobody"


class Planner:
    """Keeps the plans of promised jobs, each slot packed server by server.

    Attributes
    ----------
    stays : Stays
        Pinned plans. A job with a pinned plan has no other one.
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
        roles = cluster.hosts_workers * WORKER_ROLE + cluster.hosts_ps * PS_ROLE
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
        """The joint plan in force."""
        return self._current

    @property
    def room(self) -> Integers:
        """Scratch space of the kernels."""
        return self._room

    def lose(self, server: int) -> None:
        """Mark a server as lost, and remove its pinned plans."""
        self._up[server] = False
        self.stays.lose(server)
        self._kind_count[self._cluster.kinds[server]] -= 1

    def restore(self, server: int) -> None:
        """Mark a lost server as up."""
        self._up[server] = True
        self._kind_count[self._cluster.kinds[server]] += 1

    def promised(self) -> Integers:
        """Return the rows of promised jobs without pinned plans, by promise, then by slack."""
        return self._by_promise(self.owed(stays=False))

    def _by_promise(self, owed: NDArray[np.bool_]) -> Integers:
        rows = np.flatnonzero(owed)
        book, jobs = self._book, self._book.jobs
        fastest = book.most_gain(rows)
        slots = -(-jobs.remaining[rows] // np.maximum(fastest, 1))
        return rows[np.lexsort((rows, -slots, book.promise[rows]))].astype(np.int64)

    def owed(self, *, stays: bool = True) -> NDArray[np.bool_]:
        """Return which rows have a promise, and work left after the slot under way.

        With ``stays=False``, jobs with pinned plans are left out.
        """
        owed = np.asarray((self._book.promise >= 0) & (self._book.jobs.remaining > 0))
        if self.stays.plans and not stays:
            owed[list(self.stays.plans)] = False
        return owed

    def barred(self, now: int) -> NDArray[np.bool_]:
        """Return the levels that jobs may not scale up to in the next slot; empty without limits.

        A pinned job has to complete by its plan's end. A promised job whose plan counts on a free
        first start later may start now only if the slot's progress makes up for that.
        """
        book, jobs = self._book, self._book.jobs
        barred = self.stays.barred(now)
        owed = self.owed(stays=False) & jobs.starts_free
        rows = np.flatnonzero(owed & (self._current.log.level[: book.rows] < 0))
        if not len(rows):
            return barred
        if not len(barred):
            barred = np.zeros(jobs.gains.shape, np.bool_)
        steps = self._current.steps
        first = steps.level[rows, np.argmax(steps.level[rows] >= 0, axis=1)]
        bonus = jobs.gains[rows, first] - jobs.certain_gains[rows, first]
        barred[rows] |= jobs.gains[rows] < np.minimum(bonus, jobs.remaining[rows])[:, None]
        return barred

    # ---------------------------------------------------------------- joint plans

    def renew(
        self, now: int, *, revise: bool, steady: bool = False, least: bool = False
    ) -> list[int]:
        """Replan all promised jobs from a slot on.

        Tried in order: the earlier plans (if ``steady``), joint plans around each set of pinned
        plans, the earlier plans, and a joint plan without pinned plans. If all fail, jobs without
        a plan are skipped.

        Parameters
        ----------
        now : int
            The next slot.
        revise : bool
            Whether plans may move; otherwise each job keeps the rest of its plan.
        steady : bool
            Whether plans move only if they don't complete the work any more.
        least : bool
            Whether pinned jobs should use the fewest workers, to leave capacity for arrivals;
            otherwise they keep their current placement if they can.

        Returns
        -------
        list of int
            Rows without a plan: none, unless servers were lost or work was misstated.
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
        """Plan all promised jobs and one more jointly; keep that plan and the promise if all fit.

        Returns
        -------
        int or None
            A row without a plan, None if all have one.
        """
        book = self._book
        book.promise[row] = promise
        failed = self._join(now, self.promised())
        if failed is not None and self.stays.plans:
            # Pinned jobs with few workers may end sooner with all they have, or have to move.
            stays, previous = self.stays, self.stays.plans
            choices = stays.choices(now, self._by_promise(self.owed()), previous)
            for stays.plans in (next(choices), {}):
                if self._join(now, self.promised()) is None:
                    return None
            stays.plans = previous
        if failed is not None:
            book.promise[row] = -1
        return failed

    def fits(self, now: int, rows: Integers, due: Integers) -> bool:
        """Plan all promised jobs and others jointly; keep that plan if all fit.

        Parameters
        ----------
        now : int
            The next slot.
        rows : ndarray of int64, shape (jobs,)
            The others, which get no promise.
        due : ndarray of int64, shape (jobs,)
            Slot by whose end each has to complete.
        """
        book = self._book
        book.promise[rows] = due
        order = self.promised()
        # Most attempts fail, and most of those in total capacity already.
        capacity = (self._kind_free.astype(np.float64) * self._kind_count[:, None]).sum(axis=0)
        fits = not exceeds_capacity(book.jobs, order, book.promise, now, capacity)
        fits = fits and self._join(now, order) is None
        book.promise[rows] = -1
        return fits

    def offer(self, row: int, price: Floats) -> Offer | None:
        """Return the plan with the largest payoff beside the joint plan; None if there is none.

        ``price`` has the prices of a worker and of a parameter server in a slot.
        """
        return self._offer(self._current, row, price)

    def alone(self, now: int, row: int, price: Floats) -> Offer | None:
        """Return the plan with the largest payoff if no other job existed; None if none."""
        self._clear(self._other, now, others=False)
        return self._offer(self._other, row, price)

    # ---------------------------------------------------------------- bags of tasks

    @property
    def whole(self) -> bool:
        """Whether all servers are up."""
        return bool(self._up.all())

    def standing(self) -> Integers:
        """Return the current usage of training jobs, shape (servers, resources)."""
        book = self._book
        return book.table.held(book.jobs, self._cluster.capacity.shape)

    def replan_around_bags(self, now: int, *, revise: bool) -> bool:
        """Replan promised jobs around the plans of bags; keep that plan if all fit."""
        if revise and self._join(now, self.promised()) is None:
            return True
        return self._keep(now)

    def copy_capacity(self, now: int, job: Job, end: int, most: int, beside: Beside) -> Integers:
        """Return how many copies of a bag's tasks fit in each slot before ``end``.

        The result counts at most ``most`` copies a slot. ``beside`` selects the plans that count as
        using capacity.
        """
        layout = self._current
        if beside is not Beside.ALL:
            layout = self._other
            self._clear(layout, now, others=beside is Beside.BAGS)
        fitting_levels = np.zeros(max(0, end - now), np.int64)
        tenant = self._quotas.row_of(self._cluster, job)
        copy_capacity(layout.line, job.worker.copy(), tenant, most, end, fitting_levels)
        return fitting_levels

    def earliest(self, row: int) -> int | None:
        """Return the first completion slot beside the joint plan, whatever its utility."""
        jobs = self._book.jobs
        line, final = self._current.line, self._book.final
        slots = []
        for mode in range(mode_count(jobs, row)):
            intervals = fitting_levels(line, jobs, row, mode, final + 1, self.shared, self._room)
            top = jobs.hull[row, hull_range(jobs, row, mode)[1] - 1]
            first = jobs.gains[row] if jobs.starts_free[row] else jobs.certain_gains[row]
            done = completes_fresh(
                line.start,
                intervals,
                self._room,
                jobs.certain_gains[row],
                first,
                top,
                jobs.remaining[row],
                final + 1,
            )
            if done >= 0:
                slots.append(int(done))
        return min(slots, default=None)

    def _offer(self, layout: Layout, row: int, price: Floats) -> Offer | None:
        result = best_plan(layout.line, self._book.jobs, row, price, self.shared, self._room)
        return None if result[0] < 0 else Offer(*result)

    def take(self, row: int, found: Offer) -> bool:
        """Add an offer to the joint plan that it was made for; no other call may come between."""
        layout = self._current
        entered = commit_plan(
            layout.line, self._book.jobs, row, found.ceiling, found.done, self._room,
            layout.steps, layout.log,
        )  # fmt: skip
        if entered:
            layout.order = np.append(layout.order, row)
        return bool(entered)

    # ---------------------------------------------------------------- planning

    def _join(self, now: int, order: Integers) -> int | None:
        """Plan jobs in order; after a failure, retry with the failed job in front.

        Returns the first row that had no plan, None if all fit in the end.
        """
        first = None
        for _ in range(_ORDERS):
            failed = self._lay(now, order, go_on=False)
            if not failed:
                return None
            first = failed[0] if first is None else first
            order = np.concatenate((failed, order[order != failed[0]]))
        return first

    def _lay(self, now: int, order: Integers, *, go_on: bool) -> list[int]:
        """Plan jobs in order; keep the plan if all fit, or in any case with ``go_on``.

        Returns
        -------
        list of int
            Rows without a plan.
        """
        target = self._other
        self._clear(target, now)
        failed = np.zeros(len(order), np.int64)
        count = plan_in_order(
            target.line, self._book.jobs, order, self._book.promise, self.shared, go_on,
            self._room, target.steps, target.log, failed,
        )  # fmt: skip
        if count == 0 or go_on:
            target.order = order[~np.isin(order, failed[:count])]
            self._current, self._other = target, self._current
        return [int(row) for row in failed[:count]]

    def _keep(self, now: int) -> bool:
        """Carry the earlier plans over to a new slot; return False if that is impossible."""
        previous, target = self._current, self._other
        promised = self.owed(stays=False)
        kept = previous.order[promised[previous.order]]
        if len(kept) < int(promised.sum()):
            return False
        self._clear(target, now)
        done = replay_plans(
            target.line, self._book.jobs, kept, previous.steps, target.steps, target.log
        )
        if done < len(kept):
            return False
        target.order = kept
        self._current, self._other = target, previous
        return True

    def _clear(self, layout: Layout, now: int, *, others: bool = True) -> None:
        """Reset a layout to free capacity from a slot on.

        Bags and pinned jobs use theirs, unless ``others`` is False.
        """
        self.reserve()
        layout.log.used[0] = 0
        layout.log.level[:] = -1
        if others and (self._bags.plans or self.stays.plans):
            starts = starts_of(now, self._bags, self.stays)
            self._grow(4 * len(self._book.table.rows) + 16 + 2 * len(starts))
            capacity = np.where(self._up[:, None], self._cluster.capacity, 0)
            begin(layout.line, starts, self._bags, self.stays, capacity, self._roles, self._up)
            for row, plan in self.stays.plans.items():
                layout.log.level[row] = plan.level
        else:
            reset(layout.line, now, self._kind_count, self._kind_role, self._kind_free)
        split_interval_at(layout.line, now + 1)
        layout.order = np.zeros(0, np.int64)

    def reserve(self) -> None:
        """Allocate space for the plans of all open jobs; keep the content."""
        rows = self._book.rows
        self._grow(4 * len(self._book.table.rows) + 16)
        # A job is logged once, and again whenever it scales up, each time in at most two entries.
        maximum = 2 * (int(self._book.jobs.levels.sum()) + rows)
        entries = min(3 * rows + int(self._kind_count.sum()) * 64, maximum) + 64
        for layout in (self._current, self._other):
            layout.reserve(rows, entries)

    def _grow(self, intervals: int) -> None:
        """Allocate space for ``intervals`` in both layouts; keep the plans."""
        if intervals <= self._current.most:
            return
        size = 1 << (intervals - 1).bit_length()
        for layout in (self._current, self._other):
            layout.grow(size)
        self._room = np.zeros(size + 1, np.int64)

    def _new_layout(self, most: int) -> Layout:
        return Layout(most, self._width, self._quotas.share, self._quotas.common)
