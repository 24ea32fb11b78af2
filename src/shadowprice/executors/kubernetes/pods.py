"""The plan of a generation, and its objects: a secret, a service, and one pod per process."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.settings import KubernetesSettings
from shadowprice.executors.kubernetes.views import NodeView, check_allocatable, resource_requests
from shadowprice.executors.processes import (
    RENDEZVOUS_PORTS,
    PlacementError,
    Process,
    allocated_on,
    build_environment,
    list_allocations,
    list_processes,
    process_demand,
    validate_spec,
)

TOKEN_VARIABLE: Final = "SHADOWPRICE_PROGRESS_TOKEN"
RENDEZVOUS_PORT: Final = 29_500  # rendezvous port of processes whose pods have their own addresses

_POD_DIRECTORY: Final = "/shadowprice"
_SHELL: Final = ("/bin/sh", "-c")
_NAMED_OBJECTS: Final = {
    "serviceAccountName": "service_account",
    "priorityClassName": "priority_class",
    "runtimeClassName": "runtime_class",
}
_VOLUME_SOURCES: Final = {
    "claim": ("persistentVolumeClaim", "claimName"),
    "config_map": ("configMap", "name"),
    "secret": ("secret", "secretName"),
    "host_path": ("hostPath", "path"),
}
# Kubernetes sets these taints on nodes that it can't reach.
_UNREACHABLE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# On SIGTERM, a plain shell doesn't signal its children. This one signals all processes of its pod,
# waits for them, and exits with the line's status. As PID 1 it waits only for the line, because
# `kill -0 -1` doesn't show it whether others run.
_SHELL_WRAPPER: Final = """stopping=
trap 'stopping=1; kill -TERM -1' TERM
/bin/sh -c "$@" 2>&1 &
exec 2>/dev/null
child=$!
while :; do
  wait "$child"; status=$?
  kill -0 "$child" || break
done
if [ -n "$stopping" ]; then
  wait "$child"; late=$?
  [ "$late" = 127 ] || status=$late
  while [ $$ != 1 ] && kill -0 -1; do sleep 0.1; done
fi
exit "$status"
"""


@dataclass(frozen=True, slots=True)
class ObjectContext:
    """Location and common metadata of a generation's objects."""

    service: names.ServiceId
    namespace: str
    execution: str  # unique identifier of this launch
    master: tuple[str, int]  # rendezvous address and port of its processes
    owner: Mapping[str, Any] | None = None  # reference to the resource that it runs for
    gated: bool = False  # scheduling gates hold the pods until all exist


def replace_invalid_utf8(text: str) -> str:
    """Return a text as valid UTF-8; invalid parts are replaced."""
    try:  # undecodable bytes of a command line or variable are surrogates
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        content = text.encode("utf-8", "replace")
    return content.decode("utf-8", "replace")


def escape_references(text: str) -> str:
    """Return a text escaped so that Kubernetes doesn't expand ``$(NAME)``."""
    return replace_invalid_utf8(text).replace("$", "$$")


def _meta(spec: GenerationSpec, context: ObjectContext, name: str) -> dict[str, Any]:
    labels = context.service.labels(spec.job, spec.generation)
    annotations = {
        names.JOB_NAME: names.encode_job_name(spec.job),
        names.EXECUTION: context.execution,
    }
    if spec.tenant:
        annotations[names.TENANT] = replace_invalid_utf8(spec.tenant)
    meta: dict[str, Any] = {"name": name, "namespace": context.namespace}
    meta |= {"labels": labels, "annotations": annotations}
    if context.owner is not None:
        meta["ownerReferences"] = [dict(context.owner)]
    return meta


def build_secret(spec: GenerationSpec, context: ObjectContext) -> dict[str, Any]:
    """Return a generation's secret: its pods can't start without it."""
    variables = {TOKEN_VARIABLE: spec.progress_token, **spec.program.environment}
    data = {
        k: base64.b64encode(replace_invalid_utf8(v).encode()).decode() for k, v in variables.items()
    }
    meta = _meta(spec, context, names.generation_name(spec.job, spec.generation))
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True}
    return {**kind, "metadata": meta, "data": data}


