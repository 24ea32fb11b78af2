"""A service that follows a testbed's `TrainingJob` resources, and users with `kubectl`."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tools.testbed import Testbed
from tools.testbed.places import TestbedError

from shadowprice.executors.contract import Executor, ExecutorOptions
from shadowprice.executors.local.executor import LocalExecutor
from tests.support.services import RunningService, run_service

Found = TypeVar("Found")

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"

CLUSTER: Mapping[str, Any] = {
    "slot": "1s",
    "horizon": 600,
    "servers": [{"name": "machine", "capacity": {"cpu": 4}}],
}

PATIENCE = 90.0
"""Timeout of every wait on a busy machine, in seconds."""


def manifest(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A resource for a job that sleeps; ``spec`` changes it."""
    return {
        "apiVersion": "shadowprice.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "chunks": 2,
            "minibatches": 5,
            "minibatch_time": "1s",
            "worker": {"cpu": 1},
            "workers": {"max": 1},
            "utility": {"kind": "constant", "value": 5},
            "run": {"command": ["sleep", "600"], "grace": "1s"},
            **spec,
        },
    }


def eventually(look: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """Poll a function until it returns a value, and return that."""
    until = time.monotonic() + patience
    while True:
        result = look()
        if result:
            return result
        assert time.monotonic() < until, f"{what} never came"
        time.sleep(0.1)


def first_line(process: subprocess.Popen[str], patience: float = 2 * PATIENCE) -> str:
    """Return the first line that a service prints, empty if it ended before; kill a service that
    prints none.
    """
    assert process.stdout is not None
    said, _, _ = select.select([process.stdout], [], [], patience)
    if not said:
        killed(process)
        raise AssertionError(f"not a word in {patience:g} s: {process.args}")
    return process.stdout.readline()


def killed(process: subprocess.Popen[str]) -> None:
    """Kill a service, even a frozen one, and wait until it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(PATIENCE)


def ended(process: subprocess.Popen[str]) -> None:
    """Stop a service with SIGTERM, and kill it if that fails."""
    process.terminate()
    try:
        process.wait(60)
    finally:
        killed(process)


def joined(*threads: threading.Thread) -> None:
    """Wait for the ends of stopped threads."""
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not [thread.name for thread in threads if thread.is_alive()], (
        "told to end, and still there"
    )


class User:
    """A user with `kubectl`."""

    def __init__(self, bed: Testbed) -> None:
        self.bed = bed

    def apply(self, *documents: Mapping[str, Any]) -> str:
        text = yaml.safe_dump_all([dict(document) for document in documents])
        return self.bed.kubectl("apply", "-f", "-", given=text)

    def resource(self, name: str, namespace: str = "default") -> dict[str, Any] | None:
        result = self.bed.kubectl(
            "get", "tj", "-n", namespace, name, "--ignore-not-found", "-o", "json"
        )
        return json.loads(result) if result.strip() else None

    def status(self, name: str, namespace: str = "default") -> dict[str, Any]:
        result = self.resource(name, namespace)
        return {} if result is None else result.get("status", {})

    def condition(self, name: str, kind: str, namespace: str = "default") -> dict[str, Any]:
        conditions = self.status(name, namespace).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def waits_for(self, name: str, kind: str, status: str = "True") -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            result = self.condition(name, kind)
            return result if result.get("status") == status else None

        try:
            return eventually(look, f"{kind}={status} of {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status(name), indent=1)}") from error

    def gone(self, name: str) -> None:
        eventually(lambda: self.resource(name) is None, f"the end of {name}")

    def delete(self, *names: str) -> None:
        self.bed.kubectl("delete", "tj", "--wait=false", *names)


def installed(bed: Testbed) -> User:
    """Install the definition, and return a user whose `kubectl` knows it."""
    bed.kubectl("apply", "-f", str(DEPLOY / "crd.yaml"))

    def known() -> bool:
        try:  # its name and its schema are published one after the other
            return bool(bed.kubectl("explain", "tj.spec"))
        except TestbedError:
            return False

    eventually(known, "the definition")
    return User(bed)


def create(bed: Testbed, *words: str, into: str = "default") -> None:
    """Run `kubectl create`, even if an earlier test of the same cluster left the object."""
    made = bed.kubectl("-n", into, "create", *words, "--dry-run=client", "-o", "json")
    bed.kubectl("apply", "-f", "-", given=made)


@contextmanager
def namespace(bed: Testbed, name: str) -> Iterator[None]:
    """Give a test an empty namespace, whatever earlier tests of the same cluster left in it."""
    _delete_namespace(bed, name)
    create(bed, "namespace", name)
    try:
        yield
    finally:
        _delete_namespace(bed, name)


def _delete_namespace(bed: Testbed, name: str) -> None:
    bed.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
    eventually(
        lambda: not bed.kubectl("get", "namespace", name, "--ignore-not-found").strip(),
        f"the end of the namespace {name}",
        300,
    )


RIGHTS = {
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
}
"""Kinds of the manifests' objects that grant the service its rights."""

ACCOUNT = "system:serviceaccount:shadowprice:shadowprice"
"""Name of the manifests' account in the audit log."""


def service_account(bed: Testbed) -> Path:
    """Create the account of the manifests with its rights, and return its kubeconfig."""
    documents = yaml.safe_load_all((DEPLOY / "shadowprice.yaml").read_text())
    rights = [document for document in documents if document["kind"] in RIGHTS]
    bed.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(rights))
    return bed.account("shadowprice", "shadowprice")


def bind_jobs(bed: Testbed, into: str) -> None:
    """Grant the rights that jobs of a namespace need, as the documentation says."""
    subject = "--serviceaccount=shadowprice:shadowprice"
    words = ("rolebinding", "shadowprice-jobs", "--clusterrole=shadowprice-jobs", subject)
    create(bed, *words, into=into)


@contextmanager
def operated(
    bed: Testbed,
    folder: Path,
    config: Path | None = None,
    executor: Executor | None = None,
    **more: Any,
) -> Iterator[RunningService]:
    """Run a service that follows the testbed's resources with the manifests' account."""
    if executor is None:
        (folder / "local").mkdir(parents=True, exist_ok=True)
        executor = LocalExecutor(ExecutorOptions(directory=str(folder / "local")))
    settings = {"cluster": CLUSTER, "executor": executor, **more}
    address = str(config or service_account(bed))
    with run_service(folder, trainingjobs=address, **settings) as service:
        yield service
