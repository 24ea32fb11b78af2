"""Every job: when it waited and ran, and its story: what was planned, what ran, what was paid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.results.advice import advised_outcomes
from shadowprice.results.files import Fields, Run
from shadowprice.results.report.embed import data_script, rounded
from shadowprice.results.report.section_jobs import OUTCOMES
from shadowprice.results.report.sections import section
from shadowprice.results.story import Stay, Story
from shadowprice.results.telling import counsel_lines, story_lines

BUDGET: Final = 700_000
"""Characters that the stories may take of a page; those of the jobs worth most are kept."""

MOST_STORIES: Final = 6000
"""Most stories of a page, whatever their size: a list that nobody reads to its end."""

PLACES: Final = ("job", "server", "workers", "ps", "slot", "slots")
"""Columns of placements: position of the job, then what stood where, from when, for how long."""

_KEYS: Final = ("at", "server", "workers", "ps")
"""Columns that tell what ran apart, slots aside."""

_PIECE: Final = 200_000
"""Rows of what ran that are joined at once."""

Places = dict[str, NDArray[np.int64]]

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
"""The table of jobs: column, heading, and what `Column` says of it."""


@section("Jobs", 20)
def jobs(run: Run) -> str | None:
    """Return the place of the jobs' list, and the data of all their stories."""
    if not len(run.jobs):
        return None
    block, kept = stories_block(run)
    total = len(run.jobs)
    remark = ""
    if kept < total:
        remark = (
            f'<p class="remark">{kept:,} of {total:,} jobs are in this page: those worth most. '
            "<code>shadowprice explain RUN JOB</code> tells the story of any.</p>"
        )
    told = run.info.get("advice")
    if told is not None and told["refused"]:
        those = "" if told["told"] == told["refused"] else ", those worth most"
        remark += (
            f'<p class="remark">What would have had them admitted is in the stories of '
            f"{told['told']:,} of {told['refused']:,} {_advisable(run)} jobs{those}.</p>"
        )
    return f'{remark}<div id="job-list"></div>{block}'


def _advisable(run: Run) -> str:
    return " or ".join(advised_outcomes(run.info))


def stories_block(run: Run, budget: int = BUDGET) -> tuple[str, int]:
    """Return the data of as many stories as fit, and how many they are.

    Parameters
    ----------
    run : Run
        The run.
    budget : int
        Characters that the block may take.
    """
    chosen = run.jobs.with_row_index("row").sort("value", descending=True, maintain_order=True)
    count = min(len(run.jobs), MOST_STORIES)
    decisions = _decisions(run, set(chosen["job"].head(count)))
    while True:
        rows = np.sort(chosen["row"].head(count).to_numpy().astype(np.int64))
        block = data_script(stories(run, run.jobs[rows], decisions), "stories")
        if len(block) <= budget or count <= 1:
            return block, count
        count = max(1, min(count - 1, int(count * budget / len(block) * 0.97)))


def stories(
    run: Run, chosen: pl.DataFrame, decisions: Mapping[str, Sequence[Fields]]
) -> dict[str, Any]:
    """Return what the page's script knows of some jobs (``assets/stories.mjs``).

    Parameters
    ----------
    run : Run
        The run.
    chosen : polars.DataFrame
        Rows of its jobs.
    decisions : mapping of str to sequence of dict
        The decisions on each job, with their plans.
    """
    names = chosen["job"].to_list()
    last = [decisions.get(name, [{}])[-1] for name in names]
    ran = _ran(run, names)
    plan = _planned(names, decisions, run.server_names)
    planned, kept = _compare(ran, plan, len(names))
    # A decision's cost is a price in utility; the job table's is money, where servers cost any.
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
        columns[key] = rounded(frame[key].cast(pl.Float64).fill_null(float("nan")).to_numpy(), 6)
    columns["planned"] = planned.tolist()
    columns["advised"] = [int(name in run.advice) for name in names]
    outcomes = advised_outcomes(run.info)
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
        "plan": {name: column.tolist() for name, column in kept.items()},
        "payments": _payments(run, names),
        "promises": _promises(names, decisions),
    }


def _decisions(run: Run, names: set[str]) -> dict[str, list[Fields]]:
    found: dict[str, list[Fields]] = {}
    for record in run.decisions(True):
        if record["job"] in names:
            found.setdefault(record["job"], []).append(record)
    return found


def _facts(run: Run, row: Fields, decided: Sequence[Fields]) -> list[list[str]]:
    """Return the story as ``explain`` tells it; where it stood is drawn."""
    job = row | {part: json.loads(row[part]) for part in ("worth", "shape")}
    ran = [] if job["start"] is None else [Stay(job["start"], job["start"], ())]
    lines = [*story_lines(Story(run.info, job, list(decided), ran), 0)]
    counsel = run.advice.get(job["job"])
    if counsel is not None:
        lines += [("", ""), *counsel_lines(counsel)]
    return [list(line) for line in lines]


