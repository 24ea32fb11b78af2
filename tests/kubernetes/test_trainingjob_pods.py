"""`kubectl apply` to pods: they are in the resource's namespace, belong to it, and go with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.testbed import Testbed

from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from tests.kubernetes.operators import CLUSTER, create, eventually, installed, manifest, namespace
from tests.support.services import run_service


def pods(bed: Testbed) -> list[dict[str, Any]]:
    return list(json.loads(bed.kubectl("get", "pods", "-n", "vision", "-o", "json"))["items"])


def test_pods_are_the_resources_own(testbed: Testbed, tmp_path: Path) -> None:
    user = installed(testbed)
    create(testbed, "namespace", "shadowprice")
    options = ExecutorOptions(
        directory=str(tmp_path / "executor"),
        address=str(testbed.kubeconfig),
        settings={"namespace": "shadowprice", "image": "shadowprice.test/base:1"},
    )
    cluster = {**CLUSTER, "slot": "5s"}
    cluster["servers"] = [{"name": name, "capacity": {"cpu": "0.5"}} for name in ("one", "two")]
    with (
        namespace(testbed, "vision"),
        run_service(
            tmp_path,
            cluster=cluster,
            executor=KubernetesExecutor(options),
            trainingjobs=str(testbed.kubeconfig),
        ),
    ):
        run = {"command": "sleep 600", "grace": "1s"}
        user.apply(manifest("owned", "vision", worker={"cpu": "0.1"}, run=run))
        eventually(lambda: user.status("owned", "vision").get("state") == "running", "its pods")
        resource = user.resource("owned", "vision")
        assert resource is not None
        [pod] = pods(testbed)
        [owner] = pod["metadata"]["ownerReferences"]
        assert owner["kind"] == "TrainingJob"
        assert owner["uid"] == resource["metadata"]["uid"]
        assert pod["spec"]["nodeName"] in resource["status"]["nodes"]
        assert not pod["metadata"].get("finalizers")
        testbed.kubectl("delete", "tj", "-n", "vision", "--wait=false", "owned")
        eventually(lambda: user.resource("owned", "vision") is None, "its end")
        assert not [pod for pod in pods(testbed) if "deletionTimestamp" not in pod["metadata"]]
