"""Comparison of two runs of one workload: job by job with reasons, and gains of more servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from shadowprice.core.amounts import format_seconds
from shadowprice.core.wording import plural_noun, pluralize
from shadowprice.results.metrics import common_completion
from shadowprice.results.report.number_format import format_number
from shadowprice.results.run_directory import Fields, RunData
from shadowprice.short_table import MAX_ROWS, ShortTable, ShownAsTable, table_of_records

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class RunDiff(ShownAsTable):
    """Differences between two runs.

    ``jobs`` has one row for each job of both runs whose result differs, the largest change of
    utility first. Columns of the first run end in ``_a``, those of the second in ``_b``; ``gain``
    is b minus a. ``outcomes`` has one row for each pair of outcomes, with the number of jobs and
    their gain.
    """

    first: Fields  # ``run.json``
    second: Fields  # ``run.json``
    jobs: pl.DataFrame
    outcomes: pl.DataFrame
    only_first: list[str]
    only_second: list[str]
    times: CapacityGain | None
    """Differences in completion and waiting times; None if the slots have different lengths."""

    def short_table(self) -> ShortTable:
        """Return a table of the jobs with different results, the largest change first."""
        first, second = self._infos
        totals = [format_number(info["summary"]["total_utility"]) for info in self._infos]
        title = (
            f"{second['policy']} earned {totals[1]}, {first['policy']} {totals[0]}; "
            f"{pluralize(len(self.jobs), 'job')} with different results"
        )
        rows = [row.items() for row in self.jobs.head(MAX_ROWS).iter_rows(named=True)]
        return replace(table_of_records(title, rows), total=len(self.jobs))

    @property
    def remarks(self) -> list[str]:
        """Notes on differences between the inputs and the completeness of the runs."""
        notes = []
        for name, value in (("seed", "seed"), ("until", "timespan"), ("cluster", "cluster")):
            if self.first[name] != self.second[name]:
                notes.append(f"the runs differ in their {value}")
        digests = [{item["kind"]: item["sha256"] for item in run["inputs"]} for run in self._infos]
        notes += [
            f"the runs differ in their {kind} input"
            for kind in sorted({*digests[0], *digests[1]} - {"cluster"})
            if digests[0].get(kind) != digests[1].get(kind)
        ]
        if self.first["incidents"] != self.second["incidents"]:
            notes.append("the runs differ in their incidents")
        for name, missing in (("first", self.only_first), ("second", self.only_second)):
            if missing:
                is_are = "is" if len(missing) == 1 else "are"
                notes.append(f"{pluralize(len(missing), 'job')} {is_are} in the {name} run only")
        notes += [
            f"the run of {info['policy']} is partial" for info in self._infos if info["partial"]
        ]
        return notes

    @property
    def _infos(self) -> tuple[Fields, Fields]:
        return self.first, self.second

    def record(self) -> Fields:
        """Return the difference as plain values."""
        return {
            "policies": [info["policy"] for info in self._infos],
            "total_utility": [info["summary"]["total_utility"] for info in self._infos],
            "remarks": self.remarks,
            "times": None if self.times is None else self.times.times(),
            "outcomes": self.outcomes.to_dicts(),
            "jobs": self.jobs.to_dicts(),
            "only_first": self.only_first,
            "only_second": self.only_second,
        }


def diff_runs(first: RunData, second: RunData) -> RunDiff:
    """Compare two runs job by job; jobs are matched by name."""
    tables = [_job_table(run) for run in (first, second)]
    both = tables[0].join(tables[1], on="job", how="inner", suffix="_b", maintain_order="left")
    both = both.with_columns((pl.col("utility_b") - pl.col("utility")).alias("gain"))
    changed = both.filter(
        (pl.col("outcome") != pl.col("outcome_b"))
        | pl.col("completion").ne_missing(pl.col("completion_b"))
        | (pl.col("gain") != 0)
    )
    names = (first.policy, second.policy)
    reasons = [
        _describe_change(
            {name: row[name] for name in tables[0].columns},
            {name: row.get(f"{name}_b", row[name]) for name in tables[0].columns},
            names,
        )
        for row in changed.iter_rows(named=True)
    ]
    first_columns = {name: f"{name}_a" for name in ("outcome", "completion", "utility")}
    pairs = [f"{name}_{side}" for name in first_columns for side in "ab"]
    jobs = (
        changed.rename(first_columns)
        .select("job", "tenant", *pairs, "gain")
        .with_columns(pl.Series("why", reasons, dtype=pl.String()))
        .sort(pl.col("gain").abs(), descending=True, maintain_order=True)
    )
    outcomes = (
        both.group_by(pl.col("outcome").alias("outcome_a"), "outcome_b")
        .agg(pl.len().cast(pl.Int64).alias("jobs"), pl.col("gain").sum())
        .sort("jobs", "outcome_a", "outcome_b", descending=[True, False, False])
    )
    present = [set(table["job"]) for table in tables]
    slots = {info["cluster"]["slot_seconds"] for info in (first.info, second.info)}
    return RunDiff(
        first.info,
        second.info,
        jobs,
        outcomes,
        [name for name in tables[0]["job"] if name not in present[1]],
        [name for name in tables[1]["job"] if name not in present[0]],
        CapacityGain.of("", {}, first, second) if len(slots) == 1 else None,
    )


_JOB_COLUMNS: Final = (
    "job", "tenant", "outcome", "reason", "message", "arrival", "start", "completion", "utility",
    "worker_slots",
)  # fmt: skip


def _job_table(run: RunData) -> pl.DataFrame:
    """Return the job table with ``active``, the number of slots in which each job ran."""
    active = (
        run.allocations.select("job", "slot")
        .unique()
        .group_by("job")
        .agg(pl.len().cast(pl.Int64).alias("active"))
    )
    return (
        run.jobs.select(_JOB_COLUMNS)
        .join(active, on="job", how="left", maintain_order="left")
        .with_columns(pl.col("active").fill_null(0))
    )


def _describe_change(a: Row, b: Row, policies: tuple[str, str]) -> str:
    """Return why a job's results differ; ``a`` is its row in the first run, ``b`` in the second."""
    if a["outcome"] != b["outcome"]:
        endings = [
            _describe_outcome(row, policy)
            for row, policy in zip((a, b), policies, strict=True)
            if row["outcome"] != "finished"
        ]
        return "; ".join(endings)
    if a["completion"] is None or b["completion"] is None:
        return "earned another utility"
    parts = []
    start_delay = b["start"] - a["start"]
    if start_delay:
        direction = "later" if start_delay > 0 else "earlier"
        parts.append(f"started {pluralize(abs(start_delay), 'slot')} {direction}")
    mean_workers = [row["worker_slots"] / max(row["active"], 1) for row in (a, b)]
    if abs(mean_workers[0] - mean_workers[1]) > 0.05:
        workers = plural_noun(mean_workers[1], "worker")
        parts.append(f"ran with {mean_workers[1]:.3g} {workers} rather than {mean_workers[0]:.3g}")
    pauses = [row["completion"] - row["start"] + 1 - row["active"] for row in (a, b)]
    if pauses[0] != pauses[1]:
        parts.append(f"paused {pluralize(pauses[1], 'slot')} rather than {pauses[0]}")
    if not parts:
        parts.append("was placed differently")
    delay = b["completion"] - a["completion"]
    if delay:
        when = f"{pluralize(abs(delay), 'slot')} {'later' if delay > 0 else 'sooner'}"
        return f"{', '.join(parts)}: done {when}"
    return ", ".join(parts)


