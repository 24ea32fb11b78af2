"""Names, labels and annotations of a job's objects in the API server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.job_keys import key_digest

PREFIX: Final = "shadowprice.io/"

# Labels of objects.
SERVICE: Final = f"{PREFIX}service"
SERVICE_NAMESPACE: Final = f"{PREFIX}service-namespace"
JOB: Final = f"{PREFIX}job"
GENERATION: Final = f"{PREFIX}generation"
PROCESS: Final = f"{PREFIX}process"
OPEN_LABEL: Final = f"{PREFIX}open"  # of records: ``true`` until the job's data is deleted

# Annotations of objects.
JOB_NAME: Final = f"{PREFIX}job-name"
TENANT: Final = f"{PREFIX}tenant"
EXECUTION: Final = f"{PREFIX}execution"  # identifier of the launch that created the object

SCHEDULING_GATE: Final = f"{PREFIX}together"
CONTAINER: Final = "job"

_KEY_PREFIX_CHARS: Final = 16  # of a job's key in names, which have at most 63 characters


def record_name(service: str, job: str) -> str:
    """Return the name of a job's record."""
    return f"{service}-{key_digest(job)}"


def generation_name(job: str, generation: int) -> str:
    """Return the name of a generation's secret and service, and the prefix of its pods."""
    return f"sp-{key_digest(job)[:_KEY_PREFIX_CHARS]}-{generation}"


def pod_name(job: str, generation: int, process: str) -> str:
    """Return the name of the pod of a process."""
    return f"{generation_name(job, generation)}-{process}"


@dataclass(frozen=True, slots=True)
class ServiceId:
    """Identity of a service: its label, and the namespace of its records and lease.

    Services in different namespaces may have the same label.
    """

    label: str
    namespace: str

    def labels(self, job: str, generation: int | None = None) -> dict[str, str]:
        """Return the labels that select all objects of a job, or of one generation."""
        labels = {SERVICE: self.label, SERVICE_NAMESPACE: self.namespace, JOB: key_digest(job)}
        return labels if generation is None else {**labels, GENERATION: str(generation)}

    def selector(self, job: str, generation: int | None = None) -> str:
        """Return the label selector of a job, or of one generation."""
        return ",".join(f"{k}={v}" for k, v in self.labels(job, generation).items())


def encode_job_name(job: str) -> str:
    """Encode a job's name in ASCII, because the API server only preserves valid UTF-8."""
    return json.dumps(job)


def decode_job_name(text: Any) -> str:
    """Decode a name that `encode_job_name` encoded; return an empty string if it is invalid."""
    try:
        name = json.loads(text)
    except (TypeError, ValueError):
        return ""
    return name if isinstance(name, str) else ""
