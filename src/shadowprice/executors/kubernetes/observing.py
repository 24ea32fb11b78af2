"""Jobs of others, as their pods tell of them."""

from __future__ import annotations

from collections.abc import Iterable

from shadowprice.executors.contract import Observed, Share
from shadowprice.executors.kubernetes.views import PodView


def observed(pods: Iterable[PodView], namespace: str, skipped: str) -> tuple[Observed, ...]:
    """Return the jobs that pods belong to.

    A pod tells its job by an annotation of ours, by the labels of controllers that are known, or by
    its owner, where that is a kind of job. Others are no jobs: they take room, and are counted so.

    Parameters
    ----------
    pods : iterable of PodView
        All pods.
    namespace : str
        Where jobs go by their own names; those of others have their namespace before it.
    skipped : str
        A service whose pods are left out; empty for none.
    """
    by_job: dict[str, list[PodView]] = {}
    for view in pods:
        job, _, _ = view.outer
        if not job or (skipped and view.service == skipped):
            continue
        plain = view.service or view.namespace == namespace
        by_job.setdefault(job if plain else f"{view.namespace}/{job}", []).append(view)
    found = (_job(name, views) for name, views in sorted(by_job.items()))
    return tuple(one for one in found if one is not None)


def _job(name: str, views: list[PodView]) -> Observed | None:
    begun = [view for view in views if view.node and view.began is not None]
    if not begun:
        return None
    running = [view for view in begun if not view.over]
    shown = running or begun
    counts: dict[str, list[int]] = {}
    for view in shown:
        counts.setdefault(view.node, [0, 0])[view.outer[2] == "ps"] += 1
    placement = tuple(Share(node, *count) for node, count in sorted(counts.items()))
    since = min(view.began for view in shown if view.began is not None)
    ends = [view.exit.at for view in begun if view.exit is not None]
    waits = any(not view.over for view in views)
    over = not running and not waits
    return Observed(
        name,
        placement,
        since,
        tenant=shown[0].outer[1] or None,
        ended=max(ends, default=since) if over else None,
        done=all(view.phase == "Succeeded" for view in begun) if over else None,
    )
