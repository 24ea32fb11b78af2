"""Nodes as servers, and jobs of other schedulers, from an API server's records."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.executors.contract import (
    ROLE_LABEL,
    ObservedJob,
    ServerAllocation,
    ServerInfo,
)
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.views import (
    check_allocatable,
    node_view,
    observe_jobs,
    parse_quantity,
    pod_view,
    to_server_info,
    tolerates,
)
from shadowprice.executors.processes import PlacementError

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("1", 1000),
        ("250m", 250),
        ("1.5", 1500),
        ("2e3", 2_000_000),
        ("1E2", 100_000),
        ("3k", 3_000_000),
        ("100u", 0),
        ("1500000u", 1500),
        ("1Ki", 1024_000),
        ("", 0),
        (".", 0),
        ("-3", 0),
        ("x", 0),
        ("1Qi", 0),
        ("1" * 300, 0),
        (None, 0),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: object, milli: int) -> None:
    assert parse_quantity(text, 1000) == milli


@given(st.decimals(0, 10**6, places=3), st.sampled_from(["", "k", "M", "Ki", "Mi", "m"]))
def test_quantities_are_exact(number: Decimal, suffix: str) -> None:
    scale = {"": 1, "k": 1000, "M": 10**6, "Ki": 1024, "Mi": 1 << 20, "m": Decimal("0.001")}
    assert parse_quantity(f"{number}{suffix}", 1000) == int(number * scale[suffix] * 1000)


def node(**more: Any) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "8", "memory": "16Gi", GPU: "4", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    }
    labels = more.pop("labels", {})
    return {"metadata": {"name": "n", "uid": "u", "labels": labels}, "spec": more, "status": status}


def server(item: dict[str, Any], used: dict[str, int] | None = None) -> ServerInfo:
    bearing = [{"key": "gpu", "operator": "Exists"}]
    return to_server_info(node_view(item), used or {}, gpu=GPU, tolerations=bearing)


def test_a_node_has_what_pods_of_others_leave() -> None:
    assert server(node()).capacity == {"cpu": 8000, "memory": 16 << 30, "gpu": 4000}
    left = server(node(), {"cpu": 500, "memory": 1 << 30, GPU: 1000}).capacity
    assert left == {"cpu": 7500, "memory": 15 << 30, "gpu": 3000}
    assert server(node(), {"cpu": 9000}).capacity["cpu"] == 0
    kind = server(node(labels={"nvidia.com/gpu.product": "A100"})).capacity
    assert kind["gpu/A100"] == 4000


def test_labels_and_resources_of_a_node_are_found_among_hundreds() -> None:
    features = {f"feature.node.kubernetes.io/cpu-cpuid.{n}": "true" for n in range(200)}
    item = node(labels={**features, "nvidia.com/gpu.product": "A100", ROLE_LABEL: "ps"})
    volumes = {f"attachable-volumes-csi-{n}": "25" for n in range(100)}
    item["status"]["allocatable"] = {**volumes, **item["status"]["allocatable"]}
    seen = server(item)
    assert seen.capacity == {"cpu": 8000, "memory": 16 << 30, "gpu": 4000, "gpu/A100": 4000}
    assert seen.labels[ROLE_LABEL] == "ps"


@pytest.mark.parametrize(
    ("spec", "takes_work", "evicts"),
    [
        ({}, True, False),
        ({"unschedulable": True}, False, False),
        ({"taints": [{"key": "x", "effect": "NoSchedule"}]}, False, False),
        ({"taints": [{"key": "x", "effect": "NoExecute"}]}, False, True),
        ({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}, True, False),
        ({"taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}]}, True, False),
        (
            {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            True,
            False,
        ),
    ],
)
def test_cordons_and_taints_keep_new_work_off(
    spec: dict[str, Any], takes_work: bool, evicts: bool
) -> None:
    seen = server(node(**spec))
    assert (seen.takes_work, seen.evicts) == (takes_work, evicts)


def test_a_taint_is_borne_by_the_rules_of_kubernetes() -> None:
    taint = ("k", "v", "NoSchedule")
    assert tolerates([{"key": "k", "value": "v"}], taint)
    assert tolerates([{"key": "k", "operator": "Exists"}], taint)
    assert tolerates([{"operator": "Exists"}], taint)
    assert not tolerates([{"key": "k", "value": "w"}], taint)
    assert not tolerates([{"key": "k", "value": "v", "effect": "NoExecute"}], taint)
    assert not tolerates([], taint)


def test_a_node_that_is_not_ready_or_off_is_known_to_be() -> None:
    item = node()
    item["status"]["conditions"][0]["status"] = "Unknown"
    assert not node_view(item).ready
    assert not node_view(item).out_of_service
    item["spec"]["taints"] = [
        {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "off"}
    ]
    assert node_view(item).out_of_service


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ([{"gpu": 1000}] * 3, "4 GPUs, 2 of them free, and 3 are requested"),
        ([{"gpu": 500}], "no GPU with 0.5"),
        ([{"cpu": 5000}, {"cpu": 2000}], "6 of cpu free, and 7"),
        ([{"memory": 17 << 30}], "memory free"),
        ([{"gpu": 2000, "cpu": 6000, "bandwidth": 10**12}], ""),
    ],
)
def test_room_is_counted_before_pods_would_wait_for_it(
    wanted: list[dict[str, int]], word: str
) -> None:
    view, held = node_view(node()), [{"gpu": 1000, "cpu": 1000}]
    try:
        check_allocatable(view, {GPU: 1000, "cpu": 1000}, wanted, held, GPU)
        said = ""
    except PlacementError as error:
        said = str(error)
    assert word in said
    assert bool(word) is bool(said)


def pod(name: str, node_name: str, phase: str = "Running", **more: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {"startedAt": "2026-11-22T12:00:00Z"}}
    if phase in {"Succeeded", "Failed"}:
        state = {
            "terminated": {
                "exitCode": int(phase == "Failed"),
                "startedAt": "2026-11-22T12:00:00Z",
                "finishedAt": "2026-11-22T13:00:00Z",
            }
        }
    fields = {"name": name, "namespace": more.pop("namespace", "vision"), "uid": name, **more}
    return {
        "metadata": fields,
        "spec": {"nodeName": node_name, "containers": [{"name": "c"}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "c", "state": state}]},
    }


def seen(*pods: dict[str, Any]) -> dict[str, ObservedJob]:
    return {job.job: job for job in observe_jobs(map(pod_view, pods), "vision", None)}


def test_jobs_of_others_are_known_by_their_controllers() -> None:
    def kubeflow(kind: str) -> dict[str, Any]:
        words = {"training.kubeflow.org/job-name": "resnet"}
        return {"labels": {**words, "training.kubeflow.org/replica-type": kind}}

    result = seen(
        pod("a", "one", **kubeflow("worker")),
        pod("b", "two", **kubeflow("worker")),
        pod("c", "one", **kubeflow("ps")),
        pod("d", "one", namespace="nlp", ownerReferences=[{"kind": "Job", "name": "bert"}]),
        pod("e", "one", ownerReferences=[{"kind": "ReplicaSet", "name": "web"}]),
        pod("f", "one", "Succeeded", labels={"job-name": "over"}),
        pod("g", "one", "Failed", labels={"job-name": "broken"}),
        pod("h", "one", "Failed", labels={"job-name": "again"}),
        pod("i", "two", labels={"job-name": "again"}),
        pod("j", "", "Pending", labels={"job-name": "waits"}) | {"status": {"phase": "Pending"}},
    )
    assert set(result) == {"resnet", "nlp/bert", "over", "broken", "again"}
    assert result["resnet"].placement == (ServerAllocation("one", 1, 1), ServerAllocation("two", 1))
    assert (result["resnet"].tenant, result["resnet"].ended) == ("vision", None)
    assert result["nlp/bert"].tenant == "nlp"
    assert (result["over"].done, result["broken"].done) == (True, False)
    assert result["over"].ended == result["over"].since + 3600.0
    assert result["again"].placement == (ServerAllocation("two", 1),)


def test_jobs_of_one_name_are_observed_by_tenant_and_service() -> None:
    def service_pod(name: str, key: str, phase: str = "Running") -> dict[str, Any]:
        notes = {names.JOB_NAME: names.encode_job_name(key), names.TENANT: "red"}
        item = pod(name, "one", phase, labels={names.SERVICE: "other"}, annotations=notes)
        item["status"]["containerStatuses"][0]["name"] = names.CONTAINER
        return item

    def tenant_pod(name: str, tenant: str) -> dict[str, Any]:
        return pod(name, "two", labels={"job-name": "train", names.TENANT: tenant})

    pods = [
        tenant_pod("a", "red"),
        tenant_pod("b", "blue"),
        tenant_pod("c", "blue"),
        pod("d", "two", namespace="red", labels={"job-name": "train"}),
        service_pod("e", "red/train"),
        service_pod("f", "red/train~9", "Succeeded"),
    ]
    result = sorted(
        (
            job.job,
            job.tenant or "",
            job.placement[0].server,
            job.placement[0].workers,
            bool(job.done),
        )
        for job in observe_jobs(map(pod_view, pods), "vision", None)
    )
    assert result == [
        ("red/train", "red", "two", 1, False),
        ("train", "blue", "two", 2, False),
        ("train", "red", "one", 1, False),
        ("train", "red", "one", 1, True),
        ("train", "red", "two", 1, False),
    ]


def test_pods_request_the_resources_that_the_scheduler_counts() -> None:
    item = pod("a", "one")
    item["spec"]["containers"] = [
        {"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", GPU: "1"}}},
        {"name": "d", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
    ]
    item["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]
    item["spec"]["overhead"] = {"cpu": "100m"}
    assert pod_view(item).requests == {"cpu": 3100, GPU: 1000, "memory": 1 << 30}


def test_sidecars_are_added_to_containers_and_to_later_init_containers() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    def cpu(*init: dict[str, Any]) -> int:
        item = pod("a", "one")
        item["spec"] = {"containers": [container("1")], "initContainers": [*init]}
        return pod_view(item).requests["cpu"]

    first, second = (container(cpu, restartPolicy="Always") for cpu in ("2", "500m"))
    assert cpu(first, second) == 3500
    assert cpu(first, container("3"), second) == 5000
    assert cpu(container("3"), first, second) == 3500
    assert cpu(container("4"), first, second) == 4000
