"""Policies for tests: a naive planner, and a policy of random valid decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shadowprice.core.events import (
    Commit,
    Decision,
    Drop,
    JobsArrived,
    JobsDisplaced,
    Pause,
    Place,
    PolicyEvent,
    Queue,
    Reject,
)
from shadowprice.core.policy import Capabilities, JobState, Status, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule

NO_ROOM = Refusal(RefusalReason.NO_ROOM, "no room")


def fit_counts(view: View, slot: int, state: JobState, *, ps: bool) -> list[int]:
    """Return how many workers or PS fit on each server in a slot."""
    job, cluster = state.job, view.cluster
    demand = job.ps if ps else job.worker
    assert demand is not None
    hosts = cluster.hosts_ps if ps else cluster.hosts_workers
    free = view.ledger.capacity - view.ledger.used[slot - view.ledger.start]
    requested = demand > 0
    places = (free[:, requested] // demand[requested]).min(axis=1)
    return [int(place) if hosts[index] else 0 for index, place in enumerate(places)]


def place_first_fit(view: View, slot: int, state: JobState, workers: int) -> Placement | None:
    """Place workers, and the PS that they need, on the first servers with free capacity."""
    entries: list[tuple[int, int, int]] = []
    counts = [(False, workers), (True, state.job.ps_needed(workers))]
    for ps, wanted in counts:
        left = wanted
        if not left:
            continue
        for server, places in enumerate(fit_counts(view, slot, state, ps=ps)):
            # A server for both roles gets workers only, so that the two counts can't collide.
            if view.cluster.hosts_workers[server] and view.cluster.hosts_ps[server] and ps:
                places = 0  # noqa: PLW2901 - reads better than a second name
            take = min(places, left)
            if take:
                entries.append((server, 0, take) if ps else (server, take, 0))
                left -= take
        if left:
            return None
    return Placement.of(entries)


class EarliestPlanner:
    """Commits every job to the earliest free slots, with as many workers as fit."""

    capabilities = Capabilities(plans_ahead=True, elastic=True)

    def resume(self, view: View) -> None:
        pass  # it keeps no state

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        match event:
            case JobsArrived(_, jobs):
                names = [job.name for job in jobs]
            case JobsDisplaced(_, names_):
                names = list(names_)
            case _:
                return
        for name in names:
            state = view.open_jobs[name]
            schedule = self.plan(view, state)
            if schedule is not None:
                yield Commit(name, schedule, 1.0, 1.0, 0.0)
            elif isinstance(event, JobsArrived):
                yield Reject(name, NO_ROOM)
            else:
                yield Drop(name, NO_ROOM)

    def plan(self, view: View, state: JobState) -> Schedule | None:
        entries: list[tuple[int, int, int, int]] = []
        left = state.remaining
        for slot in range(view.slot, view.end):
            for workers in reversed(state.job.worker_counts.tolist()):
                placement = place_first_fit(view, slot, state, workers)
                if placement is not None:
                    rows = zip(placement.servers, placement.workers, placement.ps, strict=True)
                    entries += [(slot, *row) for row in rows]
                    left -= state.job.gain(workers, colocated=placement.colocated)
                    break
            if left <= 0:
                return Schedule.of(entries)
        return None


class RandomPolicy:
    """Places, moves, pauses, rejects and drops queued jobs at random, but always validly."""

    capabilities = Capabilities(elastic=True, wakes_every_slot=True)

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def resume(self, view: View) -> None:
        pass  # it keeps no state

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            for job in event.jobs:
                yield Reject(job.name, NO_ROOM) if self.rng.random() < 0.1 else Queue(job.name)
        for name, state in list(view.open_jobs.items()):
            if state.status is Status.ARRIVED:
                continue
            draw = self.rng.random()
            if state.placement is not None and draw < 0.15:
                yield Pause(name)
            elif draw < 0.02:
                yield Drop(name, NO_ROOM)
            elif draw < 0.6:
                workers = int(self.rng.choice(state.job.worker_counts))
                placement = place_first_fit(view, view.slot, state, workers)
                if placement is not None:
                    yield Place(name, placement)
