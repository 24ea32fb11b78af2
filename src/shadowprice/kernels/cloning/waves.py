"""Kernel of the heavily loaded regime: jobs of many tasks on few machines of one task each.

Events are arrivals, ends of tasks and, while machines idle, periodic checks of running tasks. On a
free machine the rule starts the next waiting task of the first job in the queue, or a copy of a
running task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.saving import DistributionTables, Gains, Tasks, assess
from shadowprice.kernels.jit import inlined, kernel

# Kinds of rules (`Rule.kind`): which tasks get copies.
NO_COPIES = 0
EVERY_TASK = 1
LATE_TASKS = 2
BY_SAVING = 3

# Entries of `_RunState.counts`: free machines, jobs in the queue, jobs with tasks to start, entries
# of the heap of ends, arrived jobs, unfinished jobs.
FREE, ACTIVE, WAITING, ENDS, ARRIVED, UNFINISHED = range(6)


class Rule(NamedTuple):
    """Rule for a free machine."""

    kind: int  # `NO_COPIES`, `EVERY_TASK`, `LATE_TASKS` or `BY_SAVING`
    # `LATE_TASKS`: a task is late if its age exceeds the median duration of its job's finished
    # tasks by this factor, once this share of the job's tasks have finished.
    late_factor: float
    late_share: float
    # `BY_SAVING`: price of a machine second in seconds of flowtime, without the delay of jobs.
    machine_price: float
    check_period: float  # seconds between checks while machines idle, and validity of savings


class ArrivingJobs(NamedTuple):
    """The arriving jobs, as arrays of shape (jobs,) or (tasks,)."""

    arrival: Floats  # seconds, ascending
    order: Integers  # rank of each job in the queue, lower first
    first: Integers  # first task of each job, shape (jobs + 1,)
    owner: Integers  # job of each task
    durations: Floats  # seconds of each copy, shape (tasks, maximum copies); no rule reads them


class WaveOutcome(NamedTuple):
    """Result of a run, as arrays of shape (jobs,) or (tasks,)."""

    started: Floats  # start of a job's first task
    finish: Floats  # end of the job
    work: Floats  # its machine seconds; 0 before the run
    won: Integers  # copy of each task that ended first


class _RunState(NamedTuple):
    """State of a run, as arrays of shape (jobs,) or (tasks,)."""

    counts: Integers  # by the constants above, shape (6,)
    ends: Floats  # end of each task, inf before its start and -1 after its end
    next_task: Integers  # the next task of each job to start
    remaining: Integers  # number of a job's tasks that have not ended
    queue: Integers  # arrived jobs that aren't done, in order
    assessed: Floats  # time of the last evaluation of each job's copies; -inf if outdated
    end_times: Floats  # heap of ends of copies, the earliest on top, (tasks * maximum copies,)
    heap: Integers  # the tasks of these ends


@inlined
def _push(times: Floats, tasks: Integers, size: int, time: float, task: int) -> int:
    """Add an end to the heap; equal ends are in the order of tasks."""
    position = size
    while position > 0:
        parent = (position - 1) // 2
        if times[parent] < time or (times[parent] == time and tasks[parent] <= task):
            break
        times[position] = times[parent]
        tasks[position] = tasks[parent]
        position = parent
    times[position] = time
    tasks[position] = task
    return size + 1


@kernel
def _pop(times: Floats, tasks: Integers, size: int) -> int:
    """Remove the first end from the heap."""
    size -= 1
    time, task = times[size], tasks[size]
    position = 0
    while True:
        child = 2 * position + 1
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
        times[position] = times[child]
        tasks[position] = tasks[child]
        position = child
    times[position] = time
    tasks[position] = task
    return size


@inlined
def _initial_state(machines: int, jobs: ArrivingJobs, tasks: Tasks) -> _RunState:
    job_count = len(jobs.arrival)
    counts = np.zeros(6, dtype=np.int64)
    counts[FREE] = machines
    counts[UNFINISHED] = job_count
    size = tasks.copy_starts.shape[0] * tasks.copy_starts.shape[1]
    return _RunState(
        counts,
        np.full(len(tasks.distribution), np.inf),
        jobs.first[:-1].copy(),
        jobs.first[1:] - jobs.first[:-1],
        np.empty(job_count, dtype=np.int64),
        np.full(job_count, -np.inf),
        np.empty(size),
        np.empty(size, dtype=np.int64),
    )


@inlined
def _next_end(state: _RunState) -> float:
    """Return the time of the next task's end, inf if none runs."""
    end_times, heap, counts = state.end_times, state.heap, state.counts
    while counts[ENDS] > 0 and end_times[0] != state.ends[heap[0]]:
        # Skip this end, because a faster copy of the task has already ended.
        counts[ENDS] = _pop(end_times, heap, counts[ENDS])
    return end_times[0] if counts[ENDS] > 0 else np.inf


