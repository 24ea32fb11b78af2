"""Newer and older API servers by their recorded schemas: each gets only the fields that it has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tools import kubernetes_manifests, kubernetes_objects

from shadowprice.core.program import Program
from shadowprice.executors.contract import GenerationSpec, ServerAllocation
from shadowprice.executors.kubernetes.executor import schema_has_scheduling_gates
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.pods import (
    ObjectContext,
    build_headless_service,
    build_pod,
    build_secret,
)
from shadowprice.executors.kubernetes.settings import read_settings
from shadowprice.executors.kubernetes.views import NodeView
from shadowprice.executors.processes import list_processes
from shadowprice.kubernetes.definition import build_crd, supports_cel_rules
from tests.support.kubernetes_versions import (
    OLDEST_WITH_GATES,
    OLDEST_WITH_RULES,
    VERSIONS,
    fields,
    openapi_document,
    unknown_fields,
)


def sent(*, gated: bool) -> list[dict[str, Any]]:
    """Everything that a generation with all its options consists of."""
    volumes = [
        {"path": "/a", "claim": "c", "read_only": True, "part": "p"},
        {"path": "/b", "config_map": "m"}, {"path": "/c", "secret": "s"},
        {"path": "/d", "host_path": "/h"}, {"path": "/e", "scratch": 1},
        {"path": "/f", "memory": 1},
    ]  # fmt: skip
    pod = {
        "volumes": volumes, "run_as_user": 1, "run_as_group": 1, "fs_group": 1, "pull": "Never",
        "service_account": "a", "priority_class": "p", "runtime_class": "r", "shared_memory": 1,
        "pull_secrets": ["s"], "host_network": True,
        "labels": {"a": "b"}, "annotations": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
    }  # fmt: skip
    spec = GenerationSpec(
        command=1, job="a job", generation=3, placement=(ServerAllocation("one", 1, 1),),
        program=Program(("train",), {"A": "b"}, image="i", pod=pod),
        worker={"cpu": 1500, "gpu": 1000}, tenant="t",
    )  # fmt: skip
    place = ObjectContext(ServiceId("s", "team"), "team", "launch", ("worker-0.x", 1), gated=gated)
    secret = build_secret(spec, place)
    secret["metadata"]["uid"] = "u"
    node = NodeView("one", "u", {"cpu": 8000, "nvidia.com/gpu": 4000})
    settings = read_settings({"shared": "/jobs", "volume": "jobs"})
    made = [
        build_pod(spec, process, place, node, settings, secret) for process in list_processes(spec)
    ]
    return [secret, build_headless_service(spec, place, secret), *made]


@pytest.mark.parametrize("version", VERSIONS)
def test_features_of_a_version_are_found_by_its_schema(version: str) -> None:
    minor = VERSIONS.index(version)
    assert schema_has_scheduling_gates(openapi_document(version)) == (
        minor >= VERSIONS.index(OLDEST_WITH_GATES)
    )
    assert supports_cel_rules(openapi_document(version)) == (
        minor >= VERSIONS.index(OLDEST_WITH_RULES)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_sent_that_a_version_does_not_know(version: str) -> None:
    document = openapi_document(version)
    budget = "policy/v1" if VERSIONS.index(version) else "policy/v1beta1"
    values = {**kubernetes_objects.VALUES, **kubernetes_objects.INSTALLED}
    documents = [
        *sent(gated=schema_has_scheduling_gates(document)),
        *kubernetes_manifests.plain(),
        kubernetes_objects.budget(values, budget),
        build_crd(rules=supports_cel_rules(document)),
    ]
    faults = []
    for one in documents:
        model = f"V1{one['kind']}"
        if not (budget.endswith("beta1") and one["kind"] == "PodDisruptionBudget"):
            assert fields(model, version), model
        faults += unknown_fields(json.loads(json.dumps(one)), model, version, one["kind"])
    assert faults == []


def test_fields_for_newer_servers_are_unknown_to_older_ones() -> None:
    """The search finds what it has to find."""
    pod = sent(gated=True)[-1]
    assert list(unknown_fields(pod, "V1Pod", "1.20", "Pod")) == ["Pod.spec.schedulingGates"]
    faults = list(
        unknown_fields(build_crd(rules=True), "V1CustomResourceDefinition", "1.20", "crd")
    )
    assert faults
    assert all(fault.endswith("x-kubernetes-validations") for fault in faults)
