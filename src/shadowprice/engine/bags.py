"""Rules for bags of tasks: checks of plans and placements, and how a plan shrinks.

A bag's workers are copies of tasks. All copies start in the first slot of the plan. From then on
copies only end, so a plan never grows, and capacity that no copy can use is released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import Place
from shadowprice.core.schedule import Schedule
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.validation import check_roles


def check_bag(
    record: JobRecord, plan: Schedule, copies: Sequence[TaskCopies], cluster: Cluster, end: int
) -> None:
    """Check a bag's schedule and copies against all rules except capacity.

    ``copies`` must cover every remaining task. ``end`` is the first slot that no plan may use.
    Raises PolicyError, with the job's history, if a rule is broken.
    """
    bag = record.job.bag
    if bag is None:
        raise PolicyError(f"{record.story()}: committed with copies, but isn't a bag of tasks")
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
    """Check that the copies cover all remaining tasks; return the number of copies."""
    task_counts = np.zeros(len(bag.groups), dtype=np.int64)
    for entry in copies:
        if not 0 <= entry.group < len(task_counts) or entry.tasks < 1 or entry.copies < 1:
            raise PolicyError(f"{record.story()}: {tuple(entry)} are not copies of its tasks")
        task_counts[entry.group] += entry.tasks
    if tuple(task_counts.tolist()) != record.tasks_left:
        raise PolicyError(
            f"{record.story()}: copies for {task_counts.tolist()} tasks by group, but "
            f"{list(record.tasks_left)} remain"
        )
    return sum(entry.tasks * entry.copies for entry in copies)


def check_copies(record: JobRecord, decision: Place, cluster: Cluster, slot: int) -> None:
    """Check a bag's placement for the coming slot against all rules except capacity.

    The decision starts new copies, or keeps some of the workers of the running copies. Raises
    PolicyError, with the job's history, if a rule is broken.
    """
    bag, placement = record.job.bag, decision.placement
    if bag is None:
        raise PolicyError(f"{record.story()}: placed with copies, but isn't a bag of tasks")
    if not placement.servers:
        raise PolicyError(f"{record.story()}: placed on no server; pause it instead")
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
    present = record.placement
    current = {} if present is None else dict(zip(present.servers, present.workers, strict=True))
    for server, count in zip(placement.servers, placement.workers, strict=True):
        if count > current.get(server, 0):
            raise PolicyError(
                f"{record.story()}: copies run on and only end, but it is placed with {count} on "
                f"server {server} where {current.get(server, 0)} run"
            )


def count_finished(record: JobRecord, slot: int, gained: int, done: tuple[int, ...] | None) -> None:
    """Record the tasks of a bag that finished in a slot.

    ``gained`` is the bag's progress in the slot, ``done`` the finished tasks for each entry of
    ``record.copies``. Raises ShadowpriceError if these numbers contradict each other.
    """
    assert record.job.bag is not None
    if (
        done is None
        or len(done) != len(record.left)
        or sum(done) != gained
        or any(
            not 0 <= number <= remaining
            for number, remaining in zip(done, record.left, strict=True)
        )
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


def narrow_plan(record: JobRecord, now: int) -> Schedule | None:
    """Return a bag's plan without capacity that its copies can't use from slot ``now`` on.

    Returns None if nothing changes. Past slots stay as they were. Within a slot, the first servers
    keep their workers.
    """
    live_copies = sum(
        remaining * entry.copies
        for remaining, entry in zip(record.left, record.copies, strict=True)
    )
    plan = record.plan
    is_future = plan.slots >= now
    # Subtracting the sum at the start of the slot counts within the slot; plans are sorted by slot.
    preceding = np.cumsum(plan.workers) - plan.workers
    slot_starts = np.searchsorted(plan.slots, plan.slots)
    allowed = np.clip(live_copies - (preceding - preceding[slot_starts]), 0, plan.workers)
    workers = np.where(is_future, allowed, plan.workers)
    if (workers == plan.workers).all():
        return None
    is_kept = workers > 0
    return Schedule(plan.slots[is_kept], plan.servers[is_kept], workers[is_kept], plan.ps[is_kept])
