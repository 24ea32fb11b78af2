"""A request for ``gpu`` counts on GPUs of any kind, and a kind counts towards the total."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, capacity_row
from shadowprice.core.devices import gpus_of_worker, gpus_per_worker, without_total
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec


def cluster_of(*capacities: dict[str, Any], **more: Any) -> Cluster:
    servers = [{"name": f"s{i}", "capacity": capacity} for i, capacity in enumerate(capacities)]
    return ClusterSpec.model_validate({"slot": "1h", "servers": servers, **more}).resolve()


def job_of(cluster: Cluster, worker: dict[str, Any]) -> Job:
    record = {"name": "a", "steps": 10, "minibatch_time": "1min", "worker": worker}
    return JobSpec.model_validate(record).resolve(cluster)


def test_kinds_count_towards_the_total() -> None:
    cluster = cluster_of({"gpu/a": 4, "cpu": 8}, {"gpu/b": 2, "gpu/a": 1}, {"gpu": 3}, {"cpu": 1})
    assert cluster.resources == ("gpu/a", "cpu", "gpu/b", "gpu")
    assert cluster.capacity[:, cluster.column["gpu"]].tolist() == [4000, 3000, 3000, 0]
    assert job_of(cluster, {"gpu": 1}).worker.tolist() == [0, 0, 0, 1000]
    assert job_of(cluster, {"gpu/a": 0.6}).worker.tolist() == [1000, 0, 0, 1000]
    assert capacity_row({"gpu/a": 0, "gpu": 0}, cluster.resources).tolist() == [0, 0, 0, 0]


def test_a_total_is_known_without_a_server_of_no_kind() -> None:
    cluster = cluster_of({"gpu/a": 4}, {"gpu/b": 2})
    assert cluster.resources == ("gpu/a", "gpu/b", "gpu")
    assert cluster.capacity.tolist() == [[4000, 0, 4000], [0, 2000, 2000]]


def test_the_only_kind_counts_a_request_for_any() -> None:
    cluster = cluster_of(
        {"gpu/a": 4}, {"gpu/a": 2, "cpu": 3}, tenants=[{"name": "t", "share": {"gpu": 2}}]
    )
    assert cluster.resources == ("gpu/a", "cpu")
    assert job_of(cluster, {"gpu": 0.6}).worker.tolist() == [1000, 0]
    assert cluster.tenants[0].share == {"gpu/a": 2000}


def test_each_gpu_counts_once() -> None:
    cluster = cluster_of({"gpu/a": 4}, {"gpu/b": 2})
    for worker, gpus in (
        ({"gpu/a": 2}, 2000),
        ({"gpu": 2}, 2000),
        ({"gpu/a": 1, "gpu/b": 2}, 3000),
    ):
        job = job_of(cluster, worker)
        assert gpus_of_worker(job, cluster) == gpus
        assert (
            gpus_per_worker(zip(cluster.resources, job.worker.tolist(), strict=True)) == gpus / 1e3
        )
    assert without_total({"gpu": 3, "gpu/a": 3, "cpu": 1}) == {"gpu/a": 3, "cpu": 1}
    assert without_total({"gpu": 3, "gpu/a": 0}) == {"gpu": 3, "gpu/a": 0}


def test_usage_of_any_kind_counts_as_the_only_kind_of_a_server() -> None:
    cluster = cluster_of({"gpu/a": 4}, {"gpu/a": 2, "gpu/b": 2}, {"gpu": 1})
    usage = np.array([[1, 0, 3], [0, 0, 2], [0, 0, 1]], np.int64)
    cluster.count_kinds(usage, np.array([0, 1, 2]))
    assert usage.tolist() == [[3, 0, 3], [0, 0, 2], [0, 0, 1]]


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ({"gpu": 1, "gpu/a": 1}, "'gpu' counts GPUs of any kind; request either gpu or gpu/a"),
        ({"gpu/c": 1}, "no server has 'gpu/c'; the cluster's GPU types are a, b"),
        ({"gpu": "1GiB"}, "gpu is given as 1GiB, but servers state it as a count; write it like 8"),
    ],
)
def test_faults_of_a_request(worker: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job_of(cluster_of({"gpu/a": 4}, {"gpu/b": 2}), worker)


def test_a_server_states_its_total_or_leaves_it_out() -> None:
    stated = cluster_of({"gpu": 4, "gpu/a": 4}, {"gpu/b": 1})
    assert stated.capacity.tolist() == [[4000, 4000, 0], [1000, 0, 1000]]
    fault = r"servers\[0\].capacity.gpu: 8 isn't the total of the kinds, 4; name each GPU by its"
    with pytest.raises(InputError, match=fault):
        cluster_of({"gpu": 8, "gpu/a": 4})


@pytest.mark.parametrize("kinds", [("gpu/a", "gpu/b"), ("gpu/a", "gpu/a")])
def test_a_share_of_gpus_is_of_all_kinds(kinds: tuple[str, str]) -> None:
    tenants = [{"name": "t", "share": {"gpu": 5, kinds[0]: 2}}]
    share = cluster_of({kinds[0]: 4}, {kinds[1]: 4}, tenants=tenants).tenants[0].share
    assert share == ({"gpu": 5000, "gpu/a": 2000} if kinds[1] == "gpu/b" else {"gpu/a": 2000})