@inlined
def _end(
    now: float, wasted: float, jobs: ArrivingJobs, tasks: Tasks, state: _RunState, out: WaveOutcome
) -> float:
    """End the next task; return the machine seconds so far of copies that didn't win."""
    counts, queue = state.counts, state.queue
    task = state.heap[0]
    counts[ENDS] = _pop(state.end_times, state.heap, counts[ENDS])
    tasks.done[task] = True
    state.ends[task] = -1.0
    job = jobs.owner[task]
    for c in range(tasks.copies[task]):
        out.work[job] += now - tasks.copy_starts[task, c]
        if c != out.won[task]:
            wasted += now - tasks.copy_starts[task, c]
    counts[FREE] += tasks.copies[task]
    state.assessed[job] = -np.inf
    state.remaining[job] -= 1
    if state.remaining[job] == 0:
        out.finish[job] = now
        counts[UNFINISHED] -= 1
        position = 0
        while queue[position] != job:
            position += 1
        for q in range(position, counts[ACTIVE] - 1):
            queue[q] = queue[q + 1]
        counts[ACTIVE] -= 1
    return wasted


@inlined
def _arrive(
    offered: float,
    jobs: ArrivingJobs,
    tasks: Tasks,
    distributions: DistributionTables,
    state: _RunState,
) -> float:
    """Add the next job to the queue; return ``offered``, the arrived work in seconds."""
    counts, queue, order = state.counts, state.queue, jobs.order
    job = counts[ARRIVED]
    counts[ARRIVED] += 1
    position = counts[ACTIVE]
    while position > 0 and order[queue[position - 1]] > order[job]:
        queue[position] = queue[position - 1]
        position -= 1
    queue[position] = job
    counts[ACTIVE] += 1
    counts[WAITING] += 1
    for task in range(jobs.first[job], jobs.first[job + 1]):
        offered += distributions.means[tasks.distribution[task]] * tasks.scale[task]
    return offered


@inlined
def _assess_job(
    job: int,
    now: float,
    jobs: ArrivingJobs,
    tasks: Tasks,
    distributions: DistributionTables,
    unit: Floats,
    state: _RunState,
    gains: Gains,
) -> None:
    """Evaluate one more copy of each started task of a job; see `assess`."""
    state.assessed[job] = now
    low, high = jobs.first[job], state.next_task[job]
    assess(low, high, high == jobs.first[job + 1], now, tasks, distributions, unit, gains)


@inlined
def _next_of_full(jobs: ArrivingJobs, tasks: Tasks, state: _RunState) -> tuple[int, bool]:
    """Return the first task in the queue with less than all copies, and whether it runs.

    The task is -1 if there is none. For `EVERY_TASK`.
    """
    max_copies = tasks.copy_starts.shape[1]
    for q in range(state.counts[ACTIVE]):
        job = state.queue[q]
        for task in range(jobs.first[job], state.next_task[job]):
            if not tasks.done[task] and tasks.copies[task] < max_copies:
                return task, True
        if state.next_task[job] < jobs.first[job + 1]:
            return state.next_task[job], False
    return -1, False


@inlined
def _next_by_saving(
    price: float, jobs: ArrivingJobs, tasks: Tasks, state: _RunState, gains: Gains
) -> int:
    """Return the task whose next copy saves most beyond its price, or -1."""
    max_copies = tasks.copy_starts.shape[1]
    chosen, best = -1, 0.0
    for q in range(state.counts[ACTIVE]):
        job = state.queue[q]
        for task in range(jobs.first[job], state.next_task[job]):
            if not tasks.done[task] and tasks.copies[task] < max_copies:
                gain = gains.saving[task] - price * gains.extra[task]
                if gain > best:
                    best = gain
                    chosen = task
    return chosen


@inlined
def _next_in_turn(
    now: float, rule: Rule, jobs: ArrivingJobs, tasks: Tasks, state: _RunState, out: WaveOutcome
) -> tuple[int, bool]:
    """Return the first task in the queue that waits or is late, or -1, and whether it is late.

    Jobs are visited in the order of the queue; a job's late tasks come after its waiting tasks.
    """
    if state.counts[WAITING] > 0 or rule.kind == LATE_TASKS:
        for q in range(state.counts[ACTIVE]):
            job = state.queue[q]
            if state.next_task[job] < jobs.first[job + 1]:
                return state.next_task[job], False
            if rule.kind == LATE_TASKS:
                late = _late_task(job, now, rule, jobs, tasks, state.remaining[job], out.won)
                if late >= 0:
                    return late, True
    return -1, False


