"""`TrainingJob` resources: last observed state, and the job that it specifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.job_keys import Owner
from shadowprice.core.wording import quote_for_display
from shadowprice.kubernetes.conditions import Reason
from shadowprice.kubernetes.names import API_VERSION, CLAIM, FINALIZER, KIND, PLURAL
from shadowprice.service.state.job_views import State
from shadowprice.service.state.submission import REVISABLE_KEYS

ROUTE: Final = f"/apis/{API_VERSION}"

CLOSED: Final = frozenset(str(state) for state in State if not state.open)


@dataclass(frozen=True, slots=True)
class TrainingJobResource:
    """Last observed state of a `TrainingJob`."""

    owner: Owner
    version: str  # ``resourceVersion``, the precondition of a write
    generation: int  # ``metadata.generation``, which grows with every edit of ``spec``; not a job's
    deleting: bool  # whether the resource is deleted and waits for its finalizers
    finalizers: tuple[str, ...]
    claim: str  # identifier of the service that drives it; empty if none does yet
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> TrainingJobResource:
        """Parse a resource of the API server."""
        metadata = item["metadata"]
        return cls(
            owner=Owner(metadata["namespace"], metadata["name"], metadata["uid"]),
            version=metadata["resourceVersion"],
            generation=int(metadata.get("generation", 0)),
            deleting="deletionTimestamp" in metadata,
            finalizers=tuple(metadata.get("finalizers") or ()),
            claim=str((metadata.get("annotations") or {}).get(CLAIM, "")),
            spec=item.get("spec") or {},
            status=item.get("status") or {},
        )

    @property
    def has_finalizer(self) -> bool:
        """Whether the resource has our finalizer, which it gets before its job is submitted."""
        return FINALIZER in self.finalizers

    @property
    def epoch(self) -> int:
        """Fencing token of the leader that wrote the status last."""
        return int(self.status.get("epoch") or 0)

    @property
    def is_settled(self) -> bool:
        """Whether the status is final: the job is closed, and the spec wasn't edited since.

        An invalid resource isn't final, because it may become valid.
        """
        status = self.status
        is_closed = status.get("state") in CLOSED and status.get("reason") != Reason.INVALID
        return is_closed and status.get("observedGeneration") == self.generation

    @property
    def path(self) -> str:
        """Path on the API server."""
        return f"{ROUTE}/namespaces/{self.owner.namespace}/{PLURAL}/{self.owner.name}"

    def reference(self) -> dict[str, Any]:
        """Return the object reference for an event."""
        return {**object_reference(self.owner), "resourceVersion": self.version}

    def record(self, tenant: str) -> dict[str, Any]:
        """Return the job that the resource specifies, as a record of a job file."""
        labels = self.spec.get("labels") or {}
        own = labels if isinstance(labels, Mapping) else {"labels": quote_for_display(labels)}
        return {
            **self.spec,
            "name": self.owner.job,
            "tenant": tenant,
            "labels": {**own, **self.owner.labels()},
        }


def object_reference(owner: Owner) -> dict[str, Any]:
    """Return the object reference to a resource of any version."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "namespace": owner.namespace,
        "name": owner.name,
        "uid": owner.uid,
    }


def diff_spec(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Compare the service's record of a job with its resource's.

    Return the revisions by key (None removes the key), and the changed keys that can't be revised.
    """
    changes: dict[str, Any] = {}
    fixed: list[str] = []
    for key in sorted({*before, *after} - {"name", "tenant"}):
        if before.get(key) == after.get(key):
            continue
        if key in REVISABLE_KEYS:
            changes[key] = after.get(key)
        else:
            fixed.append(key)
    return changes, tuple(fixed)
