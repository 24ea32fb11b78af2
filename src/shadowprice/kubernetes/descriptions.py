"""Texts of `kubectl explain` for every field, and the columns of `kubectl get`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

RESOURCE: Final = (
    "A training job that is admitted at a price, promised a completion, and run by Shadowprice."
)

FIELDS: Final[Mapping[str, str]] = {
    "": "A job as in a job file, without its name and tenant; quantities carry their unit (20min, "
    "241MB, 10Gbps).",
    "epochs": "Passes over all chunks; by default 1.",
    "chunks": "Parts of the data, and the most workers at once; by default 1.",
    "minibatches": "Mini-batches of a chunk; by default 1.",
    "minibatch_time": "Time of one mini-batch on one worker, such as 1.2s.",
    "update_time": "Time of a synchronous update on the parameter servers.",
    "gradient": "Size of what a worker exchanges per mini-batch, such as 241MB.",
    "worker": "What one worker takes, by resource: {gpu: 1, cpu: 4, memory: 16GiB}.",
    "ps": "What one parameter server takes; leave it out for all-reduce training.",
    "internal_bandwidth": "Bandwidth between a worker and a parameter server on its own node.",
    "utility": "What its completion is worth, by time: never rising.",
    "utility.kind": "Which function of the time from submission to completion.",
    "workers": "Fewest and most workers in any slot in which it runs.",
    "throughput": "Measured mini-batches a second of the whole job by number of workers; takes the "
    "place of minibatch_time, update_time and gradient.",
    "family": "A family of models whose measured curve it has.",
    "labels": "Words of its owner.",
    "restart": "Time lost whenever its placement changes.",
    "priority": "For policies that order by priority.",
    "walltime": "The longest that it may run.",
    "run": "What every worker and every parameter server runs.",
    "run.command": "A line for the shell, or a list of words.",
    "run.env": "Variables to set. Whoever may read the resource reads them: no place for secrets.",
    "run.workdir": "Absolute path of the directory it runs in.",
    "run.checkpoints": "Whether it saves its progress and continues from there; learnt from its "
    "reports if left out.",
    "run.retries": "Failures that it is allowed.",
    "run.grace": "Time to save a checkpoint in after SIGTERM, such as 30s.",
    "run.tolerates": "Whether a worker that dies ends the generation.",
    "run.user": "The user whose processes they are; not for pods.",
    "run.image": "The container image that they run in.",
    "run.pod": "What is said of the pods.",
    "run.pod.tolerations": "Taints that the pods bear.",
    "run.pod.tolerations.items.key": "Key of the taint; empty with Exists for every taint.",
    "run.pod.tolerations.items.operator": "Whether its value has to be equal, or it has to exist.",
    "run.pod.tolerations.items.value": "Its value.",
    "run.pod.tolerations.items.effect": "Its effect; empty for all.",
    "run.pod.volumes": "Places that all processes see.",
    "run.pod.volumes.items.path": "Absolute path under which processes see it.",
    "run.pod.volumes.items.claim": "Name of a persistent volume claim.",
    "run.pod.volumes.items.config_map": "Name of a ConfigMap.",
    "run.pod.volumes.items.secret": "Name of a Secret, where that is allowed.",
    "run.pod.volumes.items.host_path": "Path on the node, where that is allowed.",
    "run.pod.volumes.items.scratch": "Space on the node that goes with the pod.",
    "run.pod.volumes.items.memory": "Memory that is seen as files.",
    "run.pod.volumes.items.part": "Path inside the volume.",
    "run.pod.volumes.items.read_only": "Whether it can only be read.",
    "run.pod.labels": "Labels of the pods.",
    "run.pod.annotations": "Annotations of the pods.",
    "run.pod.service_account": "Service account of the pods, where that is allowed.",
    "run.pod.priority_class": "Priority class of the pods.",
    "run.pod.runtime_class": "Runtime class of the pods.",
    "run.pod.pull": "When the image is pulled.",
    "run.pod.pull_secrets": "Secrets that it is pulled with.",
    "run.pod.run_as_user": "Number of the user whose processes they are.",
    "run.pod.run_as_group": "Number of their group.",
    "run.pod.fs_group": "Number of the group that owns volumes.",
    "run.pod.shared_memory": "Size of /dev/shm.",
    "run.pod.host_network": "Whether they use the network of their node, where that is allowed.",
    "run.pod.share_processes": "Whether the processes of a pod see each other; they do by default.",
}
"""Descriptions by dotted path below `spec`."""

STATUS: Final[Mapping[str, str]] = {
    "observedGeneration": "The metadata.generation that this tells of.",
    "state": "Where it is: pending, admitted, standby, running, resizing, finished, refused, "
    "failed, cancelled.",
    "job": "What the service calls it.",
    "tenant": "Whose it is.",
    "promise": "When it is promised to be complete.",
    "completion": "When it completed, or will by the plan of the moment.",
    "progress": "Mini-batches done.",
    "required": "Mini-batches in all.",
    "generation": "Its newest placement.",
    "workers": "Workers of it.",
    "servers": "Parameter servers of it.",
    "nodes": "Where.",
    "price": "What its resources were worth to others when it was admitted.",
    "payoff": "Its utility less its price, when it was admitted.",
    "utility": "Its utility, as promised or earned.",
    "reason": "Code of the refusal or the failure.",
    "explanation": "The same for people.",
    "conditions": "Admitted, Running, Resizing, Finished, Rejected, Failed, and Edited.",
    "epoch": "Number of the leader that wrote this; one with a lower number writes no more.",
}


def _column(name: str, path: str, kind: str, text: str, priority: int = 0) -> Mapping[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return column if not priority else {**column, "priority": priority}


COLUMNS: Final[Sequence[Mapping[str, Any]]] = (
    _column("State", ".status.state", "string", STATUS["state"]),
    _column("Workers", ".status.workers", "integer", STATUS["workers"]),
    _column("Servers", ".status.servers", "integer", STATUS["servers"]),
    _column("Price", ".status.price", "number", STATUS["price"]),
    _column("Promised finish", ".status.promise", "string", STATUS["promise"]),
    _column("Age", ".metadata.creationTimestamp", "date", "How long it is there."),
    _column("Nodes", ".status.nodes", "string", STATUS["nodes"], 1),
    _column("Reason", ".status.explanation", "string", STATUS["explanation"], 1),
)