def _ran(run: Run, names: Sequence[str]) -> Places:
    order = pl.DataFrame({"job": names, "at": np.arange(len(names))})
    parts = []
    # Piece by piece: a run of millions of slots is mostly rows that differ in the slot alone.
    for piece in run.allocations.iter_slices(_PIECE):
        rows = piece.join(order, on="job", how="inner")
        keys = [rows[name].to_numpy().astype(np.int64) for name in _KEYS]
        parts.append(_joined(keys, rows["slot"].to_numpy().astype(np.int64)))
    if not parts:
        return _joined([np.zeros(0, dtype=np.int64)] * len(_KEYS), np.zeros(0, dtype=np.int64))
    *columns, slot, lasts = (np.concatenate([part[name] for part in parts]) for name in PLACES)
    return _joined(columns, slot, lasts)


def _planned(
    names: Sequence[str], decisions: Mapping[str, Sequence[Fields]], servers: Sequence[str]
) -> Places:
    """Return what each job was last promised; one that was dropped later had a plan too."""
    position = {name: at for at, name in enumerate(servers)}
    rows = []
    for at, name in enumerate(names):
        plans = [record["plan"] for record in decisions.get(name, ()) if record.get("plan")]
        if plans:
            rows += [
                (at, position[server], workers, ps, slot) for slot, server, workers, ps in plans[-1]
            ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return _joined(list(table[:4]), table[4])


def _promises(
    names: Sequence[str], decisions: Mapping[str, Sequence[Fields]]
) -> dict[str, list[Any]] | None:
    """Return what each job was promised and when, one row a promise that was new.

    Only of policies that promise a slot of their own: a plan's last slot is drawn with the plan.
    """
    rows: list[tuple[int, int, int]] = []
    for at, name in enumerate(names):
        before = None
        for record in decisions.get(name, ()):
            promise = record.get("promise")
            if promise is not None and promise != before and not record.get("plan"):
                rows.append((at, record["slot"], promise))
                before = promise
    if not rows:
        return None
    return dict(
        zip(("job", "told", "slot"), (list(part) for part in zip(*rows, strict=True)), strict=True)
    )


def _joined(
    keys: Sequence[NDArray[np.int64]],
    slot: NDArray[np.int64],
    lasts: NDArray[np.int64] | None = None,
) -> Places:
    """Join rows of single slots, or of ``lasts`` slots, into placements that held over all of them.

    ``keys`` are the job, the server, the workers and the parameter servers of each row.
    """
    order = np.lexsort((slot, keys[1], keys[0]))
    columns = [column[order] for column in keys]
    slots = slot[order]
    last = np.ones_like(slots) if lasts is None else lasts[order]
    if len(slots):
        new = np.r_[True, slots[1:] != slots[:-1] + last[:-1]]
        for column in columns:
            new[1:] |= np.diff(column) != 0
        begins = np.flatnonzero(new)
        lengths = np.add.reduceat(last, begins)
    else:
        begins = lengths = np.zeros(0, dtype=np.int64)
    joined = [*(column[begins] for column in columns), slots[begins], lengths]
    # By job, then time: what follows each other then differs little, and packs well.
    again = np.lexsort((joined[1], joined[4], joined[0]))
    return dict(zip(PLACES, (column[again] for column in joined), strict=True))


def _compare(ran: Places, plan: Places, count: int) -> tuple[NDArray[np.int64], Places]:
    """Return how each job ran, and the plans that were not kept.

    How it ran is 0 without a plan, 1 as planned (the plan is then not stored again), 2 otherwise.
    """
    planned = np.zeros(count, dtype=np.int64)
    planned[plan["job"]] = 1
    stacked = [np.stack([places[name] for name in PLACES], axis=1) for places in (ran, plan)]
    edges = [np.searchsorted(places["job"], np.arange(count + 1)) for places in (ran, plan)]
    for at in np.flatnonzero(planned).tolist():
        own = [rows[edge[at] : edge[at + 1]] for rows, edge in zip(stacked, edges, strict=True)]
        if not np.array_equal(own[0], own[1]):
            planned[at] = 2
    differ = planned[plan["job"]] == 2
    return planned, {name: column[differ] for name, column in plan.items()}


def _payments(run: Run, names: Sequence[str]) -> dict[str, list[Any]] | None:
    """Return what each job paid to whom, summed over its slots."""
    if run.payments is None:
        return None
    at = {name: row for row, name in enumerate(names)}
    sums: dict[tuple[int, str | None], float] = {}
    for record in run.payments():
        if record["job"] in at:
            known = {"job", "slot", "payer", "payee"}
            amount = sum(float(value) for name, value in record.items() if name not in known)
            key = at[record["job"]], record["payee"]
            sums[key] = sums.get(key, 0.0) + amount
    rows = [(job, payee, float(f"{amount:.6g}")) for (job, payee), amount in sums.items()]
    rows.sort(key=lambda row: (row[0], row[1] or ""))
    jobs_, payees, amounts = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    )
    return {"job": jobs_, "payee": payees, "amount": amounts}
