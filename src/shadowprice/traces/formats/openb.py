"""Alibaba openb (2023): the pods of a shared GPU cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.errors import InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.log_values import each, parse_state
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import read_table

_COLUMNS: Final = typed_columns(
    "name cpu_milli:i memory_mib:i num_gpu:i gpu_milli:i gpu_spec qos pod_phase creation_time:f "
    "deletion_time:f scheduled_time:f"
)
_DENSE_SINCE: Final = 9.0e6


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
        "num_gpu 0 is a CPU pod: read unchanged, and scheduled with cpu_jobs=keep only",
    ),
    options={"since": "leave out pods created before this second (default 9000000; 0 keeps all)"},
)
def read_openb(path: Path, reading: ImportContext) -> Trace:
    """Read an openb pod list."""
    text = reading.options.get("since", str(_DENSE_SINCE))
    try:
        since = float(text)
    except ValueError as error:
        raise InputError(f"since={text}: write a number of seconds") from error
    table = read_table(path, _COLUMNS, reading)
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
        status=pl.lit(each(table.frame["pod_phase"], parse_state, pl.String())),
    )
    return build_trace("openb", jobs, path, reading.tally, absolute=False)
