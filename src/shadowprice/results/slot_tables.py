"""Tables of allocations by slot and server, from a recorder's segments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.results.columns import typed_columns
from shadowprice.results.recorder import Integers, PlacementSegments, Recorder

HEAT_ROWS: Final = 512
"""Maximum number of rows of a heat map; larger clusters average neighbouring servers."""

ALLOCATIONS: Final = typed_columns("slot:i job server:s workers:s ps:s")

MAX_GAP_ROWS: Final = 10_000  # maximum number of idle slots between busy ones that have a row each

_BLOCK: Final = 200_000
"""Rows processed in one step: temporary arrays take hundreds of bytes for each row."""

Floats = NDArray[np.float64]
Rows = NDArray[np.int32]


def expand(segments: PlacementSegments) -> tuple[Integers, Rows]:
    """Return (slot, segment row) of all allocations, ordered by slot, job and server."""
    spans = segments.ends - segments.starts
    rows = np.repeat(np.arange(len(spans), dtype=np.int32), spans)  # `bounds.ROWS` of them at most
    slots = np.arange(len(rows), dtype=np.int64)
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
    every = table_slots(recorder)
    count = len(every)
    used, totals = _usage(recorder, slots, rows, every)
    positions = np.array(recorder.slots, dtype=np.int64)
    positions = np.searchsorted(every, positions[positions < recorder.next_slot])
    columns: dict[str, object] = {"slot": every}
    for name, values in (("running", recorder.running), ("queue", recorder.waiting)):
        column = np.zeros(count, dtype=np.int64)
        column[positions] = np.array(values, dtype=np.int64)[: len(positions)]
        columns[name] = column
    for index, resource in enumerate(cluster.resources):
        limited = bool((cluster.capacity[:, index] < UNLIMITED).any())
        columns[f"used_{resource}"] = _natural(used[:, index], cluster.dimensions[index])
        columns[f"total_{resource}"] = (
            _natural(totals[:, index], cluster.dimensions[index])
            if limited
            else pl.Series([None] * count, dtype=pl.Float64())
        )
    for index, resource in enumerate(cluster.resources):
        columns[f"price_{resource}"] = _prices(recorder, every, index)
    earned = np.zeros(count)
    for name, utility in recorder.earned.items():
        completion = recorder.completions[name]
        earned[np.searchsorted(every, completion)] += utility
    columns["utility"] = earned
    return pl.DataFrame(columns)


def _prices(recorder: Recorder, every: Integers, resource: int) -> pl.Series:
    """Return the mean price of a resource in each slot; null without a posted price."""
    if not recorder.prices:
        return pl.Series([None], dtype=pl.Float64()).new_from_index(0, len(every))
    rows = (recorder.prices.get(slot) for slot in every.tolist())
    values = [None if row is None else float(row[resource]) for row in rows]
    return pl.Series(values, dtype=pl.Float64())


def _natural(values: Integers, dimension: Dimension) -> pl.Series:
    if dimension is Dimension.COUNT:
        return pl.Series(values / MILLI, dtype=pl.Float64())
    return pl.Series(values, dtype=pl.Int64())


def _usage(
    recorder: Recorder, slots: Integers, rows: Rows, every: Integers
) -> tuple[Integers, Integers]:
    """Return used and total amounts, shape (slots, resources), of servers that limit them.

    Lost servers don't count towards the total until they are back.
    """
    cluster, segments = recorder.cluster, recorder.segments()
    limited = cluster.capacity < UNLIMITED
    used = np.zeros((len(every), len(cluster.resources)), dtype=np.int64)
    if len(slots):
        amounts = segment_usage(recorder, segments)
        amounts[~limited[segments.servers]] = 0
        starts = np.flatnonzero(np.r_[True, np.diff(slots) != 0])
        for column in range(len(cluster.resources)):
            sums = np.add.reduceat(amounts[rows, column], starts)
            used[np.searchsorted(every, slots[starts]), column] = sums
    capacity = np.where(limited, cluster.capacity, 0)
    totals = np.tile(capacity.sum(axis=0), (len(every), 1))
    lost: set[int] = set()
    for incident in recorder.incidents:
        if isinstance(incident, JobCancelled):
            continue
        start, row = int(np.searchsorted(every, incident.slot)), cluster.index[incident.server]
        if isinstance(incident, ServerLost) and row not in lost:
            lost.add(row)
            totals[start:] -= capacity[row]
        elif isinstance(incident, ServerBack) and row in lost:
            lost.discard(row)
            totals[start:] += capacity[row]
    return used, totals


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
    while math.ceil(count / per_bin) > recorder.heat.most:
        per_bin *= 2
    bins = math.ceil(count / per_bin)
    share = np.zeros((bins, groups))
    if len(slots):
        amounts = segment_usage(recorder, segments)
        for block in _blocks(slots):
            at_slots, at_servers, shares = _server_shares(
                recorder, segments, amounts, slots[block], rows[block]
            )
            np.add.at(share, ((at_slots - first) // per_bin, at_servers // group), shares)
        lengths = np.diff(np.minimum(np.arange(bins + 1) * per_bin, count))
        share /= lengths[:, None] * sizes
    # Prices were averaged in narrower bins.
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


def _blocks(slots: Integers) -> Iterator[slice]:
    """Split ascending slots into slices of bounded size that never split a slot."""
    start = 0
    while start < len(slots):
        last = slots[min(start + _BLOCK, len(slots)) - 1]
        end = int(np.searchsorted(slots, last, side="right"))
        yield slice(start, end)
        start = end


def _server_shares(
    recorder: Recorder, segments: PlacementSegments, held: Integers, slots: Integers, rows: Rows
) -> tuple[Integers, Integers, Floats]:
    """Return slot, server and used share of every server in every slot that uses it."""
    servers = segments.servers[rows]
    order = np.lexsort((servers, slots))
    at_slots, at_servers = slots[order], servers[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(at_slots) != 0) | (np.diff(at_servers) != 0)])
    amounts = held[rows[order]]
    used = np.add.reduceat(amounts, starts, axis=0)
    capacity = recorder.cluster.capacity[at_servers[starts]]
    shares = np.where(capacity > 0, used / np.maximum(capacity, 1), 0.0).max(axis=1)
    return at_slots[starts], at_servers[starts], shares
