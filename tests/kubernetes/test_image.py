"""The service as operators install it: its image, its chart, and two replicas as pods.

``make test SUITE=image`` builds the image by its recipe, and runs this module. The chart is
installed with values alone: only the account that it creates sends requests to the API server, and
its network policy holds from the first packet of either replica. Users send their requests by
``kubectl shadowprice``. With the plain manifests, the test runs the commands of the documents.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tools.testbed import Testbed, missing
from tools.testbed.audit import Audit
from tools.testbed.network import Forward
from tools.testbed.places import TestbedError, program
from tools.testbed.service_image import NAME, archive

from tests.contract.harness import BASE
from tests.kubernetes.operators import DEPLOY, User, eventually, manifest
from tests.support.postgres import binaries, postgres

helm = pytest.importorskip("helm_python")

pytestmark = pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL")

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "shadowprice"
SPACE, RELEASE = "prod", "shadowprice"
ACCOUNT = f"system:serviceaccount:{SPACE}:{RELEASE}"
TOKEN = "sp_" + "b" * 60
DATABASE = 5432


@pytest.fixture
def bed() -> Iterator[Testbed]:
    """A new cluster for each try, which objects of a failed one can't disturb."""
    reason = missing()
    if not reason and not archive().is_file():
        reason = "the image of these sources is not built; run make test SUITE=image"
    if reason:
        pytest.skip(reason)
    with Testbed({"one": {}, "two": {}}, policies=True) as made:
        for node in made.nodes.values():
            node.load(archive())
        yield made


def plugin(bed: Testbed, folder: Path, *words: str) -> str:
    """Return the output of `kubectl shadowprice`, found as kubectl finds its plugins."""
    folder.mkdir(exist_ok=True)
    if not (folder / "kubectl").exists():
        (folder / "kubectl").symlink_to(program("kubectl"))
    own = {
        "PATH": f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "KUBECONFIG": str(bed.kubeconfig),
        "HOME": str(folder),
        "COLUMNS": "120",
    }
    others = {key: value for key, value in os.environ.items() if "SHADOWPRICE" not in key}
    words = ("kubectl", "shadowprice", f"--service={SPACE}/{RELEASE}", *words)
    said = ""

    def answered() -> list[str]:
        nonlocal said
        done = subprocess.run(
            words, env={**others, **own}, capture_output=True, text=True, timeout=120, check=False
        )
        said = done.stderr
        return [done.stdout] if done.returncode == 0 else []

    try:  # on a busy machine a database may take longer than a request waits, and users repeat it
        return eventually(answered, "an answer")[0]
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said}") from error


BEGINNING = 240.0
"""Seconds until a pod must serve; its startup probe allows 180."""


