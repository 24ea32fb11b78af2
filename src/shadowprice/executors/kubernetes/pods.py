"""What an API server is asked for a generation: a secret, a service, and a pod a process."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process, environment_of
from shadowprice.executors.generations.placing import NoPlaceError
from shadowprice.executors.generations.store import key_of
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.nodes import NodeView, asked_of
from shadowprice.executors.kubernetes.settings import Settings

TOKEN: Final = "SHADOWPRICE_PROGRESS_TOKEN"
PORT: Final = 29_500
"""Where processes meet whose pods have addresses of their own."""

_OWN_PLACE: Final = "/shadowprice"
_SHELL: Final = ("/bin/sh", "-c")
_AWAY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# A shell that is told to end tells nobody: this one tells everything in its pod, waits for all of
# it, and ends as the line did. As the first process of its pod it could not see others end.
_LINE: Final = """told=
trap 'told=1; kill -TERM -1' TERM
/bin/sh -c "$1" 2>&1 &
exec 2>/dev/null
child=$!
while :; do
  wait "$child"; status=$?
  kill -0 "$child" || break
done
if [ -n "$told" ]; then
  wait "$child"; late=$?
  [ "$late" = 127 ] || status=$late
  while [ $$ != 1 ] && kill -0 -1; do sleep 0.1; done
