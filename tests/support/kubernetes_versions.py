"""Fields of Kubernetes' API by version, from recorded schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDED = json.loads((ROOT / "unit" / "kubernetes" / "recorded" / "schemas.json").read_text())
VERSIONS = [str(version) for version in RECORDED["versions"]]
OLDEST_WITH_GATES, OLDEST_WITH_RULES = "1.26", "1.23"


def fields(model: str, version: str) -> dict[str, str]:
    """Return the fields of a model in a version, each with its model."""
    at = VERSIONS.index(version)
    result = RECORDED["models"].get(model, {})
    return {name: kind for name, (kind, first, last) in result.items() if first <= at <= last}


def openapi_document(version: str) -> dict[str, Any]:
    """Return the OpenAPI schemas that a server of a version publishes, as far as they are read."""

    def schema(model: str) -> dict[str, Any]:
        return {"properties": {name: {} for name in fields(model, version)}}

    props = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
    schemas = {
        "io.k8s.api.core.v1.PodSpec": schema("V1PodSpec"),
        props: schema("V1JSONSchemaProps"),
    }
    return {"components": {"schemas": schemas}}


def unknown_fields(found: Any, model: str, version: str, path: str) -> Iterator[str]:
    """Yield the paths of fields that a version doesn't have."""
    if isinstance(found, list):
        for index, one in enumerate(found):
            yield from unknown_fields(one, model, version, f"{path}[{index}]")
        return
    known = fields(model, version)
    if not isinstance(found, Mapping) or not model or not known:
        return
    for name, value in found.items():
        if name not in known:
            yield f"{path}.{name}"
        elif known[name] and not (known[name] == "V1JSONSchemaProps" and name == "properties"):
            yield from unknown_fields(value, known[name], version, f"{path}.{name}")
        elif name == "properties":
            for key, one in value.items():
                yield from unknown_fields(one, known[name], version, f"{path}.{name}.{key}")
