"""The custom resource definition of `TrainingJob`, generated from the models of job files.

``python -m shadowprice.kubernetes.definition [--rules]`` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.specs import JobSpec
from shadowprice.kubernetes.conditions import Condition, Reason
from shadowprice.kubernetes.descriptions import COLUMNS, FIELDS, RESOURCE, STATUS
from shadowprice.kubernetes.names import CRD_NAME, GROUP, KIND, MAX_NAME_CHARS, PLURAL, VERSION
from shadowprice.kubernetes.structural import Document, to_structural_schema

EXCLUDED_KEYS: Final = frozenset(
    {"name", "tenant", "arrival", "tasks", "deadline", "miss_probability"}
)
"""Keys of a job file that a resource lacks. Metadata has name, tenant and time; no bags."""

REQUIRED: Final = ("worker", "run")

IMMUTABLE_KEYS: Final = ("worker", "ps", "update_time", "gradient", "internal_bandwidth", "family")
"""Keys that validation rules make immutable, if the API server supports rules.

`run` isn't included: rules can't compare its command, a text or a list. The controller refuses that
change.
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
        # With steps and a measured curve, the curve has the maximum.
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


def build_crd(*, rules: bool) -> Document:
    """Return the custom resource definition.

    ``rules`` includes validation rules, if the API server supports ``x-kubernetes-validations``.
    """
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
                "properties": {"name": {"type": "string", "maxLength": MAX_NAME_CHARS}},
            },
            "spec": spec,
            "status": _status(),
        },
    }
    version: Document = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [dict(column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tj"],
            },
            "versions": [version],
        },
    }


def _status() -> Document:
    """Return the schema of the status that the controller writes."""
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
                    "type": {"type": "string", "enum": [item.value for item in Condition]},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "enum": [item.value for item in Reason]},
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
    return {"type": "object", "description": "What became of it.", "properties": properties}


def supports_cel_rules(schema: Mapping[str, Any]) -> bool:
    """Return whether an API server supports validation rules.

    ``schema`` is its OpenAPI document, version 2 or the part of version 3 about definitions.
    """
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
