"""Types of GPU: those that a trace's jobs request, as resources of a cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import GPU, is_gpu_kind

_ANY: frozenset[str] = frozenset({"", "*", "any", "gpu", "none", "null", "unknown", "n/a", "-"})
"""Words of traces that don't name a type, in lower case."""


def split_types(text: str | None) -> tuple[str, ...]:
    """Return the types that a job may run on, as its trace writes them; empty for any type."""
    types = tuple(word.strip() for word in re.split(r"[|,;]", text or ""))
    return () if any(name.lower() in _ANY for name in types) else types


def choose_resource(types: Sequence[str], cluster: Cluster) -> str | None:
    """Return the resource that counts the GPUs of a job; None if no server has a type of them.

    It is ``gpu`` if the cluster's servers name no types, or the job may run on all of them. Of
    several types, the most numerous is chosen, because a job requests one resource.
    """
    kinds = [name for name in cluster.resources if is_gpu_kind(name)]
    if not types or not kinds:
        return GPU
    best = {kind for name in types for kind in _closest(name, kinds)}
    found = [kind for kind in kinds if kind in best]
    totals = {name: int(cluster.capacity[:, cluster.column[name]].sum()) for name in found}
    if len(found) > 1 and len(found) == len(kinds):
        all_gpus = int(cluster.capacity[:, cluster.column[GPU]].sum())
        if sum(totals.values()) == all_gpus:  # no server has GPUs of an unknown type
            return GPU
    return max(found, key=totals.__getitem__) if found else None


def _closest(name: str, kinds: Sequence[str]) -> list[str]:
    """Return the resources ``gpu/KIND`` that a trace's name of a type is likely to mean.

    One name may say more than the other: ``Tesla-V100-SXM2-32GB`` is a ``v100``, unless there is a
    ``v100-32gb``. The closest resources have the most words in common, and the fewest others.
    """
    wanted = _words(name)
    scores: dict[str, tuple[int, int]] = {}
    for kind in kinds:
        words = _words(kind.partition("/")[2])
        if words and wanted and (words <= wanted or wanted <= words):
            scores[kind] = len(words & wanted), -len(words ^ wanted)
    return [kind for kind, score in scores.items() if score == max(scores.values())]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