@inlined
def _begin(
    task: int,
    copy: bool,
    now: float,
    jobs: ArrivingJobs,
    tasks: Tasks,
    state: _RunState,
    out: WaveOutcome,
) -> None:
    """Start a task, or one more copy of a running task, on a free machine."""
    counts = state.counts
    job = jobs.owner[task]
    number = tasks.copies[task]
    tasks.copy_starts[task, number] = now
    tasks.copies[task] += 1
    counts[FREE] -= 1
    if now + jobs.durations[task, number] < state.ends[task]:
        state.ends[task] = now + jobs.durations[task, number]
        out.won[task] = number
        counts[ENDS] = _push(state.end_times, state.heap, counts[ENDS], state.ends[task], task)
    if not copy:
        if task == jobs.first[job]:
            out.started[job] = now
        state.next_task[job] += 1
        if state.next_task[job] == jobs.first[job + 1]:
            counts[WAITING] -= 1


@kernel
def run_waves(
    machines: int,
    rule: Rule,
    jobs: ArrivingJobs,
    tasks: Tasks,
    distributions: DistributionTables,
    unit: Floats,
    out: WaveOutcome,
) -> float:
    """Run all jobs to their end under one rule; return the machine seconds of losing copies.

    No task may have started. ``unit`` (points,) is the grid of `assess`, ascending from 0.
    ``tasks`` and ``out`` are written.
    """
    state = _initial_state(machines, jobs, tasks)
    counts = state.counts
    gains = Gains(np.zeros(len(tasks.distribution)), np.zeros(len(tasks.distribution)))
    offered, wasted, tick = 0.0, 0.0, np.inf
    while counts[UNFINISHED] > 0:
        end = _next_end(state)
        arrive = np.inf
        if counts[ARRIVED] < len(jobs.arrival):
            arrive = jobs.arrival[counts[ARRIVED]]
        now = min(end, arrive, tick)
        tick = np.inf
        if end == now:
            wasted = _end(now, wasted, jobs, tasks, state, out)
        elif arrive == now:
            offered = _arrive(offered, jobs, tasks, distributions, state)
        price = rule.machine_price
        if rule.kind == BY_SAVING and counts[FREE] > 0:
            # A machine second delays by 1 / M each job that waits or arrives before the queue is
            # empty. These are Q / (1 - load), because work drains at the rate M (1 - load).
            load = offered / (machines * now) if now > 0.0 else 1.0
            delayed = counts[WAITING] / max(1.0 - load, 1e-3)
            price += delayed / machines
            for q in range(counts[ACTIVE]):
                job = state.queue[q]
                has_started = state.next_task[job] > jobs.first[job]
                if has_started and now - state.assessed[job] >= rule.check_period:
                    _assess_job(job, now, jobs, tasks, distributions, unit, state, gains)
        while counts[FREE] > 0:
            chosen, copy = -1, True
            if rule.kind == EVERY_TASK:
                chosen, copy = _next_of_full(jobs, tasks, state)
            else:
                if rule.kind == BY_SAVING:
                    chosen = _next_by_saving(price, jobs, tasks, state, gains)
                if chosen < 0:
                    chosen, copy = _next_in_turn(now, rule, jobs, tasks, state, out)
            if chosen < 0:
                break
            _begin(chosen, copy, now, jobs, tasks, state, out)
            if rule.kind == BY_SAVING:
                _assess_job(jobs.owner[chosen], now, jobs, tasks, distributions, unit, state, gains)
        if 0 < counts[FREE] < machines and rule.kind >= LATE_TASKS:
            tick = now + rule.check_period
    return wasted


@inlined
def _late_task(
    job: int,
    now: float,
    rule: Rule,
    jobs: ArrivingJobs,
    tasks: Tasks,
    remaining: int,
    won: Integers,
) -> int:
    """Return the late task of a job whose newest copy has run longest, or -1."""
    low, high = jobs.first[job], jobs.first[job + 1]
    total = high - low
    if remaining == 0 or (total - remaining) < rule.late_share * total or total == remaining:
        return -1
    finished = np.empty(total - remaining)
    n = 0
    for task in range(low, high):
        if tasks.done[task]:
            finished[n] = jobs.durations[task, won[task]]
            n += 1
    limit = rule.late_factor * np.median(finished)
    chosen, longest = -1, limit
    for task in range(low, high):
        if not tasks.done[task] and tasks.copies[task] < tasks.copy_starts.shape[1]:
            age = now - tasks.copy_starts[task, tasks.copies[task] - 1]
            if age > longest:
                chosen, longest = task, age
    return chosen
