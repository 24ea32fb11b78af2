"""Requests to an API server for a generation, and the allowed settings of pods."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.program import Program, build_script_command
from shadowprice.core.specs import RunSpec, validate
from shadowprice.executors.contract import GenerationSpec, ServerAllocation, ServerInfo
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.executor import schema_has_scheduling_gates
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.pods import (
    ObjectContext,
    build_headless_service,
    build_launch_plan,
    build_pod,
    build_secret,
    escape_references,
    whole_grace_seconds,
)
from shadowprice.executors.kubernetes.settings import read_settings
from shadowprice.executors.kubernetes.views import NodeView, pod_view
from shadowprice.executors.processes import list_processes
from tests.support.waiting import WAIT_LIMIT_SECONDS

GPU = "nvidia.com/gpu"
NODES = {
    "one": NodeView("one", "u1", {"cpu": 8000, "memory": 64 << 30, GPU: 4000}, address="10.0.0.1"),
    "two": NodeView("two", "u2", {"cpu": 8000, "memory": 64 << 30, GPU: 2000}, address="10.0.0.2"),
}


def program_of(**run: Any) -> Program:
    spec, faults = validate(RunSpec, {"command": ["train"], **run}, "run")
    assert spec is not None, faults
    return spec.resolve(Fraction(20))


def faults_of(**pod: Any) -> str:
    _, faults = validate(RunSpec, {"command": ["train"], "pod": pod}, "run")
    return "\n".join(map(str, faults))


def order(program: Program | None = None, *shares: ServerAllocation, **more: Any) -> GenerationSpec:
    return GenerationSpec(
        command=1,
        job=more.pop("job", "a job"),
        generation=3,
        placement=shares or (ServerAllocation("one", 1), ServerAllocation("two", 1, 1)),
        program=program or program_of(image="i"),
        **{"worker": {"cpu": 1500, "memory": 2 << 30, "gpu": 1000}, "ps": {"cpu": 500}, **more},
    )


def planned(
    spec: GenerationSpec, settings: dict[str, str], servers: Collection[str] = tuple(NODES)
) -> tuple[dict[str, Any], str]:
    nothing: Any = None
    cluster = ClusterCache(
        nothing, ServiceId("s", "n"), read_settings(settings), lambda *_: None, lambda _: None
    )
    cluster.nodes.items |= NODES
    cluster.servers = {name: ServerInfo(name, {}) for name in servers}
    return build_launch_plan(spec, cluster, (), "team")


def build_pods(
    spec: GenerationSpec, **settings: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    chosen = read_settings(settings)
    plan, why = planned(spec, settings)
    assert not why
    place = ObjectContext(ServiceId("shadowprice", "team"), "team", "launch", tuple(plan["master"]))
    secret = build_secret(spec, place)
    secret["metadata"]["uid"] = "u"
    pods = [
        build_pod(spec, process, place, NODES[process.server], chosen, secret)
        for process in list_processes(spec)
    ]
    return secret, pods


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}


def test_a_pod_is_requested_on_its_node_with_what_its_process_takes() -> None:
    _, pods = build_pods(order())
    worker, _, server = (pod["spec"] for pod in pods)
    affinity = worker["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (field,) = affinity["nodeSelectorTerms"][0]["matchFields"]
    assert field == {"key": "metadata.name", "operator": "In", "values": ["one"]}
    resources = worker["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "1500m", "memory": str(2 << 30), GPU: "1"}
    assert resources["limits"] == {"memory": str(2 << 30), GPU: "1"}
    assert server["containers"][0]["resources"]["requests"] == {"cpu": "500m"}
    assert worker["restartPolicy"] == "Never"
    assert not worker["automountServiceAccountToken"]
    assert not worker["containers"][0]["securityContext"]["allowPrivilegeEscalation"]
    assert {toleration["key"] for toleration in worker["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    # The executor counts the same resources as it requests.
    view = pod_view({**pods[0], "metadata": {**pods[0]["metadata"], "uid": "x"}})
    assert view.requests == {"cpu": 1500, "memory": 2 << 30, GPU: 1000}
    assert (view.process, view.generation) == ("worker-0", 3)


def test_processes_meet_by_a_name_or_by_their_nodes_address() -> None:
    spec = order()
    secret, pods = build_pods(spec)
    environments = [variables(pod) for pod in pods]
    (address,) = {one["MASTER_ADDR"] for one in environments}
    service = build_headless_service(
        spec, ObjectContext(ServiceId("shadowprice", "team"), "team", "launch", ("", 0)), secret
    )
    assert address == f"worker-0.{service['metadata']['name']}"
    assert {pod["spec"]["subdomain"] for pod in pods} == {service["metadata"]["name"]}
    assert [pod["spec"]["hostname"] for pod in pods] == ["worker-0", "worker-1", "ps-0"]
    chosen = service["spec"]["selector"].items()
    assert all(chosen <= pod["metadata"]["labels"].items() for pod in pods)
    assert [one["RANK"] for one in environments] == ["0", "1", "2"]
    _, pods = build_pods(spec, network="host")
    assert variables(pods[2])["MASTER_ADDR"] == "10.0.0.1"
    assert all(pod["spec"]["hostNetwork"] for pod in pods)
    _, pods = build_pods(order(None, ServerAllocation("one", 1)))
    assert variables(pods[0])["MASTER_ADDR"] == "127.0.0.1"


def test_a_process_gets_its_node_because_a_pods_host_name_is_its_own() -> None:
    _, pods = build_pods(order())
    assert [variables(pod)["SHADOWPRICE_HOST"] for pod in pods] == ["one", "two", "two"]


def test_secrets_are_in_no_pod() -> None:
    program = program_of(image="i", env={"PASSWORD": "hidden", "N": 1})
    secret, pods = build_pods(
        order(program, progress_token="t0ken", progress_url="http://a:1/v1/p")
    )
    assert "hidden" not in json.dumps(pods)
    assert "t0ken" not in json.dumps(pods)
    data = {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}
    assert data == {"SHADOWPRICE_PROGRESS_TOKEN": "t0ken", "PASSWORD": "hidden", "N": "1"}
    source = pods[0]["spec"]["containers"][0]["envFrom"][0]["secretRef"]
    assert source == {"name": secret["metadata"]["name"]}  # and not optional
    assert variables(pods[0])["SHADOWPRICE_PROGRESS_URL"] == "http://a:1/v1/p"
    _, pods = build_pods(order(progress_url="http://a:1/v1/p"), service_url="https://s.team:8")
    assert variables(pods[0])["SHADOWPRICE_PROGRESS_URL"] == "https://s.team:8/v1/p"


def expanded(text: str) -> str:
    """Return Kubernetes' expansion of a text if no variable is known (its own rules)."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            if text[at + 1] == "$":
                out, at = out + "$", at + 2
                continue
            if text[at + 1] == "(" and ")" in text[at:]:
                end = text.index(")", at)
                out, at = out + "EXPANDED", end + 1
                continue
        out, at = out + text[at], at + 1
    return out


