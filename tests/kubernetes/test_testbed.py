"""The testbed itself, on which the other tests here depend."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tools.testbed import ApiError, Testbed, TestbedError, host_python
from tools.testbed.audit import Audit
from tools.testbed.logs import OWN
from tools.testbed.process import eventually

from tests.support.kubernetes_space import Space, pod


@pytest.fixture
def space(testbed: Testbed, request: pytest.FixtureRequest) -> Iterator[Space]:
    name = request.node.name.replace("_", "-").replace("[", "-").replace("]", "")[:50].strip("-")
    name += f"-{secrets.token_hex(3)}"  # the namespace of an earlier try may still be being deleted
    space = Space(testbed, name)
    yield space
    testbed.ask("DELETE", f"/api/v1/namespaces/{name}")


def test_a_pod_runs_on_its_node_and_its_end_and_log_are_seen(space: Space) -> None:
    space.submit(pod("a", "echo hello; hostname; exit 3", "two"))
    result = space.phase("a", "Failed")
    (state,) = result["status"]["containerStatuses"]
    assert state["state"]["terminated"]["exitCode"] == 3
    assert result["spec"]["nodeName"] == "two"
    assert space.logs("a") == "hello\na\n"


@pytest.mark.extended
def test_the_logs_of_a_pod_outlive_what_other_nodes_remove(testbed: Testbed, space: Space) -> None:
    """Once a minute a kubelet removes logs of pods that it doesn't know."""
    for name in ("one", "two"):
        space.submit(pod(name, f"echo on {name}; sleep 1000", name))
    for name, node in testbed.nodes.items():
        uid = space.phase(name, "Running")["metadata"]["uid"]
        other = next(node for key, node in testbed.nodes.items() if key != name)
        assert [one for one in (node.folder / OWN).iterdir() if one.name.endswith(uid)]
        assert not [one for one in (other.folder / OWN).iterdir() if one.name.endswith(uid)]
    time.sleep(65.0)
    for name in ("one", "two"):
        assert space.logs(name) == f"on {name}\n"


