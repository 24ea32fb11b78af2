"""The chart: rendered by Go's templates, it is the plain manifests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import kubernetes_manifests, kubernetes_objects

from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "shadowprice"
GO = shutil.which("go") or "/usr/lib/go/bin/go"

needs_go = pytest.mark.skipif(not Path(GO).exists(), reason="there is no go to render with")


def rendered(
    folder: Path, version: str, namespace: str, release: str = "shadowprice", **changed: Any
) -> list[dict[str, Any]]:
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), **changed}
    program = str(ROOT / "tools" / "chart" / "main.go")
    done = subprocess.run(
        [GO, "run", program, str(CHART), version, release, namespace],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "GOFLAGS": "-mod=mod"},
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_name(documents: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for document in documents:
        metadata = document["metadata"]
        name = f"{document['kind']}/{metadata.get('namespace')}/{metadata['name']}"
        assert name not in found
        found[name] = document
        if document["kind"] == "ConfigMap":  # a file within is YAML too
            document["data"] = {key: yaml.safe_load(text) for key, text in document["data"].items()}
    return found


@needs_go
def test_the_chart_is_the_manifests(tmp_path: Path) -> None:
    values = {**kubernetes_objects.VALUES, **kubernetes_objects.INSTALLED}
    plain = [one for one in kubernetes_manifests.plain() if one["kind"] != "Namespace"]
    for version, budget, rules in (
        ("v1.20.2", "policy/v1beta1", False),
        ("v1.31.0", "policy/v1", True),
    ):
        result = by_name(rendered(tmp_path, version, kubernetes_objects.NAMESPACE))
        crd = result.pop("CustomResourceDefinition/None/trainingjobs.shadowprice.io")
        assert ("x-kubernetes-validations" in json.dumps(crd)) == rules
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        pods = result[f"Deployment/{kubernetes_objects.NAMESPACE}/shadowprice"]["spec"]["template"]
        assert [*pods["metadata"].pop("annotations")] == [kubernetes_objects.DIGEST]
        assert result == by_name(
            [*json.loads(json.dumps(plain)), kubernetes_objects.budget(values, budget)]
        )


@needs_go
def test_values_reach_their_templates(tmp_path: Path) -> None:
    result = by_name(
        rendered(
            tmp_path,
            "v1.31.0",
            "prod",
            replicas=3,
            image="registry.example/shadowprice:2",
            jobNamespaces=["vision", "prod", "speech"],
            arguments=["--set=steady=true", "--keep=30d"],
            networkPolicy=False,
        )
    )
    pod = result["Deployment/prod/shadowprice"]["spec"]
    assert pod["replicas"] == 3
    [container] = pod["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/shadowprice:2"
    assert container["args"][-2:] == ["--set=steady=true", "--keep=30d"]
    bound = {name.split("/")[1] for name in result if name.endswith("/shadowprice-jobs")}
    assert bound == {"None", "prod", "vision", "speech"}  # and the role itself
    for one in result.values():
        for subject in one.get("subjects", ()):
            assert subject["namespace"] == "prod"
    assert "NetworkPolicy/prod/shadowprice" not in result


@needs_go
@pytest.mark.parametrize(
    ("storage", "source"),
    [
        ({"size": "5Gi", "claim": ""}, {"emptyDir": {"sizeLimit": "5Gi"}}),
        ({"size": "5Gi", "claim": "logs"}, {"persistentVolumeClaim": {"claimName": "logs"}}),
    ],
)
def test_logs_are_in_a_volume_of_their_own(
    tmp_path: Path, storage: dict[str, str], source: dict[str, Any]
) -> None:
    result = by_name(rendered(tmp_path, "v1.31.0", "prod", storage=storage))
    pod = result["Deployment/prod/shadowprice"]["spec"]["template"]["spec"]
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    assert volumes["data"] == source
    [container] = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts["/var/lib/shadowprice"] == "data"
    assert {mounts["/tmp"], mounts["/run/shadowprice"]} == {"own"}


@needs_go
def test_releases_share_no_cluster_role(tmp_path: Path) -> None:
    def roles(release: str) -> set[str]:
        result = rendered(tmp_path, "v1.31.0", release, release, jobNamespaces=["vision"])
        bound = {one["roleRef"]["name"] for one in result if one["kind"] == "ClusterRoleBinding"}
        made = {one["metadata"]["name"] for one in result if one["kind"].startswith("ClusterRole")}
        jobs = {
            one["metadata"]["name"]
            for one in result
            if one["kind"] == "RoleBinding" and one["metadata"]["namespace"] == "vision"
        }
        assert bound < made
        assert jobs < made
        return made

    assert roles("blue") == {"blue", "blue-jobs"}
    assert not roles("blue") & roles("green")


@needs_go
def test_an_edited_cluster_file_makes_other_pods(tmp_path: Path) -> None:
    """Replicas read it when they start."""

    def digest(**changed: Any) -> str:
        result = by_name(rendered(tmp_path, "v1.31.0", "prod", **changed))
        pods = result["Deployment/prod/shadowprice"]["spec"]["template"]
        return str(pods["metadata"]["annotations"][kubernetes_objects.DIGEST])

    cluster = kubernetes_objects.VALUES["cluster"]
    assert digest() == digest(replicas=3) != digest(cluster={**cluster, "slot": "10min"})


def test_least_is_allowed() -> None:
    rules = [*kubernetes_objects.WATCHED, *kubernetes_objects.RUNNING, *kubernetes_objects.KEEPING]
    for rule in rules:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not {"pods/binding", "pods/exec", "bindings"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
    everywhere = {
        (resource, verb)
        for rule in kubernetes_objects.WATCHED
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in {"get", "list", "watch"}
    }
    assert everywhere == {
        ("trainingjobs", "patch"),
        ("trainingjobs/status", "patch"),
        ("events", "create"),
    }
    assert not any("secrets" in rule["resources"] for rule in kubernetes_objects.WATCHED)


def test_pods_are_confined() -> None:
    [deployment] = [one for one in kubernetes_manifests.plain() if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"]
    for container in (*pod["containers"], *pod["initContainers"]):
        secured = container["securityContext"]
        assert secured["readOnlyRootFilesystem"]
        assert not secured["allowPrivilegeEscalation"]
        assert secured["capabilities"] == {"drop": ["ALL"]}
