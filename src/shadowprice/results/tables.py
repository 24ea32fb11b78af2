"""Tables of a run, built from a recorder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension, format_amount
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.devices import gpus_per_worker
from shadowprice.core.events import (
    Charge,
    Commit,
    Drop,
    JobCancelled,
    Promise,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.utility import Deadline, Sigmoid, utility_record, utility_value
from shadowprice.results.columns import slot_blocks, typed_columns
from shadowprice.results.fairness import finish_time_fairness
from shadowprice.results.recorder import Floats, Integers, JobDecision, PlacementSegments, Recorder
from shadowprice.results.server_names import plan_with_server_names


def job_class(job: Job) -> str:
    """Return the utility class that results are grouped by.

    This is the label ``class`` if the job has one. Otherwise it is OASiS's class by the decay of
    the sigmoid (section V: 0; 0.01 to 1; 4 to 6), ``deadline``, or the kind of utility.
    """
    if "class" in job.labels:
        return job.labels["class"]
    utility = job.utility
    if isinstance(utility, Sigmoid):
        if utility.decay == 0:
            return "time-insensitive"
        return "time-sensitive" if utility.decay < 2 else "time-critical"
    return utility.kind


def job_target(job: Job) -> float | None:
    """Return the latest ``d`` at which a job meets its target; None if it has no target.

    ``d`` is the completion slot less the arrival slot, as in utilities. A bag of tasks has a
    deadline within a slot; its target is that slot.
    """
    if job.bag is not None:
        return float(job.bag.slots - 1)
    utility = job.utility
    if isinstance(utility, Sigmoid):
        return utility.target
    return utility.by if isinstance(utility, Deadline) else None


def job_table(recorder: Recorder) -> pl.DataFrame:
    """Return one row for each job, in the order of the workload.

    Columns
    -------
    job, tenant, class, arrival
        From the workload; ``class`` as in `job_class`.
    submitted
        Time of submission, in slots; the arrival slot is the first that starts no earlier.
    outcome
        ``finished``, ``refused``, ``dropped``, ``cancelled``; ``running``, ``waiting`` or
        ``not arrived`` if the run ended before the job did.
    reason, message
        Why the job was refused, dropped or cancelled.
    start, completion
        First slot in which the job ran, and completion slot.
    ended
        First slot after the completion slot, or the slot in which the job was refused, dropped or
        cancelled; null if the run ended before the job did.
    jct
        Slots from the submission to the end of the completion slot.
    utility, value
        Earned utility, and the utility at the shortest possible duration.
    target, due, late
        Target, as completion slot less arrival slot (see `job_target`); time in slots at the end of
        the last slot that meets it; slots from that time to the end of the completion slot.
    worker_slots, ps_slots, workers_peak
        Workers and parameter servers summed over slots; maximum number of workers in a slot.
    progress, required
        Progress units made and needed.
    admitted
        First slot in which the policy committed to the job or promised it, else null.
    plans
        Number of commitments and promises; more than one if the job was replanned.
    restarts
        Number of moves, resizes and resumptions after a pause; of a bag of tasks, the number of
        times that unfinished tasks started over.
    lost_gpu_hours
        GPU-hours that restarts took, and that tasks ran which started over. A worker without GPUs
        counts as one GPU.
    finish_time_fairness
        See `fairness`; null unless the job finished.
    demand, ps_demand, worth, shape
        Requested amounts in the notation of job files, and JSON of utility and size.
    """
    segments = recorder.segments()
    count = len(recorder.jobs)
    spans = segments.ends - segments.starts
    worker_slots = _sum_by(segments.jobs, segments.workers * spans, count)
    ps_slots = _sum_by(segments.jobs, segments.ps * spans, count)
    placements = _placements(segments)
    peak = np.zeros(count, dtype=np.int64)
    np.maximum.at(peak, placements.jobs, placements.workers)
    restarts, lost_gpu_hours = _restarts(recorder, placements)
    committed: dict[str, list[int]] = {}
    ended = _end_slots(recorder)
    for slot, decision in recorder.decisions:
        if isinstance(decision, Commit | Promise):
            committed.setdefault(decision.job, []).append(slot)
    describe = _Descriptions(recorder.cluster)
    rows: list[tuple[object, ...]] = []
    for job in recorder.jobs:
        result = recorder.outcome(job.name)
        refusal = result.refusal if result is not None else None
        completion = result.completion if result is not None else None
        submitted = job.arrival - job.before_arrival
        jct = None if completion is None else completion - job.arrival + 1 + job.before_arrival
        target = job_target(job)
        due = None if target is None else job.arrival + target + 1
        late = None if completion is None or target is None else completion - job.arrival - target
        plans = committed.get(job.name, ())
        rows.append(
            (
                job.name,
                job.tenant,
                job_class(job),
                job.arrival,
                submitted,
                _outcome(result.status, result.started) if result else "not arrived",
                refusal.reason.value if refusal else None,
                refusal.message if refusal else None,
                result.started if result else None,
                completion,
                None if result is None or result.status.open else ended[job.name],
                jct,
                recorder.earned.get(job.name, 0.0),
                utility_value(job.utility, job.min_slots_colocated - 1),
                target,
                due,
                late,
                result.progress if result else 0,
                job.required,
                plans[0] if plans else None,
                len(plans),
                *describe.columns(job),
            )
        )
    schema = typed_columns(
        "job tenant class arrival:i submitted:f outcome reason message start:i completion:i "
        "ended:i jct:f utility:f value:f target:f due:f late:f progress:i required:i admitted:i "
        "plans:s demand ps_demand worth shape"
    )
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(
        pl.Series("restarts", restarts, dtype=pl.Int32()),
        pl.Series("lost_gpu_hours", lost_gpu_hours),
        finish_time_fairness(recorder.cluster, recorder.jobs, frame),
        pl.Series("worker_slots", worker_slots),
        pl.Series("ps_slots", ps_slots),
        pl.Series("workers_peak", peak),
    )


def _end_slots(recorder: Recorder) -> dict[str, int]:
    """Return the first slot in which each closed job was no longer present."""
    ended = {
        incident.job: incident.slot
        for incident in recorder.incidents
        if isinstance(incident, JobCancelled)
    }
    for slot, decision in recorder.decisions:
        if isinstance(decision, Reject | Drop):
            ended[decision.job] = slot
    # Last, because cancelling a completed job has no effect.
    for name, completion in recorder.completions.items():
        ended[name] = completion + 1
    return ended


def _outcome(status: Status, started: int | None) -> str:
    if status.open:
        return "waiting" if started is None else "running"
    return status.value


def _sum_by(keys: Integers, values: Integers, count: int) -> Integers:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, keys, values)
    return total


class _Placements(NamedTuple):
    """Job and total workers of each placement, ordered by job, then by start."""

    jobs: Integers
    workers: Integers


def _placements(segments: PlacementSegments) -> _Placements:
    """Sum the workers of segments with the same job and start, which form one placement."""
    if not len(segments.jobs):
        return _Placements(segments.jobs, segments.workers)
    order = np.lexsort((segments.starts, segments.jobs))
    jobs, starts = segments.jobs[order], segments.starts[order]
    first = np.flatnonzero(np.r_[True, (np.diff(jobs) != 0) | (np.diff(starts) != 0)])
    return _Placements(jobs[first], np.add.reduceat(segments.workers[order], first))


def _restarts(recorder: Recorder, placements: _Placements) -> tuple[Integers, Floats]:
    """Return each job's number of restarts, and the GPU-hours lost to starts and repeated work.

    Every placement after a job's first is a restart, and takes the restart time of all its workers.
    The first takes it only if `Cluster.restart_first` is set. A bag of tasks restarts if a new plan
    starts its unfinished tasks over. A smaller placement only means that some copies ended.
    """
    cluster, jobs = recorder.cluster, recorder.jobs
    is_restart = np.r_[False, np.diff(placements.jobs) == 0][: len(placements.jobs)]
    restarts = np.bincount(placements.jobs[is_restart], minlength=len(jobs)).astype(np.int64)
    takes_time = is_restart | cluster.restart_first
    lost = np.zeros(len(jobs))  # in worker-slots
    np.add.at(lost, placements.jobs[takes_time], placements.workers[takes_time].astype(np.float64))
    lost *= np.array([float(job.restart) for job in jobs])
    for name, attempts in recorder.attempts.items():
        row = recorder.order[name]
        restarts[row], lost[row] = attempts.restarts, attempts.repeated
    hours = float(cluster.slot_seconds) / 3600
    for row in np.flatnonzero(lost).tolist():
        demand = zip(cluster.resources, jobs[row].worker.tolist(), strict=True)
        lost[row] *= hours * gpus_per_worker(demand)
    return restarts, lost


_JSON: Final = json.JSONEncoder().encode


class _Descriptions:
    """Formats the requests of jobs; caches the texts of equal demands."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._demands: dict[bytes, str] = {}

    def columns(self, job: Job) -> tuple[str, str | None, str, str]:
        """Return ``demand``, ``ps_demand``, ``worth`` and ``shape`` of the job table."""
        shape: dict[str, object] = {
            "epochs": job.epochs,
            "chunks": job.chunks,
            "minibatches": job.minibatches,
            "step_seconds": job.step_seconds,
            "workers": [int(job.worker_counts[0]), job.max_workers],
            "choices": len(job.worker_counts),
            "shortest_slots": job.min_slots_colocated,
        }
        if job.bag is not None:
            shape |= {
                "tasks": [
                    [group.count, group.distribution.name, group.distribution.mean]
                    for group in job.bag.groups
                ],
                "deadline_slots": job.bag.deadline,
                "miss_probability": job.bag.miss_probability,
            }
        return (
            self._demand(job.worker, job.worker_bandwidth),
            None if job.ps is None else self._demand(job.ps, job.ps_bandwidth),
            _JSON(utility_record(job.utility)),
            _JSON(shape),
        )

    def _demand(self, amounts: Integers, bandwidth: int) -> str:
        key = amounts.tobytes() + bandwidth.to_bytes(8, "little")
        if key not in self._demands:
            parts = [
                f"{name} {format_amount(int(amount), dimension)}"
                for name, dimension, amount in zip(
                    self._cluster.resources, self._cluster.dimensions, amounts, strict=True
                )
                if amount and name != BANDWIDTH
            ]
            if bandwidth:
                parts.append(f"{BANDWIDTH} {format_amount(bandwidth, Dimension.RATE)}")
            self._demands[key] = ", ".join(parts)
        return self._demands[key]


