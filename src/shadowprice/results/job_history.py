"""History of one job from a run directory: requested resources, decisions, placements."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.results.run_directory import (
    Fields,
    read_decisions,
    read_info,
    read_table,
    server_names,
)

Entry = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PlacementSpan:
    """A placement that stays unchanged over consecutive slots."""

    first: int
    last: int  # inclusive
    entries: tuple[Entry, ...]  # servers by position in the cluster

    @property
    def workers(self) -> int:
        """Number of workers in each slot."""
        return sum(workers for _, workers, _ in self.entries)

    @property
    def ps(self) -> int:
        """Number of parameter servers in each slot."""
        return sum(ps for _, _, ps in self.entries)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """History of a job in a run."""

    info: Fields  # ``run.json``
    job: Fields  # row of ``jobs.parquet`` with ``worth`` and ``shape`` parsed
    decisions: list[Fields]  # lines of ``decisions.jsonl`` about the job
    ran: list[PlacementSpan]  # actual placements

    def planned(self, decision: Fields) -> list[PlacementSpan]:
        """Return the committed plan of a decision."""
        position = {name: index for index, name in enumerate(server_names(self.info))}
        rows = decision.get("plan", ())
        return merge_spans(
            [(slot, position[name], workers, ps) for slot, name, workers, ps in rows]
        )

    def record(self) -> Fields:
        """Return the history as plain values."""
        names = server_names(self.info)
        return {
            "policy": self.info["policy"],
            "job": self.job,
            "decisions": self.decisions,
            "ran": [
                {
                    "slots": [span.first, span.last],
                    "placement": [
                        {"server": names[server], "workers": workers, "ps": ps}
                        for server, workers, ps in span.entries
                    ],
                }
                for span in self.ran
            ],
        }


def read_job_history(folder: Path, name: str) -> JobHistory:
    """Read a job's history."""
    info = read_info(folder)
    jobs = read_table(folder, "jobs")
    row = jobs.filter(pl.col("job") == name)
    if row.is_empty():
        raise InputError(_unknown(folder, name, jobs["job"].to_list()))
    job: Fields = row.row(0, named=True)
    for key in ("worth", "shape"):
        job[key] = json.loads(job[key])
    quoted = json.dumps(name, ensure_ascii=False)
    lines = read_decisions(folder, containing=f'"job": {quoted}')
    ran = read_table(folder, "allocations").filter(pl.col("job") == name)
    rows = ran.select("slot", "server", "workers", "ps").rows()
    return JobHistory(info, job, [line for line in lines if line["job"] == name], merge_spans(rows))


def merge_spans(rows: Sequence[tuple[Any, ...]]) -> list[PlacementSpan]:
    """Merge (slot, server, workers, ps) rows, ordered by slot, into spans of slots."""
    by_slot: dict[int, list[Entry]] = {}
    for slot, server, workers, ps in rows:
        by_slot.setdefault(slot, []).append((server, workers, ps))
    joined: list[PlacementSpan] = []
    for slot, entries in by_slot.items():
        placement = tuple(sorted(entries))
        if joined and joined[-1].last == slot - 1 and joined[-1].entries == placement:
            joined[-1] = PlacementSpan(joined[-1].first, slot, placement)
        else:
            joined.append(PlacementSpan(slot, slot, placement))
    return joined


def _unknown(folder: Path, name: str, known: list[str]) -> Fault:
    # Only compare the first names, because fuzzy matching is slow and a run may be large.
    near = known[:2_000] if len(name) <= bounds.NAME.maximum else []
    close = difflib.get_close_matches(name, near, 3, cutoff=0.5)
    close += [other for other in known if name.lower() in other.lower() and other not in close]
    quoted = " or ".join(repr(other) for other in close[:3])
    hint = f"did you mean {quoted}?" if close else f"its jobs are in {folder}/jobs.parquet"
    return Fault(str(folder), f"unknown job {quote_for_display(name)}", hint)
