"""Names, labels and annotations of a job's objects in the API server."""

from __future__ import annotations

import json
from typing import Any, Final

from shadowprice.executors.generations.store import key_of

PREFIX: Final = "shadowprice.io/"
SERVICE: Final = f"{PREFIX}service"
JOB: Final = f"{PREFIX}job"
GENERATION: Final = f"{PREFIX}generation"
PROCESS: Final = f"{PREFIX}process"
JOB_NAME: Final = f"{PREFIX}job-name"
TENANT: Final = f"{PREFIX}tenant"
EXECUTION: Final = f"{PREFIX}execution"
OPEN: Final = f"{PREFIX}open"
SCHEDULING_GATE: Final = f"{PREFIX}together"
CONTAINER: Final = "job"

_KEPT_OF_KEY: Final = 16


def record_name(service: str, job: str) -> str:
    """Return the name of a job's record."""
    return f"{service}-{key_of(job)}"


def generation_name(job: str, generation: int) -> str:
    """Return the name of a generation's secret and service, and the prefix of its pods."""
    return f"sp-{key_of(job)[:_KEPT_OF_KEY]}-{generation}"


def pod_name(job: str, generation: int, process: str) -> str:
    """Return the name of the pod of a process."""
    return f"{generation_name(job, generation)}-{process}"


def labels_of(service: str, job: str, generation: int) -> dict[str, str]:
    """Return the labels that select all objects of a generation."""
    return {SERVICE: service, JOB: key_of(job), GENERATION: str(generation)}


def selector(service: str, job: str, generation: int) -> str:
    """Return the label selector of a generation."""
    return ",".join(f"{k}={v}" for k, v in labels_of(service, job, generation).items())


def written(job: str) -> str:
    """Encode a job's name as a string that the API server preserves."""
    return json.dumps(job)


def read(text: Any) -> str:
    """Decode a name that `written` encoded; return an empty string if it is invalid."""
    try:
        name = json.loads(text)
    except (TypeError, ValueError):
        return ""
    return name if isinstance(name, str) else ""
