"""What is particular about a bag of tasks: what its plan must hold, and how it shrinks.

A bag's workers are copies of tasks. All of them start in the first slot of the plan; from then on
copies only end, so a plan never grows, and places that no copy can need are given back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import Place
from shadowprice.core.schedule import Schedule
from shadowprice.engine.state import JobRecord
from shadowprice.engine.validation import check_roles


def check_bag(
    record: JobRecord, plan: Schedule, copies: Sequence[TaskCopies], cluster: Cluster, end: int
) -> None:
    """Check a bag's schedule and copies against everything but capacity.

    Parameters
    ----------
    record : JobRecord
        The bag.
    plan : Schedule
        What the policy wants to commit.
    copies : sequence of TaskCopies
        Copies of every task that remains.
    cluster : Cluster
        The servers.
    end : int
        First slot that no plan may use.

    Raises
    ------
    PolicyError
        If a rule is broken, with the job's story.
    """
    bag = record.job.bag
    if bag is None:
        raise PolicyError(f"{record.story()}: committed with copies, but it is no bag of tasks")
    if not len(plan):
        raise PolicyError(f"{record.story()}: committed to an empty schedule")
    last = record.job.arrival + bag.slots - 1
    if plan.completion >= end or plan.completion > last:
        raise PolicyError(
            f"{record.story()}: planned for slot {plan.completion}, but no plan may use slot "
            f"{min(end, last + 1)} or later"
        )
    check_roles(record, plan.servers, plan.workers, plan.ps, cluster)
    if plan.ps.any():
        raise PolicyError(f"{record.story()}: a bag of tasks has no parameter servers")
    started = _check_tasks(record, bag, copies)
    workers, _, _ = plan.totals()
    if int(workers[0]) != started:
        raise PolicyError(
            f"{record.story()}: {int(workers[0])} places in the first slot for {started} copies"
        )
    if (np.diff(plan.active_slots) != 1).any() or (np.diff(workers) > 0).any():
        raise PolicyError(
            f"{record.story()}: copies run on without a break and only end, but the plan has "
            f"{workers.tolist()} places in slots {plan.active_slots.tolist()}"
        )


def _check_tasks(record: JobRecord, bag: Bag, copies: Sequence[TaskCopies]) -> int:
    """Check that copies are of all tasks that remain; return how many there are."""
    given = np.zeros(len(bag.groups), dtype=np.int64)
    for entry in copies:
        if not 0 <= entry.group < len(given) or entry.tasks < 1 or entry.copies < 1:
            raise PolicyError(f"{record.story()}: {tuple(entry)} are no copies of its tasks")
        given[entry.group] += entry.tasks
    if tuple(given.tolist()) != record.tasks_left:
        raise PolicyError(
            f"{record.story()}: copies for {given.tolist()} tasks by group, but "
            f"{list(record.tasks_left)} remain"
        )
    return sum(entry.tasks * entry.copies for entry in copies)


def check_copies(record: JobRecord, decision: Place, cluster: Cluster, slot: int) -> None:
    """Check where copies of a bag are to stand from the coming slot on, but for capacity.

    Parameters
    ----------
    record : JobRecord
        The bag.
    decision : Place
        Copies that start, or the places that those which run keep.
    cluster : Cluster
        The servers.
    slot : int
        The coming slot.

    Raises
    ------
    PolicyError
        If a rule is broken, with the job's story.
    """
    bag, placement = record.job.bag, decision.placement
    if bag is None:
        raise PolicyError(f"{record.story()}: placed with copies, but it is no bag of tasks")
    if not placement.servers:
        raise PolicyError(f"{record.story()}: placed nowhere; pause it instead")
    last = record.job.arrival + bag.slots - 1
    if slot > last:
        raise PolicyError(f"{record.story()}: placed in slot {slot}, its deadline fell in {last}")
    columns = (placement.servers, placement.workers, placement.ps)
    servers, workers, ps = (np.array(column, dtype=np.int64) for column in columns)
    check_roles(record, servers, workers, ps, cluster)
    if ps.any():
        raise PolicyError(f"{record.story()}: a bag of tasks has no parameter servers")
    if decision.copies:
        started = _check_tasks(record, bag, decision.copies)
        if placement.total_workers != started:
            raise PolicyError(
                f"{record.story()}: {placement.total_workers} places for {started} copies"
            )
        return
    before = record.placement
    has = {} if before is None else dict(zip(before.servers, before.workers, strict=True))
    for server, count in zip(placement.servers, placement.workers, strict=True):
        if count > has.get(server, 0):
            raise PolicyError(
                f"{record.story()}: copies run on and only end, but it is placed with {count} on "
                f"server {server} where {has.get(server, 0)} run"
            )


def count_finished(record: JobRecord, slot: int, gained: int, done: tuple[int, ...] | None) -> None:
    """Take in the tasks of a bag that finished in a slot.

    Parameters
    ----------
    record : JobRecord
        The bag.
    slot : int
        The slot.
    gained : int
        Its progress in the slot.
    done : tuple of int or None
        Finished tasks by entry of ``record.copies``.

    Raises
    ------
    ShadowpriceError
        If the driver's numbers contradict each other.
    """
    assert record.job.bag is not None
    if (
        done is None
        or len(done) != len(record.left)
        or sum(done) != gained
        or any(not 0 <= number <= left for number, left in zip(done, record.left, strict=True))
    ):
        raise ShadowpriceError(
            f"bag {record.job.name!r} finished {done} tasks in slot {slot} with a progress of "
            f"{gained}; {record.left} of {[tuple(entry) for entry in record.copies]} were left"
        )
    if not record.finished:
        record.finished = [0] * len(record.job.bag.groups)
    for position, (entry, number) in enumerate(zip(record.copies, done, strict=True)):
        record.left[position] -= number
        record.finished[entry.group] += number


def narrowed(record: JobRecord, now: int) -> Schedule | None:
    """Return the plan without the places that copies cannot need from a slot on.

    Parameters
    ----------
    record : JobRecord
        The bag.
    now : int
        First slot that can still change.

    Returns
    -------
    Schedule or None
        Past slots as they were; None where nothing changes. A slot's first servers keep their
        places.
    """
    live = sum(left * entry.copies for left, entry in zip(record.left, record.copies, strict=True))
    plan = record.plan
    ahead = plan.slots >= now
    # Places are counted within each slot; plans are sorted by slot.
    before = np.cumsum(plan.workers) - plan.workers
    begins = np.searchsorted(plan.slots, plan.slots)
    allowed = np.clip(live - (before - before[begins]), 0, plan.workers)
    workers = np.where(ahead, allowed, plan.workers)
    if (workers == plan.workers).all():
        return None
    kept = workers > 0
    return Schedule(plan.slots[kept], plan.servers[kept], workers[kept], plan.ps[kept])
