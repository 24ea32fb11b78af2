"""SenseTime Helios (2020): cluster_log.csv of one of its four clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.log_values import each, parse_state
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import column_names, read_head, read_table

_COLUMNS: Final = typed_columns(
    "job_id user vc gpu_num:i cpu_num:i state submit_time start_time end_time duration:f"
)
_TIME: Final = "%Y-%m-%d %H:%M:%S"


@trace_format(
    "helios",
    title="SenseTime Helios, 2020: cluster_log.csv of Venus, Earth, Saturn or Uranus",
    citation="Hu et al., Characterization and Prediction of Deep Learning Workloads in "
    "Large-Scale GPU Datacenters, SC 2021; github.com/S-Lab-System-Group/HeliosData",
    licence="CC-BY-4.0",
    files="cluster_log.csv[.gz]",
    gotchas=(
        "times are naive local time (presumably UTC+8), kept unchanged",
        (
            "gpu_num 0 is a CPU job (53 % of the published jobs): read unchanged, and scheduled "
            "with cpu_jobs=keep only"
        ),
        "a job without a start or end never ran and is left out",
        "duration is end - start; a duration column that disagrees is recomputed and counted",
    ),
)
def read_helios(path: Path, reading: ImportContext) -> Trace:
    """Read a Helios job log."""
    table = read_table(path, _COLUMNS, reading)
    run = table.check_run(_TIME)
    table.check(pl.col("gpu_num") >= 0, "gpu_num", "is negative")
    table.check(pl.col("cpu_num") >= 0, "cpu_num", "is negative")
    table.count_repairs(
        pl.col("duration") != run, "duration is not end - start; the difference is used"
    )
    jobs = table.jobs(
        job="job_id",
        submit="submit_time",
        duration=run,
        queue=pl.col("start_time") - pl.col("submit_time"),
        gpus="gpu_num",
        cpus="cpu_num",
        tenant="vc",
        user="user",
        status=pl.lit(each(table.frame["state"], parse_state, pl.String())),
    )
    return build_trace("helios", jobs, path, reading.tally, absolute=True)


def read_vc_sizes(path: Path) -> pl.DataFrame:
    """Read the daily GPUs of a Helios cluster's virtual clusters (cluster_gpu_number.csv).

    The file has a date, a column of GPUs for each virtual cluster, and the total. The result has
    the columns date, tenant and gpus. Rows of 0 GPUs are omitted, because the virtual cluster
    doesn't exist on such a day.

    Raise `InputError` if the counts of a day don't add up to its total.
    """
    names = column_names(read_head(path))
    tenants = [name for name in names if name not in {"date", "total"}]
    columns = typed_columns("date total:i") | dict.fromkeys(tenants, pl.Int64())
    frame = read_table(path, columns, ImportContext()).done()
    wrong = frame.filter(pl.sum_horizontal(tenants) != pl.col("total"))
    if not wrong.is_empty():
        line = wrong.item(0, "line")
        raise InputError(Fault(f"{path}: line {line}", "the GPUs do not add up to the total"))
    long = frame.unpivot(on=tenants, index="date", variable_name="tenant", value_name="gpus")
    return long.filter(pl.col("gpus") > 0).with_columns(pl.col("date").str.to_date())
