"""Microsoft ITP (2021) as published with ElasticFlow, with or without deadlines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import column_names, read_head, read_table

_RAW: Final = typed_columns("job_id submission_time:f duration:f num_gpu:i")
_ELASTICFLOW: Final = typed_columns(
    "job_id submission_time:f num_iteration:i model_name deadline:f batch_size:i num_gpu:i "
    "duration:f"
)
_PHILLY: Final = typed_columns(
    "job_id submit_time:f model_name ddl:f batch_size:i num_gpu:i duration:f iteration:i"
)
_ALIKE: Final = {"submit_time": "submission_time", "ddl": "deadline", "iteration": "num_iteration"}


@trace_format(
    "itp",
    title="Microsoft ITP, 2021 (cluster01..06.csv): ElasticFlow's files with model, batch size, "
    "iterations and deadline, the raw ones without, and its Philly virtual cluster",
    citation="Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed "
    "Deep Learning, ASPLOS 2023; github.com/microsoft/elasticflow-traces",
    licence="MIT (ITP); Apache-2.0 and CC-BY-4.0 (ElasticFlow's Philly file)",
    files="cluster01.csv[.gz] .. cluster06.csv[.gz], or philly_103959.csv",
    gotchas=(
        (
            "submission, GPUs and duration are real; model, batch size, iterations and deadline "
            "were drawn by the authors (deadline = submission + U(0.5, 1.5) x duration), so half "
            "the deadlines cannot be met with the traced GPUs"
        ),
        "times are seconds from an unpublished start; no tenant, no status",
        "not always sorted",
    ),
)
def read_itp(path: Path, reading: ImportContext) -> Trace:
    """Read an ITP job trace, in any of its three layouts."""
    names = set(column_names(read_head(path)))
    layouts = (_ELASTICFLOW, _PHILLY, _RAW)
    layout = next((candidate for candidate in layouts if set(candidate) <= names), None)
    if layout is None:
        headers = "; ".join(",".join(candidate) for candidate in layouts)
        raise InputError(
            Fault(f"{path}: line 1", "isn't the header of an ITP trace", f"use {headers}")
        )
    table = read_table(path, layout, reading)
    table.frame = table.frame.rename({old: new for old, new in _ALIKE.items() if old in layout})
    table.check(pl.col("submission_time") >= 0, "submission_time", "is negative or missing")
    table.check_positive("duration", "num_gpu")
    described = layout is not _RAW
    if described:
        table.check_positive("num_iteration", "batch_size")
        table.check(pl.col("model_name").is_not_null(), "model_name", "is missing")
        late = pl.col("deadline") > pl.col("submission_time")
        table.check(late, "deadline", "is not after submission")
    extra = {"model": "model_name", "iterations": "num_iteration"} if described else {}
    extra |= {name: name for name in ("batch_size", "deadline") if described}
    jobs = table.jobs(
        job="job_id", submit="submission_time", duration="duration", gpus="num_gpu", **extra
    )
    return build_trace("itp", jobs, path, reading.tally, absolute=False)
