"""State of a run in one slot: running and waiting jobs, and the load of every server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

import polars as pl

from shadowprice.core.amounts import MILLI, UNLIMITED, parse_amount
from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import typed_columns
from shadowprice.results.run_directory import Fields, RunData, server_names
from shadowprice.results.server_names import (
    compress_name_list,
    group_equal_placements,
    server_group,
)
from shadowprice.short_table import MAX_ROWS, ShortTable, ShownAsTable, table_of_records

JOBS: Final = typed_columns(
    "job tenant class state arrival:i since:i ran:i workers:i ps:i servers next:i completion:i "
    "reason"
)
"""Columns of `SlotSnapshot.jobs`."""


@dataclass(frozen=True, eq=False, repr=False)
class SlotSnapshot(ShownAsTable):
    """State of a run in one slot.

    ``jobs`` has one row for each open job: running jobs, then waiting jobs, each in order of
    arrival. ``state`` is ``running``, ``paused`` (it ran before) or ``waiting``; the job has been
    in this state since slot ``since``. ``ran`` counts the earlier slots in which it ran.
    ``servers`` is its placement (``gpu-[3,5] x2``: two workers on each; ``+1ps``: one parameter
    server), ``next`` the next slot in which a waiting job ran, ``completion`` its eventual
    completion slot, and ``reason`` why it waits.

    ``servers`` has one row for each server. ``group`` is its name without the number; ``state`` is
    ``lost``, ``idle``, ``mixed``, or ``full`` if a resource is exhausted; ``share`` is the used
    share of its scarcest resource. ``used_R`` and ``total_R`` of every limited resource R are in
    the unit of ``slots.parquet``.
    """

    info: Fields  # ``run.json``
    slot: int
    jobs: pl.DataFrame
    servers: pl.DataFrame

    def short_table(self) -> ShortTable:
        """Return a table of the running and waiting jobs, below the usage of each resource."""
        usage = ", ".join(
            f"{used / total:.0%} of {name}" for name, (used, total) in self.usage.items() if total
        )
        states = Counter(self.jobs["state"])
        counts = ", ".join(f"{count:,} {state}" for state, count in states.items()) or "no jobs"
        title = f"Slot {self.slot} of {self.info['policy']}: {counts}; {usage or 'nothing'} in use"
        shown = self.jobs.head(MAX_ROWS).select(
            "job", "tenant", "state", "since", "ran", "workers", "ps", "servers", "reason"
        )
        rows = [row.items() for row in shown.iter_rows(named=True)]
        return replace(table_of_records(title, rows), total=len(self.jobs))

    @property
    def usage(self) -> dict[str, tuple[float, float]]:
        """Used and total amount of every resource, over servers that aren't lost."""
        present = self.servers.filter(pl.col("state") != "lost")
        names = [
            name.removeprefix("used_") for name in self.servers.columns if name.startswith("used_")
        ]
        return {
            name: (float(present[f"used_{name}"].sum()), float(present[f"total_{name}"].sum()))
            for name in names
        }

    def record(self) -> Fields:
        """Return the state as plain values."""
        return {
            "policy": self.info["policy"],
            "slot": self.slot,
            "begins_seconds": self.slot * self.info["cluster"]["slot_seconds"],
            "usage": {
                name: {"used": used, "total": total} for name, (used, total) in self.usage.items()
            },
            "jobs": self.jobs.to_dicts(),
            "servers": self.servers.to_dicts(),
        }


def slot_snapshot_of(run: RunData, slot: int, location: str | None = None) -> SlotSnapshot:
    """Return the state of a run in one slot; errors begin with ``location``, or its policy."""
    info, jobs, slots = run.info, run.jobs, run.slots
    if not len(slots) or slot < slots["slot"][0] or slot > slots["slot"][-1]:
        span = f"slots {slots['slot'][0]} to {slots['slot'][-1]}" if len(slots) else "no slot"
        problem = f"slot {slot} is not in this run"
        raise InputError(Fault(location or run.policy, problem, f"it has {span}"))
    names = server_names(info)
    current = run.allocations.filter(pl.col("slot") == slot)
    demands = dict(
        zip(jobs["job"], zip(jobs["demand"], jobs["ps_demand"], strict=True), strict=True)
    )
    # Decisions are ordered by slot, so reading stops at the first later one.
    decisions = list(takewhile(lambda record: record["slot"] <= slot, run.decisions(True)))
    closed = _closed_by(info, slot, decisions)
    open_jobs = jobs.filter(
        (pl.col("arrival") <= slot)
        & (pl.col("completion").is_null() | (pl.col("completion") >= slot))
        & ~pl.col("job").is_in(list(closed))
    )
    return SlotSnapshot(
        info,
        slot,
        _jobs(open_jobs, current, run.allocations, slot, names, decisions),
        _servers(info, current, demands, slot),
    )


def _closed_by(info: Fields, slot: int, decisions: Iterable[Fields]) -> set[str]:
    """Return the jobs that were refused, dropped or cancelled in a slot or earlier."""
    last = {line["job"]: line["outcome"] for line in decisions}
    closed = {job for job, outcome in last.items() if outcome in {"rejected", "dropped"}}
    cancelled = (event for event in info["incidents"] if event["slot"] <= slot)
    return closed | {event["cancel"] for event in cancelled if "cancel" in event}


