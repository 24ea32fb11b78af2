"""Section on every job: when it waited and ran, its plan, placements and payments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.results.accounts import PAYMENT_KEYS
from shadowprice.results.advice import advice_lines, outcomes_with_advice
from shadowprice.results.job_history import JobHistory, PlacementSpan, history_lines
from shadowprice.results.report.inline_assets import data_script, round_numbers
from shadowprice.results.report.sections import OUTCOMES
from shadowprice.results.run_directory import Fields, RunData

MAX_CHARS: Final = 700_000
"""Maximum characters of all job histories in a page; the most valuable jobs are kept."""

MAX_HISTORIES: Final = 6000  # maximum number of job histories in a page, whatever their size

PLACEMENT_COLUMNS: Final = ("job", "server", "workers", "ps", "slot", "slots")
"""Columns of placements: position of the job, server, counts, first slot, duration."""

_KEYS: Final = ("at", "server", "workers", "ps")
"""Columns that identify a placement, apart from slots; ``at`` is the position of the job."""

_PIECE_ROWS: Final = 200_000  # rows of allocations that are merged in one step
PlacementColumns = dict[str, NDArray[np.int64]]

COLUMNS: Final[tuple[tuple[str, str, dict[str, bool]], ...]] = (
    ("job", "job", {"link": True}),
    ("class", "class", {"minor": True}),
    ("tenant", "tenant", {"minor": True}),
    ("outcome", "outcome", {"outcome": True}),
    ("arrival", "arrival", {"numeric": True, "slot": True, "minor": True}),
    ("start", "start", {"numeric": True, "slot": True, "minor": True}),
    ("completion", "completion", {"numeric": True, "slot": True}),
    ("late", "late", {"numeric": True, "minor": True}),
    ("worker_slots", "worker-slots", {"numeric": True, "minor": True}),
    ("value", "value", {"numeric": True, "minor": True}),
    ("cost", "price", {"numeric": True, "minor": True}),
    ("money", "cost", {"numeric": True, "minor": True}),
    ("utility", "utility", {"numeric": True}),
)
"""Columns of the job table: column, heading, and flags for the page's script.

