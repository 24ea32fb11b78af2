"""Kubernetes objects that install the service, and the chart's default values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowprice.kubernetes.names import ACTIVE_LABEL, GROUP, PLURAL

Document = dict[str, Any]
Values = Mapping[str, Any]

NAME: Final = "shadowprice"
NAMESPACE: Final = "shadowprice"
USER: Final = 65_532  # numeric user and group of the container
PORT: Final = 8642
LABELS: Final = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}
DIGEST: Final = "checksum/cluster"
"""Annotation of the chart's pods with the digest of the cluster file."""

VALUES: Final[Mapping[str, Any]] = {
    "image": "shadowprice:latest",
    "imagePullPolicy": "IfNotPresent",
    "replicas": 2,
    "policy": "rolling",
    "arguments": [],
    "jobNamespaces": [],
    "database": {"secret": "shadowprice-database", "key": "url"},
    "token": {"secret": "shadowprice-token", "key": "token"},
    "cluster": {
        "slot": "20min",
        "horizon": 300,
        "servers": [{"name": "placeholder", "capacity": {"gpu": 8, "cpu": 32, "memory": "244GiB"}}],
    },
    "resources": {
        "requests": {"cpu": "500m", "memory": "512Mi"},
        "limits": {"memory": "2Gi"},
    },
    # For logs of jobs, on the node's disk or in a volume claim; a claim survives a failover.
    "storage": {"size": "10Gi", "claim": ""},
    "networkPolicy": True,
}

INSTALLED: Final[Mapping[str, str]] = {"namespace": NAMESPACE, "release": NAME}
"""Values that Helm determines: namespace and name of the release."""

WATCHED: Final[list[Document]] = [
    {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["namespaces", "nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]
"""Cluster-wide permissions of the service."""

RUNNING: Final[list[Document]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "delete"]},
]
"""Permissions of the service in the namespaces of jobs."""

KEEPING: Final[list[Document]] = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "create", "update"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
]
"""Permissions in the service's namespace: election, generation records, label of the leader."""


def _object(kind: str, version: str, name: str, namespace: str = "", **more: Any) -> Document:
    meta: Document = {"name": name, "labels": dict(LABELS)}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}


def _binding(values: Values, role: str, kind: str) -> Document:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": values["namespace"]}],
    }


def permissions(values: Values) -> list[Document]:
    """Return the service account, its roles, and their bindings."""
    rbac, space = "rbac.authorization.k8s.io/v1", values["namespace"]
    release = values["release"]
    everywhere = _binding(values, release, "ClusterRole")
    return [
        _object("ServiceAccount", "v1", NAME, space),
        _object("ClusterRole", rbac, release, rules=WATCHED),
        _object("ClusterRoleBinding", rbac, release, **everywhere),
        _object("ClusterRole", rbac, f"{release}-jobs", rules=RUNNING),
        _object("Role", rbac, NAME, space, rules=KEEPING),
        _object("RoleBinding", rbac, NAME, space, **_binding(values, NAME, "Role")),
    ]


def job_binding(values: Values, namespace: str) -> Document:
    """Return the RoleBinding that lets the service run jobs in a namespace."""
    jobs = f"{values['release']}-jobs"
    binding = _binding(values, jobs, "ClusterRole")
    return _object("RoleBinding", "rbac.authorization.k8s.io/v1", jobs, namespace, **binding)


def cluster(values: Values, text: str) -> Document:
    """Return the ConfigMap of the cluster file."""
    name = f"{NAME}-cluster"
    return _object("ConfigMap", "v1", name, values["namespace"], data={"cluster.yaml": text})


def service(values: Values) -> Document:
    """Return the Service of the leader."""
    spec = {
        "selector": {**LABELS, ACTIVE_LABEL: "true"},
        # Server-side apply (Helm 4) needs the protocol on old API servers.
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
    }
    return _object("Service", "v1", NAME, values["namespace"], spec=spec)


