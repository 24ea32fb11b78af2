"""Unstoppable generations: policies must not stop or move them.

A generation is unstoppable if its job isn't known to resume from saved progress, or if it has
reported progress, but none that it can have saved since it resumed. A stop would lose its work. So
a policy only stops a job that has saved progress since its last stop, or reports none. A generation
on a cordoned server is unstoppable too, because it couldn't return. An unstoppable generation stops
only if its job is cancelled, the timespan ends, or its server is lost, drained or gets another
role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shadowprice.core.cluster import Role
from shadowprice.core.events import Decision, Pause, Place
from shadowprice.core.schedule import Placement
from shadowprice.engine.state import EngineState


def is_unstoppable(state: EngineState, name: str) -> bool:
    """Return whether the running generation of a job must keep its placement."""
    placement = state.running.get(name)
    if placement is None or not may_have_unstoppable_jobs(state):
        return False
    record = state.jobs[name]
    if record.job.bag is not None or not _roles_allow(state, placement):
        return False
    if not state.cordoned.isdisjoint(placement.servers):
        return True
    if not state.acknowledges:  # simulated jobs save their progress whenever they move
        return False
    # A stop loses work if checkpoints are rare. The next generation is unstoppable until it has
    # repeated that work and done as much again, which makes a checkpoint likely. This work at least
    # doubles with each loss, so the number of losses is logarithmic.
    unsaved = record.measured <= record.resumed_at + record.lost
    # A resumable job that never reports progress can be stopped, or it could block others forever.
    return record.job.resumable is not True or (record.measured > 0 and unsaved)


def _roles_allow(state: EngineState, placement: Placement) -> bool:
    """Return whether the servers still have the roles of a placement's processes."""
    roles = state.cluster.roles
    return not any(
        (workers and roles[row] is Role.PS) or (ps and roles[row] is Role.WORKER)
        for row, workers, ps in zip(placement.servers, placement.workers, placement.ps, strict=True)
    )


def may_have_unstoppable_jobs(state: EngineState) -> bool:
    """Return whether running jobs can be unstoppable; if not, `is_unstoppable` is always False."""
    return state.acknowledges or bool(state.cordoned)


def runs_on(state: EngineState, name: str, row: int) -> bool:
    """Return whether a job runs on a server and stays there if the server is cordoned."""
    placement = state.running.get(name)
    # Bags don't stay: they start copies in every slot.
    return placement is not None and row in placement.servers and state.jobs[name].job.bag is None


def would_move(state: EngineState, name: str, slot: int) -> bool:
    """Return whether a plan would move an unstoppable job in a slot."""
    if name not in state.open_jobs or not is_unstoppable(state, name):
        return False
    return state.agenda.get(slot, {}).get(name) != state.running[name]


def without_stops(
    state: EngineState, decisions: Iterable[Decision], resync: Callable[[], None]
) -> Iterator[Decision]:
    """Yield a reactive policy's decisions, except those that stop unstoppable jobs.

    If a placement no longer fits beside an unstoppable job, it is left out too. The policy resyncs
    after the last decision, so that its next decisions consider all these jobs again.
    """
    vetoed = False
    for decision in decisions:
        if isinstance(decision, Place | Pause):
            placement = decision.placement if isinstance(decision, Place) else None
            if is_unstoppable(state, decision.job) and placement != state.running[decision.job]:
                vetoed = True
                continue
            if vetoed and placement is not None and not _fits(state, decision.job, placement):
                continue
        yield decision
    if vetoed:
        resync()


def _fits(state: EngineState, name: str, placement: Placement) -> bool:
    """Return whether a placement fits if the job gives up its present placement."""
    job = state.jobs[name].job
    return state.ledger.can_place(name, placement, job.worker, job.ps)
