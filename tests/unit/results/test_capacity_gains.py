"""Gains of more servers, from the tables of two runs."""

from typing import Any

import polars as pl
import pytest

from shadowprice.results.difference import HEADS, CapacityGain
from shadowprice.results.run_directory import RunData


def run(rows: list[tuple[str, float, int | None, str, float | None]], utility: float) -> RunData:
    """Return a run with (job, submitted, start, outcome, JCT), in slots of ten minutes."""
    schema: dict[str, Any] = {
        "job": pl.String, "submitted": pl.Float64, "start": pl.Int64, "outcome": pl.String,
        "jct": pl.Float64,
    }  # fmt: skip
    jobs = pl.DataFrame(rows, schema=schema, orient="row")
    finished = sum(row[3] == "finished" for row in rows)
    summary = {"total_utility": utility, "finished": finished}
    info = {"policy": "p", "summary": summary, "cluster": {"slot_seconds": 600.0}}
    nothing = pl.DataFrame()
    return RunData(info, jobs, nothing, nothing, nothing, lambda _: iter(()), None)


def test_differences_are_of_the_jobs_that_both_runs_have() -> None:
    before = run(
        [
            ("a", 0.0, 1, "finished", 4.0),
            ("b", 0.5, 7, "finished", 9.5),
            ("c", 1.0, None, "refused", None),
            ("d", 2.0, 9, "running", None),
        ],
        10.0,
    )
    after = run(
        [
            ("a", 0.0, 1, "finished", 4.0),
            ("b", 0.5, 1, "finished", 3.5),
            ("c", 1.0, 2, "finished", 2.0),
            ("d", 2.0, 6, "finished", 9.0),
        ],
        16.0,
    )
    gain = CapacityGain.of("+8 gpu (1 a server)", {"a": 1}, before, after)
    assert (gain.gain, gain.finished, gain.jobs) == (6.0, 2, 3)
    assert gain.jct_slots == pytest.approx((4.0 + 3.5) / 2 - (4.0 + 9.5) / 2)
    assert gain.waiting_saved_slots == pytest.approx(6 + 3)  # of b and d; a started as before
    assert gain.wait_slots == pytest.approx(-(6 + 3) / 3)
    cells = dict(zip(HEADS, gain.cells(), strict=True))
    assert cells == {
        "with": "+8 gpu (1 a server)",
        "policy": "p",
        "utility": "16",
        "gain": "+6",
        "finished": "+2",
        "mean JCT": "-30min",
        "mean wait": "-30min",
        "waiting saved": "+1.50 h",
    }
    assert gain.record()["waiting_saved_hours"] == pytest.approx(1.5)


def test_runs_without_common_jobs_have_no_mean_times() -> None:
    before = run([("a", 0.0, None, "refused", None)], 0.0)
    after = run([("a", 0.0, 0, "finished", 1.0)], 3.0)
    gain = CapacityGain.of("more", {"a": 1}, before, after)
    assert (gain.jct_slots, gain.wait_slots, gain.waiting_saved_slots) == (None, None, 0.0)
    assert gain.cells()[5:7] == ("-", "-")


def test_no_difference_is_zero_without_a_sign() -> None:
    same = run([("a", 0.0, 1, "finished", 4.0)], 10.0)
    times = CapacityGain.of("+8 gpu (1 a server)", {"a": 1}, same, same).times()
    assert [str(value) for value in times.values()] == ["0.0"] * 5 + ["1"]
