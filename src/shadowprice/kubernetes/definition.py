"""The custom resource definition of `TrainingJob`, generated from the models of job files.

``python -m shadowprice.kubernetes.definition [--rules]`` prints it.

Kubernetes requires a structural schema, in which every value has exactly one type. So references
are resolved, null is omitted (a key is absent instead), and quantities become
``x-kubernetes-int-or-string``. Models that differ by their ``kind``, such as utilities, become one
object with the keys of all of them, and a rule (``oneOf``) for each kind.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.specs import JobSpec
from shadowprice.kubernetes import names

Document = dict[str, Any]

EXCLUDED_KEYS: Final = frozenset(
    {"name", "tenant", "arrival", "tasks", "deadline", "miss_probability"}
)
"""Keys of a job file that a resource lacks: metadata has name, tenant and time; no bags."""

REQUIRED: Final = ("worker", "run")
IMMUTABLE_KEYS: Final = ("worker", "ps", "update_time", "gradient", "internal_bandwidth", "family")
"""Keys that validation rules make immutable, if the API server supports rules.

`run` isn't included, because rules can't compare its command, which is a text or a list. The
controller refuses to change it.
"""

CEL_RULES: Final[Sequence[Mapping[str, str]]] = (
    {
        "rule": "!(has(self.minibatch_time) && has(self.throughput))",
        "message": "give only one of minibatch_time and throughput",
    },
    {
        "rule": (
            "has(self.minibatch_time) || has(self.throughput) || has(self.family) "
            "|| !(has(self.update_time) || has(self.gradient) || has(self.internal_bandwidth) "
            "|| has(self.epochs) || has(self.chunks) || has(self.minibatches))"
        ),
        "message": "how fast it trains is missing: give minibatch_time or throughput",
    },
    {
        "rule": (
            "!has(self.throughput) || !(has(self.update_time) || has(self.gradient) "
            "|| has(self.internal_bandwidth))"
        ),
        "message": "throughput takes the place of update_time, gradient and internal_bandwidth",
    },
    {
        "rule": "!has(self.internal_bandwidth) || 'bandwidth' in self.worker",
        "message": "internal_bandwidth needs worker.bandwidth to compare with",
    },
    {
        "rule": (
            "!has(self.steps) || !(has(self.epochs) || has(self.chunks) || has(self.minibatches))"
        ),
        "message": "steps takes the place of epochs, chunks and minibatches; remove those",
    },
    {
        # With steps and a measured curve, the curve gives the maximum, so it isn't checked here.
        "rule": (
            "!has(self.workers) || (has(self.workers.min) ? self.workers.min : 1) <= "
            "(has(self.workers.max) ? self.workers.max : (has(self.chunks) ? self.chunks : 1)) "
            "|| (has(self.steps) && !has(self.workers.max) "
            "&& (has(self.throughput) || has(self.family)))"
        ),
        "message": "workers.min is above workers.max, which defaults to chunks, or to 1 with steps",
    },
    {
        "rule": (
            "!has(self.workers) || !has(self.workers.max) || has(self.steps) "
            "|| self.workers.max <= (has(self.chunks) ? self.chunks : 1)"
        ),
        "message": "workers.max is above chunks; state the work as steps, or raise chunks",
    },
    *(
        {
            "rule": f"self.{key} == oldSelf.{key}"
            if key in REQUIRED
            else f"has(self.{key}) == has(oldSelf.{key}) "
            f"&& (!has(self.{key}) || self.{key} == oldSelf.{key})",
            "message": f"{key} cannot be changed once the job exists; delete it and apply it again",
        }
        for key in IMMUTABLE_KEYS
    ),
)
"""Validation rules (CEL) for API servers from 1.25 on; the service checks them too."""


# ------------------------------------------------------------------ texts of kubectl

RESOURCE: Final = (
    "A training job that Shadowprice admits at a price, promises a completion time, and runs."
)

FIELDS: Final[Mapping[str, str]] = {
    "": "A job as in a job file, without name and tenant. Quantities have units: 20min, 241MB, "
    "10Gbps.",
    "steps": "All mini-batches of the job, over all workers. Takes the place of epochs, chunks and "
    "minibatches; the maximum number of workers is then workers.max, else the maximum in "
    "throughput, else 1.",
    "epochs": "Passes over the data; default: 1. Prefer steps.",
    "chunks": "Number of data chunks, also the maximum number of workers; default: 1. Prefer "
    "steps.",
    "minibatches": "Mini-batches of one chunk in one epoch, not of the whole job; default: 1. "
    "Prefer steps.",
    "minibatch_time": "Time of one mini-batch on one worker, such as 1.2s.",
    "update_time": "Time of a synchronous update on the parameter servers.",
    "gradient": "Gradient size that a worker exchanges per mini-batch, such as 241MB.",
    "worker": "Resources of one worker: {gpu: 1, cpu: 4, memory: 16GiB}.",
    "ps": "Resources of one parameter server; omit it for all-reduce training.",
    "internal_bandwidth": "Bandwidth between a worker and a parameter server on the same node.",
    "utility": "Utility by completion time; it never increases. Default: 1 per GPU-hour of work.",
    "utility.kind": "Function of the time from submission to completion.",
    "utility.decay": "Steepness around the target: a number per slot, or with a unit: 0.5/h.",
    "utility.slope": "Change over time, at most 0: a number per slot, or with a unit: -2/h.",
    "workers": "Minimum and maximum number of workers while the job runs.",
    "throughput": "Measured mini-batches per second of the whole job by number of workers; "
    "replaces minibatch_time, update_time and gradient.",
    "family": "Model family that supplies the measured throughput curve.",
    "labels": "Labels that the owner sets.",
    "restart": "Time lost at each change of the placement.",
    "priority": "low, normal, high or urgent: multiple 0.25, 1, 4 or 16 of the default utility; "
    "or an integer, for policies that order jobs by priority.",
    "by": "Deadline of the default utility: 6h, 18:00 or a date.",
    "walltime": "Maximum run time.",
    "run": "Command and environment of every worker and parameter server.",
    "run.command": "A shell command line, or a list of arguments.",
    "run.env": "Environment variables. Anyone who can read the resource can read them; don't put "
    "secrets here.",
    "run.workdir": "Working directory, an absolute path.",
    "run.checkpoints": "Whether the job continues from checkpoints; if omitted, learnt from its "
    "reports.",
    "run.retries": "Maximum number of failures.",
    "run.grace": "Grace period after SIGTERM, such as 30s, in which to save a checkpoint.",
    "run.tolerates": "Failures that do not end the job's processes: nothing, or workers.",
    "run.user": "User that runs the processes; not for pods.",
    "run.upload": "Digest of files that the service received for the job; not for pods.",
    "run.from_options": "Whether options of `shadowprice submit` set the keys; for advice.",
    "run.image": "Container image.",
    "run.pod": "Settings of the pods.",
    "run.pod.tolerations": "Taints that the pods tolerate.",
    "run.pod.tolerations.items.key": "Key of the taint; empty with Exists: all taints.",
    "run.pod.tolerations.items.operator": "Equal: the value must be equal. Exists: the taint "
    "must exist.",
    "run.pod.tolerations.items.value": "Value of the taint.",
    "run.pod.tolerations.items.effect": "Effect of the taint; empty: all effects.",
    "run.pod.volumes": "Volumes of all processes.",
    "run.pod.volumes.items.path": "Mount path, absolute.",
    "run.pod.volumes.items.claim": "Name of a persistent volume claim.",
    "run.pod.volumes.items.config_map": "Name of a ConfigMap.",
    "run.pod.volumes.items.secret": "Name of a Secret, if the service allows secrets.",
    "run.pod.volumes.items.host_path": "Path on the node, if the service allows host paths.",
    "run.pod.volumes.items.scratch": "Size of an emptyDir on the node's disk; it is deleted "
    "with the pod.",
    "run.pod.volumes.items.memory": "Size of an emptyDir in memory (tmpfs).",
    "run.pod.volumes.items.part": "Path inside the volume to mount.",
    "run.pod.volumes.items.read_only": "Whether the mount is read-only.",
    "run.pod.labels": "Labels of the pods.",
    "run.pod.annotations": "Annotations of the pods.",
    "run.pod.service_account": "Service account of the pods, if the service allows it.",
    "run.pod.priority_class": "Priority class of the pods.",
    "run.pod.runtime_class": "Runtime class of the pods.",
    "run.pod.pull": "Image pull policy.",
    "run.pod.pull_secrets": "Image pull secrets.",
    "run.pod.run_as_user": "UID of the processes.",
    "run.pod.run_as_group": "GID of the processes.",
    "run.pod.fs_group": "Group that owns the volumes (fsGroup).",
    "run.pod.shared_memory": "Size of /dev/shm.",
    "run.pod.host_network": "Whether the pods use their node's network, if the service allows it.",
    "run.pod.share_processes": "Whether the containers of a pod share a process namespace; "
    "default: true.",
}
"""Descriptions by dotted path below `spec`."""

STATUS: Final[Mapping[str, str]] = {
    "observedGeneration": "The metadata.generation that this status describes.",
    "state": "State: pending, admitted, standby, running, resizing, finished, refused, failed, "
    "cancelled.",
    "job": "Name of the job in the service.",
    "tenant": "Tenant that owns the job.",
    "promise": "Promised completion time.",
    "completion": "Completion time; while the job is open, that of its current plan.",
    "progress": "Mini-batches done.",
    "required": "Total mini-batches.",
    "generation": "Number of the newest generation: one run at one placement.",
    "workers": "Number of workers.",
    "servers": "Number of parameter servers.",
    "nodes": "Nodes that the job runs on.",
    "price": "Price of its resources at admission: their value to other jobs.",
    "payoff": "Utility less price, at admission.",
    "utility": "Utility, promised or earned.",
    "reason": "Code of the refusal or failure.",
    "explanation": "Reason as text.",
    "conditions": "Admitted, Running, Resizing, Finished, Rejected, Failed, and Edited.",
    "epoch": "Leader epoch that wrote this status; leaders with a lower one must not write.",
}


def _column(name: str, path: str, kind: str, text: str, priority: int = 0) -> Mapping[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return column if not priority else {**column, "priority": priority}


COLUMNS: Final[Sequence[Mapping[str, Any]]] = (
    _column("State", ".status.state", "string", STATUS["state"]),
    _column("Workers", ".status.workers", "integer", STATUS["workers"]),
    _column("PS", ".status.servers", "integer", STATUS["servers"]),
    _column("Price", ".status.price", "number", STATUS["price"]),
    _column("Promised finish", ".status.promise", "string", STATUS["promise"]),
    _column("Age", ".metadata.creationTimestamp", "date", "Time since creation."),
    _column("Nodes", ".status.nodes", "string", STATUS["nodes"], 1),
    _column("Reason", ".status.explanation", "string", STATUS["explanation"], 1),
)


# ------------------------------------------------------------------ structural schemas

PASSED_THROUGH_KEYWORDS: Final = (
    "type",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
)
"""Keywords with the same meaning in JSON schemas and structural schemas."""


class SchemaError(ShadowpriceError):
    """A model has no structural schema: the model or this conversion has to change."""

    code = "schema"


def to_structural_schema(
    schema: Mapping[str, Any],
    descriptions: Mapping[str, str],
    path: str = "",
    absent: Collection[str] = (),
) -> Document:
    """Convert a JSON schema from ``model_json_schema`` to a structural schema.

    ``descriptions`` are those of fields, by their dotted path. ``path`` is the path of the model
    itself. ``absent`` are keys of the model to omit. Raises `SchemaError` if the schema has no
    structural form.
    """
    document = _Converter(schema.get("$defs", {}), descriptions).value(schema, path)
    for key in absent:
        document["properties"].pop(key, None)
    return document


class _Converter:
    def __init__(self, models: Mapping[str, Any], descriptions: Mapping[str, str]) -> None:
        self._models = models
        self._descriptions = descriptions

    def value(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return the structural schema of one value, with its description."""
        document = self._schema_without_description(self._resolve(schema), path)
        document.pop("description", None)
        description = self._descriptions.get(path)
        return document if description is None else {"description": description, **document}

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while True:
            if "$ref" in schema:
                schema = self._models[schema["$ref"].rpartition("/")[2]]
            elif "anyOf" in schema:
                choices = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
                if len(choices) != 1:
                    return {"anyOf": choices}
                schema = choices[0]
            else:
                return schema

    def _schema_without_description(self, schema: Mapping[str, Any], path: str) -> Document:
        if "discriminator" in schema:
            return self._tagged_union(schema, path)
        if "anyOf" in schema:
            return _union(schema["anyOf"], path)
        document = {key: schema[key] for key in PASSED_THROUGH_KEYWORDS if key in schema}
        if "const" in schema:
            document["enum"] = [schema["const"]]
        for limit in ("minimum", "maximum"):
            exclusive = f"exclusive{limit.title()}"
            if exclusive in schema:
                # Integers get an inclusive limit, as `exclusiveMinimum` is a boolean here.
                is_integer = document["type"] == "integer"
                step = (1 if limit == "minimum" else -1) if is_integer else 0
                document[limit] = schema[exclusive] + step
                if not is_integer:
                    document[exclusive] = True
        match document.get("type"):
            case "object":
                self._object(schema, document, path)
            case "array":
                document["items"] = self.value(schema["items"], f"{path}[]")
            case "integer":
                document["format"] = "int64"
            case "string" | "number" | "boolean":
                pass
            case _:
                raise SchemaError(f"{path or 'the model'} has no single type: {schema}")
        return document

    def _object(self, schema: Mapping[str, Any], result: Document, path: str) -> None:
        if "properties" in schema:
            result["properties"] = {
                name: self.value(value_schema, f"{path}.{name}" if path else name)
                for name, value_schema in schema["properties"].items()
            }
            if schema.get("required"):
                result["required"] = list(schema["required"])
        elif isinstance(schema.get("additionalProperties"), Mapping):
            result["additionalProperties"] = self.value(schema["additionalProperties"], f"{path}.*")
        else:  # a mapping with any values
            result["x-kubernetes-preserve-unknown-fields"] = True

    def _tagged_union(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return a union of models, discriminated by a tag, as one object with a rule for each."""
        tag = schema["discriminator"]["propertyName"]
        kinds = {
            kind: self._schema_without_description(self._models[reference.rpartition("/")[2]], path)
            for kind, reference in schema["discriminator"]["mapping"].items()
        }
        properties: Document = {}
        for kind, model in kinds.items():
            for name, value in model["properties"].items():
                if name == tag:
                    continue
                if properties.setdefault(name, value) != value:
                    raise SchemaError(f"{path}.{name} has another schema in {kind!r}")
        choice = {"type": "string", "enum": list(kinds)}
        description = self._descriptions.get(f"{path}.{tag}")
        if description is not None:
            choice = {"description": description, **choice}
        rules = []
        for kind, model in kinds.items():
            rule: Document = {
                "properties": {tag: {"enum": [kind]}},
                "required": sorted(model["required"], key=lambda name: (name != tag, name)),
            }
            foreign = sorted(properties.keys() - model["properties"].keys())
            if foreign:
                rule["not"] = {"anyOf": [{"required": [name]} for name in foreign]}
            rules.append(rule)
        return {
            "type": "object",
            "required": [tag],
            "properties": {tag: choice, **properties},
            "oneOf": rules,
        }


def _union(choices: list[Mapping[str, Any]], path: str) -> Document:
    types = {choice.get("type") for choice in choices}
    if any(choice.get("format") == "double" for choice in choices):
        return {"x-kubernetes-preserve-unknown-fields": True}  # int-or-string excludes fractions
    if types <= {"integer", "number", "string"}:
        return {"x-kubernetes-int-or-string": True}
    if types == {"string", "array"}:
        return {"x-kubernetes-preserve-unknown-fields": True}  # checked by the model itself
    raise SchemaError(f"{path} may be of types that have no common one: {sorted(map(str, types))}")


# ------------------------------------------------------------------ definition


def build_crd(*, rules: bool) -> Document:
    """Return the definition; add ``rules`` only for servers that support validation rules."""
    spec = to_structural_schema(JobSpec.model_json_schema(), FIELDS, "", EXCLUDED_KEYS)
    spec["required"] = list(REQUIRED)
    for key in ("worker", "ps"):
        spec["properties"][key]["maxProperties"] = bounds.RESOURCES.maximum
    if rules:
        spec["x-kubernetes-validations"] = [dict(rule) for rule in CEL_RULES]
    schema: Document = {
        "type": "object",
        "description": RESOURCE,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": names.MAX_NAME_CHARS}},
            },
            "spec": spec,
            "status": _status(),
        },
    }
    version: Document = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [dict(column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["tj"],
            },
            "versions": [version],
        },
    }


def _status() -> Document:
    text, number, moment = {"type": "string"}, {"type": "number"}, {"format": "date-time"}
    count = {"type": "integer", "format": "int64"}
    named = ("state", "job", "reason", "explanation", "tenant")
    counted = ("observedGeneration", "epoch", "generation", "workers", "servers")
    measured = ("progress", "required", "price", "payoff", "utility")
    types: Mapping[str, Document] = {
        **dict.fromkeys(named, text),
        **dict.fromkeys(("promise", "completion"), text | moment),
        **dict.fromkeys(counted, count),
        **dict.fromkeys(measured, number),
        "nodes": {"type": "array", "items": text},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "lastTransitionTime"],
                "properties": {
                    "type": {"type": "string", "enum": [item.value for item in names.Condition]},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "enum": [item.value for item in names.Reason]},
                    "message": {"type": "string", "maxLength": 32_768},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                    "observedGeneration": count,
                },
            },
        },
    }
    properties = {
        name: {**types[name], "description": description} for name, description in STATUS.items()
    }
    return {
        "type": "object",
        "description": "State of the job in the service.",
        "properties": properties,
    }


def supports_cel_rules(schema: Mapping[str, Any]) -> bool:
    """Return whether a server with this OpenAPI document, version 2 or 3, supports rules."""
    definitions = schema.get("definitions")
    if definitions is None:
        definitions = schema.get("components", {}).get("schemas", {})
    name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
    return "x-kubernetes-validations" in definitions.get(name, {}).get("properties", {})


def to_yaml(document: Document) -> str:
    """Return a document as YAML with its keys in order."""
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(to_yaml(build_crd(rules="--rules" in sys.argv)))
