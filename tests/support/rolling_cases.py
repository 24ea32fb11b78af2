"""Clusters and jobs for tests of rolling."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.events import (
    Promise,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.workloads import DIMENSIONS, make_job


def gpus(servers: int, each: int, *, horizon: int = 400, tenants: Sequence[Tenant] = ()) -> Cluster:
    """Return servers that have GPUs and nothing else, for workers only."""
    rows = [(f"gpu-{index}", Role.WORKER, {"gpu": each * 1000}) for index in range(servers)]
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=horizon,
        servers=rows,
        dimensions=DIMENSIONS,
        tenants=tenants,
    )


def training(cluster: Cluster, name: str, **changes: Any) -> Job:
    """Return an all-reduce job of one GPU a worker."""
    return make_job(cluster, name, worker_amounts={"gpu": 1000}, ps_amounts=None, **changes)


def rolling(cluster: Cluster, **settings: object) -> Engine:
    """Return an engine that `rolling` decides for."""
    return Engine(cluster, make_policy("rolling", PolicyContext(cluster), settings))


def promises(commands: Sequence[object]) -> list[tuple[str, int | None]]:
    """Return promises and renewed promises in order."""
    results = [getattr(command, "decision", None) for command in commands]
    return [(made.job, made.completion) for made in results if isinstance(made, Promise)]
