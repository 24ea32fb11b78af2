"""`TrainingJob` resources: last observed state, the specified job, and the new status. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.job_keys import Owner
from shadowprice.core.wording import quote_for_display
from shadowprice.kubernetes.names import (
    API_VERSION,
    CLAIM,
    FINALIZER,
    KIND,
    PLURAL,
    Condition,
    Reason,
)
from shadowprice.service.clock import format_rfc3339
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.submission import REVISABLE_KEYS

ROUTE: Final = f"/apis/{API_VERSION}"
CLOSED: Final = frozenset(str(state) for state in State if not state.open)


@dataclass(frozen=True, slots=True)
class TrainingJobResource:
    """Last observed state of a `TrainingJob`."""

    owner: Owner
    version: str  # ``resourceVersion``, the precondition of a write
    generation: int  # ``metadata.generation``: edits of ``spec``, not generations of the job
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
        # Labels that aren't a mapping are passed on in this form, so that validation refuses them.
        own = labels if isinstance(labels, Mapping) else {"labels": quote_for_display(labels)}
        return {
            **self.spec,
            "name": self.owner.job,
            "tenant": tenant,
            "labels": {**own, **self.owner.labels()},
        }


def object_reference(owner: Owner) -> dict[str, Any]:
    """Return the object reference to a resource, without a version."""
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
    """Compare the service's record of a job (``before``) with the record of its resource.

    Return the revisions by key (None removes the key), and the changed keys that can't be revised.
    """
    changes: dict[str, Any] = {}
    immutable: list[str] = []
    for key in sorted({*before, *after} - {"name", "tenant"}):
        if before.get(key) == after.get(key):
            continue
        if key in REVISABLE_KEYS:
            changes[key] = after.get(key)
        else:
            immutable.append(key)
    return changes, tuple(immutable)


# ------------------------------------------------------------------ status

MAX_MESSAGE_CHARS: Final = 1_000  # of a condition or an explanation

ConditionValue = tuple[bool, Reason, str]  # a condition's status, reason and message

CONDITION_REASONS: Final[Mapping[str, Reason]] = {
    "price": Reason.NOT_WORTH_IT,
    "no-value": Reason.NOT_WORTH_IT,
    "never-fits": Reason.DOES_NOT_FIT,
    "too-late": Reason.DOES_NOT_FIT,
    "no-room": Reason.DOES_NOT_FIT,
    "deadline": Reason.DOES_NOT_FIT,
    "server-lost": Reason.DOES_NOT_FIT,
    "input": Reason.DOES_NOT_FIT,
    "budget": Reason.NOT_AFFORDABLE,
}
"""Condition reasons by refusal code; other codes become `Reason.REFUSED`."""


@dataclass(frozen=True, slots=True)
class SubmissionRejected:
    """Why no job could be submitted for a resource."""

    reason: Reason
    message: str


def build_status(
    resource: TrainingJobResource,
    result: JobView | SubmissionRejected,
    *,
    tenant: str,
    epoch: int,
    now: int,
    edited: ConditionValue | None = None,
) -> dict[str, Any]:
    """Build the status that a resource should have.

    ``result`` is the resource's job, or why it has none. ``edited`` is the result of the last edit;
    without it, the condition that the status already has is kept. Unchanged conditions keep their
    transition time. ``epoch`` is the fencing token of this leader, and ``now`` is in nanoseconds.
    """
    if isinstance(result, SubmissionRejected):
        fields: dict[str, Any] = {
            "state": State.REFUSED.value,
            "reason": result.reason.value,
            "explanation": result.message[:MAX_MESSAGE_CHARS] or result.reason.value,
        }
        verdicts = {
            Condition.ADMITTED: (False, result.reason, result.message),
            Condition.REJECTED: (True, result.reason, result.message),
        }
    else:
        fields = _status_fields(result)
        verdicts = build_conditions(result)
    if edited is not None:
        verdicts[Condition.EDITED] = edited
    previous = {item.get("type"): item for item in resource.status.get("conditions") or ()}
    conditions = []
    for condition in Condition:
        previous_condition = previous.get(condition.value)
        if condition in verdicts:
            conditions.append(
                _condition(condition, verdicts[condition], resource, previous_condition, now)
            )
        elif condition is Condition.EDITED and previous_condition is not None:
            conditions.append(dict(previous_condition))
    return {
        "observedGeneration": resource.generation,
        **fields,
        "job": resource.owner.job,
        "tenant": tenant,
        "conditions": conditions,
        "epoch": epoch,
    }


def _status_fields(view: JobView) -> dict[str, Any]:
    completion = view.expected_at if view.state.open else view.completion_at
    fields: dict[str, Any] = {
        "state": view.state.value,
        "promise": None if view.promise_at is None else _second(view.promise_at),
        "completion": None if completion is None else _second(completion),
        "progress": round(view.progress, 3),
        "required": round(view.required, 3),
        "generation": view.generation,
        "workers": view.workers,
        "servers": view.ps,
        "nodes": list(view.servers) or None,
        "price": _round_number(view.cost),
        "payoff": _round_number(view.payoff),
        "utility": _round_number(view.utility),
    }
    if view.reason is not None:
        fields["reason"] = str(view.reason.get("code", ""))
        fields["explanation"] = str(view.reason.get("message", ""))[:MAX_MESSAGE_CHARS]
    return {key: value for key, value in fields.items() if value is not None and value != ""}


def build_conditions(view: JobView) -> dict[Condition, ConditionValue]:
    """Return the conditions of a job, except `Condition.EDITED`."""
    state = view.state
    message = "" if view.reason is None else str(view.reason.get("message", ""))
    code = "" if view.reason is None else str(view.reason.get("code", ""))
    refusal = CONDITION_REASONS.get(code, Reason.REFUSED)
    absent = (False, Reason.OPEN if state.open else Reason.OVER, "")
    conditions: dict[Condition, ConditionValue] = {
        Condition.ADMITTED: _admitted_condition(view, message, refusal),
        Condition.RUNNING: _running_condition(view),
        Condition.RESIZING: (False, Reason.STEADY if state.open else Reason.OVER, ""),
        Condition.FINISHED: absent,
        Condition.REJECTED: absent,
        Condition.FAILED: _failed_condition(view, code, message),
    }
    if state is State.RESIZING:
        text = f"generation {view.generation} follows {view.started}"
        conditions[Condition.RESIZING] = True, Reason.CHANGING, text
    if state is State.FINISHED:
        text = "every worker ended with success"
        conditions[Condition.FINISHED] = True, Reason.COMPLETED, text
    if state is State.REFUSED:
        conditions[Condition.REJECTED] = True, refusal, message
    return conditions


def _admitted_condition(view: JobView, message: str, refusal: Reason) -> ConditionValue:
    match view.state:
        case State.PENDING:
            return False, Reason.PENDING, "not decided yet"
        case State.STANDBY:
            return False, Reason.STANDBY, message
        case State.REFUSED:
            return False, refusal, message
        case _ if view.promise_at is not None:
            return True, Reason.PROMISED, f"promised by {_second(view.promise_at)}"
        case State.CANCELLED if view.first_start is None:  # it was pending or on standby
            return False, Reason.CANCELLED, message
        case State.FAILED if view.first_start is None:
            return False, Reason.GIVEN_UP, message
        case _:
            return True, Reason.ADMITTED, ""


def _running_condition(view: JobView) -> ConditionValue:
    if view.state is State.RUNNING:
        return True, Reason.PODS_RUNNING, f"generation {view.generation} runs"
    if not view.state.open:
        return False, Reason.OVER, ""
    if view.setback is not None:
        reason = Reason.LOST if view.setback["code"] == "lost" else Reason.START_REFUSED
        return False, reason, view.setback["message"]
    if view.state is State.RESIZING:
        return False, Reason.CHANGING, ""
    if view.state is State.ADMITTED and view.workers:
        return False, Reason.STARTING, f"generation {view.generation} was ordered"
    return False, Reason.WAITING, ""


def _failed_condition(view: JobView, code: str, message: str) -> ConditionValue:
    if view.state is State.CANCELLED:
        return True, Reason.CANCELLED, message or "it was withdrawn"
    if view.state is State.FAILED:
        reason = Reason.RETRIES if code == "failed" else Reason.GIVEN_UP
        return True, reason, message
    return False, Reason.OPEN if view.state.open else Reason.OVER, ""


def _condition(
    condition: Condition,
    verdict: ConditionValue,
    resource: TrainingJobResource,
    before: Mapping[str, Any] | None,
    now: int,
) -> dict[str, Any]:
    holds, reason, message = verdict
    status = "True" if holds else "False"
    same = before is not None and before.get("status") == status
    since = str(before["lastTransitionTime"]) if same and before is not None else _second(now)
    record = {
        "type": condition.value,
        "status": status,
        "reason": reason.value,
        "message": message[:MAX_MESSAGE_CHARS],
        "lastTransitionTime": since,
        "observedGeneration": resource.generation,
    }
    # Without empty texts, which some API servers treat as null.
    return {key: value for key, value in record.items() if value != ""}


def needs_patch(resource: TrainingJobResource, status: Mapping[str, Any]) -> bool:
    """Return whether a resource's status has to be written.

    A new leader writes its epoch into the status of every open job. The epoch fences an older
    leader that still writes. The status of a closed job is final and doesn't need the epoch.
    """
    ignored = {"epoch"} if status.get("state") in CLOSED else set()
    current = {key: value for key, value in resource.status.items() if key not in ignored}
    return current != {key: value for key, value in status.items() if key not in ignored}


def state_changed(resource: TrainingJobResource, status: Mapping[str, Any]) -> bool:
    """Return whether a status changes more than figures.

    Figures are progress, prices and estimated times. They change with every progress report, so
    writes that change only figures are rate-limited.
    """
    return _without_figures(resource.status) != _without_figures(status)


def _without_figures(status: Mapping[str, Any]) -> tuple[Any, ...]:
    values = [status.get(key) for key in ("state", "reason", "generation", "epoch", "tenant")]
    conditions = [
        tuple(condition.get(key) for key in ("type", "status", "reason", "observedGeneration"))
        for condition in status.get("conditions") or ()
    ]
    return (*values, *conditions)


def build_patch(resource: TrainingJobResource, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from the last observed status to a new one."""
    removed = dict.fromkeys(resource.status.keys() - status.keys())
    return {"metadata": {"resourceVersion": resource.version}, "status": {**removed, **status}}


def _second(moment: int) -> str:
    return f"{format_rfc3339(moment)[:19]}Z"


def _round_number(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
