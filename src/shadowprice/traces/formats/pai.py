"""Alibaba PAI (cluster-trace-gpu-v2020): a directory of tables joined on job and instance."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.results.columns import typed_columns
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import CheckedTable, file_error, read_table

TABLES: Final = {
    "job": typed_columns("job_name inst_id user status start_time:f end_time:f"),
    "task": typed_columns(
        "job_name task_name inst_num:f status start_time:f end_time:f plan_cpu:f plan_mem:f "
        "plan_gpu:f gpu_type"
    ),
    "instance": typed_columns(
        "job_name task_name inst_name worker_name inst_id status start_time:f end_time:f machine"
    ),
    "group_tag": typed_columns("inst_id user gpu_type_spec group workload"),
}
_STATUS: Final = {
    "Terminated": "passed",
    "Failed": "failed",
    "Running": "unfinished",
    "Waiting": "unfinished",
}
_GIB: Final = 2**30


@trace_format(
    "pai",
    title="Alibaba PAI, cluster-trace-gpu-v2020: a directory of pai_*_table.csv",
    citation="Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale "
    "Heterogeneous GPU Clusters, USENIX NSDI 2022; github.com/alibaba/clusterdata",
    licence="CC-BY-4.0",
    files="a directory with pai_job_table.csv and pai_task_table.csv, and, optionally, "
    "pai_instance_table.csv and pai_group_tag_table.csv (plain or .gz)",
    gotchas=(
        "the tables have no header; a file with a header line is refused",
        "they are joined on job_name and inst_id; jobs without tasks are dropped and counted",
        "plan_cpu and plan_gpu are percentages per instance (inst_num); blank means 0",
        (
            "a job's start_time is its submission; it runs from its first instance's start (its "
            "first task's, without the instance table) to its end"
        ),
        (
            "a job without plan_gpu is a CPU job: read unchanged, and scheduled only "
            "with cpu_jobs=keep"
        ),
        "jobs with a blank end_time are unfinished and dropped; only Terminated is success",
        (
            "parameter servers (task ps), workers and evaluators are tasks of one job: ps and "
            "workers are counted separately; GPUs, cores and memory are summed over all tasks"
        ),
        (
            "times are shifted seconds (hour and weekday kept, UTC+8); no deadline and no virtual "
            "cluster: the tenant is the user"
        ),
    ),
)
def read_pai(path: Path, context: ImportContext) -> Trace:
    """Read and join the PAI tables of a directory."""
    if not path.is_dir():
        raise file_error(path, "is not a directory", "give the directory of the pai_*_table.csv")
    table = _read_jobs(path, context)
    tasks = _read_tasks(path, context)
    instances = _read_first_starts(path, context)
    workloads = _read_workloads(path, context)
    joined = table.done().join(tasks, on="job_name", how="left")
    tally = context.tally
    orphans = joined.filter(pl.col("tasks").is_null()).height
    tally.add("dropped", "job without tasks in pai_task_table", orphans)
    joined = joined.filter(pl.col("tasks").is_not_null())
    joined = joined.join(workloads, on="inst_id", how="left")
    if instances is not None:
        joined = joined.join(instances, on="job_name", how="left").with_columns(
            first_start=pl.coalesce("instance_start", "first_start")
        )
    started = pl.coalesce("first_start", "start_time")  # ``start_time`` is the submission
    never_ran = joined.filter(started >= pl.col("end_time"))
    tally.add("dropped", "no run time between first start and end", never_ran.height)
    joined = joined.filter(started < pl.col("end_time"))
    early_count = joined.filter(started < pl.col("start_time")).height
    tally.add("repaired", "a task starts before its job's submission; queueing is 0", early_count)
    table.frame = joined
    frame = table.jobs(
        job="job_name",
        submit="start_time",
        duration=pl.col("end_time") - started,
        queue=(started - pl.col("start_time")).clip(0.0),
        gpus="gpus",
        workers=pl.when(pl.col("workers") > 0).then("workers"),
        ps="ps",
        gpu_type="gpu_type",
        cpus="cpus",
        memory=pl.col("memory").round(),
        tenant="user",
        user="user",
        status=pl.col("status").replace(_STATUS).str.to_lowercase(),
        model="workload",
    )
    return build_trace("pai", frame, path, tally, absolute=False)


def _find(path: Path, table: str) -> Path | None:
    for suffix in (".csv", ".csv.gz"):
        candidate = path / f"pai_{table}_table{suffix}"
        if candidate.exists():
            return candidate
    return None


def _read(path: Path, table: str, context: ImportContext) -> CheckedTable:
    file = _find(path, table)
    if file is None:
        raise file_error(path, f"lacks pai_{table}_table.csv", "put the table into the directory")
    return read_table(file, TABLES[table], context, header=False)


def _read_jobs(path: Path, context: ImportContext) -> CheckedTable:
    table = _read(path, "job", context)
    table.check(pl.col("job_name").is_not_null(), "job_name", "is missing")
    table.check(pl.col("start_time") >= 0, "start_time", "is missing")
    table.drop(pl.col("end_time").is_null(), "no end_time: unfinished job")
    table.check(pl.col("end_time") >= pl.col("start_time"), "end_time", "is before start_time")
    return table


def _read_tasks(path: Path, context: ImportContext) -> pl.DataFrame:
    table = _read(path, "task", context)
    table.check_positive("inst_num")
    for column in ("plan_cpu", "plan_mem", "plan_gpu"):
        table.check(pl.col(column).fill_null(0.0) >= 0, column, "is negative")
    frame = table.done()
    role = pl.col("task_name").str.to_lowercase()
    is_ps = (role == "ps").fill_null(False)
    is_evaluator = role.str.contains("evaluator").fill_null(False)
    count = pl.col("inst_num")

    def planned(column: str, unit: float) -> pl.Expr:
        return (pl.col(column).fill_null(0.0) * count).sum() * unit

    return frame.group_by("job_name", maintain_order=True).agg(
        tasks=pl.len(),
        first_start=pl.col("start_time").min(),
        gpus=planned("plan_gpu", 0.01),
        cpus=planned("plan_cpu", 0.01),
        memory=planned("plan_mem", _GIB),
        ps=count.filter(is_ps).sum().floor(),
        workers=count.filter(~is_ps & ~is_evaluator).sum().floor(),
        gpu_type=pl.col("gpu_type").drop_nulls().unique(maintain_order=True).str.join("|"),
    )


def _read_first_starts(path: Path, context: ImportContext) -> pl.DataFrame | None:
    if _find(path, "instance") is None:
        return None
    frame = _read(path, "instance", context).done()
    return frame.group_by("job_name").agg(instance_start=pl.col("start_time").min())


def _read_workloads(path: Path, context: ImportContext) -> pl.DataFrame:
    if _find(path, "group_tag") is None:
        return pl.DataFrame(schema=typed_columns("inst_id workload"))
    frame = _read(path, "group_tag", context).done()
    return frame.select("inst_id", "workload").unique("inst_id", keep="first", maintain_order=True)
