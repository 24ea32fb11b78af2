"""Gains of more servers for the same jobs: additional utility, and saved waiting time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from shadowprice.core.amounts import format_seconds
from shadowprice.results.job_history import pluralize
from shadowprice.results.metrics import common_completion
from shadowprice.results.report.number_format import format_number
from shadowprice.results.run_directory import Fields, RunData

HEADS: Final = (
    "with", "policy", "utility", "gain", "finished", "mean JCT", "mean wait", "waiting saved",
)  # fmt: skip
"""Columns of the table. Mean times are differences: negative means sooner."""

GAINS_REMARK: Final = (
    "Each row runs the same jobs again on the larger cluster, with the same seed. Gain, finished "
    "jobs and mean times are differences from the cluster as it is; a policy that decides "
    "otherwise can earn less with more. JCTs are of the jobs that both runs finished, waits (from "
    "submission to first start) of those that ran in both."
)


@dataclass(frozen=True, slots=True)
class CapacityGain:
    """Difference between a run with more servers and the run on the cluster as it is."""

    change: str  # added resource and servers, formatted
    servers: Mapping[str, int]  # added, by the name of their entry
    policy: str  # label
    utility: float  # total, with the servers
    gain: float  # difference in utility
    finished: int  # difference in finished jobs
    jct_slots: float | None  # difference in mean completion time of jobs that both runs finished
    # Difference in the mean time from submission to first start, of the jobs that ran in both.
    wait_slots: float | None
    waiting_saved_slots: float  # sum of this difference over these jobs
    jobs: int  # number of these jobs
    slot_seconds: float

    @classmethod
    def of(
        cls, change: str, servers: Mapping[str, int], before: RunData, after: RunData
    ) -> CapacityGain:
        """Compare the run with more servers with the run before, of the same jobs and policy."""
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
            wait_slots=(0.0 - saved) / len(waits) if len(waits) else None,
            waiting_saved_slots=saved,
            jobs=len(waits),
            slot_seconds=slot_seconds,
        )

    @property
    def waiting_saved_hours(self) -> float:
        """Sum of the differences in waiting time, in hours."""
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