class Deployed:
    """The replicas of the Deployment, seen from outside."""

    def __init__(self, bed: Testbed, space: str = SPACE) -> None:
        self._bed, self._space = bed, space

    def pods(self) -> dict[str, dict[str, Any]]:
        chosen = f"labelSelector=app.kubernetes.io/instance%3D{RELEASE}"
        found = self._bed.ask("GET", f"/api/v1/namespaces/{self._space}/pods?{chosen}")["items"]
        return {one["metadata"]["name"]: one for one in found}

    def ready(self) -> list[str]:
        def holds(pod: dict[str, Any]) -> bool:
            response = pod["status"].get("conditions") or ()
            return any(one["type"] == "Ready" and one["status"] == "True" for one in response)

        return [name for name, pod in self.pods().items() if holds(pod)]

    def active(self) -> list[str]:
        """Return the replica that leads by its own report; the Service leads there."""
        return [
            name
            for name, pod in self.pods().items()
            if pod["metadata"]["labels"].get("shadowprice.io/active") == "true"
        ]

    def lease(self) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._space}/leases/{RELEASE}"
        return dict(self._bed.ask("GET", path)["spec"])

    def ask(self, name: str, path: str) -> httpx.Response:
        address = self.pods()[name]["status"]["podIP"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.get(f"http://{address}:8642{path}", headers=headers, timeout=20)

    def kill(self, name: str) -> None:
        """Kill a replica's process, as the kernel does without memory."""
        pod = self.pods()[name]
        [container] = pod["status"]["containerStatuses"]
        number = container["containerID"].partition("://")[2]
        self._bed.nodes[pod["spec"]["nodeName"]].kill_container(number)

    def restarts(self, name: str) -> int:
        [container] = self.pods()[name]["status"]["containerStatuses"]
        return int(container["restartCount"])

    def begins(self) -> None:
        """Wait until both replicas are ready, and one of them leads."""
        try:
            eventually(lambda: len(self.ready()) == 2, "two replicas that are ready", BEGINNING)
            eventually(lambda: len(self.active()) == 1, "a leader")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from error

    def said(self) -> str:
        """Return what its pods, its logs, the jobs and their pods report."""
        requested = [("describe", "pods", "-n", self._space), ("describe", "pods", "-n", "default")]
        requested += [("get", "tj,configmaps,leases", "--all-namespaces", "-o", "yaml")]
        requested += [("logs", "-n", self._space, name, "--tail=60") for name in self.pods()]
        outputs = []
        for words in requested:
            try:
                outputs.append(self._bed.kubectl(*words))
            except TestbedError as error:  # of one that never started, or where nothing is defined
                outputs.append(str(error))
        return "\n".join(outputs)


def give_secrets(bed: Testbed, space: str, url: str) -> None:
    for name, key, text in (("database", "url", url), ("token", "token", TOKEN)):
        words = (f"{RELEASE}-{name}", f"--from-literal={key}={text}")
        bed.kubectl("create", "secret", "generic", "-n", space, *words)


def values() -> dict[str, Any]:
    return {
        "image": NAME,
        "imagePullPolicy": "Never",
        "policy": "fifo",
        "jobNamespaces": ["default"],
        "arguments": [f"--executor-set=image={BASE}"],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "cluster": {
            "slot": "2s",
            "horizon": 3000,
            "servers": [{"name": "one", "capacity": {"cpu": 1}}],
        },
    }


def job(name: str, line: str) -> dict[str, Any]:
    run = {"command": line, "grace": "1s", "pod": {"pull": "Never"}}
    return manifest(name, worker={"cpu": "0.2"}, minibatches=3600, run=run)


def pod_of(user: User, name: str) -> tuple[str, int]:
    """Return uid and generation of the one pod of a job."""
    found = user.bed.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    [one] = [pod for pod in found if _job(pod).endswith(f".{name}") or f".{name}." in _job(pod)]
    return one["metadata"]["uid"], int(one["metadata"]["labels"]["shadowprice.io/generation"])


def _job(pod: dict[str, Any]) -> str:
    return str(json.loads(pod["metadata"]["annotations"]["shadowprice.io/job-name"]))


def test_two_replicas_of_the_image_run_jobs_through_the_death_of_their_leader(
    bed: Testbed, tmp_path: Path
) -> None:
    user, deployed = User(bed), Deployed(bed)
    with (
        postgres() as database,
        closing(Forward(bed.gateway, database.port, DATABASE)),
        helm.Chart.load(str(CHART)) as chart,
        helm.Config(kubeconfig_path=str(bed.kubeconfig), namespace=SPACE) as cluster,
    ):
        url = database.url.replace(f"127.0.0.1:{database.port}", f"{bed.gateway}:{DATABASE}")
        bed.kubectl("create", "namespace", SPACE)
        give_secrets(bed, SPACE, url)
        cluster.install(chart, RELEASE, values(), namespace=SPACE)
        deployed.begins()
        [leader] = deployed.active()
        [standby] = set(deployed.pods()) - {leader}
        assert deployed.lease()["holderIdentity"].startswith(leader)
        # The kernels of the image are used: nothing is compiled at run time.
        for name in (leader, standby):
            assert "compiling" not in bed.kubectl("logs", "-n", SPACE, name)
        assert deployed.ask(leader, "/readyz").status_code == 200
        assert deployed.ask(standby, "/v1/jobs").status_code == 503

        user.apply(job("stays", "sleep 600"), job("ends", "sleep 3"))
        user.waits_for("stays", "Running")
        user.waits_for("ends", "Finished")
        before = pod_of(user, "stays")

        # By a port that kubectl forwards to the leader, with the token of the Secret.
        folder = tmp_path / "home"
        output = plugin(bed, folder, "-n", "default", "explain", "stays")
        assert user.status("stays")["job"] in output
        assert "running" in output
        assert "generation 1" in output
        requested = tmp_path / "asked.yaml"
        requested.write_text(yaml.safe_dump_all([job("stays", "sleep 1"), job("never", "sleep 1")]))
        quoted = json.loads(plugin(bed, folder, "quote", str(requested), "-o", "json"))
        assert [one["job"] for one in quoted] == ["stays", "never"]
        assert user.resource("never") is None  # nothing was applied
        prices = json.loads(plugin(bed, folder, "prices", "-o", "json"))
        assert prices

        # The present leader: on a busy machine the lead may have changed since.
        [leader] = deployed.active()
        terms = deployed.lease()["leaseTransitions"]
        deployed.kill(leader)
        user.apply(job("comes", "sleep 3"))
        try:
            eventually(lambda: deployed.lease()["leaseTransitions"] > terms, "another term")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{deployed.lease()}\n{deployed.said()}") from error
        user.waits_for("comes", "Finished")
        try:
            again = "the old leader's new beginning"
            eventually(lambda: deployed.restarts(leader) == 1, again, BEGINNING)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {deployed.restarts(leader)} of them\n{deployed.said()}"
            ) from error
        eventually(lambda: len(deployed.ready()) == 2, "two replicas that are ready", BEGINNING)
        eventually(lambda: len(deployed.active()) == 1, "one leader")
        assert user.condition("stays", "Running")["status"] == "True"
        assert pod_of(user, "stays") == before  # it ran on, and wasn't restarted
        [new] = deployed.active()
        body = deployed.ask(new, "/v1/jobs").json()["jobs"]
        assert Counter(one["state"] for one in body) == {"running": 1, "finished": 2}

        user.delete("stays", "ends", "comes")
        try:
            for name in ("stays", "ends", "comes"):
                user.gone(name)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{deployed.said()}") from error
        removed = time.time()
        cluster.uninstall(RELEASE)
    audit = Audit.read(bed.audit)
    assert audit.of_service("shadowprice").faults() == []
    own = [call for call in audit.calls if call.user == ACCOUNT]
    assert {call.resource for call in own} >= {"trainingjobs/status", "pods", "configmaps"}
    # Its rights were enough while it had them: Helm removes them before the pods.
    refused = [call for call in own if call.status in {401, 403} and call.at < removed]
    assert refused == []


