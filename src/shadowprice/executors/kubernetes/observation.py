"""Jobs of other schedulers, derived from their pods."""

from __future__ import annotations

from collections.abc import Iterable

from shadowprice.core.job_keys import name_of_key
from shadowprice.executors.contract import ObservedJob, ServerAllocation
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.views import PodView


def observe_jobs(
    pods: Iterable[PodView], namespace: str, skipped: ServiceId | None
) -> tuple[ObservedJob, ...]:
    """Return the jobs that pods belong to, except those of the service ``skipped``.

    A pod's job is named by Shadowprice's annotation, by the labels of known controllers, or by an
    owner of a kind of job. Other pods belong to no job and only use capacity. Outside
    ``namespace``, a job's name is prefixed with its namespace.
    """
    by_job: dict[tuple[str, str, bool], list[PodView]] = {}
    for view in pods:
        job, tenant, _ = view.outer
        if not job or (skipped is not None and view.service == skipped):
            continue
        is_key = view.service is not None
        name = job if is_key or view.namespace == namespace else f"{view.namespace}/{job}"
        by_job.setdefault((name, tenant, is_key), []).append(view)
    jobs = (
        _job(name_of_key(name) if is_key else name, tenant, views)
        for (name, tenant, is_key), views in sorted(by_job.items())
    )
    return tuple(item for item in jobs if item is not None)


def _job(name: str, tenant: str, views: list[PodView]) -> ObservedJob | None:
    started = [view for view in views if view.node and view.began is not None]
    if not started:
        return None
    running = [view for view in started if not view.over]
    shown = running or started
    counts: dict[str, list[int]] = {}
    for view in shown:
        counts.setdefault(view.node, [0, 0])[view.outer[2] == "ps"] += 1
    placement = tuple(ServerAllocation(node, *count) for node, count in sorted(counts.items()))
    since = min(view.began for view in shown if view.began is not None)
    ends = [view.exit.at for view in started if view.exit is not None]
    pending = any(not view.over for view in views)
    over = not running and not pending
    return ObservedJob(
        name,
        placement,
        since,
        tenant=tenant or None,
        ended=max(ends, default=since) if over else None,
        done=all(view.phase == "Succeeded" for view in started) if over else None,
    )