def build_headless_service(
    spec: GenerationSpec, context: ObjectContext, secret: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headless service that gives the pods of a generation their DNS names."""
    meta = _meta(spec, context, names.generation_name(spec.job, spec.generation))
    meta["ownerReferences"] = [_owner_reference(context, secret)]
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
    body = {**headless, "selector": context.service.labels(spec.job, spec.generation)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": body}


def _owner_reference(context: ObjectContext, secret: Mapping[str, Any]) -> dict[str, Any]:
    if context.owner is not None:
        return dict(context.owner)
    reference = {"apiVersion": "v1", "kind": "Secret", "controller": False}
    return {**reference, "name": secret["metadata"]["name"], "uid": secret["metadata"]["uid"]}


def job_paths(settings: KubernetesSettings, job: str) -> tuple[str, str]:
    """Return a job's checkpoint and working directories, as its pods see them."""
    parent = f"{settings.shared}/files/{key_digest(job)}" if settings.shared else _POD_DIRECTORY
    return f"{parent}/checkpoints", f"{parent}/work"


def url_from_pod(settings: KubernetesSettings, url: str) -> str:
    """Return a URL of the service as pods reach it."""
    if not url or not settings.service_url:
        return url
    original, reachable = urlsplit(url), urlsplit(settings.service_url)
    return urlunsplit((reachable.scheme, reachable.netloc, original.path, original.query, ""))


def check_pod(spec: GenerationSpec, settings: KubernetesSettings) -> None:
    """Raise `PlacementError` if a job has no image, or a pod option that isn't allowed here."""
    if not (spec.program.image or settings.image):
        raise PlacementError("it has no image; set run.image, or start the service with image=")
    if spec.devices:
        raise PlacementError("Kubernetes assigns devices itself; don't name any")
    pod: Mapping[str, Any] = spec.program.pod
    requested = {
        "host_network": pod.get("host_network"),
        "service_account": pod.get("service_account"),
        "root": pod.get("run_as_user") == 0 or pod.get("run_as_group") == 0,
        "host_path": any("host_path" in volume for volume in pod.get("volumes", ())),
        "secrets": any("secret" in volume for volume in pod.get("volumes", ())),
    }
    for name, is_requested in requested.items():
        if is_requested and name not in settings.allow:
            raise PlacementError(
                f"run.pod asks for {name}, which is not allowed here; "
                f"--executor-set allow={name} allows it"
            )


def build_pod(
    spec: GenerationSpec,
    process: Process,
    context: ObjectContext,
    node: NodeView,
    settings: KubernetesSettings,
    secret: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the pod of a process; raise `PlacementError` if it requests fractions of units."""
    options = _merge_options(settings.pod, spec.program.pod)
    name = names.pod_name(spec.job, spec.generation, process.name)
    meta = _meta(spec, context, name)
    meta["ownerReferences"] = [_owner_reference(context, secret)]
    meta["labels"] = {**options.get("labels", {}), **meta["labels"], names.PROCESS: process.name}
    meta["annotations"] = {**options.get("annotations", {}), **meta["annotations"]}
    volumes, mounts = _volumes(spec, settings, options)
    uses_host_network = settings.network == "host" or bool(options.get("host_network"))
    account = options.get("service_account")
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": whole_grace_seconds(spec.program.grace),
        "enableServiceLinks": False,
        "automountServiceAccountToken": account is not None,
        "shareProcessNamespace": options.get("share_processes", True),
        "hostname": process.name,
        "subdomain": names.generation_name(spec.job, spec.generation),
        "affinity": {"nodeAffinity": _affinity_to(node.name)},
        "tolerations": _tolerations(options),
        "containers": [_container(spec, process, context, node, settings, options, mounts)],
        "volumes": volumes,
    }
    if uses_host_network:
        body |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    for key, option in _NAMED_OBJECTS.items():
        if options.get(option):
            body[key] = options[option]
    if options["pull_secrets"]:
        body["imagePullSecrets"] = [
            {"name": pull_secret} for pull_secret in options["pull_secrets"]
        ]
    user_fields = {"runAsUser": "run_as_user", "runAsGroup": "run_as_group", "fsGroup": "fs_group"}
    body["securityContext"] = {k: options[v] for k, v in user_fields.items() if v in options}
    if context.gated:
        body["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def whole_grace_seconds(grace: float) -> int:
    """Return a grace period in whole seconds; with 0 a pod would be deleted while it runs."""
    return max(1, math.ceil(grace))


def _merge_options(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **own}
    for name in ("tolerations", "volumes", "pull_secrets"):
        merged[name] = [*defaults.get(name, ()), *own.get(name, ())]
    for name in ("labels", "annotations"):
        merged[name] = {**defaults.get(name, {}), **own.get(name, {})}
    return merged


def _affinity_to(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _tolerations(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Kubernetes must not evict pods from unreachable nodes, because the executor decides what is
    # lost.
    unreachable = [
        {"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _UNREACHABLE_TAINTS
    ]
    own = [{k: v for k, v in toleration.items() if v} for toleration in options["tolerations"]]
    return [*unreachable, *own]


def _container(
    spec: GenerationSpec,
    process: Process,
    context: ObjectContext,
    node: NodeView,
    settings: KubernetesSettings,
    options: Mapping[str, Any],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    checkpoints, work = job_paths(settings, spec.job)
    variables = build_environment(
        spec,
        process,
        master_address=context.master[0],
        master_port=context.master[1],
        checkpoint_dir=spec.checkpoint_dir or checkpoints,
    )
    variables["SHADOWPRICE_PROGRESS_URL"] = url_from_pod(settings, spec.progress_url)
    variables["SHADOWPRICE_HOST"] = process.server  # a pod's host name isn't the node's
    del variables[TOKEN_VARIABLE]  # the secret has it
    argv = spec.program.command
    if argv[:2] == _SHELL and len(argv) >= 3:  # a command line
        argv = (*_SHELL, _SHELL_WRAPPER, "line", *argv[2:])
    requests = resource_requests(process_demand(spec, process), node, settings.gpu)
    # Not CPU, so that pods may use idle cores.
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": spec.program.image or settings.image,
        "command": [escape_references(word) for word in argv],
        "workingDir": spec.program.directory or work,
        "env": [
            {"name": key, "value": escape_references(value)} for key, value in variables.items()
        ],
        "envFrom": [{"secretRef": {"name": names.generation_name(spec.job, spec.generation)}}],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": list(mounts),
        "securityContext": {"allowPrivilegeEscalation": False},
        "terminationMessagePolicy": "File",
    }
    if options.get("pull"):
        container["imagePullPolicy"] = options["pull"]
    return container


def _volumes(
    spec: GenerationSpec, settings: KubernetesSettings, options: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(source: Mapping[str, Any], path: str, **more: Any) -> None:
        name = f"v{len(volumes)}"
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **{k: v for k, v in more.items() if v}})

    for path in job_paths(settings, spec.job):
        if not settings.shared:
            add({"emptyDir": {}}, path)
        elif settings.volume == "host":
            add({"hostPath": {"path": path, "type": "DirectoryOrCreate"}}, path)
        else:
            sub_path = path.removeprefix(settings.shared).lstrip("/")
            add(_source({"claim": settings.volume}), path, subPath=sub_path)
    if options.get("shared_memory"):
        size = str(options["shared_memory"])
        add({"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")
    for volume in options["volumes"]:
        more = {"subPath": volume.get("part"), "readOnly": volume.get("read_only")}
        add(_source(volume), volume["path"], **more)
    return volumes, mounts


def _source(volume: Mapping[str, Any]) -> dict[str, Any]:
    for option, (kind, field) in _VOLUME_SOURCES.items():
        if volume.get(option):
            return {kind: {field: volume[option]}}
    if volume.get("memory"):
        return {"emptyDir": {"medium": "Memory", "sizeLimit": str(volume["memory"])}}
    return {"emptyDir": {"sizeLimit": str(volume["scratch"])}}


def build_launch_plan(
    spec: GenerationSpec,
    cluster: ClusterCache,
    held: Sequence[Mapping[str, Any]],
    namespace: str,
) -> tuple[dict[str, Any], str]:
    """Return the plan of a generation, and a reason if it is refused.

    ``held`` has the allocations of running generations; see `GenerationRegistry.allocations`.
    """
    processes, settings, nodes = list_processes(spec), cluster.settings, cluster.nodes.items
    try:
        validate_spec(spec)
        check_pod(spec, settings)
        allocations = list_allocations(spec, processes)
        for server in dict.fromkeys(item.server for item in processes):
            if server not in nodes:
                raise PlacementError(f"the cluster has no node named {server!r}")
            if server not in cluster.servers:
                raise PlacementError(f"the node {server} is not ready")
            demands, existing = allocated_on(server, allocations), allocated_on(server, held)
            used = cluster.used(server)
            check_allocatable(nodes[server], used, demands, existing, settings.gpu)
            for item in demands:  # it raises an error for fractions that Kubernetes lacks
                resource_requests(item, nodes[server], settings.gpu)
    except PlacementError as error:
        return {}, str(error)
    return {
        "namespace": namespace,
        "parts": [
            {
                "process": item.name,
                "server": item.server,
                "pod": names.pod_name(spec.job, spec.generation, item.name),
            }
            for item in processes
        ],
        "allocations": allocations,
        "grace": spec.program.grace,
        "tolerates_workers": spec.program.tolerates_workers,
        "master": _master(spec, processes, nodes, settings),
        "port": 0,
    }, ""


def _master(
    spec: GenerationSpec,
    processes: tuple[Process, ...],
    nodes: Mapping[str, NodeView],
    settings: KubernetesSettings,
) -> tuple[str, int]:
    if settings.network == "host" or spec.program.pod.get("host_network"):
        port = SystemRandom().choice(RENDEZVOUS_PORTS)  # the node's pods share its ports
        return nodes[processes[0].server].address, port
    if len(processes) == 1:
        return "127.0.0.1", RENDEZVOUS_PORT
    return (
        f"{processes[0].name}.{names.generation_name(spec.job, spec.generation)}",
        RENDEZVOUS_PORT,
    )
