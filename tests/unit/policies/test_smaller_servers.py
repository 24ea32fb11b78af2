"""Jobs that a smaller server can never run don't keep it from other jobs."""

from __future__ import annotations

import pytest

from shadowprice.core.cluster import Role
from shadowprice.core.events import CapacityChanged, JobsArrived, ServerState
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Reciprocal
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy, policies
from tests.support.policy_cases import PLACE_COUNTING_POLICIES, run_slot
from tests.support.workloads import make_cluster, make_job

POLICIES = [
    name
    for name, info in policies().items()
    if name not in PLACE_COUNTING_POLICIES and not info.knows_all_jobs
]


@pytest.mark.parametrize("runs", [False, True], ids=["waits", "runs"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_no_longer_fits_blocks_no_other_job(policy: str, *, runs: bool) -> None:
    """A server loses two of its four GPUs while a job of three GPUs waits or runs."""
    cluster = make_cluster(0, 0, both=1, horizon=40)
    engine = Engine(cluster, make_policy(policy, PolicyContext(cluster), {}))

    def one_worker(name: str, gpus: int, slot: int, epochs: int = 2) -> None:
        amounts = {"gpu": 1000 * gpus, "cpu": 1000}
        arriving = make_job(
            cluster,
            name,
            arrival=slot,
            epochs=epochs,
            chunks=1,
            worker_amounts=amounts,
            ps=None,
            utility=Reciprocal(100.0),
        )
        engine.handle(JobsArrived(slot, (arriving,)))

    one_worker("running", 1, 0, epochs=6)
    if runs:
        one_worker("large", 3, 0, epochs=6)
    else:
        one_worker("other", 3, 0, epochs=6)
        one_worker("large", 3, 0, epochs=6)
    run_slot(engine, 0)
    state = dict(zip(cluster.resources, cluster.capacity[0].tolist(), strict=True)) | {"gpu": 2000}
    engine.handle(CapacityChanged(1, {cluster.names[0]: ServerState(Role.ANY, state)}))
    one_worker("small", 1, 1)
    for slot in range(1, 5):
        run_slot(engine, slot)
    assert engine.jobs["small"].status.name == "FINISHED", engine.jobs["small"].describe()