# ---------------------------------------------------------------- decisions and payments


def decision_records(recorder: Recorder, *, plans: bool = True) -> Iterator[dict[str, object]]:
    """Yield the lines of ``decisions.jsonl`` in order; ``plans`` adds the committed schedules."""
    promised: set[str] = set()
    names = recorder.cluster.names if plans else None
    for slot, decision in recorder.decisions:
        record = _decision(slot, decision, names)
        if isinstance(decision, Promise):
            if decision.job in promised:
                record["outcome"] = "moved"
            promised.add(decision.job)
        yield record


def _decision(slot: int, decision: JobDecision, names: Sequence[str] | None) -> dict[str, object]:
    record: dict[str, object] = {
        "job": decision.job,
        "slot": slot,
        "outcome": "queued",
        "reason": None,
        "payoff": None,
        "utility": None,
        "cost": None,
        "completion": None,
    }
    match decision:
        case Commit() | Promise():
            record["outcome"] = "admitted"
            record["payoff"] = plain(decision.payoff)
            record["utility"] = plain(decision.utility)
            record["cost"] = plain(decision.cost)
            if isinstance(decision, Promise):
                record["reason"] = decision.message or None
                record["completion"] = decision.expected
                record["promise"] = decision.completion
            else:
                record["completion"] = record["promise"] = decision.schedule.completion
                if decision.payoff_bound is not None:
                    record["payoff_bound"] = plain(decision.payoff_bound)
            if decision.copies:
                record["copies"] = [list(entry) for entry in decision.copies]
            if names is not None and isinstance(decision, Commit):
                record["plan"] = plan_with_server_names(decision.schedule.rows(), names)
        case Reject(refusal=refusal) | Drop(refusal=refusal):
            record["outcome"] = "rejected" if isinstance(decision, Reject) else "dropped"
            record["reason"] = refusal.reason.value
            if refusal.value is not None and refusal.cost is not None:
                record["payoff"] = plain(refusal.value - refusal.cost)
            record["utility"] = plain(refusal.value)
            record["cost"] = plain(refusal.cost)
            record["completion"] = refusal.completion
            record["refusal"] = plain(refusal.record())
        case Queue():
            record["reason"] = decision.message or None
    return record


