"""Durable records of jobs and their generations in the API server, one ConfigMap per job.

Updates use optimistic concurrency: a write requires the version that was read, and a conflict
repeats the update. So no generation is accepted twice, even if a service is restarted or two
services run.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec, Receipt
from shadowprice.executors.generations.generation import TERMINAL_PHASES, identities_differ
from shadowprice.executors.generations.store import accepted_state, initial_state
from shadowprice.executors.kubernetes import names
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError

_FIELD: Final = "generations"


@dataclass
class JobGenerations:
    """The record of a job."""

    job: str
    fence: int = 0  # the newest generation that a command named
    generations: dict[int, dict[str, Any]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)  # of its ConfigMap; empty if none exists

    @classmethod
    def from_config_map(cls, item: dict[str, Any]) -> JobGenerations:
        """Build it from a ConfigMap."""
        data = item.get("data") or {}
        states = json.loads(data.get(_FIELD, "{}"))
        return cls(
            names.decode_job_name(data.get("job")),
            int(data.get("fence", 0)),
            {int(number): state for number, state in states.items()},
            {k: item["metadata"][k] for k in ("name", "namespace", "labels", "resourceVersion")},
        )

    def data(self) -> dict[str, str]:
        """Return the data of its ConfigMap."""
        states = json.dumps(
            {str(number): state for number, state in self.generations.items()},
            ensure_ascii=False,  # shorter, as a ConfigMap has at most 1 MiB
        )
        return {"job": names.encode_job_name(self.job), "fence": str(self.fence), _FIELD: states}

    # ------------------------------------------------------------------ commands

    def accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str) -> Receipt:
        """Store a start command, as refused if ``refusal`` is not empty; return the receipt."""
        if spec.generation < self.fence:
            return Receipt.STALE
        if spec.generation == self.fence:
            stored = self.generations.get(spec.generation, {})
            another = identities_differ(stored.get("identity"), spec.identity)
            return Receipt.STALE if another else Receipt.DUPLICATE
        if any(state["phase"] not in TERMINAL_PHASES for state in self.generations.values()):
            return Receipt.BUSY
        self.fence = spec.generation
        self.generations[spec.generation] = {**accepted_state(spec, refusal), "plan": plan}
        return Receipt.ACCEPTED

    def stop(self, command: int, generation: int, grace: float | None) -> Receipt:
        """Store a stop command. If it precedes the start command, it bars the generation."""
        state = self.generations.get(generation)
        if state is None:
            if generation <= self.fence:
                return Receipt.STALE
            self.fence = generation
            reason = "it was stopped before it was submitted"
            state = self.generations[generation] = initial_state(command, reason)
        previous = state.get("stop", {})
        if previous.get("command") == command:
            return Receipt.DUPLICATE
        seconds = float((state.get("plan") or {}).get("grace", 0.0)) if grace is None else grace
        # A duration, not a deadline: another service's clock may differ.
        seconds = min(max(0.0, seconds), previous.get("grace", seconds))
        state["stop"] = {"command": command, "grace": seconds}
        return Receipt.ACCEPTED


class ConfigMapStore:
    """The records of one service, cached and in the API server."""

    def __init__(self, connection: ApiClient, namespace: str, service: str) -> None:
        self._connection = connection
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._namespace = namespace
        self._service = service
        self._locks: dict[str, asyncio.Lock] = {}
        self.cached: dict[str, JobGenerations | None] = {}  # None if a write had no response

    async def load(self) -> list[JobGenerations]:
        """Read the records of all jobs that aren't discarded."""
        selector = f"{names.SERVICE}={self._service},{names.OPEN_LABEL}=true"
        records: dict[str, JobGenerations] = {}
        async for page in self._connection.pages(self._path, labelSelector=selector):
            for item in page.get("items") or ():
                record = JobGenerations.from_config_map(item)
                if record.job:
                    records[record.job] = record
        self.cached = dict(records)
        return list(records.values())

    async def read(self, job: str) -> JobGenerations:
        """Read a job's current record; empty if it doesn't exist."""
        item = await self._connection.find(f"{self._path}/{names.record_name(self._service, job)}")
        record = JobGenerations(job) if item is None else JobGenerations.from_config_map(item)
        self.cached[job] = record
        return record

    async def change(
        self, job: str, update: Callable[[JobGenerations], Any], *, is_open: bool = True
    ) -> Any:
        """Update a job's record; return the result of ``update``.

        An unchanged record isn't written. If ``is_open`` is false, the job is marked as discarded.
        After an `ApiError` the record may have been written, so the next update reads it again.
        """
        async with self._locks.setdefault(job, asyncio.Lock()):
            while True:
                previous = self.cached.get(job)
                if previous is None and job in self.cached:
                    previous = await self.read(job)
                # A job that isn't cached may have a record, but then creating one fails.
                record = copy.deepcopy(previous) if previous is not None else JobGenerations(job)
                result = update(record)
                if previous is not None and record == previous and is_open:
                    return result
                try:
                    self.cached[job] = await self._write(record, is_open)
                except ApiError as error:
                    if not (error.conflict or error.exists or error.not_found):
                        self.cached[job] = None
                        raise
                    await self.read(job)
                else:
                    return result

    async def _write(self, record: JobGenerations, is_open: bool) -> JobGenerations:
        labels = {names.SERVICE: self._service, names.OPEN_LABEL: str(is_open).lower()}
        name = names.record_name(self._service, record.job)
        meta = {**record.meta, "name": name, "namespace": self._namespace, "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": record.data()}
        if record.meta:
            return JobGenerations.from_config_map(
                await self._connection.put(f"{self._path}/{name}", body)
            )
        return JobGenerations.from_config_map(await self._connection.post(self._path, body))