def _describe_outcome(row: Row, policy: str) -> str:
    verbs = {"refused": "refused by", "dropped": "dropped by", "cancelled": "cancelled under"}
    if row["outcome"] in verbs:
        text = f"{verbs[row['outcome']]} {policy}"
        return f"{text}: {row['message']}" if row["message"] else text
    ran = "never ran" if row["start"] is None else f"ran {pluralize(row['active'], 'slot')}"
    return f"still {row['outcome']} at the end of {policy}, {ran}"


HEADS: Final = (
    "with", "policy", "utility", "gain", "finished", "mean JCT", "mean wait", "waiting saved",
)  # fmt: skip
"""Columns of the table; mean times are differences, and negative if the times are shorter."""

GAINS_REMARK: Final = (
    "Each row runs the same jobs again on the larger cluster, with the same seed. Gain, finished "
    "jobs and mean times are differences from the cluster as it is; a policy whose decisions "
    "change can earn less on a larger cluster. JCTs are of the jobs that both runs finished, waits "
    "(from submission to first start) of those that ran in both."
)


@dataclass(frozen=True, slots=True)
class CapacityGain:
    """Differences in utility and times of two runs, such as before and after adding servers."""

    change: str  # added resource and servers, formatted
    servers: Mapping[str, int]  # added, by the name of their entry
    policy: str  # label
    utility: float  # total, with the servers
    gain: float  # difference in utility
    finished: int  # difference in finished jobs
    jct_slots: float | None  # difference in mean completion time of jobs that both runs finished
    # Difference in the mean time from submission to first start, of the jobs that ran in both.
    wait_slots: float | None
    waiting_saved_slots: float  # total decrease of these times; negative if jobs waited longer
    jobs: int  # number of these jobs
    slot_seconds: float

    @classmethod
    def of(
        cls, change: str, servers: Mapping[str, int], before: RunData, after: RunData
    ) -> CapacityGain:
        """Compare a run with more servers to the run before, of the same jobs and policy."""
        slot_seconds = float(before.info["cluster"]["slot_seconds"])
        _, means = common_completion([before.jobs, after.jobs])
        waits = _waiting_slots(before.jobs).join(
            _waiting_slots(after.jobs), on="job", suffix="_after"
        )
        shorter = waits["wait"] - waits["wait_after"]
        saved = float(shorter.sum())
        utility = after.summary["total_utility"]
        return cls(
            change=change,
            servers=dict(servers),
            policy=after.policy,
            utility=utility,
            gain=utility - before.summary["total_utility"],
            finished=after.summary["finished"] - before.summary["finished"],
            jct_slots=None if means[0] is None or means[1] is None else means[1] - means[0],
            wait_slots=(0.0 - saved) / len(waits) if len(waits) else None,  # never -0.0
            waiting_saved_slots=saved,
            jobs=len(waits),
            slot_seconds=slot_seconds,
        )

    @property
    def waiting_saved_hours(self) -> float:
        """Total decrease of the waiting times, in hours; negative if jobs waited longer."""
        return self.waiting_saved_slots * self.slot_seconds / 3600

    def record(self) -> Fields:
        """Return plain values; times are in seconds too."""
        return {
            "change": self.change,
            "servers": dict(self.servers),
            "policy": self.policy,
            "total_utility": self.utility,
            "gain": self.gain,
            "finished": self.finished,
        } | self.times()

    def times(self) -> Fields:
        """Return the differences in time as plain values."""
        seconds = self.slot_seconds
        return {
            "mean_jct": self.jct_slots,
            "mean_wait": self.wait_slots,
            "mean_jct_seconds": None if self.jct_slots is None else self.jct_slots * seconds,
            "mean_wait_seconds": None if self.wait_slots is None else self.wait_slots * seconds,
            "waiting_saved_hours": self.waiting_saved_hours,
            "jobs": self.jobs,
        }

    def waiting_text(self) -> str:
        """Return the change of the waiting times as a sentence."""
        more_or_less = "more" if self.waiting_saved_slots < 0 else "less"
        hours = format_number(abs(self.waiting_saved_hours))
        return (
            f"the {pluralize(self.jobs, 'job')} that ran in both waited {hours} h {more_or_less} "
            f"in total, from submission to first start; mean {self._time(self.wait_slots)}"
        )

    def cells(self) -> tuple[str, ...]:
        """Return the texts of its row; see `HEADS`."""
        return (
            self.change,
            self.policy,
            format_number(self.utility),
            _format_signed(self.gain),
            f"{self.finished:+,d}",
            self._time(self.jct_slots),
            self._time(self.wait_slots),
            f"{_format_signed(self.waiting_saved_hours)} h",
        )

    def _time(self, slots: float | None) -> str:
        if slots is None:
            return "-"
        seconds = slots * self.slot_seconds
        sign = "-" if seconds < 0 else "+"
        return f"{sign}{format_seconds(abs(seconds))}" if seconds else "0"


def _waiting_slots(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the slots from submission to first start, of the jobs that ran."""
    ran = jobs.filter(pl.col("start").is_not_null())
    return ran.select("job", wait=pl.col("start") - pl.col("submitted"))


def _format_signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{format_number(abs(value))}"
