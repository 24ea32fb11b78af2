"""Who stands behind a job in Kubernetes: the resource that its pods belong to.

It travels as labels of the job, so that neither the engine nor the store have to know of it. Only
the service's own controller sets them: whoever could, would have pods run in any namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RESERVED_LABELS: Final = "shadowprice.io/"
"""Beginning of the labels that nobody may submit."""

_NAMESPACE, _NAME, _UID = (f"{RESERVED_LABELS}{part}" for part in ("namespace", "name", "uid"))


@dataclass(frozen=True, slots=True)
class Owner:
    """A resource that a job was made for.

    Parameters
    ----------
    namespace : str
        Where it is, and where the job's pods go.
    name : str
        Its name there.
    uid : str
        What tells it from earlier and later ones of that name.
    """

    namespace: str
    name: str
    uid: str

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Owner | None:
        """Return the owner that a job's labels name, None where there is none."""
        if not all(label in labels for label in (_NAMESPACE, _NAME, _UID)):
            return None
        return cls(labels[_NAMESPACE], labels[_NAME], labels[_UID])

    def labels(self) -> dict[str, str]:
        """Return the labels that name it."""
        return {_NAMESPACE: self.namespace, _NAME: self.name, _UID: self.uid}

    @property
    def job(self) -> str:
        """What its job is called in the service: never the same for two resources."""
        return f"{self.namespace}.{self.name}.{self.uid.replace('-', '')[:12]}"