def budget(values: Values, version: str) -> Document:
    """Return the PodDisruptionBudget, which keeps one replica while nodes are drained."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": dict(LABELS)}}
    return _object("PodDisruptionBudget", version, NAME, values["namespace"], spec=spec)


def deployment(values: Values) -> Document:
    """Return the Deployment of the replicas."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    run_folder = "/run/shadowprice"
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    pod_namespace = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    database = values["database"]
    url = {"secretKeyRef": {"name": database["secret"], "key": database["key"]}}
    container: Document = {
        "name": NAME,
        "image": values["image"],
        "imagePullPolicy": values["imagePullPolicy"],
        "args": [
            "serve",
            "--cluster=/etc/shadowprice/cluster.yaml",
            "--data=$(DATABASE)",
            f"--listen=0.0.0.0:{PORT}",
            "--policy=" + values["policy"],
            "--executor=kubernetes",
            "--address=in-cluster",
            "--trainingjobs=in-cluster",
            f"--lease=$(POD_NAMESPACE)/{NAME}",
            f"--token-file={run_folder}/operator.token",
            f"--executor-set=service_url=http://{NAME}.$(POD_NAMESPACE)",
            *values["arguments"],
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": pod_name},
            {"name": "POD_NAMESPACE", "valueFrom": pod_namespace},
            {"name": "DATABASE", "valueFrom": url},
        ],
        "workingDir": "/var/lib/shadowprice",
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": _probe("/healthz", periodSeconds=2, failureThreshold=90),
        "livenessProbe": _probe("/healthz", periodSeconds=10, failureThreshold=6, timeoutSeconds=5),
        "readinessProbe": _probe("/readyz?standby=ready", periodSeconds=5, timeoutSeconds=5),
        "resources": values["resources"],
        "securityContext": security,
        "volumeMounts": [
            {"name": "cluster", "mountPath": "/etc/shadowprice", "readOnly": True},
            {"name": "own", "mountPath": run_folder, "subPath": "run"},
            {"name": "data", "mountPath": "/var/lib/shadowprice", "subPath": "lib"},
            {"name": "own", "mountPath": "/tmp", "subPath": "tmp"},
        ],
    }
    # The service refuses a token file that others may read, but files of a Secret are links that
    # its group can read. So an init container copies the file.
    token: Document = {
        "name": "token",
        "image": values["image"],
        "imagePullPolicy": values["imagePullPolicy"],
        "command": ["install", "-m", "600", "/secret/token", f"{run_folder}/operator.token"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": security,
        "volumeMounts": [
            {"name": "token", "mountPath": "/secret", "readOnly": True},
            {"name": "own", "mountPath": run_folder, "subPath": "run"},
        ],
    }
    key = values["token"]
    pod: Document = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": dict(LABELS)},
                        },
                    }
                ]
            }
        },
        "initContainers": [token],
        "containers": [container],
        "volumes": [
            {"name": "cluster", "configMap": {"name": f"{NAME}-cluster"}},
            {"name": "own", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "data", **_storage(values["storage"])},
            {
                "name": "token",
                "secret": {
                    "secretName": key["secret"],
                    "defaultMode": 0o440,
                    "items": [{"key": key["key"], "path": "token"}],
                },
            },
        ],
    }
    # The leader sets the label to true; the Deployment's selector must not contain it.
    labels = {**LABELS, ACTIVE_LABEL: "false"}
    # Replicas read the cluster file at their start, so a change of the digest restarts them.
    about = {"annotations": {DIGEST: values["digest"]}} if "digest" in values else {}
    return _object(
        "Deployment",
        "apps/v1",
        NAME,
        values["namespace"],
        spec={
            "replicas": values["replicas"],
            "selector": {"matchLabels": dict(LABELS)},
            "strategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels, **about}, "spec": pod},
        },
    )


def _storage(storage: Mapping[str, str]) -> Document:
    """Return the source of the volume for the data directory, which has the logs of jobs."""
    if storage["claim"]:
        return {"persistentVolumeClaim": {"claimName": storage["claim"]}}
    return {"emptyDir": {"sizeLimit": storage["size"]}}


def _probe(path: str, **more: int) -> Document:
    return {"httpGet": {"path": path, "port": "http"}, **more}


def network_policy(values: Values) -> Document:
    """Return the network policy of the replicas."""

    def open_to(*ports: int) -> list[Document]:
        return [{"protocol": "TCP", "port": port} for port in ports]

    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return _object(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        NAME,
        values["namespace"],
        spec={
            "podSelector": {"matchLabels": dict(LABELS)},
            "policyTypes": ["Ingress", "Egress"],
            # From anywhere: jobs report from their namespaces, and users connect through the API
            # server's proxy. Every request needs a token.
            "ingress": [{"ports": open_to(PORT)}],
            # Only DNS, the API server and PostgreSQL.
            "egress": [{"ports": dns}, {"ports": open_to(443, 6443, 5432)}],
        },
    )
