"""From a model's JSON schema to a structural one, as custom resource definitions need it.

A structural schema gives every value one type and allows no unions of types. References are
resolved, null is omitted (a key is absent instead), and quantities become
``x-kubernetes-int-or-string``. Models distinguished by their ``kind`` become one object with the
keys of all, and a rule (``oneOf``) for each kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from shadowprice.core.errors import ShadowpriceError

Document = dict[str, Any]

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
"""Keywords that mean the same in both."""


class SchemaError(ShadowpriceError):
    """A model can't be expressed as a structural schema; change the model or the conversion."""

    code = "schema"


def to_structural_schema(
    schema: Mapping[str, Any],
    descriptions: Mapping[str, str],
    path: str = "",
    absent: Collection[str] = (),
) -> Document:
    """Convert a JSON schema from ``model_json_schema`` to a structural schema.

    ``descriptions`` are of fields by dotted path from the model, and ``path`` is that of the model
    itself. ``absent`` are keys of the model to omit. Raises `SchemaError` if the schema has no
    structural form.
    """
    document = _Translation(schema.get("$defs", {}), descriptions).value(schema, path)
    for key in absent:
        document["properties"].pop(key, None)
    return document


class _Translation:
    def __init__(self, models: Mapping[str, Any], descriptions: Mapping[str, str]) -> None:
        self._models = models
        self._descriptions = descriptions

    def value(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return the structural schema of one value, with its description."""
        document = self._untyped_schema(self._resolve(schema), path)
        document.pop("description", None)
        description = self._descriptions.get(path)
        return document if description is None else {"description": description, **document}

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Resolve references and nullable types."""
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

    def _untyped_schema(self, schema: Mapping[str, Any], path: str) -> Document:
        if "discriminator" in schema:
            return self._kinds(schema, path)
        if "anyOf" in schema:
            return _union(schema["anyOf"], path)
        document = {key: schema[key] for key in PASSED_THROUGH_KEYWORDS if key in schema}
        if "const" in schema:
            document["enum"] = [schema["const"]]
        for limit in ("minimum", "maximum"):
            exclusive = f"exclusive{limit.title()}"
            if exclusive in schema:
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
        else:
            result["x-kubernetes-preserve-unknown-fields"] = True

    def _kinds(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return a discriminated union of models as one object with a rule for each kind."""
        tag = schema["discriminator"]["propertyName"]
        kinds = {
            kind: self._untyped_schema(self._models[reference.rpartition("/")[2]], path)
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
    """Return the schema of a value that may have several types."""
    types = {choice.get("type") for choice in choices}
    if any(choice.get("format") == "double" for choice in choices):
        return {"x-kubernetes-preserve-unknown-fields": True}  # int-or-string excludes fractions
    if types <= {"integer", "number", "string"}:
        return {"x-kubernetes-int-or-string": True}
    if types == {"string", "array"}:
        return {"x-kubernetes-preserve-unknown-fields": True}  # checked by the model itself
    raise SchemaError(f"{path} may be of types that have no common one: {sorted(map(str, types))}")
