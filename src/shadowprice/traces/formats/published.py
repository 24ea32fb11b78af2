"""Traces that are published as one table: Acme, Gavel, Helios, ITP, openb and Tiresias."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.errors import InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.log_values import map_texts, parse_state
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import CheckedTable, column_names, file_error, read_head, read_table

_ACME: Final = typed_columns(
    "job_id user node_num:f gpu_num:f cpu_num:f type state submit_time start_time end_time "
    "duration:f mem_per_pod_GB:f"
)
_ACME_TIME: Final = "%Y-%m-%d %H:%M:%S%z"


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
            "the duration column of Kalos includes queueing (end - submit), so end - start is "
            "read; rows whose column says otherwise are counted"
        ),
        "only Kalos has memory, per pod; counts may have a decimal point (10.0)",
        "no virtual cluster: the tenant is the user",
        "gpu_num 0 is a CPU job: read unchanged, and scheduled only with cpu_jobs=keep",
    ),
)
def read_acme(path: Path, context: ImportContext) -> Trace:
    """Read an Acme job trace."""
    table = read_table(path, _ACME, context, optional=("mem_per_pod_GB", "duration"))
    run = table.check_run(_ACME_TIME)
    table.check(pl.col("gpu_num") >= 0, "gpu_num", "is negative or missing")
    table.count_repairs(
        (pl.col("duration") - run).abs() > 0.5,
        "duration is not end - start (it includes queueing); the difference is used",
    )
    memory = (pl.col("mem_per_pod_GB") * pl.col("node_num") * 1e9).round()
    jobs = table.jobs(**_timed_columns(table, run), memory=memory, tenant="user")
    return build_trace("acme", jobs, path, context.tally, absolute=True)


def _timed_columns(table: CheckedTable, run: pl.Expr) -> dict[str, pl.Expr | str]:
    """Return the columns that Acme and Helios share; ``run`` is the run time in seconds."""
    return {
        "job": "job_id",
        "submit": "submit_time",
        "duration": run,
        "queue": pl.col("start_time") - pl.col("submit_time"),
        "gpus": "gpu_num",
        "cpus": "cpu_num",
        "user": "user",
        "status": pl.lit(map_texts(table.frame["state"], parse_state, pl.String())),
    }


_GAVEL_COMMON: Final = "num_steps_arg needs_data_dir total_steps:i"
_GAVEL_LAYOUTS: Final = {
    7: typed_columns(f"job_type command {_GAVEL_COMMON} arrival:f scale_factor:i"),
    10: typed_columns(
        f"job_type command working_directory {_GAVEL_COMMON} scale_factor:i priority_weight:f "
        "slo:f arrival:f"
    ),
    12: typed_columns(
        f"job_type command working_directory {_GAVEL_COMMON} scale_factor:i mode priority_weight:f "
        "slo:f duration:f arrival:f"
    ),
}
_GAVEL_TYPE: Final = r"^(.+?)(?: \(batch size (\d+)\))?$"


@trace_format(
    "gavel",
    title="Gavel's job traces (7 or 10 tab-separated fields) and Shockwave's (12)",
    citation="Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning "
    "Workloads, OSDI 2020; Zheng et al., Shockwave, NSDI 2023",
    licence="MIT; the msr traces derive from Philly: also CC-BY-4.0",
    files="*.trace[.gz]",
    gotchas=(
        (
            "no header and no names: jobs are named job-LINE; files of 7 fields have arrival "
            "before GPUs"
        ),
        "total_steps are mini-batches summed over workers, like Gavel's throughput table",
        (
            "7 and 10 fields carry no duration, and total_steps came from an older throughput "
            "table: durations are left unknown and synthesis computes them from the measured curve"
        ),
        "the model was drawn at random (seeds 0-4 of the msr traces differ only in it)",
        (
            "SLO is -1 (none) in every published file; other SLOs and priorities are ignored and "
            "counted"
        ),
        "Shockwave's traces are synthetic, and its batch size may change during the run (mode)",
    ),
)
def read_gavel(path: Path, context: ImportContext) -> Trace:
    """Read a Gavel or Shockwave trace file."""
    width = read_head(path).splitlines()[0].count("\t") + 1
    if width not in _GAVEL_LAYOUTS:
        message = f"has {width} tab-separated fields"
        raise file_error(path, message, "a Gavel trace has 7, 10 or 12", 1)
    layout = _GAVEL_LAYOUTS[width]
    table = read_table(path, layout, context, separator="\t", header=False, quoted=False)
    table.check(pl.col("job_type").is_not_null(), "job_type", "is missing")
    table.check_positive("total_steps", "scale_factor")
    table.check(pl.col("arrival") >= 0, "arrival", "is negative or missing")
    if "slo" in layout:
        table.count_repairs(pl.col("slo") != -1, "SLO is not used")
        table.count_repairs(pl.col("priority_weight") != 1, "priority_weight is not used")
    if "duration" in layout:
        table.check_positive("duration")
    if "mode" in layout:
        table.count_repairs(
            pl.col("mode") != "static", "batch size changes during the run (mode)", "kept"
        )
    duration = pl.col("duration") if "duration" in layout else pl.lit(None)
    jobs = table.jobs(
        job=pl.format("job-{}", "line"),
        submit="arrival",
        duration=duration,
        gpus="scale_factor",
        workers="scale_factor",
        model=pl.col("job_type").str.extract(_GAVEL_TYPE, 1),
        batch_size=pl.col("job_type").str.extract(_GAVEL_TYPE, 2).cast(pl.Float64),
        iterations="total_steps",
    )
    return build_trace("gavel", jobs, path, context.tally, absolute=False)


_HELIOS: Final = typed_columns(
    "job_id user vc gpu_num:i cpu_num:i state submit_time start_time end_time duration:f"
)
_HELIOS_TIME: Final = "%Y-%m-%d %H:%M:%S"


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
            "only with cpu_jobs=keep"
        ),
        "a job without a start or end never ran and is left out",
        "duration is end - start; a duration column that disagrees is recomputed and counted",
    ),
)
def read_helios(path: Path, context: ImportContext) -> Trace:
    """Read a Helios job log."""
    table = read_table(path, _HELIOS, context)
    run = table.check_run(_HELIOS_TIME)
    table.check(pl.col("gpu_num") >= 0, "gpu_num", "is negative")
    table.check(pl.col("cpu_num") >= 0, "cpu_num", "is negative")
    table.count_repairs(
        pl.col("duration") != run, "duration is not end - start; the difference is used"
    )
    jobs = table.jobs(**_timed_columns(table, run), tenant="vc")
    return build_trace("helios", jobs, path, context.tally, absolute=True)


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
    inconsistent = frame.filter(pl.sum_horizontal(tenants) != pl.col("total"))
    if not inconsistent.is_empty():
        line = inconsistent.item(0, "line")
        raise file_error(path, "the GPUs do not add up to the total", "", line)
    long = frame.unpivot(on=tenants, index="date", variable_name="tenant", value_name="gpus")
    return long.filter(pl.col("gpus") > 0).with_columns(pl.col("date").str.to_date())


_ITP_RAW: Final = typed_columns("job_id submission_time:f duration:f num_gpu:i")
_ITP_ELASTICFLOW: Final = typed_columns(
    "job_id submission_time:f num_iteration:i model_name deadline:f batch_size:i num_gpu:i "
    "duration:f"
)
_ITP_PHILLY: Final = typed_columns(
    "job_id submit_time:f model_name ddl:f batch_size:i num_gpu:i duration:f iteration:i"
)
_ITP_RENAMED: Final = {  # to the columns of the other layouts
    "submit_time": "submission_time",
    "ddl": "deadline",
    "iteration": "num_iteration",
}


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
def read_itp(path: Path, context: ImportContext) -> Trace:
    """Read an ITP job trace, in any of its three layouts."""
    names = set(column_names(read_head(path)))
    layouts = (_ITP_ELASTICFLOW, _ITP_PHILLY, _ITP_RAW)
    layout = next((candidate for candidate in layouts if set(candidate) <= names), None)
    if layout is None:
        headers = "; ".join(",".join(candidate) for candidate in layouts)
        message = "isn't the header of an ITP trace"
        raise file_error(path, message, f"use {headers}", 1)
    table = read_table(path, layout, context)
    renamed = {old: new for old, new in _ITP_RENAMED.items() if old in layout}
    table.frame = table.frame.rename(renamed)
    table.check(pl.col("submission_time") >= 0, "submission_time", "is negative or missing")
    table.check_positive("duration", "num_gpu")
    described = layout is not _ITP_RAW
    if described:
        table.check_positive("num_iteration", "batch_size")
        table.check(pl.col("model_name").is_not_null(), "model_name", "is missing")
        is_valid = pl.col("deadline") > pl.col("submission_time")
        table.check(is_valid, "deadline", "is not after submission")
    extra = {"model": "model_name", "iterations": "num_iteration"} if described else {}
    extra |= {name: name for name in ("batch_size", "deadline") if described}
    jobs = table.jobs(
        job="job_id", submit="submission_time", duration="duration", gpus="num_gpu", **extra
    )
    return build_trace("itp", jobs, path, context.tally, absolute=False)


_OPENB: Final = typed_columns(
    "name cpu_milli:i memory_mib:i num_gpu:i gpu_milli:i gpu_spec qos pod_phase creation_time:f "
    "deletion_time:f scheduled_time:f"
)
_DENSE_SINCE: Final = 9.0e6  # second from which the trace has all pods; a few are older


@trace_format(
    "openb",
    title="Alibaba cluster-trace-gpu-v2023 (openb): openb_pod_list_*.csv",
    citation="Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with "
    "Fragmentation Gradient Descent, USENIX ATC 2023; github.com/alibaba/clusterdata",
    licence="no licence file; its README allows research and study only: do not redistribute",
    files="openb_pod_list_default.csv[.gz] or openb_pod_list_gpuspec*.csv[.gz]",
    gotchas=(
        "pods, not gangs: a distributed job is several of these jobs; no user, no tenant",
        "gpu_milli is the share of one GPU and below 1000 only with num_gpu 1",
        "scheduled_time blank is a Pending pod that never ran: left out",
        "pod_phase Running still has a deletion_time: kept, counted, status unfinished",
        "a few ancient pods precede the dense 34 days: those created before since= are left out",
        "gpu_spec may name a type twice (V100M16|V100M32|V100M32): named once",
        "num_gpu 0 is a CPU pod: read unchanged, and scheduled only with cpu_jobs=keep",
    ),
    options={"since": "leave out pods created before this second (default 9000000; 0 keeps all)"},
)
def read_openb(path: Path, context: ImportContext) -> Trace:
    """Read an openb pod list."""
    text = context.options.get("since", str(_DENSE_SINCE))
    try:
        since = float(text)
    except ValueError as error:
        raise InputError(f"since={text}: write a number of seconds") from error
    table = read_table(path, _OPENB, context)
    table.drop(
        pl.col("creation_time") < since, f"created before t={since:g} s, long before the dense part"
    )
    table.drop(pl.col("scheduled_time").is_null(), "Pending: never ran")
    gpus, milli = pl.col("num_gpu"), pl.col("gpu_milli")
    table.check(gpus >= 0, "num_gpu", "is negative or missing")
    table.check(
        ((gpus == 0) & (milli == 0)) | ((gpus == 1) & milli.is_between(1, 1000)) | (milli == 1000),
        "gpu_milli",
        "does not go with num_gpu",
        "a share below 1000 needs num_gpu 1",
    )
    created, scheduled = pl.col("creation_time"), pl.col("scheduled_time")
    table.check(scheduled >= created, "scheduled_time", "is before creation_time")
    table.check(pl.col("deletion_time") > scheduled, "deletion_time", "is not after scheduled_time")
    table.count_repairs(
        pl.col("pod_phase") == "Running", "pod_phase Running with a deletion_time", action="kept"
    )
    types = pl.col("gpu_spec").str.split("|")
    table.count_repairs(types.list.n_unique() < types.list.len(), "gpu_spec names a type twice")
    jobs = table.jobs(
        job="name",
        submit="creation_time",
        duration=pl.col("deletion_time") - scheduled,
        queue=scheduled - created,
        gpus=gpus * milli / 1000,
        gpu_type=types.list.unique(maintain_order=True).list.join("|"),
        cpus=pl.col("cpu_milli") / 1000,
        memory=pl.col("memory_mib") * 2.0**20,
        workers=pl.lit(1),
        status=pl.lit(map_texts(table.frame["pod_phase"], parse_state, pl.String())),
    )
    return build_trace("openb", jobs, path, context.tally, absolute=False)


_TIRESIAS: Final = typed_columns("job_id num_gpu:i submit_time:f model_name duration:f")


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
            "duration holds for num_gpu GPUs; iterations (of an unpublished batch size) and "
            "interval (the time to the next job) are not read"
        ),
        "models are ten CNNs of the TensorFlow benchmarks; most have no measured throughput here",
    ),
)
def read_tiresias(path: Path, context: ImportContext) -> Trace:
    """Read a job file of Tiresias's simulator."""
    table = read_table(path, _TIRESIAS, context)
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
    return build_trace("tiresias", jobs, path, context.tally, absolute=False)