def groups(bed: Testbed) -> set[str]:
    return {group["name"] for group in bed.ask("GET", "/apis")["groups"]}


def test_the_plain_manifests_run_a_job_by_the_commands_of_the_documents(
    bed: Testbed, tmp_path: Path
) -> None:
    space = "shadowprice"
    user, deployed = User(bed), Deployed(bed, space)
    with postgres() as database, closing(Forward(bed.gateway, database.port, DATABASE)):
        url = database.url.replace(f"127.0.0.1:{database.port}", f"{bed.gateway}:{DATABASE}")
        # Operators edit the cluster file first. This test's slots take less than 20 minutes.
        objects = [*yaml.safe_load_all((DEPLOY / "shadowprice.yaml").read_text())]
        [edited] = [one for one in objects if one["metadata"]["name"] == f"{RELEASE}-cluster"]
        edited["data"] = {"cluster.yaml": yaml.safe_dump(values()["cluster"])}
        (tmp_path / "shadowprice.yaml").write_text(yaml.safe_dump_all(objects))
        # As `docs/kubernetes-service.md` installs it on 1.20, with an image that nodes have.
        files = (DEPLOY / "crd.yaml", tmp_path / "shadowprice.yaml", DEPLOY / "budget-1.20.yaml")
        definition, service, budget = (("-f", str(file)) for file in files)
        bed.kubectl("apply", *definition, *service, *budget)
        images = (f"{RELEASE}={NAME}", f"token={NAME}")
        bed.kubectl("-n", space, "set", "image", f"deployment/{RELEASE}", *images)
        give_secrets(bed, space, url)
        deployed.begins()

        run = {"command": "sleep 3", "image": BASE, "grace": "1s", "pod": {"pull": "Never"}}
        requested = manifest("ends", namespace=space, worker={"cpu": "0.2"}, run=run)
        user.apply(requested)
        try:
            eventually(
                lambda: user.condition("ends", "Finished", space).get("status") == "True", "an end"
            )
        except AssertionError as error:
            details = (user.resource("ends", space), deployed.said())
            raise AssertionError(f"{error}\n{details}") from error

        bed.kubectl("delete", "tj", "--all", "--all-namespaces", "--timeout=90s")
        bed.kubectl("delete", *budget, *service, "--timeout=150s")
        bed.kubectl("delete", *definition, "--timeout=60s")
        # A server goes on naming a group for a moment.
        eventually(lambda: "shadowprice.io" not in groups(bed), "the end of the definition")