@given(st.text(alphabet="$()aB{} \n", max_size=20))
def test_forwarded_arguments_are_never_expanded(text: str) -> None:
    assert expanded(escape_references(text)) == text


def test_a_line_runs_under_a_shell_that_passes_signals_on() -> None:
    _, pods = build_pods(order(program_of(command="a | b $HOME", image="i")))
    words = pods[0]["spec"]["containers"][0]["command"]
    assert words[:2] == ["/bin/sh", "-c"]
    assert words[-1] == "a | b $$HOME"
    _, pods = build_pods(order(program_of(command=["python", "t.py"], image="i")))
    assert pods[0]["spec"]["containers"][0]["command"] == ["python", "t.py"]


def test_a_batch_script_runs_under_the_same_shell_with_all_its_arguments() -> None:
    command = build_script_command("train.sh", 'echo "$@"\nexit 3\n', ["/bin/sh"], ["a b", "$x"])
    _, pods = build_pods(order(program_of(command=command, image="i")))
    words = [expanded(word) for word in pods[0]["spec"]["containers"][0]["command"]]
    _, line_pods = build_pods(order(program_of(command="true", image="i")))
    line_words = line_pods[0]["spec"]["containers"][0]["command"]
    assert words[:4] == [expanded(word) for word in line_words[:4]]
    assert words[4:] == command[2:]
    done = subprocess.run(
        words, capture_output=True, check=False, text=True, timeout=WAIT_LIMIT_SECONDS
    )
    assert (done.returncode, done.stdout) == (3, "a b $x\n")


