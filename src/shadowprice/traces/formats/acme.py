"""Shanghai AI Laboratory Acme (2023): trace_seren.csv or trace_kalos.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.results.columns import typed_columns
from shadowprice.traces.log_values import each, parse_state
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import read_table

_COLUMNS: Final = typed_columns(
    "job_id user node_num:f gpu_num:f cpu_num:f type state submit_time start_time end_time "
    "duration:f mem_per_pod_GB:f"
)
_TIME: Final = "%Y-%m-%d %H:%M:%S%z"


@trace_format(
    "acme",
    title="Shanghai AI Laboratory Acme, 2023: trace_seren.csv or trace_kalos.csv",
    citation="Hu et al., Characterization of Large Language Model Development in the Datacenter, "
    "USENIX NSDI 2024; github.com/InternLM/AcmeTrace",
    licence="CC-BY-4.0",
    files="trace_seren.csv[.gz] or trace_kalos.csv[.gz]",
    gotchas=(
        "Seren's times are +08:00, Kalos's +00:00: both are read as UTC",
        (
            "Kalos's duration includes queueing (end - submit): duration is always end - start; "
            "rows that said otherwise are counted"
        ),
        "memory only in Kalos, for each pod; counts may be written 10.0",
        "no virtual cluster: the tenant is the user",
        "gpu_num 0 is a CPU job: read unchanged, and scheduled with cpu_jobs=keep only",
    ),
)
def read_acme(path: Path, reading: ImportContext) -> Trace:
    """Read an Acme job trace."""
    table = read_table(path, _COLUMNS, reading, optional=("mem_per_pod_GB", "duration"))
    run = table.check_run(_TIME)
    table.check(pl.col("gpu_num") >= 0, "gpu_num", "is negative or missing")
    table.count_repairs(
        (pl.col("duration") - run).abs() > 0.5,
        "duration is not end - start (it includes queueing); the difference is used",
    )
    jobs = table.jobs(
        job="job_id",
        submit="submit_time",
        duration=run,
        queue=pl.col("start_time") - pl.col("submit_time"),
        gpus="gpu_num",
        cpus="cpu_num",
        memory=(pl.col("mem_per_pod_GB") * pl.col("node_num") * 1e9).round(),
        tenant="user",
        user="user",
        status=pl.lit(each(table.frame["state"], parse_state, pl.String())),
    )
    return build_trace("acme", jobs, path, reading.tally, absolute=True)
