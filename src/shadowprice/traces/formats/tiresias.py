"""Job files of Tiresias's simulator, as later work still uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.results.columns import typed_columns
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import read_table

_COLUMNS: Final = typed_columns("job_id num_gpu:i submit_time:f model_name duration:f")


@trace_format(
    "tiresias",
    title="Job files of Tiresias's simulator: 60_job.csv, 480_job.csv",
    citation="Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019; "
    "github.com/SymbioticLab/Tiresias",
    licence="Apache-2.0",
    files="*_job.csv[.gz]",
    gotchas=(
        "synthetic; times are seconds from the first job",
        (
            "the duration is that with num_gpu GPUs, and is used unchanged; iterations, of an "
            "unpublished batch size, and interval, the time to the next job, are not read"
        ),
        "models are ten CNNs of the TensorFlow benchmarks; most have no measured throughput here",
    ),
)
def read_tiresias(path: Path, reading: ImportContext) -> Trace:
    """Read a job file of Tiresias's simulator."""
    table = read_table(path, _COLUMNS, reading)
    table.check(pl.col("submit_time") >= 0, "submit_time", "is negative or missing")
    table.check_positive("duration", "num_gpu")
    jobs = table.jobs(
        job="job_id",
        submit="submit_time",
        duration="duration",
        gpus="num_gpu",
        workers="num_gpu",
        model="model_name",
    )
    return build_trace("tiresias", jobs, path, reading.tally, absolute=False)
