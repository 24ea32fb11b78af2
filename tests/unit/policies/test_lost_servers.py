"""Nothing runs on a lost server, not even a job that uses no limited resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadowprice import simulate
from shadowprice.core.errors import PolicyError
from shadowprice.core.events import JobsArrived, Place, ServerLost
from shadowprice.core.policy import Capabilities
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from tests.support.policy_cases import PLACE_COUNTING_POLICIES, policy_names
from tests.support.workloads import make_cluster, make_job


@pytest.mark.parametrize("limited", [{}, {"bandwidth": "10Gbps"}], ids=["unknown", "unlimited"])
@pytest.mark.parametrize(
    "policy", [name for name in policy_names() if name not in PLACE_COUNTING_POLICIES]
)
def test_jobs_without_demand_leave_a_lost_server(
    tmp_path: Path, policy: str, limited: dict[str, str]
) -> None:
    # Bandwidth is unlimited for parameter servers; it may be limited elsewhere.
    worker = {"name": "g", "role": "worker", "capacity": {"gpu": 1} | limited}
    others = [{"name": f"n{index}", "role": "ps", "capacity": {"cpu": 4}} for index in range(2)]
    on = {"slot": "10min", "horizon": 20, "servers": [worker, *others]}
    one = {"name": "one", "arrival": "0 slots", "chunks": 1, "minibatches": 6}
    one |= {"minibatch_time": "10min", "utility": {"kind": "constant", "value": 5}}
    one |= {"worker": {"gpu": 1, "bandwidth": "1Gbps"}, "ps": {"bandwidth": "5Gbps"}}
    for lost in ("n0", "n1"):
        happens = tmp_path / f"{lost}.yaml"
        happens.write_text(f"incidents: [{{slot: 2, server_lost: {lost}}}]\n")
        ran = simulate(on, [one], policy=policy, incidents=happens)
        assert ran.jobs["outcome"].to_list() == ["finished"]
        stood = ran.allocations.filter(ran.allocations["server"] == lost)["slot"].to_list()
        assert all(slot < 2 for slot in stood)


class OnFirst:
    """Places every job on the first server, even if it is lost."""

    capabilities = Capabilities()

    def parameters_in_force(self) -> dict[str, object]:
        return {}

    def decide(self, view: Any, event: Any) -> Any:
        if isinstance(event, JobsArrived):
            yield Place(event.jobs[0].name, Placement((0,), (1,), (0,)))


def test_engine_refuses_placements_on_a_lost_server() -> None:
    cluster = make_cluster(2, 0)
    single_job = make_job(cluster, worker_amounts={}, ps_amounts=None)
    engine = Engine(cluster, OnFirst())
    engine.handle(ServerLost(0, cluster.names[0]))
    with pytest.raises(PolicyError, match="which is unavailable"):
        engine.handle(JobsArrived(0, (single_job,)))
