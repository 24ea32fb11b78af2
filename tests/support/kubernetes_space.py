"""Namespaces of a real Kubernetes for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tools.testbed import BASE, ApiError, Testbed
from tools.testbed.process import eventually

PATIENCE = 120.0


def pod(name: str, command: str | list[str], node: str | None = None, **spec: Any) -> dict:
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    container = {"name": "main", "image": BASE, "imagePullPolicy": "Never", "command": words}
    container.update(spec.pop("container", {}))
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            **where,
            **spec,
        },
    }


class Space:
    """A namespace of a test's own."""

    def __init__(self, bed: Testbed, name: str) -> None:
        self.bed, self.path = bed, f"/api/v1/namespaces/{name}"
        bed.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.name = name

    def submit(self, made: dict) -> None:
        # The account that pods need comes a moment after its namespace.
        eventually(self.has_account, f"the account of {self.name}")
        self.bed.ask("POST", f"{self.path}/pods", made)

    def has_account(self) -> bool:
        path = f"{self.path}/serviceaccounts/default"
        return self.finds(path) and bool(self.bed.ask("GET", path).get("secrets"))

    def finds(self, path: str) -> bool:
        try:
            self.bed.ask("GET", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def get(self, name: str) -> dict[str, Any]:
        return dict(self.bed.ask("GET", f"{self.path}/pods/{name}"))

    def wait(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while not condition(found := self.get(name)):
            assert time.monotonic() < until, json.dumps(found["status"], indent=1)
            time.sleep(0.1)
        return found

    def phase(self, name: str, *phases: str) -> dict[str, Any]:
        return self.wait(name, lambda found: found["status"]["phase"] in phases)

    def gone(self, name: str) -> None:
        eventually(lambda: not self.finds(f"{self.path}/pods/{name}"), f"pod {name} is gone")

    def logs(self, name: str) -> str:
        return str(self.bed.ask("GET", f"{self.path}/pods/{name}/log"))

    def delete(self, name: str, grace: int | None = None) -> None:
        more = "" if grace is None else f"?gracePeriodSeconds={grace}"
        self.bed.ask("DELETE", f"{self.path}/pods/{name}{more}")