def _jobs(
    open_jobs: pl.DataFrame,
    current: pl.DataFrame,
    allocations: pl.DataFrame,
    slot: int,
    names: list[str],
    decisions: Iterable[Fields],
) -> pl.DataFrame:
    placements: dict[str, list[tuple[int, int, int]]] = {}
    for name, server, workers, ps in current.select("job", "server", "workers", "ps").iter_rows():
        placements.setdefault(name, []).append((server, workers, ps))
    of_open_jobs = allocations.filter(pl.col("job").is_in(open_jobs["job"].to_list()))
    active = of_open_jobs.group_by("job").agg(pl.col("slot").unique().sort())
    ran: dict[str, list[int]] = dict(active.iter_rows())
    last: dict[str, Fields] = {line["job"]: line for line in decisions}
    rows = []
    for row in open_jobs.iter_rows(named=True):
        name, entries = row["job"], placements.get(row["job"], [])
        slots = ran.get(name, [])
        earlier = [other for other in slots if other < slot]
        following = next((other for other in slots if other > slot), None)
        state = "running" if entries else ("paused" if earlier else "waiting")
        since = (
            _since(earlier, slot) if entries else (earlier[-1] + 1 if earlier else row["arrival"])
        )
        rows.append(
            (
                name,
                row["tenant"],
                row["class"],
                state,
                row["arrival"],
                since,
                len(earlier),
                sum(workers for _, workers, _ in entries),
                sum(ps for _, _, ps in entries),
                _placements_text(names, entries),
                None if entries else following,
                row["completion"],
                None if entries else _waiting_reason(last.get(name), slot),
            )
        )
    # Running jobs first; ties keep the order of the job table.
    rows.sort(key=lambda row: (row[3] != "running", row[4]))
    return pl.DataFrame(rows, schema=JOBS, orient="row")


def _since(before: list[int], slot: int) -> int:
    """Return the first of the consecutive slots that end with ``slot``."""
    first = slot
    for earlier in reversed(before):
        if earlier != first - 1:
            break
        first = earlier
    return first


def _placements_text(names: list[str], entries: list[tuple[int, int, int]]) -> str:
    placed = ((names[server], (workers, ps)) for server, workers, ps in entries)
    parts = []
    for servers, (workers, ps) in group_equal_placements(placed):
        counts = [f"x{workers}"] if workers else []
        counts += [f"+{ps}ps"] if ps else []
        parts += [" ".join([name, *counts]) for name in compress_name_list(servers)]
    return " ".join(parts)


def _waiting_reason(decision: Fields | None, slot: int) -> str:
    if decision is None:
        return "no decision yet"
    if decision["outcome"] == "admitted" and "plan" in decision:
        following = next((row[0] for row in decision["plan"] if row[0] > slot), None)
        return "its plan has ended" if following is None else f"planned for slot {following}"
    return str(decision["reason"] or "queued, waiting for free capacity")


# ---------------------------------------------------------------- servers


def parse_demand(text: str | None) -> dict[str, int]:
    """Parse a job table's ``demand``, such as ``gpu 1, cpu 4, memory 16GiB``; None is empty."""
    if not text:
        return {}
    pairs = (part.rsplit(" ", 1) for part in text.split(", "))
    return {name: parse_amount(amount).value for name, amount in pairs}


def _servers(
    info: Fields, current: pl.DataFrame, requests: Mapping[str, tuple[str, str | None]], slot: int
) -> pl.DataFrame:
    cluster = info["cluster"]
    names = server_names(info)
    kinds = [
        {name: parse_amount(amount).value for name, amount in kind["capacity"].items()}
        for kind in cluster["kinds"]
    ]
    used: list[Counter[str]] = [Counter() for _ in names]
    placed: list[list[tuple[int, int]]] = [[] for _ in names]
    demands: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
    for name, server, workers, ps in current.select("job", "server", "workers", "ps").iter_rows():
        if name not in demands:
            demands[name] = (parse_demand(requests[name][0]), parse_demand(requests[name][1]))
        placed[server].append((workers, ps))
        for count, demand in zip((workers, ps), demands[name], strict=True):
            for resource, amount in demand.items():
                used[server][resource] += count * amount
    lost = _lost_servers(info, slot)
    unit = {name: MILLI if kind == "count" else 1 for name, kind in cluster["resources"].items()}
    columns: dict[str, list[Any]] = {}
    for index, (name, kind) in enumerate(cluster["servers"]):
        capacity = {
            resource: amount for resource, amount in kinds[kind].items() if 0 < amount < UNLIMITED
        }
        share = max((used[index][r] / amount for r, amount in capacity.items()), default=0.0)
        row: dict[str, Any] = {
            "server": name,
            "group": server_group(name),
            "role": cluster["kinds"][kind]["role"],
            "state": _state(name in lost, bool(placed[index]), share),
            "jobs": len(placed[index]),
            "workers": sum(workers for workers, _ in placed[index]),
            "ps": sum(ps for _, ps in placed[index]),
            "share": share,
        }
        for resource in cluster["resources"]:
            scale = unit[resource]
            limited = resource in capacity
            row[f"used_{resource}"] = used[index][resource] / scale if limited else 0.0
            row[f"total_{resource}"] = capacity[resource] / scale if limited else 0.0
        for column, value in row.items():
            columns.setdefault(column, []).append(value)
    return pl.DataFrame(columns)


def _state(lost: bool, busy: bool, share: float) -> str:
    if lost:
        return "lost"
    if not busy:
        return "idle"
    return "full" if share >= 1 else "mixed"


def _lost_servers(info: Fields, slot: int) -> set[str]:
    lost: set[str] = set()
    for event in info["incidents"]:
        if event["slot"] <= slot and "server_lost" in event:
            lost.add(event["server_lost"])
        elif event["slot"] <= slot and "server_back" in event:
            lost.discard(event["server_back"])
    return lost