def payment_record(charge: Charge) -> dict[str, object]:
    """Return a line of ``payments.jsonl``; amounts are converted from micro-units of utility."""
    record: dict[str, object] = {
        "job": charge.job,
        "slot": charge.slot,
        "payer": charge.payer,
        "payee": charge.payee,
    }
    for kind in ("worker", "ps"):
        if not any(name.startswith(kind) for name in charge.amounts):
            record[kind] = 0.0
    record.update({name: amount / 1_000_000 for name, amount in charge.amounts.items()})
    return record


def plain(value: object) -> object:
    """Convert a value to JSON types: numbers for numpy and fractions, None for NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating | Fraction):
        number = float(value)
        if math.isfinite(number):
            return number
        return None if math.isnan(number) else str(number)
    return str(value)


HEAT_ROWS: Final = 512
"""Maximum number of rows of a heat map; larger clusters average neighbouring servers."""

ALLOCATIONS: Final = typed_columns("slot:i job server:s workers:s ps:s")
MAX_GAP_ROWS: Final = 10_000  # maximum number of idle slots between busy ones that have a row each

_BLOCK_ROWS: Final = 200_000
"""Rows processed in one step: temporary arrays take hundreds of bytes for each row."""

Rows = NDArray[np.int32]


def expand(segments: PlacementSegments) -> tuple[Integers, Rows]:
    """Return (slot, segment row) of all allocations, ordered by slot, job and server."""
    spans = segments.ends - segments.starts
    rows = np.repeat(np.arange(len(spans), dtype=np.int32), spans)  # at most `bounds.ROWS`
    slots = np.arange(len(rows), dtype=np.int64)
    # A segment's slots are its row numbers plus a constant.
    slots += np.repeat(segments.starts - np.cumsum(spans) + spans, spans)
    if len(spans) == 1:  # already sorted; sorting would triple the memory
        return slots, rows
    order = np.lexsort((segments.servers[rows], segments.jobs[rows], slots))
    return slots[order], rows[order]


def allocation_table(recorder: Recorder, slots: Integers, rows: Rows) -> pl.DataFrame:
    """Return one row for each (slot, job, server); servers by position in the cluster."""
    segments = recorder.segments()
    names = pl.Series("job", [job.name for job in recorder.jobs], dtype=pl.String())
    return pl.DataFrame(
        {
            "slot": slots,
            "job": names.gather(segments.jobs.astype(np.uint32)[rows]),
            "server": segments.servers.astype(np.int32)[rows],
            "workers": segments.workers.astype(np.int32)[rows],
            "ps": segments.ps.astype(np.int32)[rows],
        },
        schema=ALLOCATIONS,
    )


def table_slots(recorder: Recorder) -> Integers:
    """Return the slots that have a row: a long idle stretch only has its first slot.

    A row represents all slots up to the next row, so sums over time stay right.
    """
    first, count = simulated_slots(recorder)
    simulated = np.array(recorder.slots, dtype=np.int64)
    simulated = simulated[simulated < first + count]
    gaps = np.flatnonzero(np.diff(simulated) > MAX_GAP_ROWS)
    if not len(gaps):
        return np.arange(first, first + count)
    starts = np.concatenate([[first], simulated[gaps + 1]])
    # Each stretch ends with the first idle slot, which represents the whole gap.
    ends = np.concatenate([simulated[gaps] + 2, [first + count]])
    return np.concatenate([np.arange(*pair) for pair in zip(starts, ends, strict=True)])


def simulated_slots(recorder: Recorder) -> tuple[int, int]:
    """Return the first simulated slot and the number of slots up to the last ended one."""
    if not recorder.slots:
        return 0, 0
    first = recorder.slots[0]
    return first, max(recorder.next_slot - first, 0)


def slot_table(recorder: Recorder, slots: Integers, rows: Rows) -> pl.DataFrame:
    """Return one row for each slot, from the first simulated one to the last that has ended.

    If more than `MAX_GAP_ROWS` consecutive slots are idle, only the first of them has a row.

    Columns
    -------
    slot, running, queue
        Running jobs, and jobs that arrived and wait, including those whose plan starts later.
    used_R, total_R
        Amount of each resource R over present servers that limit it: counts as in files, bytes,
        bit/s. ``total_R`` is null if no server limits the resource.
    price_R
        Price of all of a server's R for the slot, averaged over the servers that have R. Null if
        the policy posts no prices or the slot was skipped as idle.
    utility
        Utility of the jobs that completed in the slot.
    """
    cluster = recorder.cluster
    row_slots = table_slots(recorder)
    count = len(row_slots)
    used, totals = _usage(recorder, slots, rows, row_slots)
    positions = np.array(recorder.slots, dtype=np.int64)
    positions = np.searchsorted(row_slots, positions[positions < recorder.next_slot])
    columns: dict[str, object] = {"slot": row_slots}
    for name, values in (("running", recorder.running), ("queue", recorder.waiting)):
        column = np.zeros(count, dtype=np.int64)
        column[positions] = np.array(values, dtype=np.int64)[: len(positions)]
        columns[name] = column
    for index, resource in enumerate(cluster.resources):
        limited = bool((cluster.capacity[:, index] < UNLIMITED).any())
        columns[f"used_{resource}"] = _in_table_unit(used[:, index], cluster.dimensions[index])
        columns[f"total_{resource}"] = (
            _in_table_unit(totals[:, index], cluster.dimensions[index])
            if limited
            else pl.Series([None] * count, dtype=pl.Float64())
        )
    for index, resource in enumerate(cluster.resources):
        columns[f"price_{resource}"] = _prices(recorder, row_slots, index)
    earned = np.zeros(count)
    for name, utility in recorder.earned.items():
        completion = recorder.completions[name]
        earned[np.searchsorted(row_slots, completion)] += utility
    columns["utility"] = earned
    return pl.DataFrame(columns)


def _prices(recorder: Recorder, row_slots: Integers, resource: int) -> pl.Series:
    """Return the mean price of a resource in each slot; null without a posted price."""
    if not recorder.prices:
        return pl.Series([None], dtype=pl.Float64()).new_from_index(0, len(row_slots))
    rows = (recorder.prices.get(slot) for slot in row_slots.tolist())
    values = [None if row is None else float(row[resource]) for row in rows]
    return pl.Series(values, dtype=pl.Float64())


def _in_table_unit(values: Integers, dimension: Dimension) -> pl.Series:
    if dimension is Dimension.COUNT:
        return pl.Series(values / MILLI, dtype=pl.Float64())
    return pl.Series(values, dtype=pl.Int64())


def _usage(
    recorder: Recorder, slots: Integers, rows: Rows, row_slots: Integers
) -> tuple[Integers, Integers]:
    """Return used and total amounts, shape (slots, resources).

    Servers count for the resources that they limit, and in slots in which they aren't lost.
    """
    cluster, segments = recorder.cluster, recorder.segments()
    limited = cluster.capacity < UNLIMITED
    used = np.zeros((len(row_slots), len(cluster.resources)), dtype=np.int64)
    if len(slots):
        amounts = segment_usage(recorder, segments)
        amounts[~limited[segments.servers]] = 0
        starts = np.flatnonzero(np.r_[True, np.diff(slots) != 0])
        for column in range(len(cluster.resources)):
            sums = np.add.reduceat(amounts[rows, column], starts)
            used[np.searchsorted(row_slots, slots[starts]), column] = sums
    capacity = np.where(limited, cluster.capacity, 0)
    totals = np.tile(capacity.sum(axis=0), (len(row_slots), 1))
    for row, span in lost_spans(recorder, recorder.next_slot):
        first, end = np.searchsorted(row_slots, span)
        totals[first:end] -= capacity[row]
    return used, totals


def lost_spans(recorder: Recorder, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each loss of a server as (row, (first lost slot, slot of its return)).

    ``end`` stands for the return of a server that didn't return.
    """
    rows, lost = recorder.cluster.index, dict[str, int]()
    for incident in recorder.incidents:
        if isinstance(incident, ServerLost):
            lost.setdefault(incident.server, incident.slot)
        elif isinstance(incident, ServerBack) and incident.server in lost:
            yield rows[incident.server], (lost.pop(incident.server), incident.slot)
    for server, slot in lost.items():
        yield rows[server], (slot, end)


