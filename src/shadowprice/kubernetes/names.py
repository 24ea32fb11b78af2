"""Kubernetes names of the custom resource: labels, annotations, conditions and their reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "shadowprice.io"  # API group; also the prefix of all labels and annotations
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "TrainingJob"
PLURAL: Final = "trainingjobs"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"  # name of the custom resource definition
FINALIZER: Final = f"{GROUP}/cancel"  # keeps a deleted resource until its job has ended
CLAIM: Final = f"{GROUP}/service"  # annotation: the service that drives a resource
TENANT_LABEL: Final = f"{GROUP}/tenant"  # of a namespace: its jobs' tenant, by default its name
SHARE: Final = f"{GROUP}/share"  # annotation with a tenant's share; as a label, it marks a quota
ACTIVE_LABEL: Final = f"{GROUP}/active"  # label of the service's pods: true on the leader
MAX_NAME_CHARS: Final = 63  # maximum characters of a resource's name


class Condition(StrEnum):
    """A condition type of a job."""

    ADMITTED = "Admitted"  # it was admitted
    RUNNING = "Running"  # all pods of its newest generation run
    RESIZING = "Resizing"  # it ran, and its next generation doesn't run yet
    FINISHED = "Finished"  # it completed its work
    REJECTED = "Rejected"  # it was refused, and never ran
    FAILED = "Failed"  # it failed, was abandoned, or was cancelled
    EDITED = "Edited"  # the last edit of its `spec` is applied; absent if it was never edited


class Reason(StrEnum):
    """The reason of a condition."""

    PENDING = "Pending"  # the decision is pending
    PROMISED = "Promised"  # admitted with a promise
    ADMITTED = "AdmittedWithoutPromise"  # admitted by a policy that makes no promises
    STANDBY = "Standby"  # waits for spare capacity, without a promise
    STARTING = "Starting"  # its first generation was commanded, and doesn't run yet
    WAITING = "WaitingForItsSlot"  # it isn't planned to run in this slot
    START_REFUSED = "StartRefused"  # its newest generation couldn't be started yet
    LOST = "GenerationLost"  # its newest generation was lost; another one follows
    PODS_RUNNING = "PodsRunning"  # its pods run
    CHANGING = "GenerationChanging"  # one generation ends, and the next one follows
    STEADY = "Steady"  # its generation doesn't change
    COMPLETED = "Completed"  # every worker succeeded
    NOT_WORTH_IT = "NotWorthItsPrice"  # its utility is below the price of its resources
    DOES_NOT_FIT = "DoesNotFit"  # no plan completes it in time, or the servers lack a resource
    NOT_AFFORDABLE = "BudgetExhausted"  # its tenant's budget has too few points
    INVALID = "InvalidSpec"  # its `spec` is invalid
    NAME_TAKEN = "NameTaken"  # another job has its name
    REFUSED = "Refused"  # the policy refused it for another reason
    RETRIES = "RetriesExhausted"  # it failed more often than its retries allow
    GIVEN_UP = "GivenUp"  # it was abandoned: the scheduler stopped pursuing it
    CANCELLED = "Cancelled"  # it was cancelled
    OPEN = "NotOver"  # it hasn't ended
    OVER = "Over"  # it has ended
    APPLIED = "Applied"  # the edit is applied
    IMMUTABLE = "Immutable"  # the edited field is immutable; the job continues unchanged
    NOT_APPLIED = "NotApplied"  # the edit was refused; the job continues unchanged