@pytest.mark.parametrize(("grace", "whole"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.5, 2), (30.0, 30)])
def test_a_grace_is_never_none_at_all(grace: float, whole: int) -> None:
    assert whole_grace_seconds(grace) == whole


def test_pod_settings_of_a_job_reach_its_pods() -> None:
    pod = {
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [
            {"path": "/data", "claim": "data", "part": "a", "read_only": True},
            {"path": "/scratch", "scratch": "10 GiB"},
        ],
        "shared_memory": "8 GiB",
        "run_as_user": 1000,
        "labels": {"team": "vision"},
        "pull": "IfNotPresent",
    }
    _, pods = build_pods(
        order(program_of(image="a/b:1", pod=pod)), shared="/mnt/jobs", volume="jobs"
    )
    pod_spec = pods[0]["spec"]
    assert {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"} in pod_spec["tolerations"]
    sources = {
        mount["mountPath"]: (
            mount,
            next(v for v in pod_spec["volumes"] if v["name"] == mount["name"]),
        )
        for mount in pod_spec["containers"][0]["volumeMounts"]
    }
    mount, source = sources["/data"]
    assert (mount["subPath"], mount["readOnly"]) == ("a", True)
    assert source["persistentVolumeClaim"] == {"claimName": "data"}
    assert sources["/scratch"][1]["emptyDir"] == {"sizeLimit": str(10 << 30)}
    assert sources["/dev/shm"][1]["emptyDir"]["medium"] == "Memory"
    assert pod_spec["securityContext"] == {"runAsUser": 1000}
    assert pods[0]["metadata"]["labels"]["team"] == "vision"
    checkpoints = variables(pods[0])["SHADOWPRICE_CHECKPOINT_DIR"]
    assert checkpoints.startswith("/mnt/jobs/files/")
    assert sources[checkpoints][0]["subPath"] == checkpoints.removeprefix("/mnt/jobs/")
    assert sources[checkpoints][1]["persistentVolumeClaim"] == {"claimName": "jobs"}


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        ({"toleration": []}, "did you mean 'tolerations'"),
        ({"volumes": [{"path": "/a", "clam": "x"}]}, "did you mean 'claim'"),
        ({"volumes": [{"path": "/a"}]}, "name one source"),
        ({"volumes": [{"path": "/a", "claim": "x", "scratch": "1 GiB"}]}, "name one source"),
        (
            {"volumes": [{"path": "a", "claim": "x"}]},
            "expected an absolute path without .., got 'a'",
        ),
        ({"volumes": [{"path": "/a", "claim": "x", "part": "../b"}]}, "leads out"),
        ({"volumes": [{"path": "/a", "claim": "X/y"}]}, "not a valid object name"),
        ({"volumes": [{"path": p, "claim": "x"} for p in ("/a", "/a/")]}, "two volumes"),
        ({"volumes": [{"path": f"/{n}", "claim": "x"} for n in range(101)]}, "exceeds the limit"),
        ({"labels": {"shadowprice.io/job": "x"}}, "reserved: the executor sets it"),
        ({"labels": {"a": "b c"}}, "not a valid value of a label"),
        ({"tolerations": [{"value": "x"}]}, "name a key"),
        ({"shared_memory": 3}, "amount of memory"),
        ({"run_as_user": 2**40}, "exceeds the limit"),
        ({"pull": "Sometimes"}, "pull"),
    ],
)
def test_unknown_parts_of_a_pod_are_named(pod: dict[str, Any], word: str) -> None:
    assert word in faults_of(**pod)


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ({"host_network": True}, "host_network"),
        ({"volumes": [{"path": "/a", "host_path": "/"}]}, "host_path"),
        ({"volumes": [{"path": "/a", "secret": "s"}]}, "secrets"),
        ({"service_account": "admin"}, "service_account"),
        ({"run_as_user": 0}, "root"),
    ],
)
def test_access_beyond_a_pod_has_to_be_allowed(pod: dict[str, Any], name: str) -> None:
    spec = order(program_of(image="i", pod=pod))
    for allow, allowed in (("", False), (name, True)):
        _, why = planned(spec, {"allow": allow})
        assert (why == "") is allowed
        assert allowed or f"allow={name}" in why


