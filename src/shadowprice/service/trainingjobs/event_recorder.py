"""Kubernetes events of TrainingJobs, from the events of their jobs, for `kubectl describe`."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from shadowprice.core.job_keys import Owner
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.service.clock import SECOND, format_rfc3339
from shadowprice.service.queries.event_text import format_event
from shadowprice.service.state.durable_state import StreamEvent
from shadowprice.service.trainingjobs.resource import (
    SubmissionRejected,
    TrainingJobResource,
    object_reference,
)

log = logging.getLogger("shadowprice.service")

WARNINGS: Final = frozenset(
    {
        "refused",
        "given-up",
        "broken",
        "failed",
        "lost",
        "start-failed",
        "displaced",
        "obstructed",
        "overrun",
        "partly-ended",
    }
)
"""Kinds of events that become warnings."""

UNREPORTED_KINDS: Final = frozenset({"submitted", "paid", "debited", "refunded", "placed"})
"""Kinds of events that are only in the job's history."""

MAX_QUEUED_EVENTS: Final = 10_000  # the oldest are dropped above it
MAX_EVENT_MESSAGE_CHARS: Final = 1_000  # the API server allows 1,024
MAX_ATTEMPTS: Final = 3


class EventRecorder:
    """Queues Kubernetes events and writes them one at a time, with a few retries.

    An event's name contains its number in the service's event stream, so a repeated write doesn't
    duplicate it. ``may_write`` raises if this instance no longer leads.
    """

    def __init__(self, connection: ApiClient, may_write: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._may_write = may_write
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._wake = asyncio.Event()

    def record(self, owner: Owner, event: StreamEvent) -> None:
        """Queue an event of a resource's job."""
        if event.kind in UNREPORTED_KINDS:
            return
        kind = "Warning" if event.kind in WARNINGS else "Normal"
        reason = "".join(word.title() for word in event.kind.split("-"))
        text = format_event(event.kind, event.data)
        self._enqueue(object_reference(owner), f"{event.id:x}", kind, reason, text, event.at)

    def record_refusal(self, resource: TrainingJobResource, rejected: SubmissionRejected) -> None:
        """Queue a warning that no job could be submitted for a resource."""
        reason = rejected.reason.value
        suffix = f"g{resource.generation}.{reason.lower()}"
        reference, now = resource.reference(), time.time_ns()
        self._enqueue(reference, suffix, "Warning", reason, rejected.message, now)

    def warn(self, reference: Mapping[str, Any], reason: str, text: str) -> None:
        """Queue a warning about an object, at most one an hour for each text."""
        now = time.time_ns()
        hour = now // (3_600 * SECOND)  # in the event's name, which is unique
        suffix = f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}.{hour:x}"
        self._enqueue(dict(reference), suffix, "Warning", reason, text, now)

    def _enqueue(
        self, reference: dict[str, Any], suffix: str, kind: str, reason: str, text: str, at: int
    ) -> None:
        moment = f"{format_rfc3339(at)[:19]}Z"
        short_uid = reference["uid"].replace("-", "")[:12]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{reference['name']}.{short_uid}.{suffix}",
                "namespace": reference["namespace"],
            },
            "involvedObject": reference,
            "type": kind,
            "reason": reason,
            "message": text[:MAX_EVENT_MESSAGE_CHARS],
            "source": {"component": "shadowprice"},
            "reportingComponent": "shadowprice.io/controller",
            "reportingInstance": "shadowprice",
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        self._waiting.append((f"/api/v1/namespaces/{reference['namespace']}/events", event))
        self._wake.set()

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            path, event = self._waiting.popleft()
            await self._write(path, event)

    async def _write(self, path: str, event: dict[str, Any]) -> None:
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._may_write("event", event["metadata"]["name"])
                await self._connection.post(path, event)
                return
            except ApiError as error:
                if error.exists or error.not_found or error.status == 403:
                    return  # already written, or the namespace is being deleted
                if not error.passing:
                    log.warning("the API server refused an event: %s", error)
                    return
                await asyncio.sleep(2.0**attempt)
            except Exception as error:  # another instance leads, or a test injects a fault
                log.debug("an event was dropped: %s", error)
                return
