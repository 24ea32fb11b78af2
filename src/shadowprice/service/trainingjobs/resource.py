"""A `TrainingJob` as it was last seen, and the job that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.owner import Owner
from shadowprice.core.wording import shown
from shadowprice.kubernetes.conditions import Reason
from shadowprice.kubernetes.names import API_VERSION, FINALIZER, KIND, PLURAL
from shadowprice.service.truth.submission import REVISABLE
from shadowprice.service.truth.views import State

ROUTE: Final = f"/apis/{API_VERSION}"

CLOSED: Final = frozenset(str(state) for state in State if not state.open)


@dataclass(frozen=True, slots=True)
class Resource:
    """A `TrainingJob` as it was last seen.

    Parameters
    ----------
    owner : Owner
        Namespace, name and uid.
    version : str
        ``resourceVersion``: what a write has to be based on.
    generation : int
        ``metadata.generation``: it grows with every edit of ``spec``.
    deleting : bool
        Whether it was deleted, and waits for its finalizers.
    finalizers : tuple of str
        Those that it has.
    spec, status : mapping
        As the server has them.
    """

    owner: Owner
    version: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...]
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Resource:
        """Return what an API server tells of one."""
        told = item["metadata"]
        return cls(
            owner=Owner(told["namespace"], told["name"], told["uid"]),
            version=told["resourceVersion"],
            generation=int(told.get("generation", 0)),
            deleting="deletionTimestamp" in told,
            finalizers=tuple(told.get("finalizers") or ()),
            spec=item.get("spec") or {},
            status=item.get("status") or {},
        )

    @property
    def held(self) -> bool:
        """Whether it has our finalizer: only then a job was, or is, submitted for it."""
        return FINALIZER in self.finalizers

    @property
    def epoch(self) -> int:
        """Number of the leader that wrote its status last."""
        return int(self.status.get("epoch") or 0)

    @property
    def settled(self) -> bool:
        """Whether its job is over, and its status says so; what is no job may still become one."""
        told = self.status
        over = told.get("state") in CLOSED and told.get("reason") != Reason.INVALID
        return over and told.get("observedGeneration") == self.generation

    @property
    def path(self) -> str:
        """Path of it on the API server."""
        return f"{ROUTE}/namespaces/{self.owner.namespace}/{PLURAL}/{self.owner.name}"

    def reference(self) -> dict[str, Any]:
        """Return what names it in an event."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": self.owner.namespace,
            "name": self.owner.name,
            "uid": self.owner.uid,
            "resourceVersion": self.version,
        }

    def record(self, tenant: str) -> dict[str, Any]:
        """Return the job that it asks for, as in a job file, and whose it is."""
        labels = self.spec.get("labels") or {}
        own = labels if isinstance(labels, Mapping) else {"labels": shown(labels)}
        return {
            **self.spec,
            "name": self.owner.job,
            "tenant": tenant,
            "labels": {**own, **self.owner.labels()},
        }


def edits(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Compare a job as the service has it with what a resource asks for.

    Parameters
    ----------
    before, after : mapping
        Records of jobs.

    Returns
    -------
    (dict, tuple of str)
        What is to be revised, None for what is to go; and the keys that differ but cannot be.
    """
    changes: dict[str, Any] = {}
    fixed: list[str] = []
    for key in sorted({*before, *after} - {"name", "tenant"}):
        if before.get(key) == after.get(key):
            continue
        if key in REVISABLE:
            changes[key] = after.get(key)
        else:
            fixed.append(key)
    return changes, tuple(fixed)