def test_a_node_that_is_no_server_now_is_refused() -> None:
    spec = order()
    assert planned(spec, {})[1] == ""
    gone = spec.placement[0].server
    assert planned(spec, {}, NODES.keys() - {gone}) == ({}, f"the node {gone} is not ready")


def test_a_server_is_released_before_its_processes_are_lost() -> None:
    assert read_settings({}).tolerate_unready == 30.0
    assert read_settings({"tolerate_unready": "200"}).tolerate_unready == 150.0
    assert read_settings({"lost_after": "20"}).tolerate_unready == 10.0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"imag": "x"}, "did you mean 'image'"),
        ({"allow": "host_paths"}, "did you mean 'host_path'"),
        ({"network": "none"}, "pods, host"),
        ({"shared": "jobs"}, "absolute"),
        ({"volume": "jobs"}, "shared=/PATH"),
        ({"patience": "0"}, "seconds"),
        ({"namespace": "A b"}, "namespace"),
        ({"service_url": "here"}, "http://HOST:PORT"),
        ({"pod": "/no/such/file"}, "No such file"),
    ],
)
def test_settings_that_are_none_are_named(settings: dict[str, str], word: str) -> None:
    with pytest.raises(InputError, match="--executor-set") as caught:
        read_settings(settings)
    assert word in str(caught.value)


def test_settings_of_all_pods_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("tolerations: [{key: gpu, operator: Exists}]\nservice_account: trainer\n")
    settings = read_settings({"pod": str(path)})
    assert settings.pod["service_account"] == "trainer"
    path.write_text("tolerashuns: []\n")
    with pytest.raises(InputError, match="did you mean 'tolerations'"):
        read_settings({"pod": str(path)})


def test_newer_servers_describe_pods_with_gates_and_older_ones_without() -> None:
    models = pytest.importorskip("kubernetes_asyncio.client.models")
    fields = models.V1PodSpec.attribute_map.values()  # made from a newer server's description
    document: dict[str, Any] = {
        "components": {
            "schemas": {"io.k8s.api.core.v1.PodSpec": {"properties": {key: {} for key in fields}}}
        }
    }
    assert schema_has_scheduling_gates(document)
    properties = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
    del properties["schedulingGates"]
    assert not schema_has_scheduling_gates(document)
    assert not schema_has_scheduling_gates({})


def test_with_gates_pods_wait_for_each_other() -> None:
    spec = order()
    place = ObjectContext(ServiceId("s", "team"), "team", "launch", ("worker-0.x", 1), gated=True)
    secret = build_secret(spec, place)
    secret["metadata"]["uid"] = "u"
    pod = build_pod(spec, list_processes(spec)[0], place, NODES["one"], read_settings({}), secret)
    assert pod["spec"]["schedulingGates"] == [{"name": "shadowprice.io/together"}]
    assert pod_view({**pod, "metadata": {**pod["metadata"], "uid": "x"}}).gated
