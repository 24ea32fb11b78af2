"""The delivered network policy, enforced on real pods: what it allows and what it blocks.

The service itself runs under it in `test_image.py`. Here its pod sends requests to everything, so
that blocked ones are seen too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.testbed import Testbed, host_python, missing
from tools.testbed.names import DOMAIN
from tools.testbed.network import Forward

from tests.kubernetes.operators import DEPLOY
from tests.support.kubernetes_space import Space, pod

SPACE = "shadowprice"
OWN, OTHER = 8642, 8643
ELSEWHERE = 9999
ASKING = """
import json, socket, sys, threading, time
for port in json.loads(sys.argv[1]):
    listener = socket.create_server(("", port))
    def accept(listener=listener):
        while True:
            listener.accept()[0].close()
    threading.Thread(target=accept, daemon=True).start()
while True:
    try:
        asked = json.load(open("/asked/" + sys.argv[2]))
        break
    except (OSError, ValueError):
        time.sleep(0.1)
told = {}
for name, (host, port) in asked.items():
    try:
        if port == 53:
            assert socket.gethostbyname(host)
        else:
            socket.create_connection((host, port), timeout=20).close()
        told[name] = "open"
    except OSError as error:
        told[name] = error.strerror or type(error).__name__
print(json.dumps(told), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Testbed({"one": {}, "two": {}}, policies=True) as made:
        yield made


def delivered() -> list[dict[str, Any]]:
    """The documents that an operator applies."""
    return list(yaml.safe_load_all((DEPLOY / "shadowprice.yaml").read_text()))


def asking(name: str, node: str, labels: dict[str, str], folder: Path) -> dict[str, Any]:
    """A pod that listens at both ports, and connects to the addresses in a file of its name."""
    volumes, mounts = host_python()
    volumes.append({"name": "asked", "hostPath": {"path": str(folder)}})
    mounts.append({"name": "asked", "mountPath": "/asked", "readOnly": True})
    words = [sys.executable, "-I", "-S", "-c", ASKING, json.dumps([OWN, OTHER]), name]
    return pod(
        name, words, node, labels=labels, container={"volumeMounts": mounts}, volumes=volumes
    )


def test_the_delivered_policy_allows_only_the_services_traffic(
    bed: Testbed, tmp_path: Path
) -> None:
    space = Space(bed, SPACE)
    [policy] = [one for one in delivered() if one["kind"] == "NetworkPolicy"]
    [deployment] = [one for one in delivered() if one["kind"] == "Deployment"]
    bed.kubectl("apply", "-f", "-", given=yaml.safe_dump(policy))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    space.submit(asking("service", "one", labels, tmp_path))
    space.submit(asking("job", "two", {"app": "another"}, tmp_path))
    address = {}
    for name in ("service", "job"):
        result = space.phase(name, "Running")
        address[name] = result["status"]["podIP"]

    def read_logs(name: str) -> str:
        return bed.kubectl("logs", "-n", SPACE, name)

    server = bed.ask("GET", "/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"]
    ports = (5432, 6443, ELSEWHERE)
    forwards = [Forward(bed.gateway, bed.plane.port, port) for port in ports]
    with closing(forwards[0]), closing(forwards[1]), closing(forwards[2]):
        requested = {
            "the API server": (server, 443),
            "the API server behind its service": (bed.gateway, 6443),
            "PostgreSQL": (bed.gateway, 5432),
            "names": (f"kubernetes.default.svc.{DOMAIN}", 53),
            "elsewhere": (bed.gateway, ELSEWHERE),
        }
        own = {**requested, "a job": (address["job"], OWN), "itself": ("127.0.0.1", OTHER)}
        others = {
            **requested,
            "the service": (address["service"], OWN),
            "the service, elsewhere": (address["service"], OTHER),
        }
        (tmp_path / "service").write_text(json.dumps(own))
        (tmp_path / "job").write_text(json.dumps(others))
        until = time.monotonic() + 90.0
        while not (read_logs("service") and read_logs("job")):
            assert time.monotonic() < until
            time.sleep(0.2)
    of_service, of_job = (json.loads(read_logs(name)) for name in ("service", "job"))
    refused = "No route to host"  # a firewall's error, not that of a port without a listener
    assert of_service == {
        "the API server": "open",
        "the API server behind its service": "open",
        "PostgreSQL": "open",
        "names": "open",
        "elsewhere": refused,
        "a job": refused,
        "itself": "open",
    }
    assert of_job == {
        **dict.fromkeys(requested, "open"),
        "the service": "open",
        "the service, elsewhere": refused,
    }
