"""The chart rendered, installed, upgraded and removed by Helm itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import kubernetes_manifests, kubernetes_objects
from tools.testbed import Testbed, missing

helm = pytest.importorskip("helm_python")

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "shadowprice"
RELEASE = "shadowprice"


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    """A cluster without nodes: Helm doesn't own what the manifests created elsewhere."""
    reason = missing(nodes=False)
    if reason:
        pytest.skip(reason)
    with Testbed() as made:
        yield made


def of_kind(documents: list[dict[str, Any]], *left_out: str) -> dict[tuple[str, str], Any]:
    found = {}
    for document in documents:
        if document["kind"] not in left_out:
            if document["kind"] == "ConfigMap":  # a file within is YAML too
                document["data"] = {
                    key: yaml.safe_load(text) for key, text in document["data"].items()
                }
            found[document["kind"], document["metadata"]["name"]] = document
    return found


def test_helm_renders_the_manifests() -> None:
    with helm.Chart.load(str(CHART)) as chart:
        rendered = chart.render(name=RELEASE, namespace=kubernetes_objects.NAMESPACE)
    documents = [
        one
        for path, text in rendered.items()
        if path.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one
    ]
    rules = [document for document in documents if document["kind"] == "CustomResourceDefinition"]
    assert len(rules) == 1
    assert "x-kubernetes-validations" in json.dumps(rules)  # Helm's default is a newer server
    apart = ("CustomResourceDefinition", "Namespace", "PodDisruptionBudget")
    plain = json.loads(json.dumps(kubernetes_manifests.plain()))
    result = of_kind(documents, *apart)
    pods = result["Deployment", RELEASE]["spec"]["template"]["metadata"]
    assert [*pods.pop("annotations")] == [kubernetes_objects.DIGEST]
    assert result == of_kind(plain, *apart)


def test_helm_installs_upgrades_and_removes_it(bed: Testbed) -> None:
    def there(kind: str) -> list[str]:
        result = bed.kubectl("get", kind, "-A", "-o", "json")
        named = [item["metadata"]["name"] for item in json.loads(result)["items"]]
        return [name for name in named if RELEASE in name]

    def deployment() -> dict[str, Any]:
        result = bed.kubectl("get", "deployment", "-n", "prod", RELEASE, "-o", "json")
        return dict(json.loads(result)["spec"])

    def replicas() -> int:
        return int(deployment()["replicas"])

    with (
        helm.Chart.load(str(CHART)) as chart,
        helm.Config(kubeconfig_path=str(bed.kubeconfig), namespace="prod") as cluster,
    ):
        cluster.install(chart, RELEASE, {}, namespace="prod", create_namespace=True)
        assert replicas() == 2
        assert there("poddisruptionbudget") == [RELEASE]
        definition = bed.kubectl("get", "crd", "trainingjobs.shadowprice.io", "-o", "json")
        assert "x-kubernetes-validations" not in definition  # this is 1.20
        bed.account("prod", RELEASE)
        bed.kubectl("create", "namespace", "vision")
        cluster.upgrade(
            chart, RELEASE, {"replicas": 1, "jobNamespaces": ["vision"]}, namespace="prod"
        )
        assert replicas() == 1
        # Replicas read the cluster file when they start, so an edited one replaces the pods.
        before = deployment()["template"]
        edited = {**kubernetes_objects.VALUES["cluster"], "slot": "10min"}
        cluster.upgrade(chart, RELEASE, {"cluster": edited}, namespace="prod")
        assert deployment()["template"] != before
        cluster.uninstall(RELEASE)
    assert there("deployment") == []
    assert there("clusterrole") == []
    # if they went with it, every job would end
    assert there("crd") == ["trainingjobs.shadowprice.io"]