def test_a_pod_that_is_deleted_is_reported_first(space: Space) -> None:
    space.submit(pod("a", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.1; done", "one"))
    space.phase("a", "Running")
    space.delete("a")
    space.gone("a")


def test_this_interpreter_runs_inside(space: Space) -> None:
    import sys

    volumes, mounts = host_python()
    script = "import sys, shadowprice, numpy; print(sys.version_info[:2])"
    words = [sys.executable, "-c", script]
    env = [{"name": "PYTHONPATH", "value": ":".join(one for one in sys.path if "/src" in one)}]
    container = {"volumeMounts": mounts, "env": env}
    space.submit(pod("a", words, container=container, volumes=volumes))
    space.phase("a", "Succeeded", "Failed")
    assert space.logs("a") == f"{sys.version_info[:2]}\n"


def test_pods_of_two_nodes_find_each_other_by_name(space: Space) -> None:
    ports = [{"port": 7000}]
    service = {"clusterIP": "None", "selector": {"set": "x"}, "ports": ports}
    service["publishNotReadyAddresses"] = True
    path = f"{space.path}/services"
    space.bed.ask("POST", path, {"metadata": {"name": "peers"}, "spec": service})
    named = {"subdomain": "peers", "labels": {"set": "x"}}
    space.submit(pod("a", "echo found | nc -l -p 7000", "one", hostname="first", **named))
    line = "until nc first.peers 7000; do sleep 0.2; done"
    space.submit(pod("b", line, "two", hostname="second", **named))
    space.phase("b", "Succeeded")
    assert space.logs("b").splitlines()[-1] == "found"


def test_memory_beyond_its_limit_kills_a_container(space: Space) -> None:
    limits = {"resources": {"limits": {"memory": "30Mi"}, "requests": {"memory": "10Mi"}}}
    script = "tail /dev/zero"
    space.submit(pod("a", script, "one", container=limits))
    result = space.phase("a", "Failed")
    (state,) = result["status"]["containerStatuses"]
    assert state["state"]["terminated"]["reason"] == "OOMKilled"


def test_a_missing_image_and_a_full_node_are_reported(space: Space) -> None:
    missing = {"image": "shadowprice.test/none:1"}
    space.submit(pod("a", "true", "one", container=missing))
    result = space.wait("a", lambda found: bool(_waiting(found)))
    assert _waiting(result) == "ErrImageNeverPull"
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    space.submit(pod("b", "sleep 60", "one", container=gpus))
    space.phase("b", "Running")
    space.submit(pod("c", "sleep 60", "one", container=gpus))
    result = space.wait("c", lambda found: bool(found["status"].get("conditions")))
    assert result["status"]["conditions"][0]["reason"] == "Unschedulable"
    for name in ("b", "c"):
        space.delete(name, 0)


def _waiting(found: dict[str, Any]) -> str:
    for container in found["status"].get("containerStatuses", ()):
        return str(container["state"].get("waiting", {}).get("reason", "")).replace(
            "ContainerCreating", ""
        )
    return ""


def test_resources_of_ones_own_are_kept(testbed: Testbed, space: Space) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    spec = {"group": "test.example", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    definition |= {"metadata": {"name": "things.test.example"}, "spec": spec}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    testbed.ask("POST", definitions, definition)
    path = f"/apis/test.example/v1/namespaces/{space.name}/things"
    eventually(lambda: space.finds(path), "the resource is served")
    thing = {"apiVersion": "test.example/v1", "kind": "Thing", "metadata": {"name": "a"}}
    testbed.ask("POST", path, {**thing, "spec": {"words": {"x": "1", "y": [1, 2.5, None]}}})
    result = testbed.ask("GET", f"{path}/a")
    assert result["spec"]["words"] == {"x": "1", "y": [1, 2.5, None]}
    testbed.ask("DELETE", f"{definitions}/things.test.example")


def test_users_and_accounts_may_do_what_they_are_given(testbed: Testbed, space: Space) -> None:
    with pytest.raises(ApiError, match="403"):
        testbed.ask("GET", f"{space.path}/pods", user="nobody")
    testbed.kubectl("create", "serviceaccount", "robot", "-n", space.name)
    config = str(testbed.account(space.name, "robot"))
    with pytest.raises(TestbedError, match="forbidden"):
        testbed.kubectl("--kubeconfig", config, "get", "pods", "-n", space.name)
    words = ("create", "rolebinding", "robot", "--clusterrole=view", "-n", space.name)
    testbed.kubectl(*words, f"--serviceaccount={space.name}:robot")
    assert testbed.kubectl("--kubeconfig", config, "get", "pods", "-n", space.name) == ""


def test_a_node_that_is_lost_takes_its_pods_and_comes_back(testbed: Testbed, space: Space) -> None:
    space.submit(pod("a", "echo ready; sleep 1000", "two"))
    space.phase("a", "Running")
    testbed.lose("two")
    try:
        space.wait("a", lambda found: "deletionTimestamp" in found["metadata"])
        assert not testbed.nodes["two"].is_ready()
    finally:
        testbed.restore("two")
    space.gone("a")
    space.submit(pod("b", "echo again", "two"))
    space.phase("b", "Succeeded")


def test_a_partitioned_node_runs_on_and_is_reported_later(testbed: Testbed, space: Space) -> None:
    space.submit(pod("a", "sleep 1000", "two"))
    space.phase("a", "Running")
    before = testbed.nodes["two"].groups.processes()
    testbed.cut("two")
    try:
        space.wait("a", lambda found: "deletionTimestamp" in found["metadata"])
        assert before <= testbed.nodes["two"].groups.processes()
    finally:
        testbed.join("two")
    space.gone("a")


@pytest.mark.parametrize("name", ["etcd", "kube-apiserver"])
def test_reports_survive_a_kill(testbed: Testbed, space: Space, name: str) -> None:
    space.submit(pod("a", "sleep 1000", "one"))
    space.phase("a", "Running")
    testbed.kill(name)
    testbed.restart(name)
    testbed.component("kube-apiserver").wait(120.0)
    assert space.phase("a", "Running")["spec"]["nodeName"] == "one"
    space.delete("a", 0)


def test_watches_expire(testbed: Testbed, space: Space) -> None:
    old = testbed.ask("GET", f"{space.path}/pods")["metadata"]["resourceVersion"]
    testbed.kubectl("create", "configmap", "more", "-n", space.name)
    testbed.expire_watches()
    answer = testbed.ask("GET", f"{space.path}/pods?watch=1&timeoutSeconds=5&resourceVersion={old}")
    assert answer["object"]["code"] == 410


def test_the_log_has_the_pods_that_are_there(testbed: Testbed, space: Space) -> None:
    for name in ("a", "b", "c"):
        space.submit(pod(name, "sleep 1000", "one"))
    for name in ("a", "b", "c"):
        space.phase(name, "Running")
    space.delete("b", 0)
    space.delete("c")
    space.gone("c")
    listed = testbed.ask("GET", "/api/v1/pods")["items"]
    audit = Audit.read(testbed.audit)
    # Other tests' namespaces may be being deleted meanwhile.
    here = {one["metadata"]["uid"] for one in listed if one["metadata"]["namespace"] == space.name}
    mine = {uid for uid in audit.present() if audit.pods[uid].namespace == space.name}
    assert mine == here
    assert len(here) == 1
