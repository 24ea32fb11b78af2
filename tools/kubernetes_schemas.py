"""Record the schemas of several Kubernetes versions, from their generated clients.

``python -m tools.kubernetes_schemas WHEEL... > tests/unit/kubernetes/recorded/schemas.json``, with
wheels of the package ``kubernetes``: version 27.2 was generated from the description that an API
server of 1.27 gives of itself. Kept is, for every kind that is sent here and all within it, each
field with its type, and the versions in which it is there.
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

_TABLES: Final = re.compile(
    r"^    (openapi_types|attribute_map)(?:: [^=\n]+)? = (\{.*?^    \})", re.M | re.S
)
_NAME: Final = re.compile(r"\b((?:Core|Apps)?V\d[A-Za-z0-9]*)\b")


def _file(model: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", model).lower()


def fields(wheel: zipfile.ZipFile, model: str) -> dict[str, str]:
    """Return a model's fields and types by their JSON names; empty if it is not a model."""
    named = {name.rpartition("/")[2] for name in wheel.namelist()}
    file = f"{_file(model)}.py"
    if file not in named:
        return {}
    text = wheel.read(f"kubernetes/client/models/{file}").decode()
    told = {name: ast.literal_eval(found) for name, found in _TABLES.findall(text)}
    types, names = told["openapi_types"], told["attribute_map"]
    return {names[key]: _type(types[key]) for key in types}


def _type(text: str) -> str:
    """Return the model in a type, or an empty string for plain values."""
    found = _NAME.search(text)
    return found[1] if found else ""


def record(wheels: Sequence[Path]) -> dict[str, object]:
    """Return all models reachable from the roots, over all versions."""
    opened = sorted(_opened(wheels), key=lambda one: one[0])
    versions = [f"1.{minor}" for minor, _ in opened]
    models: dict[str, dict[str, list[object]]] = {}
    for at, (_, wheel) in enumerate(opened):
        left, seen = list(ROOTS), set[str]()
        while left:
            model = left.pop()
            if model in seen:
                continue
            seen.add(model)
            for field, kind in sorted(fields(wheel, model).items()):
                known = models.setdefault(model, {}).setdefault(field, [kind, at, at])
                known[0], known[2] = known[0] or kind, at
                if kind:
                    left.append(kind)
    return {"versions": versions, "models": dict(sorted(models.items()))}


def _opened(wheels: Sequence[Path]) -> Iterator[tuple[int, zipfile.ZipFile]]:
    for path in wheels:
        yield int(path.name.split("-")[1].split(".")[0]), zipfile.ZipFile(path)


if __name__ == "__main__":
    told = record([Path(word) for word in sys.argv[1:]])
    sys.stdout.write(json.dumps(told, separators=(",", ":"), sort_keys=True) + "\n")