fi
exit "$status"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a generation's objects are, and what they carry.

    Parameters
    ----------
    service : str
        Name of the scheduler's service.
    namespace : str
        Where.
    execution : str
        What tells this launch from every other.
    master : (str, int)
        Where its processes meet.
    owner : mapping or None
        The resource that it was made for, as an owner reference.
    gated : bool
        Whether pods wait for each other before any is placed.
    """

    service: str
    namespace: str
    execution: str
    master: tuple[str, int]
    owner: Mapping[str, Any] | None = None
    gated: bool = False


def text_of(text: str) -> str:
    """Return a text as UTF-8 has it; what is none of it is replaced."""
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        content = text.encode("utf-8", "replace")
    return content.decode("utf-8", "replace")


def literal(text: str) -> str:
    """Return a text that Kubernetes passes on as it is: ``$(NAME)`` means something to it."""
    return text_of(text).replace("$", "$$")


def _meta(spec: GenerationSpec, place: Place, name: str) -> dict[str, Any]:
    labels = names.labels_of(place.service, spec.job, spec.generation)
    notes = {names.JOB_NAME: names.written(spec.job), names.EXECUTION: place.execution}
    if spec.tenant:
        notes[names.TENANT] = text_of(spec.tenant)
    meta: dict[str, Any] = {"name": name, "namespace": place.namespace}
    meta |= {"labels": labels, "annotations": notes}
    if place.owner is not None:
        meta["ownerReferences"] = [dict(place.owner)]
    return meta


def secret_of(spec: GenerationSpec, place: Place) -> dict[str, Any]:
    """Return the secret of a generation: what its pods cannot begin without, and nobody may read.

    It holds the token and the job's own variables, and it is the licence to run: a pod that comes
    late, when its generation is over and the secret gone, never begins.
    """
    told = {TOKEN: spec.progress_token, **spec.program.environment}
    data = {k: base64.b64encode(text_of(v).encode()).decode() for k, v in told.items()}
    meta = _meta(spec, place, names.generation_name(spec.job, spec.generation))
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True}
    return {**kind, "metadata": meta, "data": data}


def service_of(spec: GenerationSpec, place: Place, secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headless service that gives the pods of a generation their names."""
    meta = _meta(spec, place, names.generation_name(spec.job, spec.generation))
    meta["ownerReferences"] = [_owned(place, secret)]
    chosen = {"clusterIP": "None", "publishNotReadyAddresses": True}
    told = {**chosen, "selector": names.labels_of(place.service, spec.job, spec.generation)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": told}


def _owned(place: Place, secret: Mapping[str, Any]) -> dict[str, Any]:
    if place.owner is not None:
        return dict(place.owner)
    told = {"apiVersion": "v1", "kind": "Secret", "controller": False}
    return {**told, "name": secret["metadata"]["name"], "uid": secret["metadata"]["uid"]}


def folders(settings: Settings, job: str) -> tuple[str, str]:
    """Return where a job's checkpoints and its own files are, as its pods see them."""
    own = f"{settings.shared}/files/{key_of(job)}" if settings.shared else _OWN_PLACE
    return f"{own}/checkpoints", f"{own}/work"


def reached(settings: Settings, url: str) -> str:
    """Return an address of the service as pods reach it."""
    if not url or not settings.service_url:
        return url
    told, own = urlsplit(url), urlsplit(settings.service_url)
    return urlunsplit((own.scheme, own.netloc, told.path, told.query, ""))


def check_pod(spec: GenerationSpec, settings: Settings) -> None:
    """Refuse what a job may not ask for here.

    Raises
    ------
    NoPlaceError
        If it names no image, or something that the operator has not allowed.
    """
    if not (spec.program.image or settings.image):
        raise NoPlaceError("it names no image; write run.image, or serve with image=")
    if spec.devices:
        raise NoPlaceError("Kubernetes deals out devices itself: none may be named")
    pod: Mapping[str, Any] = spec.program.pod
    asked = {
        "host_network": pod.get("host_network"),
        "service_account": pod.get("service_account"),
        "root": pod.get("run_as_user") == 0 or pod.get("run_as_group") == 0,
        "host_path": any("host_path" in one for one in pod.get("volumes", ())),
        "secrets": any("secret" in one for one in pod.get("volumes", ())),
    }
    for name, wanted in asked.items():
        if wanted and name not in settings.allow:
            raise NoPlaceError(
                f"run.pod asks for {name}, which is not allowed here; "
                f"--executor-set allow={name} allows it"
            )


def pod_of(
    spec: GenerationSpec,
    process: Process,
    place: Place,
    node: NodeView,
    settings: Settings,
    secret: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the pod of a process.

    Parameters
    ----------
    spec, process
        Which process of which generation.
    place : Place
        Where its objects are.
    node : NodeView
        Where it is to run.
    settings : Settings
        What holds of all jobs.
    secret : mapping
        The generation's secret, as the API server has it.

    Raises
    ------
    NoPlaceError
        If it asks for a part of what is given as a whole only.
    """
    asked = _merged(settings.pod, spec.program.pod)
    name = names.pod_name(spec.job, spec.generation, process.name)
    meta = _meta(spec, place, name)
    meta["ownerReferences"] = [_owned(place, secret)]
    meta["labels"] = {**asked.get("labels", {}), **meta["labels"], names.PROCESS: process.name}
    meta["annotations"] = {**asked.get("annotations", {}), **meta["annotations"]}
    volumes, mounts = _volumes(spec, settings, asked)
    host = settings.network == "host" or bool(asked.get("host_network"))
    account = asked.get("service_account")
    told: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": seconds(spec.program.grace),
        "enableServiceLinks": False,
        "automountServiceAccountToken": account is not None,
        "shareProcessNamespace": asked.get("share_processes", True),
        "hostname": process.name,
        "subdomain": names.generation_name(spec.job, spec.generation),
        "affinity": {"nodeAffinity": _on(node.name)},
        "tolerations": _tolerations(asked),
        "containers": [_container(spec, process, place, node, settings, asked, mounts)],
        "volumes": volumes,
    }
    if host:
        told |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if account is not None:
        told["serviceAccountName"] = account
    if asked.get("priority_class"):
        told["priorityClassName"] = asked["priority_class"]
    if asked.get("runtime_class"):
        told["runtimeClassName"] = asked["runtime_class"]
    if asked.get("pull_secrets"):
        told["imagePullSecrets"] = [{"name": one} for one in asked["pull_secrets"]]
    who = {"runAsUser": "run_as_user", "runAsGroup": "run_as_group", "fsGroup": "fs_group"}
    told["securityContext"] = {k: asked[v] for k, v in who.items() if v in asked}
    if place.gated:
        told["schedulingGates"] = [{"name": names.GATE}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": told}


def seconds(grace: float) -> int:
    """Return a grace as an API server takes it: whole seconds, at least one.

    None at all would have it forget a pod that still runs.
    """
    return max(1, math.ceil(grace))


def _merged(usual: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**usual, **own}
    for name in ("tolerations", "volumes", "pull_secrets"):
        merged[name] = [*usual.get(name, ()), *own.get(name, ())]
    for name in ("labels", "annotations"):
        merged[name] = {**usual.get(name, {}), **own.get(name, {})}
    return merged


def _on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _tolerations(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    # A node that is not heard of for a while evicts nothing: the executor decides what is lost.
    away = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _AWAY]
    own = [{k: v for k, v in one.items() if v} for one in asked["tolerations"]]
    return [*away, *own]


def _container(
    spec: GenerationSpec,
    process: Process,
    place: Place,
    node: NodeView,
    settings: Settings,
    asked: Mapping[str, Any],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    checkpoints, work = folders(settings, spec.job)
    told = environment_of(
        spec,
        process,
        master_address=place.master[0],
        master_port=place.master[1],
        checkpoint_dir=spec.checkpoint_dir or checkpoints,
    )
    told["SHADOWPRICE_PROGRESS_URL"] = reached(settings, spec.progress_url)
    del told[TOKEN]
    words = spec.program.command
    if words[:2] == _SHELL and len(words) == 3:
        words = (*_SHELL, _LINE, "line", words[2])
    amounts = spec.worker if process.role == "worker" else spec.ps
    requests = asked_of(amounts, node, settings.gpu)
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": spec.program.image or settings.image,
        "command": [literal(word) for word in words],
        "workingDir": spec.program.directory or work,
        "env": [{"name": key, "value": literal(value)} for key, value in told.items()],
        "envFrom": [{"secretRef": {"name": names.generation_name(spec.job, spec.generation)}}],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": list(mounts),
        "securityContext": {"allowPrivilegeEscalation": False},
        "terminationMessagePolicy": "File",
    }
    if asked.get("pull"):
        container["imagePullPolicy"] = asked["pull"]
    return container


def _volumes(
    spec: GenerationSpec, settings: Settings, asked: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a pod's volumes, and where its container sees them."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(source: Mapping[str, Any], path: str, **more: Any) -> None:
        name = f"v{len(volumes)}"
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **{k: v for k, v in more.items() if v}})

    for path in folders(settings, spec.job):
        if not settings.shared:
            add({"emptyDir": {}}, path)
        elif settings.volume == "host":
            add({"hostPath": {"path": path, "type": "DirectoryOrCreate"}}, path)
        else:
            part = path.removeprefix(settings.shared).lstrip("/")
            add(_claim(settings.volume), path, subPath=part)
    if asked.get("shared_memory"):
        size = str(asked["shared_memory"])
        add({"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")
    for one in asked["volumes"]:
        more = {"subPath": one.get("part"), "readOnly": one.get("read_only")}
        add(_source(one), one["path"], **more)
    return volumes, mounts


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def _source(one: Mapping[str, Any]) -> dict[str, Any]:
    if one.get("claim"):
        return _claim(one["claim"])
    if one.get("config_map"):
        return {"configMap": {"name": one["config_map"]}}
    if one.get("secret"):
        return {"secret": {"secretName": one["secret"]}}
    if one.get("host_path"):
        return {"hostPath": {"path": one["host_path"]}}
    if one.get("memory"):
        return {"emptyDir": {"medium": "Memory", "sizeLimit": str(one["memory"])}}
    return {"emptyDir": {"sizeLimit": str(one["scratch"])}}