def segment_usage(recorder: Recorder, segments: PlacementSegments) -> Integers:
    """Return the amounts that each segment uses, shape (segments, resources)."""
    if not recorder.jobs:
        return np.zeros((0, len(recorder.cluster.resources)), dtype=np.int64)
    worker = np.stack([job.worker for job in recorder.jobs])
    zeros = np.zeros(worker.shape[1], dtype=np.int64)
    ps = np.stack([zeros if job.ps is None else job.ps for job in recorder.jobs])
    usage = np.asarray(
        segments.workers[:, None] * worker[segments.jobs]
        + segments.ps[:, None] * ps[segments.jobs],
        dtype=np.int64,
    )
    recorder.cluster.count_kinds(usage, segments.servers)
    return usage


def heat_table(recorder: Recorder, slots: Integers, rows: Rows) -> pl.DataFrame:
    """Return load and price over servers and time, at a bounded size.

    Columns
    -------
    slot, server
        First slot of the bin and first server of the group. A bin averages neighbouring slots and a
        group neighbouring servers, to stay within `HEAT_BINS` and `HEAT_ROWS`.
    share
        Used share of a server's scarcest resource.
    price
        Price of a whole server for a slot; null without prices.
    """
    cluster, segments = recorder.cluster, recorder.segments()
    group = max(1, math.ceil(cluster.servers / HEAT_ROWS))
    groups = math.ceil(cluster.servers / group)
    sizes = np.bincount(np.arange(cluster.servers) // group, minlength=groups)
    first, count = simulated_slots(recorder)
    per_bin = recorder.heat.slots_per_bin
    while math.ceil(count / per_bin) > recorder.heat.maximum:
        per_bin *= 2
    bins = math.ceil(count / per_bin)
    share = np.zeros((bins, groups))
    if len(slots):
        amounts = segment_usage(recorder, segments)
        for block in slot_blocks(slots, _BLOCK_ROWS):
            at_slots, at_servers, shares = _server_shares(
                recorder, segments, amounts, slots[block], rows[block]
            )
            np.add.at(share, ((at_slots - first) // per_bin, at_servers // group), shares)
        lengths = np.diff(np.minimum(np.arange(bins + 1) * per_bin, count))
        share /= lengths[:, None] * sizes
    # The recorder only widens its bins when it adds prices of later slots.
    while recorder.heat.slots_per_bin < per_bin:
        recorder.heat.halve()
    prices = np.full((bins, groups), np.nan)
    means = recorder.heat.means()[:bins]
    if len(means):
        prices[: len(means)] = np.add.reduceat(means, np.arange(groups) * group, axis=1) / sizes
    return pl.DataFrame(
        {
            "slot": np.repeat(first + np.arange(bins) * per_bin, groups),
            "server": np.tile(np.arange(groups, dtype=np.int32) * group, bins),
            "share": share.astype(np.float32).ravel(),
            "price": pl.Series(prices.astype(np.float32).ravel()).fill_nan(None),
        }
    )


def _server_shares(
    recorder: Recorder, segments: PlacementSegments, usage: Integers, slots: Integers, rows: Rows
) -> tuple[Integers, Integers, Floats]:
    """Return slot, server and used share of every server in every slot in which it is used."""
    servers = segments.servers[rows]
    order = np.lexsort((servers, slots))
    at_slots, at_servers = slots[order], servers[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(at_slots) != 0) | (np.diff(at_servers) != 0)])
    amounts = usage[rows[order]]
    used = np.add.reduceat(amounts, starts, axis=0)
    capacity = recorder.cluster.capacity[at_servers[starts]]
    shares = np.where(capacity > 0, used / np.maximum(capacity, 1), 0.0).max(axis=1)
    return at_slots[starts], at_servers[starts], shares
