"""What the API server remembers of jobs and their generations: one ConfigMap a job, fence first.

A record is read, changed and written under the version that was read: of two who change it at once
one is told so and looks again. So whatever happens to services, of all orders that name a job's
generation one is taken, and a generation that was ever named is never taken again.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec, Receipt
from shadowprice.executors.generations.generation import ACCEPTED, OVER, REFUSED, differ
from shadowprice.executors.kubernetes import names
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError

PAGE: Final = 500
_FIELD: Final = "generations"


@dataclass
class JobGenerations:
    """What is remembered of a job.

    Parameters
    ----------
    job : str
        The job.
    fence : int
        The newest generation that an order named.
    generations : dict of int to dict
        Those that are not forgotten: phase, placement, order to stop, end.
    meta : dict
        The object's own, empty where there is none yet.
    """

    job: str
    fence: int = 0
    generations: dict[int, dict[str, Any]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, item: dict[str, Any]) -> JobGenerations:
        """Return what an object holds."""
        data = item.get("data") or {}
        held = json.loads(data.get(_FIELD, "{}"))
        return cls(
            names.read(data.get("job")),
            int(data.get("fence", 0)),
            {int(number): state for number, state in held.items()},
            {k: item["metadata"][k] for k in ("name", "namespace", "labels", "resourceVersion")},
        )

    def data(self) -> dict[str, str]:
        """Return what an object is to hold."""
        held = json.dumps({str(number): state for number, state in self.generations.items()})
        return {"job": names.written(self.job), "fence": str(self.fence), _FIELD: held}

    # ------------------------------------------------------------------ orders

    def accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str) -> Receipt:
        """Take an order to start, as it is or as one that is refused."""
        if spec.generation < self.fence:
            return Receipt.STALE
        if spec.generation == self.fence:
            held = self.generations.get(spec.generation, {})
            another = differ(held.get("identity"), spec.identity)
            return Receipt.STALE if another else Receipt.DUPLICATE
        if any(state["phase"] not in OVER for state in self.generations.values()):
            return Receipt.BUSY
        state = _state(spec.command, refusal)
        state["identity"] = spec.identity
        state["placement"] = [[one.server, one.workers, one.ps] for one in spec.placement]
        self.fence = spec.generation
        self.generations[spec.generation] = {**state, "plan": plan}
        return Receipt.ACCEPTED

    def stop(self, command: int, generation: int, grace: float | None) -> Receipt:
        """Take an order to stop; one that overtook its start bars that."""
        state = self.generations.get(generation)
        if state is None:
            if generation <= self.fence:
                return Receipt.STALE
            self.fence = generation
            reason = "it was told to stop before it came"
            state = self.generations[generation] = _state(command, reason)
        before = state.get("stop", {})
        if before.get("command") == command:
            return Receipt.DUPLICATE
        given = float((state.get("plan") or {}).get("grace", 0.0)) if grace is None else grace
        # No moment, but seconds: whoever goes on with it may have another clock.
        given = min(max(0.0, given), before.get("grace", given))
        state["stop"] = {"command": command, "grace": given}
        return Receipt.ACCEPTED


def _state(command: int, refusal: str) -> dict[str, Any]:
    now = time.time()
    phase = REFUSED if refusal else ACCEPTED
    return {"phase": phase, "command": command, "accepted": now, "at": now, "reason": refusal}


class Records:
    """The records of one service.

    Parameters
    ----------
    connection : Connection
        To the server.
    namespace : str
        Where they are.
    service : str
        Whose they are.
    """

    def __init__(self, connection: Connection, namespace: str, service: str) -> None:
        self._connection = connection
        self._list = f"/api/v1/namespaces/{namespace}/configmaps"
        self._namespace = namespace
        self._service = service
        self._locks: dict[str, asyncio.Lock] = {}
        self.known: dict[str, JobGenerations | None] = {}
        """As they were last read or written; None for one that has to be read again."""

    async def load(self) -> list[JobGenerations]:
        """Read all records of jobs that were not discarded."""
        chosen = f"{names.SERVICE}={self._service},{names.OPEN}=true"
        more: dict[str, object] = {}
        found: dict[str, JobGenerations] = {}
        while True:
            page = await self._connection.get(self._list, labelSelector=chosen, limit=PAGE, **more)
            for item in page.get("items") or ():
                record = JobGenerations.of(item)
                if record.job:
                    found[record.job] = record
            if not page["metadata"].get("continue"):
                break
            more = {"continue": page["metadata"]["continue"]}
        self.known = dict(found)
        return list(found.values())

    async def read(self, job: str) -> JobGenerations:
        """Read a job's record as it is now; an empty one where there is none."""
        try:
            path = f"{self._list}/{names.record_name(self._service, job)}"
            record = JobGenerations.of(await self._connection.get(path))
        except ApiError as error:
            if not error.not_found:
                raise
            record = JobGenerations(job)
        self.known[job] = record
        return record

    async def change(
        self, job: str, update: Callable[[JobGenerations], Any], *, open_: bool = True
    ) -> Any:
        """Change a job's record; return what the change said.

        A change that leaves it as it was is not written.

        Raises
        ------
        ApiError
            If the server refuses, or does not answer; then it may have been written, and is read
            again before the next change.
        """
        async with self._locks.setdefault(job, asyncio.Lock()):
            return await self._change(job, update, open_)

    async def _change(self, job: str, update: Callable[[JobGenerations], Any], open_: bool) -> Any:
        while True:
            before = self.known.get(job)
            if before is None and job in self.known:
                before = await self.read(job)
            record = copy.deepcopy(before) if before is not None else JobGenerations(job)
            said = update(record)
            if before is not None and record == before and open_:
                return said
            try:
                self.known[job] = await self._write(record, open_)
            except ApiError as error:
                if not (error.conflict or error.exists or error.not_found):
                    self.known[job] = None
                    raise
                await self.read(job)
                continue
            return said

    async def _write(self, record: JobGenerations, open_: bool) -> JobGenerations:
        labels = {names.SERVICE: self._service, names.OPEN: str(open_).lower()}
        name = names.record_name(self._service, record.job)
        meta = {**record.meta, "name": name, "namespace": self._namespace, "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": record.data()}
        if record.meta:
            return JobGenerations.of(await self._connection.put(f"{self._list}/{name}", body))
        return JobGenerations.of(await self._connection.post(self._list, body))
