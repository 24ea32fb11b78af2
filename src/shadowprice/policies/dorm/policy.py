"""Dorm (OASiS, section V, scheme (iv)): a MILP maximises utilisation with few adjustments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Self

import numpy as np

from shadowprice.core.events import Decision, Pause, Place
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.policies.dorm import DormParameters
from shadowprice.policies.dorm.recomputation import (
    DormServerGroups,
    OpenJob,
    PlacementChanges,
    Recomputation,
    mutable_placement,
)
from shadowprice.policies.reactive.base import QueueingPolicy
from shadowprice.policies.reactive.free_capacity import FreeCapacity

_STATISTICS: Final = (
    "recomputations", "programs", "stopped_at_node_limit", "placed_otherwise", "fell_back",
    "beyond_fairness",
)  # fmt: skip


class Dorm(QueueingPolicy[DormParameters]):
    """Admit all jobs, and recompute their workers by an MILP when jobs arrive or leave.

    Running jobs keep at least their minimum number of workers. The bounds are on the fairness loss
    and on the number of adjusted jobs. To change nothing always satisfies both, because the bound
    on the loss is at least the current loss. The program is skipped if every job can have all the
    workers that it can use: no allocation has a higher utilisation, and it is fair.
    """

    capabilities: ClassVar = Capabilities(
        elastic=True, wakes_every_slot=True, holds=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: DormParameters) -> None:
        super().__init__(context, parameters)
        self._servers = self._free_capacity = FreeCapacity(context.cluster)
        self._regroup()
        self._running: dict[str, OpenJob] = {}
        self._queue: dict[str, OpenJob] = {}
        self._arrivals = 0
        self._count = dict.fromkeys(_STATISTICS, 0)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, and statistics of the recomputations so far.

        - ``recomputations``: slots in which jobs or servers had changed.
        - ``programs``: recomputations that needed the MILP.
        - ``stopped_at_node_limit``: programs that ended at the limit.
        - ``placed_otherwise``: jobs whose placement isn't the one that the program chose.
        - ``fell_back``: programs whose result couldn't be placed within the bounds, so that running
          jobs didn't change.
        - ``beyond_fairness``: jobs that started beyond the bound on fairness because no job ran.
        """
        return {**self._parameters.model_dump(), "statistics": dict(self._count)}

    def _begin(self, view: View) -> Iterator[Decision]:
        if self._changed:
            self._changed = False
            yield from self._recompute(view)

    def _lose_server(self, server: int) -> None:
        super()._lose_server(server)
        self._regroup()

    def _restore_server(self, server: int) -> None:
        super()._restore_server(server)
        self._regroup()

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            if name in self._queue:
                continue  # `resume` has already queued it
            self._free_capacity.release(name)
            self._queue[name] = entry = self._running.pop(name)
            entry.choice = -1
        self._queue = dict(sorted(self._queue.items(), key=lambda pair: pair[1].order))

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        self._enter(state.job, 0)
        if state.placement is None:
            return
        entry = self._queue.pop(state.job.name)
        self._free_capacity.allocate(state.job, state.placement)
        workers = state.placement.total_workers
        # The number may not be a useful one, for example after a revision: round down.
        entry.choice = max(int(np.searchsorted(entry.counts, workers, side="right")) - 1, 0)
        self._running[state.job.name] = entry

    def _keep_learnt_state(self, before: Self) -> None:
        self._count = before._count

    def _target_worker_count(self, job: Job) -> int:
        return int(job.worker_counts[0])

    def _enter(self, job: Job, workers: int) -> None:
        del workers  # the program chooses the number
        self._queue[job.name] = OpenJob.of(job, self._arrivals)
        self._arrivals += 1

    def _remove_job(self, name: str) -> None:
        self._running.pop(name, None)
        self._queue.pop(name, None)
        self._free_capacity.release(name)

    def _regroup(self) -> None:
        exact = self._parameters.exact_servers
        self._groups = DormServerGroups(self._cluster, self._servers.up, exact)

    # ---------------------------------------------------------------- recomputation

    def _recompute(self, view: View) -> Iterator[Decision]:
        if not self._running and not self._queue:
            return
        self._count["recomputations"] += 1
        window = list(itertools.islice(self._queue.values(), self._parameters.window))
        running = sorted(self._running.values(), key=lambda entry: entry.order)
        movable = [entry for entry in running if not view.is_unstoppable(entry.job.name)]
        outcome = self._allocate_all()
        if outcome is None:
            recomputation = Recomputation(
                self._free_capacity, self._groups, self._parameters, running, movable, window
            )
            outcome = recomputation.solve()
            for name, number in recomputation.statistics.items():
                self._count[name] += number
        if not outcome and not self._running:
            outcome = self._start_first()
        yield from self._apply(outcome)
        # Recompute in the next slot if jobs behind the window may start then, or if jobs that must
        # not move now may move then.
        started_all = not any(queued.job.name in self._queue for queued in window)
        self._changed = bool(self._queue) and (started_all or len(movable) < len(running))

    def _allocate_all(self) -> PlacementChanges | None:
        """Return changes that give every job all that it can use, None if they don't fit."""
        if any(entry.choice < len(entry.counts) - 1 for entry in self._running.values()):
            return None
        free = self._free_capacity.free.copy()
        outcome: PlacementChanges = {}
        for entry in self._queue.values():
            layout = mutable_placement(self._free_capacity, entry, free)
            if not layout.reach(int(entry.counts[-1]), int(entry.ps_counts[-1])):
                return None
            outcome[entry] = (len(entry.counts) - 1, layout)
        return outcome

    def _start_first(self) -> PlacementChanges:
        """Start the first job that fits; fairness must not leave the whole cluster idle."""
        for entry in self._queue.values():
            layout = mutable_placement(self._free_capacity, entry, self._free_capacity.free.copy())
            for choice in range(len(entry.counts)):
                if layout.reach(int(entry.counts[choice]), int(entry.ps_counts[choice])):
                    self._count["beyond_fairness"] += 1
                    return {entry: (choice, layout)}
        return {}

    def _apply(self, outcome: PlacementChanges) -> Iterator[Decision]:
        """Yield changes in an order that never overbooks: shrink, pause moving jobs, then grow."""
        less: list[Decision] = []
        paused: list[Decision] = []
        more: list[Decision] = []
        for entry, (choice, layout) in outcome.items():
            name, placement = entry.job.name, layout.placement
            place = Place(name, placement)
            if entry.choice < 0:
                more.append(place)
                self._running[name] = self._queue.pop(name)
            else:
                before = mutable_placement(
                    self._free_capacity, entry, self._free_capacity.free
                ).counts
                changes = [new - old for new, old in zip(layout.counts, before, strict=True)]
                if not any(change.any() for change in changes):
                    continue
                if all((change <= 0).all() for change in changes):
                    less.append(place)
                else:
                    more.append(place)
                    if any((change < 0).any() for change in changes):
                        paused.append(Pause(name))
            self._free_capacity.release(name)
            self._free_capacity.allocate(entry.job, placement)
            entry.choice = choice
        yield from (*less, *paused, *more)
