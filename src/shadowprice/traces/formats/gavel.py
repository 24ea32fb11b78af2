"""Gavel's trace files (7 or 10 fields) and Shockwave's (12): tab-separated, no header."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import read_head, read_table

_COMMON: Final = "num_steps_arg needs_data_dir total_steps:i"
_LAYOUTS: Final = {
    7: typed_columns(f"job_type command {_COMMON} arrival:f scale_factor:i"),
    10: typed_columns(
        f"job_type command working_directory {_COMMON} scale_factor:i priority_weight:f slo:f "
        "arrival:f"
    ),
    12: typed_columns(
        f"job_type command working_directory {_COMMON} scale_factor:i mode priority_weight:f "
        "slo:f duration:f arrival:f"
    ),
}
_TYPE: Final = r"^(.+?)(?: \(batch size (\d+)\))?$"


@trace_format(
    "gavel",
    title="Gavel's job traces (7 or 10 tab-separated fields) and Shockwave's (12)",
    citation="Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning "
    "Workloads, OSDI 2020; Zheng et al., Shockwave, NSDI 2023",
    licence="MIT; the msr traces derive from Philly: also CC-BY-4.0",
    files="*.trace[.gz]",
    gotchas=(
        "no header and no names: a job is called job-line; seven fields put arrival before GPUs",
        "total_steps are mini-batches summed over workers, like Gavel's throughput table",
        (
            "7 and 10 fields carry no duration, and total_steps came from an older throughput "
            "table: durations are left unknown and synthesis computes them from the measured curve"
        ),
        "the model was drawn at random (seeds 0-4 of the msr traces differ only in it)",
        "SLO is -1 (none) in every published file; any other SLO or priority is not used, counted",
        "Shockwave's traces are synthetic, and its batch size may change during the run (mode)",
    ),
)
def read_gavel(path: Path, reading: ImportContext) -> Trace:
    """Read a Gavel or Shockwave trace file."""
    width = read_head(path).splitlines()[0].count("\t") + 1
    if width not in _LAYOUTS:
        raise InputError(
            Fault(
                f"{path}: line 1",
                f"has {width} tab-separated fields",
                "a Gavel trace has 7, 10 or 12",
            )
        )
    table = read_table(path, _LAYOUTS[width], reading, separator="\t", header=False, quoted=False)
    table.check(pl.col("job_type").is_not_null(), "job_type", "is missing")
    table.check_positive("total_steps", "scale_factor")
    table.check(pl.col("arrival") >= 0, "arrival", "is negative or missing")
    if "slo" in _LAYOUTS[width]:
        table.count_repairs(pl.col("slo") != -1, "SLO is not used")
        table.count_repairs(pl.col("priority_weight") != 1, "priority_weight is not used")
    if "duration" in _LAYOUTS[width]:
        table.check_positive("duration")
    if "mode" in _LAYOUTS[width]:
        table.count_repairs(
            pl.col("mode") != "static", "batch size changes during the run (mode)", "kept"
        )
    duration = pl.col("duration") if "duration" in _LAYOUTS[width] else pl.lit(None)
    jobs = table.jobs(
        job=pl.format("job-{}", "line"),
        submit="arrival",
        duration=duration,
        gpus="scale_factor",
        workers="scale_factor",
        model=pl.col("job_type").str.extract(_TYPE, 1),
        batch_size=pl.col("job_type").str.extract(_TYPE, 2).cast(pl.Float64),
        iterations="total_steps",
    )
    return build_trace("gavel", jobs, path, reading.tally, absolute=False)
