"""The control plane of a testbed: etcd, the API server, controllers, the scheduler."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.testbed.access import (
    ADMIN,
    CONTROLLER,
    SCHEDULER,
    Access,
    ApiError,
    certificates,
)
from tools.testbed.process import Component, Ports

SERVICES = "10.96.0.0/24"
"""Network of services if there is no pod network; no route leads to these addresses."""

NODE_GRACE = 8.0
"""Seconds without a heartbeat after which a node is not ready."""

_CONTROLLERS = (
    "*", "-attachdetach", "-cloud-node-lifecycle", "-cronjob", "-csrapproving", "-csrcleaner",
    "-csrsigning", "-daemonset", "-horizontalpodautoscaling", "-nodeipam",
    "-persistentvolume-binder", "-persistentvolume-expander", "-pv-protection",
    "-pvc-protection", "-root-ca-cert-publisher", "-route", "-service", "-statefulset", "-ttl",
)  # fmt: skip
"""All controllers, except those that no test needs: each costs requests and time."""

# Responses are logged for pods and for Shadowprice's resources, otherwise only metadata.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "RequestResponse",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [
                {"group": "", "resources": ["pods", "pods/status", "pods/eviction"]},
                {"group": "shadowprice.io"},
            ],
        },
        {"level": "Metadata"},
    ],
}


class ControlPlane:
    """The control plane of a cluster.

    Parameters
    ----------
    folder : Path
        Folder of all files.
    ports : Ports
        Source of free ports.
    users : mapping of str to sequence of str
        Users by token beside the usual ones, with their groups.
    node_grace : float
        Seconds without a heartbeat after which a node counts as not ready.
    apiserver : sequence of str
        Further arguments of the API server.
    services : str
        Network of services.
    inside : str
        The first address of that network, at which pods reach the API server.
    """

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        users: Mapping[str, Sequence[str]],
        node_grace: float = NODE_GRACE,
        apiserver: Sequence[str] = (),
        services: str = SERVICES,
        inside: str = "10.96.0.1",
    ) -> None:
        self.folder = folder
        self.audit = folder / "audit.jsonl"
        self._etcd, peer, port, manager, scheduler = (ports.free() for _ in range(5))
        self.port = port
        self.url = f"https://127.0.0.1:{port}"
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        certificates(folder, names, ("127.0.0.1", inside))
        # All controllers share one user, because tests don't depend on their permissions.
        masters = ("system:masters",)
        own_users = {ADMIN: masters, CONTROLLER: masters, SCHEDULER: ()}
        self.access = Access(folder, self.url, {**own_users, **users})
        (folder / "audit-policy.json").write_text(json.dumps(_POLICY))
        self.components = {
            "etcd": self._make_etcd(peer),
            "kube-apiserver": self._make_apiserver(services, apiserver),
            "kube-controller-manager": self._make_manager(manager, node_grace),
            "kube-scheduler": self._make_scheduler(scheduler),
        }

    def _make_etcd(self, peer: int) -> Component:
        client_url, peer_url = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{peer}"
        words = [
            "--data-dir", str(self.folder / "etcd"), "--logger", "zap", "--log-level", "error",
            "--listen-client-urls", client_url, "--advertise-client-urls", client_url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
            "--initial-cluster", f"default={peer_url}",
        ]  # fmt: skip
        return Component("etcd", words, self.folder, self._etcd_ready)

    def _etcd_ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self._etcd}/health", timeout=5) as response:
                return bool(json.load(response).get("health") == "true")
        except (OSError, ValueError):
            return False

    def compact(self) -> None:
        """Compact etcd to the newest revision, so that watches from older revisions get 410."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def post(path: str, body: object) -> dict[str, object]:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self._etcd}/v3/kv/{path}", json.dumps(body).encode()
            )
            with opener.open(request, timeout=30) as response:
                return dict(json.load(response))

        # Any read returns the newest revision; the key is a zero byte in base64.
        header = post("range", {"key": "AA=="})["header"]
        assert isinstance(header, dict)
        post("compaction", {"revision": header["revision"], "physical": True})

    def _make_apiserver(self, services: str, more: Sequence[str]) -> Component:
        folder = self.folder
        words = [
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--external-hostname=localhost",
            f"--secure-port={self.port}",
            f"--tls-cert-file={folder}/server.crt",
            f"--tls-private-key-file={folder}/server.key",
            f"--token-auth-file={self.access.file}",
            "--authorization-mode=Node,RBAC",
            "--anonymous-auth=false",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={services}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={folder}/accounts.key",
            f"--service-account-key-file={folder}/accounts.key",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--default-not-ready-toleration-seconds=2",
            "--default-unreachable-toleration-seconds=2",
            "--allow-privileged=true",
            f"--audit-policy-file={folder}/audit-policy.json",
            f"--audit-log-path={self.audit}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=100000",
            *more,
        ]
        return Component("kube-apiserver", words, folder, self._apiserver_ready)

    def _apiserver_ready(self) -> bool:
        try:
            return bool(self.access.ask("GET", "/readyz") == "ok")
        except (ApiError, OSError):
            return False

    def _make_manager(self, port: int, grace: float) -> Component:
        words = [
            f"--kubeconfig={self.access.kubeconfig(CONTROLLER)}",
            f"--controllers={','.join(_CONTROLLERS)}",
            f"--service-account-private-key-file={self.folder}/accounts.key",
            f"--root-ca-file={self.folder}/ca.crt",
            f"--cert-dir={self.folder}/manager",
            "--bind-address=127.0.0.1",
            "--port=0",
            f"--secure-port={port}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--concurrent-gc-syncs=5",
            "--node-monitor-period=500ms",
            f"--node-monitor-grace-period={grace:g}s",
            f"--node-startup-grace-period={4 * grace:g}s",
            "--node-eviction-rate=10",
            "--pod-eviction-timeout=2s",
        ]
        return Component("kube-controller-manager", words, self.folder, self._manager_ready)

    def _manager_ready(self) -> bool:
        # A controller creates the service account that every pod needs.
        try:
            account = self.access.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except (ApiError, OSError):
            return False
        return bool(account.get("secrets"))

    def _make_scheduler(self, port: int) -> Component:
        words = [
            f"--kubeconfig={self.access.kubeconfig(SCHEDULER)}",
            f"--authentication-kubeconfig={self.access.kubeconfig(SCHEDULER)}",
            f"--authorization-kubeconfig={self.access.kubeconfig(SCHEDULER)}",
            f"--cert-dir={self.folder}/scheduler",
            "--authentication-tolerate-lookup-failure=true",
            "--bind-address=127.0.0.1",
            "--port=0",
            f"--secure-port={port}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]
        component = Component("kube-scheduler", words, self.folder, lambda: component.running)
        return component

    def start(self) -> None:
        """Start all programs and wait until they are ready."""
        for component in self.components.values():
            component.start()
            component.wait()

    def stop(self) -> None:
        """Stop all programs."""
        for component in reversed(self.components.values()):
            component.kill()
