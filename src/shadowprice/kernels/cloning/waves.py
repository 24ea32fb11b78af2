"""Kernel of the heavily loaded regime: jobs of many tasks on fewer single-slot machines.

Events are arrivals, ends of tasks and, while machines idle, looks at what runs. A free machine
takes the next waiting task of the first job in the queue or a copy of a running task, by the rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.cloning.saving import assess
from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_COPIES = 0
EVERY_TASK = 1
LATE_TASKS = 2
BY_SAVING = 3


@kernel
def _push(times: Floats, tasks: Integers, size: int, time: float, task: int) -> int:
    """Add an end to the heap; ends at one time come in the order of tasks."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if times[parent] < time or (times[parent] == time and tasks[parent] <= task):
            break
        times[place] = times[parent]
        tasks[place] = tasks[parent]
        place = parent
    times[place] = time
    tasks[place] = task
    return size + 1


@kernel
def _pop(times: Floats, tasks: Integers, size: int) -> int:
    """Take the first end off the heap."""
    size -= 1
    time, task = times[size], tasks[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and tasks[right] < tasks[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and task <= tasks[child]):
            break
        times[place] = times[child]
        tasks[place] = tasks[child]
        place = child
    times[place] = time
    tasks[place] = task
    return size


@kernel
def run_waves(
    machines: int,
    rule: int,
    most: int,
    late_factor: float,
    late_share: float,
    machine_price: float,
    look: float,
    arrival: Floats,
    order: Integers,
    first: Integers,
    law: Integers,
    scale: Floats,
    durations: Floats,
    tables: Floats,
    begins: Floats,
    steps: Floats,
    means: Floats,
    paying: Floats,
    unit: Floats,
    started: Floats,
    finish: Floats,
    work: Floats,
    copies: Integers,
    won: Integers,
) -> float:
    """Run jobs to their end under one rule.

    Parameters
    ----------
    machines : int
        M single-slot machines.
    rule : int
        ``NO_COPIES``, ``EVERY_TASK``, ``LATE_TASKS`` or ``BY_SAVING``.
    most : int
        Largest number of copies of a task.
    late_factor, late_share : float
        ``LATE_TASKS``: a task is late when it has run ``late_factor`` times the median of the
        finished ones, once ``late_share`` of its job's tasks have finished.
    machine_price : float
        ``BY_SAVING``: seconds of flowtime that a machine second is worth beyond the delay it
        causes.
    look : float
        While machines idle, running tasks are looked at so often; an assessment by saving is
        taken as it is for so long, unless its job changes.
    arrival : ndarray, shape (jobs,)
        Seconds, ascending.
    order : ndarray of int64, shape (jobs,)
        Place of each job in the queue, lower first.
    first : ndarray of int64, shape (jobs + 1,)
        First task of each job.
    law, scale : ndarray, shape (tasks,)
        Law of each task's durations and their factor: what rules know.
    durations : ndarray, shape (tasks, most)
        Seconds that each copy would run: what happens.
    tables, begins, steps, means, paying
        Laws of unit scale: ln S at knots in ln t, the first knot, their distance; mean; the age
        from which a copy costs no machine time.
    unit : ndarray, shape (points,)
        Grid of `assess`, from 0 up.
    started, finish, work : ndarray, shape (jobs,)
        Receive the start of a job's first task, its end, and its machine seconds.
    copies, won : ndarray of int64, shape (tasks,)
        Receive the copies begun, and which of them ended first.

    Returns
    -------
    float
        Machine seconds of all copies that did not win.
    """
    jobs, tasks = arrival.shape[0], law.shape[0]
    free = machines
    begun = np.empty((tasks, most))
    ends = np.full(tasks, np.inf)
    done = np.zeros(tasks, dtype=np.bool_)
    upcoming = first[:-1].copy()
    remaining = first[1:] - first[:-1]
    queue = np.empty(jobs, dtype=np.int64)
    by_place = np.empty(jobs, dtype=np.int64)
    for job in range(jobs):
        by_place[order[job]] = job
    # Arrived jobs that are not done, in the order of the queue.
    active = 0
    waiting = 0
    offered = 0.0
    assessed = np.full(jobs, -np.inf)
    owner = np.empty(tasks, dtype=np.int64)
    for job in range(jobs):
        owner[first[job] : first[job + 1]] = job
    saving, extra = np.zeros(tasks), np.zeros(tasks)
    times, heap = np.empty(tasks * most), np.empty(tasks * most, dtype=np.int64)
    size = 0
    next_job = 0
    now = 0.0
    left = jobs
    wasted = 0.0
    tick = np.inf
    while left > 0:
        while size > 0 and times[0] != ends[heap[0]]:
            size = _pop(times, heap, size)  # an end that a faster copy has overtaken
        end = times[0] if size > 0 else np.inf
        arrive = arrival[next_job] if next_job < jobs else np.inf
        now = min(end, arrive, tick)
        tick = np.inf
        if end == now:
            task = heap[0]
            size = _pop(times, heap, size)
            done[task] = True
            ends[task] = -1.0
            job = owner[task]
            for c in range(copies[task]):
                work[job] += now - begun[task, c]
                if c != won[task]:
                    wasted += now - begun[task, c]
            free += copies[task]
            assessed[job] = -np.inf
            remaining[job] -= 1
            if remaining[job] == 0:
                finish[job] = now
                left -= 1
                place = 0
                while queue[place] != job:
                    place += 1
                for q in range(place, active - 1):
                    queue[q] = queue[q + 1]
                active -= 1
        elif arrive == now:
            job = next_job
            next_job += 1
            place = active
            while place > 0 and order[queue[place - 1]] > order[job]:
                queue[place] = queue[place - 1]
                place -= 1
            queue[place] = job
            active += 1
            waiting += 1
            for task in range(first[job], first[job + 1]):
                offered += means[law[task]] * scale[task]
        price = machine_price
        if rule == BY_SAVING and free > 0:
            # A machine second delays by 1 / M each job that waits, and each that arrives before
            # the queue is empty: Q / (1 - load) of them, for work drains at M (1 - load).
            load = offered / (machines * now) if now > 0.0 else 1.0
            delayed = waiting / max(1.0 - load, 1e-3)
            price += delayed / machines
            for q in range(active):
                job = queue[q]
                if upcoming[job] > first[job] and now - assessed[job] >= look:
                    assessed[job] = now
                    assess(
                        job, now, first, upcoming, done, law, scale, copies, begun, tables,
                        begins, steps, means, paying, most, unit, saving, extra,
                    )  # fmt: skip
        while free > 0:
            chosen, copy = -1, False
            if rule == EVERY_TASK:
                # Copies of a task follow one another in the queue.
                for q in range(active):
                    job = queue[q]
                    for task in range(first[job], upcoming[job]):
                        if not done[task] and copies[task] < most:
                            chosen, copy = task, True
                            break
                    if chosen < 0 and upcoming[job] < first[job + 1]:
                        chosen = upcoming[job]
                    if chosen >= 0:
                        break
            else:
                if rule == BY_SAVING:
                    best = 0.0
                    for q in range(active):
                        job = queue[q]
                        for task in range(first[job], upcoming[job]):
                            if not done[task] and copies[task] < most:
                                gain = saving[task] - price * extra[task]
                                if gain > best:
                                    best = gain
                                    chosen, copy = task, True
                if chosen < 0 and (waiting > 0 or rule == LATE_TASKS):
                    for q in range(active):
                        job = queue[q]
                        if upcoming[job] < first[job + 1]:
                            chosen = upcoming[job]
                            break
                        if rule == LATE_TASKS:
                            chosen = _late_task(
                                job, now, first, done, copies, begun, won, durations,
                                remaining[job], most, late_factor, late_share,
                            )  # fmt: skip
                            if chosen >= 0:
                                copy = True
                                break
            if chosen < 0:
                break
            job = owner[chosen]
            number = copies[chosen]
            begun[chosen, number] = now
            copies[chosen] += 1
            free -= 1
            if now + durations[chosen, number] < ends[chosen]:
                ends[chosen] = now + durations[chosen, number]
                won[chosen] = number
                size = _push(times, heap, size, ends[chosen], chosen)
            if not copy:
                if chosen == first[job]:
                    started[job] = now
                upcoming[job] += 1
                if upcoming[job] == first[job + 1]:
                    waiting -= 1
            if rule == BY_SAVING:
                assessed[job] = now
                assess(
                    job, now, first, upcoming, done, law, scale, copies, begun, tables,
                    begins, steps, means, paying, most, unit, saving, extra,
                )  # fmt: skip
        if free > 0 and free < machines and rule >= LATE_TASKS:
            tick = now + look
    return wasted


@kernel
def _late_task(
    job: int,
    now: float,
    first: Integers,
    done: NDArray[np.bool_],
    copies: Integers,
    begun: Floats,
    won: Integers,
    durations: Floats,
    remaining: int,
    most: int,
    late_factor: float,
    late_share: float,
) -> int:
    """Return the task that has run longest among the late ones of a job, or -1."""
    total = first[job + 1] - first[job]
    if remaining == 0 or (total - remaining) < late_share * total or total == remaining:
        return -1
    finished = np.empty(total - remaining)
    n = 0
    for task in range(first[job], first[job + 1]):
        if done[task]:
            finished[n] = durations[task, won[task]]
            n += 1
    limit = late_factor * np.median(finished)
    chosen, longest = -1, limit
    for task in range(first[job], first[job + 1]):
        if not done[task] and copies[task] < most:
            age = now - begun[task, copies[task] - 1]
            if age > longest:
                chosen, longest = task, age
    return chosen
