"""Imports and kernels of a service, for the process that `ServiceProcess` forks services from."""

from __future__ import annotations

import gc
from contextlib import suppress
from fractions import Fraction

import polars  # noqa: F401

import shadowprice.cli.commands.serve
import shadowprice.cli.main
import shadowprice.executors.local.executor
import shadowprice.service.server
import shadowprice.simulator.warm_up  # noqa: F401
from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Role, build_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.service import warm_up_policy

with suppress(ImportError):  # uvicorn uses it where it is installed
    import uvloop  # noqa: F401

# Numba takes half of a second to load the first kernel, in each process.
_CLUSTER = build_cluster(
    slot_seconds=Fraction(60),
    horizon=10,
    servers=[("server", Role.ANY, {"gpu": 1000, "cpu": 4000})],
    dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT},
)
for _policy in ("fifo", "rolling"):
    warm_up_policy(_CLUSTER, PolicyChoice(_policy))
gc.collect()
gc.freeze()
