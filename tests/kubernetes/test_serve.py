"""``shadowprice serve --executor kubernetes``: jobs are resized and finish; other pods are seen."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tools.testbed import Testbed
from tools.testbed.audit import Audit

from tests.contract.harness import BASE
from tests.kubernetes.operators import create, ended, first_line

RIGHTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "executor-rights.yaml"
START = "from shadowprice.cli.main import run; run()"
PATIENCE = 180.0
CLUSTER = {
    "slot": "4s",
    "horizon": 300,
    # "two" isn't in the file: it joins because the cluster has it.
    "servers": [{"name": "one", "capacity": {"cpu": 2}}],
}
# Counts steps over all generations, one a file, up to its argument; SIGTERM ends it with 143.
TRAIN = """
trap 'exit 143' TERM
cd "$SHADOWPRICE_CHECKPOINT_DIR"
echo "$SHADOWPRICE_WORKERS" >> workers.$SHADOWPRICE_GENERATION
while [ ! -e done ]; do
  if [ "$RANK" = 0 ]; then
    n=$(cat steps 2>/dev/null || echo 0)
    if [ "$n" -ge STEPS ]; then touch done; else echo $((n + 1)) > new && mv new steps; fi
  fi
  sleep 0.5
done
"""


@contextmanager
def serving(folder: Path, config: Path, *more: str) -> Iterator[httpx.Client]:
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(CLUSTER))
    words = ["serve", "-c", str(file), "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    words += ["-p", "drf", "-o", "json", "--executor", "kubernetes"]
    words += ["--address", str(config), *more]
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            [sys.executable, "-c", START, *words], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            line = first_line(process)
            assert line, (folder / "log").read_text()
            token = (folder / "data" / "operator.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            address = json.loads(line)["address"]
            with httpx.Client(base_url=address, headers=headers, timeout=20) as client:
                yield client
        finally:
            ended(process)  # leaving the process's context waits without a limit


def until(said: Callable[[], Any], shown: Callable[[], Any] = lambda: "") -> Any:
    end = time.monotonic() + PATIENCE
    while True:
        result = said()
        if result:
            return result
        assert time.monotonic() < end, shown()
        time.sleep(0.3)


def job(name: str, steps: int) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 4,
        "minibatches": 100,
        "minibatch_time": "2s",
        "worker": {"cpu": 0.5},
        "utility": {"kind": "sigmoid", "value": 10, "decay": 0.1, "target": "300s"},
        "run": {
            "command": TRAIN.replace("STEPS", str(steps)),
            "image": BASE,
            "grace": "10s",
            "checkpoints": True,
            "pod": {"pull": "Never"},
        },
    }


def jobs(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in client.get("/v1/jobs").json()["jobs"]}


def pods(bed: Testbed) -> list[dict[str, Any]]:
    chosen = "?labelSelector=shadowprice.io/service"
    found: list[dict[str, Any]] = bed.ask("GET", f"/api/v1/pods{chosen}")["items"]
    return found


def test_jobs_come_are_resized_and_finish(testbed: Testbed, tmp_path: Path) -> None:
    settings = ["--executor-set", f"shared={tmp_path / 'jobs'}", "--executor-set", "lost_after=60"]
    with serving(tmp_path, testbed.kubeconfig, *settings) as client:

        def said() -> Any:
            return jobs(client), (tmp_path / "log").read_text()[-3000:]

        until(lambda: len(client.get("/v1/servers").json()["servers"]) == 2, said)
        assert client.post("/v1/jobs", json=job("first", 60)).is_success
        until(lambda: len([pod for pod in pods(testbed) if _runs(pod)]) >= 4, said)
        assert client.post("/v1/jobs", json=job("second", 20)).is_success
        until(lambda: {_job(pod) for pod in pods(testbed)} == {"first", "second"}, said)
        until(lambda: jobs(client)["second"]["state"] == "finished", said)
        until(lambda: jobs(client)["first"]["state"] == "finished", said)
        generations = jobs(client)["first"]["generation"]
    assert generations >= 2  # it made room for the second
    folders = {path.parent for path in tmp_path.glob("jobs/files/*/checkpoints/done")}
    assert len(folders) == 2
    for folder in folders:  # every generation had as many workers as planned
        for file in folder.glob("workers.*"):
            count_lines = file.read_text().split()
            assert len(count_lines) == int(count_lines[0])
    assert pods(testbed) == []


AWAY = 180.0
"""Seconds without the API server; twelve times the duration of a lease."""


@pytest.mark.extended
def test_an_api_server_that_is_away_for_minutes_costs_no_job_anything(
    testbed: Testbed, tmp_path: Path
) -> None:
    """Meanwhile one of three jobs ends, one runs on, and one is submitted; slots continue."""
    settings = ["--executor-set", "allow=host_path", "--executor-set", "lost_after=60"]
    with serving(tmp_path, testbed.kubeconfig, *settings) as client:

        def said() -> Any:
            return jobs(client), (tmp_path / "log").read_text()[-3000:]

        def gated(name: str) -> dict[str, Any]:
            """A job of one worker that ends once a file of its name exists; it records both."""
            line = f"cd {tmp_path}; echo x >> {name}.began; until [ -e {name}.go ]; do sleep 0.2;"
            line += f" done; echo x >> {name}.ended"
            run: dict[str, Any] = {
                "command": f"trap 'exit 143' TERM; {line}",
                "image": BASE,
                "grace": "10s",
            }
            volume = {"path": str(tmp_path), "host_path": str(tmp_path)}
            run["pod"] = {"pull": "Never", "volumes": [volume]}
            return {**job(name, 0), "workers": {"max": 1}, "run": run}

        def count_lines(name: str) -> int:
            file = tmp_path / name
            return len(file.read_text().split()) if file.exists() else 0

        for name in ("ends", "stays"):
            assert client.post("/v1/jobs", json=gated(name)).is_success
        until(lambda: count_lines("ends.began") and count_lines("stays.began"), said)
        until(lambda: {record["state"] for record in jobs(client).values()} == {"running"}, said)
        began = time.monotonic()
        testbed.kill("kube-apiserver")
        try:
            (tmp_path / "ends.go").touch()
            until(lambda: count_lines("ends.ended"), said)
            (tmp_path / "comes.go").touch()
            assert client.post("/v1/jobs", json=gated("comes")).is_success
            while time.monotonic() - began < AWAY:  # it responds all the time
                states = {name: job["state"] for name, job in jobs(client).items()}
                assert states["ends"] == states["stays"] == "running", said()
                assert count_lines("comes.began") == 0
                time.sleep(1.0)
        finally:
            testbed.restart("kube-apiserver")
            testbed.component("kube-apiserver").wait(120.0)
        until(lambda: jobs(client)["ends"]["state"] == "finished", said)
        until(lambda: jobs(client)["comes"]["state"] == "finished", said)
        assert jobs(client)["stays"]["state"] == "running"
        (tmp_path / "stays.go").touch()
        until(lambda: jobs(client)["stays"]["state"] == "finished", said)
        # no job started twice, and none was requested twice
        for name in ("ends", "stays", "comes"):
            assert (count_lines(f"{name}.began"), count_lines(f"{name}.ended")) == (1, 1)
        result = jobs(client)  # a command with an unknown result is repeated
        assert result["ends"]["generation"] == result["stays"]["generation"] == 1, said()
        until(lambda: pods(testbed) == [], said)
    assert Audit.read(testbed.audit).of_service("shadowprice").faults() == []


@pytest.mark.extended
def test_nodes_that_are_cordoned_removed_and_added_are_servers_that_are(
    testbed: Testbed, tmp_path: Path
) -> None:
    """A job runs on through a cordon, a taint, and the deletion of a node."""
    settings = ["--executor-set", f"shared={tmp_path / 'jobs'}", "--executor-set", "lost_after=20"]
    with serving(tmp_path, testbed.kubeconfig, *settings) as client:

        def servers() -> dict[str, str]:
            return {
                server["name"]: server["state"]
                for server in client.get("/v1/servers").json()["servers"]
            }

        def nodes() -> set[str]:
            return {pod["spec"]["nodeName"] for pod in pods(testbed) if _runs(pod)}

        def said() -> Any:
            return servers(), nodes(), jobs(client), (tmp_path / "log").read_text()[-3000:]

        def is_(state: str) -> None:
            until(lambda: servers() == {"one": "up", "two": state}, said)
            where = {"one", "two"} if state in {"up", "cordoned"} else {"one"}
            until(lambda: nodes() == where, said)

        until(lambda: len(servers()) == 2, said)
        # Three of its workers fit on one, and a fourth on the other.
        stays = job("stays", 10**6) | {"worker": {"cpu": 0.6}, "minibatches": 1000}
        assert client.post("/v1/jobs", json=stays).is_success
        is_("up")
        testbed.kubectl("cordon", "two")
        is_("cordoned")
        testbed.kubectl("uncordon", "two")
        is_("up")
        testbed.kubectl("taint", "nodes", "two", "closed=yes:NoSchedule")
        is_("cordoned")
        testbed.kubectl("taint", "nodes", "two", "closed=yes:NoExecute")
        is_("drained")
        testbed.kubectl("taint", "nodes", "two", "closed-")
        is_("up")
        testbed.kubectl("delete", "node", "two")
        try:
            is_("lost")
        finally:
            testbed.lose("two")
            testbed.restore("two")  # a kubelet creates its node when it starts
        is_("up")
        for folder in tmp_path.glob("jobs/files/*/checkpoints"):
            (folder / "done").touch()
        until(lambda: jobs(client)["stays"]["state"] == "finished", said)
        stays_view = jobs(client)["stays"]  # the taint NoExecute ended one of its pods
        assert stays_view["failures"] == stays_view["lost"] <= 1, said()
        until(lambda: pods(testbed) == [], said)
    assert Audit.read(testbed.audit).of_service("shadowprice").faults() == []


def _runs(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def _job(pod: dict[str, Any]) -> str:
    return str(json.loads(pod["metadata"]["annotations"]["shadowprice.io/job-name"]))


def test_jobs_of_another_scheduler_are_seen_and_nothing_is_written(
    testbed: Testbed, tmp_path: Path
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs-0", "labels": {"job-name": "theirs"}},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": BASE,
                    "imagePullPolicy": "Never",
                    "command": ["sleep", "600"],
                    "resources": {"requests": {"cpu": "500m"}},
                }
            ],
            "terminationGracePeriodSeconds": 1,
        },
    }
    role = next(one for one in yaml.safe_load_all(RIGHTS.read_text()) if one["kind"] != "Role")
    testbed.kubectl("apply", "-f", "-", given=json.dumps(role))
    words = ("--clusterrole", role["metadata"]["name"], "--user", "reader")
    create(testbed, "clusterrolebinding", "looks-on", *words)
    testbed.ask("POST", "/api/v1/namespaces/default/pods", pod)
    try:
        with serving(tmp_path, testbed.kubeconfig_of("reader"), "--observe") as client:

            def seen() -> bool:
                body = client.get("/v1/comparison").json()
                return "theirs" in json.dumps(body)

            until(seen, lambda: (tmp_path / "log").read_text()[-3000:])
            assert client.post("/v1/jobs", json=job("paper", 5)).is_success
            until(lambda: jobs(client)["paper"]["generation"] >= 1)
        assert pods(testbed) == []
    finally:
        testbed.ask("DELETE", "/api/v1/namespaces/default/pods/theirs-0")
