"""Jobs that run on this machine, started by any scheduler; for observer mode.

A job started by other means (a shell, cron, another scheduler's prolog) is observed if its
environment contains ``SHADOWPRICE_JOB=name``; ``SHADOWPRICE_TENANT`` and ``SHADOWPRICE_ROLE`` are
optional. A process whose parent has the same name and tenant belongs to the parent.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.job_keys import name_of_key
from shadowprice.executors.contract import (
    Ended,
    Ending,
    GenerationStatus,
    ObservedJob,
    ServerAllocation,
)
from shadowprice.executors.generations.generation import start_time
from shadowprice.executors.supervision.children import processes, read_environ

_MAX_OBSERVED_JOBS: Final = 10_000  # maximum number of jobs of other schedulers observed at once


def observe_jobs(
    own: Iterable[GenerationStatus], slice_of: Callable[[Sequence[int]], str | None]
) -> tuple[ObservedJob, ...]:
    """Return this executor's running and ended generations, and jobs of other schedulers."""
    ours: dict[str, ObservedJob] = {}
    for held in own:  # in order of acceptance: the newest generation of a job wins
        if held.started is not None:
            ours[held.job] = ObservedJob(
                held.job, held.placement, held.started, is_own=True, **_end(held)
            )
    foreign: dict[tuple[str, str | None], list[tuple[int, dict[str, str]]]] = {}
    marks = _marked_processes()
    for process, (parent, variables) in marks.items():
        mark = _name_and_tenant(variables)
        if parent in marks and _name_and_tenant(marks[parent][1]) == mark:
            continue
        foreign.setdefault(mark, []).append((process, variables))
    for job in ours.values():  # own processes have the name in their environment, and no tenant
        if job.ended is None:
            foreign.pop((name_of_key(job.job), None), None)
    theirs = (
        _to_observed_job(name, tenant, members, slice_of)
        for (name, tenant), members in list(foreign.items())[:_MAX_OBSERVED_JOBS]
    )
    return (*ours.values(), *(job for job in theirs if job is not None))


def _end(held: GenerationStatus) -> dict[str, Any]:
    """Return the end fields of a generation; empty if it runs."""
    if not isinstance(held.end, Ended):
        return {}
    return {"ended": held.end.at, "done": held.end.ending is Ending.DONE}


def _marked_processes() -> dict[int, tuple[int, dict[str, str]]]:
    """Return the processes that name a job, each with its parent and its variables."""
    marks = {}
    for process, parent, _ in processes():
        variables = read_environ(process)
        if 0 < len(variables.get("SHADOWPRICE_JOB", "")) <= bounds.NAME.maximum:
            marks[process] = (parent, variables)
    return marks


def _name_and_tenant(variables: Mapping[str, str]) -> tuple[str, str | None]:
    return variables["SHADOWPRICE_JOB"], variables.get("SHADOWPRICE_TENANT") or None


def _to_observed_job(
    name: str,
    tenant: str | None,
    members: list[tuple[int, dict[str, str]]],
    slice_of: Callable[[Sequence[int]], str | None],
) -> ObservedJob | None:
    counts: dict[str, Counter[str]] = {}
    starts = []
    for process, variables in members:
        ticks = start_time(process)
        if ticks is None:  # ended meanwhile
            continue
        try:
            cores = sorted(os.sched_getaffinity(process))
        except OSError:
            continue
        role = "ps" if variables.get("SHADOWPRICE_ROLE") == "ps" else "worker"
        server = slice_of(cores) or socket.gethostname()
        counts.setdefault(server, Counter())[role] += 1
        starts.append(ticks / os.sysconf("SC_CLK_TCK"))
    if not starts:
        return None
    since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + min(starts)
    placement = tuple(
        ServerAllocation(server, count["worker"], count["ps"]) for server, count in counts.items()
    )
    return ObservedJob(name, placement, since, tenant)
