"""OASiS at given prices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import Completed
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.policies.pricing.posted import PostedPrices, pool_limits
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.support.workloads import make_cluster, make_job


def machine() -> Cluster:
    return make_cluster(1, 0, gpus=4, horizon=10)


def whole_machine_jobs(cluster: Cluster) -> list[Job]:
    """Ten jobs that fill the machine for two slots each, the cheapest first: five fit."""
    return [
        make_job(
            cluster,
            f"job-{worth}",
            chunks=1,
            epochs=2,
            worker_amounts={"gpu": 4000},
            ps_amounts=None,
            utility=Constant(float(worth)),
        )
        for worth in range(1, 11)
    ]


def post(cluster: Cluster, path: Path, gpu: float) -> str:
    """Post one price of all GPUs in every slot; return the parameter that reads it."""
    limits = pool_limits(cluster)
    prices = np.zeros((10, len(limits), max(map(len, limits))))
    prices[:, 0, [limit.resource for limit in limits[0]].index(cluster.column["gpu"])] = gpu
    posted = PostedPrices(0, prices, limits)
    path.write_text(json.dumps(posted.document(cluster)), encoding="utf-8")
    return f"fixed:{path}"


class Names(Observer):
    """Records completed jobs."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def on_event(self, event, commands) -> None:  # type: ignore[no-untyped-def]
        del event
        self.done |= {command.job for command in commands if isinstance(command, Completed)}


def completed(cluster: Cluster, jobs: list[Job], prices: str) -> set[str]:
    policy = make_policy("oasis", PolicyContext(cluster, None, 10), {"prices": prices})
    names = Names()
    Simulation(cluster, jobs, policy, 10).run([names])
    return names.done


def test_the_clearing_price_chooses_online(tmp_path: Path) -> None:
    on = machine()
    jobs = whole_machine_jobs(on)
    # Two slots at 2.75 cost 5.5: jobs worth more are admitted, although cheaper ones come first.
    done = completed(on, jobs, post(on, tmp_path / "prices.json", 2.75))
    assert done == {f"job-{worth}" for worth in range(6, 11)}


def test_free_slots_go_to_the_first_arrival(tmp_path: Path) -> None:
    on = machine()
    done = completed(on, whole_machine_jobs(on), post(on, tmp_path / "prices.json", 0.0))
    assert done == {f"job-{worth}" for worth in range(1, 6)}


def test_refusal_names_the_priced_resource(tmp_path: Path) -> None:
    from shadowprice.core.events import Decided, Reject

    on = machine()
    refusals = []

    class Refusals(Observer):
        def on_event(self, event, commands) -> None:  # type: ignore[no-untyped-def]
            del event
            decided = (command.decision for command in commands if isinstance(command, Decided))
            refusals.extend(entry.refusal for entry in decided if isinstance(entry, Reject))

    prices = post(on, tmp_path / "prices.json", 2.75)
    policy = make_policy("oasis", PolicyContext(on, None, 10), {"prices": prices})
    Simulation(on, whole_machine_jobs(on)[:1], policy, 10).run([Refusals()])
    (refusal,) = refusals
    assert refusal.bottleneck.startswith("gpu, at posted prices, 100% of the cost")
    assert (refusal.value, refusal.cost) == (1.0, 5.5)


def test_bags_are_not_priced(tmp_path: Path) -> None:
    on = machine()
    prices = post(on, tmp_path / "prices.json", 1.0)
    policy = make_policy("oasis", PolicyContext(on, None, 10), {"prices": prices})
    assert not policy.capabilities.runs_bags
    assert not policy.capabilities.guarantees


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.json.*cannot be read"):
        make_policy(
            "oasis",
            PolicyContext(machine(), None, 10),
            {"prices": f"fixed:{tmp_path / 'nothing.json'}"},
        )


def test_pdors_has_prices_of_its_own() -> None:
    with pytest.raises(InputError, match="prices"):
        make_policy("pdors", PolicyContext(machine(), None, 10), {"prices": "fixed:prices.json"})
