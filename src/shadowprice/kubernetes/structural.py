"""From a model's JSON schema to a structural one, as custom resource definitions need it.

A structural schema gives every value one type and refuses unions of them. What pydantic writes is
turned into that: references are written out, null is left out (a key is absent instead), quantities
become ``x-kubernetes-int-or-string``, and models told apart by their ``kind`` become one object
with the keys of all, and a rule (``oneOf``) for each kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from shadowprice.core.errors import ShadowpriceError

Document = dict[str, Any]

KEPT: Final = (
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
    """A model says what no structural schema can; the model, or the translation, has to change."""

    code = "schema"


def structural(
    schema: Mapping[str, Any],
    descriptions: Mapping[str, str],
    path: str = "",
    absent: Collection[str] = (),
) -> Document:
    """Return a model's schema as a structural one.

    Parameters
    ----------
    schema : mapping
        As ``model_json_schema`` returns it.
    descriptions : mapping of str to str
        What fields mean, by dotted path from the model on.
    path : str
        Path of the model itself.
    absent : collection of str
        Keys of the model to leave out.

    Raises
    ------
    SchemaError
        If it cannot be said so.
    """
    told = _Translation(schema.get("$defs", {}), descriptions).value(schema, path)
    for key in absent:
        told["properties"].pop(key, None)
    return told


class _Translation:
    def __init__(self, models: Mapping[str, Any], descriptions: Mapping[str, str]) -> None:
        self._models = models
        self._descriptions = descriptions

    def value(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return one value's schema."""
        told = self._bare(self._followed(schema), path)
        told.pop("description", None)
        description = self._descriptions.get(path)
        return told if description is None else {"description": description, **told}

    def _followed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a reference, or a value that may be null, stands for."""
        while True:
            if "$ref" in schema:
                schema = self._models[schema["$ref"].rpartition("/")[2]]
            elif "anyOf" in schema:
                left = [one for one in schema["anyOf"] if one.get("type") != "null"]
                if len(left) != 1:
                    return {"anyOf": left}
                schema = left[0]
            else:
                return schema

    def _bare(self, schema: Mapping[str, Any], path: str) -> Document:
        if "discriminator" in schema:
            return self._kinds(schema, path)
        if "anyOf" in schema:
            return _union(schema["anyOf"], path)
        told = {key: schema[key] for key in KEPT if key in schema}
        if "const" in schema:
            told["enum"] = [schema["const"]]
        for edge in ("minimum", "maximum"):
            exclusive = f"exclusive{edge.title()}"
            if exclusive in schema:
                whole = told["type"] == "integer"
                step = (1 if edge == "minimum" else -1) if whole else 0
                told[edge] = schema[exclusive] + step
                if not whole:
                    told[exclusive] = True
        match told.get("type"):
            case "object":
                self._object(schema, told, path)
            case "array":
                told["items"] = self.value(schema["items"], f"{path}[]")
            case "integer":
                told["format"] = "int64"
            case "string" | "number" | "boolean":
                pass
            case _:
                raise SchemaError(f"{path or 'the model'} has no type that can be said: {schema}")
        return told

    def _object(self, schema: Mapping[str, Any], told: Document, path: str) -> None:
        if "properties" in schema:
            told["properties"] = {
                name: self.value(one, f"{path}.{name}" if path else name)
                for name, one in schema["properties"].items()
            }
            if schema.get("required"):
                told["required"] = list(schema["required"])
        elif isinstance(schema.get("additionalProperties"), Mapping):
            told["additionalProperties"] = self.value(schema["additionalProperties"], f"{path}.*")
        else:
            told["x-kubernetes-preserve-unknown-fields"] = True

    def _kinds(self, schema: Mapping[str, Any], path: str) -> Document:
        """Return models that are told apart by a key as one object."""
        tag = schema["discriminator"]["propertyName"]
        kinds = {
            kind: self._object_of(reference, path)
            for kind, reference in schema["discriminator"]["mapping"].items()
        }
        properties: Document = {}
        for kind, one in kinds.items():
            for name, value in one["properties"].items():
                if name == tag:
                    continue
                if properties.setdefault(name, value) != value:
                    raise SchemaError(f"{path}.{name} means another thing in {kind!r}")
        choice = {"type": "string", "enum": list(kinds)}
        description = self._descriptions.get(f"{path}.{tag}")
        if description is not None:
            choice = {"description": description, **choice}
        rules = []
        for kind, one in kinds.items():
            rule: Document = {
                "properties": {tag: {"enum": [kind]}},
                "required": sorted(one["required"], key=lambda name: (name != tag, name)),
            }
            foreign = sorted(properties.keys() - one["properties"].keys())
            if foreign:
                rule["not"] = {"anyOf": [{"required": [name]} for name in foreign]}
            rules.append(rule)
        return {
            "type": "object",
            "required": [tag],
            "properties": {tag: choice, **properties},
            "oneOf": rules,
        }

    def _object_of(self, reference: str, path: str) -> Document:
        return self._bare(self._models[reference.rpartition("/")[2]], path)


def _union(choices: list[Mapping[str, Any]], path: str) -> Document:
    """Return a value that may be of several types."""
    types = {one.get("type") for one in choices}
    if types <= {"integer", "number", "string"}:
        return {"x-kubernetes-int-or-string": True}
    if types == {"string", "array"}:
        return {"x-kubernetes-preserve-unknown-fields": True}  # checked by the model itself
    raise SchemaError(f"{path} may be of types that have no common one: {sorted(map(str, types))}")
