"""The Kubernetes resource that a job was created from, and that owns its pods.

The owner is stored in the job's labels, so that the engine and the store don't depend on
Kubernetes. Only the service's own controller may set these labels: they choose the namespace in
which pods run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.core.job_keys import owned_key

RESERVED_LABELS: Final = "shadowprice.io/"  # prefix of labels that users may not submit

_NAMESPACE, _NAME, _UID = (f"{RESERVED_LABELS}{part}" for part in ("namespace", "name", "uid"))


@dataclass(frozen=True, slots=True)
class Owner:
    """The Kubernetes resource that a job was created from.

    The job's pods run in its namespace. Its UID differs from those of earlier and later resources
    with the same name.
    """

    namespace: str
    name: str
    uid: str

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner | None:
        """Return the owner in a job's labels, None if there is none."""
        if not all(label in labels for label in (_NAMESPACE, _NAME, _UID)):
            return None
        return cls(labels[_NAMESPACE], labels[_NAME], labels[_UID])

    def labels(self) -> dict[str, str]:
        """Return the labels that describe this owner."""
        return {_NAMESPACE: self.namespace, _NAME: self.name, _UID: self.uid}

    @property
    def job(self) -> str:
        """Name of the job in the service, unique per resource."""
        return f"{self.namespace}.{self.name}.{self.uid.replace('-', '')[:12]}"

    @property
    def key(self) -> str:
        """Key of the job in the service.

        It doesn't contain the tenant, because the tenant of a namespace can change.
        """
        return owned_key(self.job)