Column ``cost`` is the cost of a decision, which is a price; ``money`` is the run's column ``cost``.
"""


def jobs(run: RunData) -> str:
    """Return the element of the job list, and the data of all job histories."""
    if not len(run.jobs):
        return ""
    block, included = histories_block(run)
    total = len(run.jobs)
    remark = ""
    if included < total:
        remark = (
            f'<p class="remark">This page has the histories of {included:,} of {total:,} jobs, '
            "those with the largest value. <code>shadowprice explain RUN JOB</code> prints any.</p>"
        )
    advice = run.info.get("advice")
    if advice is not None and advice["refused"]:
        suffix = "" if advice["advised"] == advice["refused"] else ", those with the largest value"
        outcomes = " or ".join(outcomes_with_advice(run.info))
        remark += (
            f'<p class="remark">Changes that get a job admitted are in the histories of '
            f"{advice['advised']:,} of {advice['refused']:,} {outcomes} jobs{suffix}.</p>"
        )
    return f'{remark}<div id="job-list"></div>{block}'


def histories_block(run: RunData, budget: int = MAX_CHARS) -> tuple[str, int]:
    """Return the data of as many job histories as fit into the budget, and their number."""
    chosen = run.jobs.with_row_index("row").sort("value", descending=True, maintain_order=True)
    count = min(len(run.jobs), MAX_HISTORIES)
    decisions = _decisions(run, set(chosen["job"].head(count)))
    while True:
        rows = np.sort(chosen["row"].head(count).to_numpy().astype(np.int64))
        block = data_script(histories_data(run, run.jobs[rows], decisions), "histories")
        if len(block) <= budget or count <= 1:
            return block, count
        # Slightly fewer than in proportion: histories differ in size.
        count = max(1, min(count - 1, int(count * budget / len(block) * 0.97)))


def histories_data(
    run: RunData, chosen: pl.DataFrame, decisions: Mapping[str, Sequence[Fields]]
) -> dict[str, Any]:
    """Return the data about some jobs for the page's script (``assets/histories.mjs``).

    ``chosen`` are rows of the job table. ``decisions`` holds each job's decisions with their plans.
    """
    names = chosen["job"].to_list()
    last = [decisions.get(name, [{}])[-1] for name in names]
    ran = _run_placements(run, names)
    plan = _plans_by_job(names, decisions, run.server_names)
    planned, unkept = _compare(ran, plan, len(names))
    # The cost of a decision is a price in units of utility. The run's column `cost` is money.
    priced = "cost" in chosen.columns
    frame = chosen.with_columns(
        pl.Series("cost", [record.get("cost") for record in last], dtype=pl.Float64()),
        money=chosen["cost"] if priced else pl.lit(None, dtype=pl.Float64()),
    )
    shown = [column for column in COLUMNS if frame[column[0]].null_count() < len(frame)]
    numbers = ("arrival", "start", "completion", "target", "late", "worker_slots")
    columns: dict[str, Any] = {key: frame[key].to_list() for key in ("job", "class", "outcome")}
    if any(tenant is not None for tenant in frame["tenant"]):
        columns["tenant"] = frame["tenant"].to_list()
    for key in (*numbers, "value", "cost", *(["money"] if priced else []), "utility"):
        columns[key] = round_numbers(
            frame[key].cast(pl.Float64).fill_null(float("nan")).to_numpy(), 6
        )
    columns["planned"] = planned.tolist()
    columns["advised"] = [int(name in run.advice) for name in names]
    outcomes = outcomes_with_advice(run.info)
    columns["advisable"] = [int(outcome in outcomes) for outcome in columns["outcome"]]
    end = run.slots.item(-1, "slot") + 1 if len(run.slots) else 1
    begin = run.slots.item(0, "slot") if len(run.slots) else 0
    return {
        "total": len(run.jobs),
        "servers": run.server_names,
        "extent": [begin, max(end, begin + 1)],
        "outcomes": [list(outcome) for outcome in OUTCOMES],
        "columns": [{"key": key, "heading": heading} | flags for key, heading, flags in shown],
        "jobs": columns,
        "facts": [_facts(run, row, decisions.get(row["job"], ())) for row in chosen.to_dicts()],
        "ran": {name: column.tolist() for name, column in ran.items()},
        "plan": {name: column.tolist() for name, column in unkept.items()},
        "payments": _payments(run, names),
        "promises": _promises(names, decisions),
    }


def _decisions(run: RunData, names: set[str]) -> dict[str, list[Fields]]:
    by_job: dict[str, list[Fields]] = {}
    for record in run.decisions(True):
        if record["job"] in names:
            by_job.setdefault(record["job"], []).append(record)
    return by_job


def _facts(run: RunData, row: Fields, decided: Sequence[Fields]) -> list[list[str]]:
    """Return the history as in ``explain``, without placements, which are drawn."""
    job = row | {key: json.loads(row[key]) for key in ("worth", "shape")}
    # With a maximum of 0 placements, `history_lines` only uses whether the job ran.
    ran = [] if job["start"] is None else [PlacementSpan(job["start"], job["start"], ())]
    lines = [*history_lines(JobHistory(run.info, job, list(decided), ran), 0)]
    job_advice = run.advice.get(job["job"])
    if job_advice is not None:
        lines += [("", ""), *advice_lines(job_advice)]
    return [list(line) for line in lines]


def _run_placements(run: RunData, names: Sequence[str]) -> PlacementColumns:
    order = pl.DataFrame({"job": names, "at": np.arange(len(names))})
    parts = []
    # Merge in pieces: most rows of a long run only differ in the slot.
    for piece in run.allocations.iter_slices(_PIECE_ROWS):
        rows = piece.join(order, on="job", how="inner")
        keys = [rows[name].to_numpy().astype(np.int64) for name in _KEYS]
        parts.append(_merge_placements(keys, rows["slot"].to_numpy().astype(np.int64)))
    if not parts:
        return _merge_placements(
            [np.zeros(0, dtype=np.int64)] * len(_KEYS), np.zeros(0, dtype=np.int64)
        )
    *columns, slot, durations = (
        np.concatenate([part[name] for part in parts]) for name in PLACEMENT_COLUMNS
    )
    return _merge_placements(columns, slot, durations)


def _plans_by_job(
    names: Sequence[str], decisions: Mapping[str, Sequence[Fields]], servers: Sequence[str]
) -> PlacementColumns:
    """Return each job's last plan, including that of a job that was dropped later."""
    position = {name: index for index, name in enumerate(servers)}
    rows = []
    for index, name in enumerate(names):
        plans = [record["plan"] for record in decisions.get(name, ()) if record.get("plan")]
        if plans:
            rows += [
                (index, position[server], workers, ps, slot)
                for slot, server, workers, ps in plans[-1]
            ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return _merge_placements(list(table[:4]), table[4])


def _promises(
    names: Sequence[str], decisions: Mapping[str, Sequence[Fields]]
) -> dict[str, list[Any]] | None:
    """Return the new promises that jobs got without a plan; None without any.

    The columns are the position of the job (``job``), the slot of the decision (``given``) and the
    promised slot (``slot``). Promises with a plan are left out, because they are the plan's end.
    """
    rows: list[tuple[int, int, int]] = []
    for index, name in enumerate(names):
        previous = None
        for record in decisions.get(name, ()):
            promise = record.get("promise")
            if promise is not None and promise != previous and not record.get("plan"):
                rows.append((index, record["slot"], promise))
                previous = promise
    if not rows:
        return None
    return dict(
        zip(("job", "given", "slot"), (list(part) for part in zip(*rows, strict=True)), strict=True)
    )


def _merge_placements(
    keys: Sequence[NDArray[np.int64]],
    slot: NDArray[np.int64],
    slots_per_row: NDArray[np.int64] | None = None,
) -> PlacementColumns:
    """Merge rows into placements over consecutive slots.

    ``keys`` are the job, the server, the workers and the parameter servers of each row. Without
    ``slots_per_row``, a row lasts one slot.
    """
    order = np.lexsort((slot, keys[1], keys[0]))
    columns = [column[order] for column in keys]
    slots = slot[order]
    durations = np.ones_like(slots) if slots_per_row is None else slots_per_row[order]
    if len(slots):
        is_start = np.r_[True, slots[1:] != slots[:-1] + durations[:-1]]
        for column in columns:
            is_start[1:] |= np.diff(column) != 0
        starts = np.flatnonzero(is_start)
        lengths = np.add.reduceat(durations, starts)
    else:
        starts = lengths = np.zeros(0, dtype=np.int64)
    joined = [*(column[starts] for column in columns), slots[starts], lengths]
    # In order of job and time, neighbouring values differ little and compress well.
    by_time = np.lexsort((joined[1], joined[4], joined[0]))
    return dict(zip(PLACEMENT_COLUMNS, (column[by_time] for column in joined), strict=True))


def _compare(
    ran: PlacementColumns, plan: PlacementColumns, count: int
) -> tuple[NDArray[np.int64], PlacementColumns]:
    """Return how each job ran, and the plans of jobs that ran differently.

    0: without a plan; 1: as planned; 2: differently from its plan.
    """
    planned = np.zeros(count, dtype=np.int64)
    planned[plan["job"]] = 1
    stacked = [
        np.stack([columns[name] for name in PLACEMENT_COLUMNS], axis=1) for columns in (ran, plan)
    ]
    offsets = [np.searchsorted(columns["job"], np.arange(count + 1)) for columns in (ran, plan)]
    for index in np.flatnonzero(planned).tolist():
        own = [
            rows[offset[index] : offset[index + 1]]
            for rows, offset in zip(stacked, offsets, strict=True)
        ]
        if not np.array_equal(own[0], own[1]):
            planned[index] = 2
    differ = planned[plan["job"]] == 2
    return planned, {name: column[differ] for name, column in plan.items()}


def _payments(run: RunData, names: Sequence[str]) -> dict[str, list[Any]] | None:
    """Return each job's payments by payee, summed over its slots."""
    if run.payments is None:
        return None
    position = {name: row for row, name in enumerate(names)}
    sums: dict[tuple[int, str | None], float] = {}
    for record in run.payments():
        if record["job"] in position:
            amount = sum(value for kind, value in record.items() if kind not in PAYMENT_KEYS)
            key = position[record["job"]], record["payee"]
            sums[key] = sums.get(key, 0.0) + amount
    rows = [(job, payee, float(f"{amount:.6g}")) for (job, payee), amount in sums.items()]
    rows.sort(key=lambda row: (row[0], row[1] or ""))
    owners, payees, amounts = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    )
    return {"job": owners, "payee": payees, "amount": amounts}
