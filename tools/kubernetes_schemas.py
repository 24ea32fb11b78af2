"""Record the schemas of several Kubernetes versions, from their generated clients.

``python -m tools.kubernetes_schemas WHEEL... > tests/unit/kubernetes/recorded/schemas.json``, with
wheels of the package ``kubernetes``: its version 27.2 was generated from the OpenAPI document of
Kubernetes 1.27. The result has every field of the kinds that the service sends, and of the types in
them, with the field's type and the first and last version that has the field.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOTS: Final = (
    "V1Pod", "V1Secret", "V1Service", "V1ConfigMap", "V1Lease", "V1DeleteOptions", "CoreV1Event",
    "V1Deployment", "V1NetworkPolicy", "V1Role", "V1RoleBinding", "V1ClusterRole", "V1Namespace",
    "V1ClusterRoleBinding", "V1ServiceAccount", "V1PodDisruptionBudget",
    "V1CustomResourceDefinition",
)  # fmt: skip
"""Models of the kinds that the service or its manifests send."""

_TABLES: Final = re.compile(
    r"^    (openapi_types|attribute_map)(?:: [^=\n]+)? = (\{.*?^    \})", re.M | re.S
)
_NAME: Final = re.compile(r"\b((?:Core|Apps)?V\d[A-Za-z0-9]*)\b")


def _file_stem(model: str) -> str:
    """Return the file name of a model, in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", model).lower()


def fields(wheel: zipfile.ZipFile, model: str) -> dict[str, str]:
    """Return a model's fields and types by their JSON names; empty if it is not a model."""
    file_names = {name.rpartition("/")[2] for name in wheel.namelist()}
    file = f"{_file_stem(model)}.py"
    if file not in file_names:
        return {}
    text = wheel.read(f"kubernetes/client/models/{file}").decode()
    tables = {name: ast.literal_eval(table) for name, table in _TABLES.findall(text)}
    types, names = tables["openapi_types"], tables["attribute_map"]
    return {names[key]: _type(types[key]) for key in types}


def _type(text: str) -> str:
    """Return the model in a type, or an empty string for plain values."""
    match = _NAME.search(text)
    return match[1] if match else ""


def record(wheels: Sequence[Path]) -> dict[str, object]:
    """Return all models reachable from the roots, over all versions.

    A field has its type, and the indices of its first and last version.
    """
    by_version = sorted(_open_wheels(wheels), key=lambda item: item[0])
    versions = [f"1.{minor}" for minor, _ in by_version]
    models: dict[str, dict[str, list[object]]] = {}
    for index, (_, wheel) in enumerate(by_version):
        remaining, seen = list(ROOTS), set[str]()
        while remaining:
            model = remaining.pop()
            if model in seen:
                continue
            seen.add(model)
            for field, kind in sorted(fields(wheel, model).items()):
                entry = models.setdefault(model, {}).setdefault(field, [kind, index, index])
                entry[0], entry[2] = entry[0] or kind, index
                if kind:
                    remaining.append(kind)
    return {"versions": versions, "models": dict(sorted(models.items()))}


def _open_wheels(wheels: Sequence[Path]) -> Iterator[tuple[int, zipfile.ZipFile]]:
    """Yield the minor version of Kubernetes and the content of each wheel."""
    for path in wheels:
        yield int(path.name.split("-")[1].split(".")[0]), zipfile.ZipFile(path)


if __name__ == "__main__":
    schemas = record([Path(argument) for argument in sys.argv[1:]])
    sys.stdout.write(json.dumps(schemas, separators=(",", ":"), sort_keys=True) + "\n")
