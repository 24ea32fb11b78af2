"""Checks of the API server's audit log: duplicate pods, orphans, and numbers of requests.

The log has a line for every request, in the order of the responses. A pod counts as live from the
response to its creation until the request that removes the pod, or that sets its final status. So
this time is at most the real one, and pods that count as live together really were.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

SERVICE, JOB = "shadowprice.io/service", "shadowprice.io/job"
GENERATION = "shadowprice.io/generation"
"""Labels of a pod that name its job and generation."""

_FINAL_PHASES = {"Succeeded", "Failed"}
_NAME_WITH_KEY = re.compile(r"sp-(?P<of>[0-9a-f]{16})-\d+|.*-(?P<key>[0-9a-f]{32})$")
"""Names of a generation's objects (16 digits of the job's key) and of a job's record (all 32)."""
_NEVER = float("inf")


@dataclass
class Pod:
    """The life of one pod.

    Parameters
    ----------
    namespace, name, uid : str
        Its identity.
    service, job : str
        Service and job in its labels; empty for other pods.
    generation : int
        Generation in its labels.
    made : float
        Unix time of the response to its creation; without a line of it, the latest possible time.
    over : float
        Time of the first request after which it no longer ran: a removal, or a final status.
    removed : float
        Time of the request that removed it.
    told : tuple of str
        Requests to delete or evict it, in order: user, and grace period or eviction.
    logged : bool
        Whether the log has its creation: the API server may have been killed before the line.
    """

    namespace: str
    name: str
    uid: str
    service: str = ""
    job: str = ""
    generation: int = 0
    made: float = 0.0
    over: float = _NEVER
    removed: float = _NEVER
    told: tuple[str, ...] = ()
    logged: bool = True

    def __str__(self) -> str:
        """Return namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Call:
    """One request with its response.

    Parameters
    ----------
    verb, resource : str
        Kind of the request; a subresource follows after a slash.
    user : str
        User that sent it.
    job : str
        The first 16 digits of the key of its job; empty without one.
    status : int
        HTTP status of the response.
    at : float
        Unix time of the request.
    """

    verb: str
    resource: str
    user: str
    job: str
    status: int
    at: float


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def entries(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a log, without an incomplete last line."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.endswith("\n"):
                yield json.loads(line)


@dataclass
class Audit:
    """A parsed log.

    Parameters
    ----------
    pods : dict of str to Pod
        Every pod by uid.
    calls : list of Call
        Every request with its response, in the order of the responses.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Audit:
        """Read a log up to its current end."""
        return cls.of(entries(path))

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Audit:
        """Build the audit from parsed lines."""
        audit = cls()
        for line in lines:
            audit._add(line)
        return audit

    # -------------------------------------------------------------- reading

    def _add(self, line: Mapping[str, Any]) -> None:
        if line["stage"] != "ResponseComplete":  # a watch also has a line when it starts
            return
        target = line.get("objectRef") or {}
        resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
        status = int((line.get("responseStatus") or {}).get("code", 0))
        received = _time(line["requestReceivedTimestamp"])
        if resource:
            match = _NAME_WITH_KEY.match(target.get("name") or self._created_name(line))
            job = (match["of"] or match["key"])[:16] if match else ""
            user = line["user"].get("username", "")
            self.calls.append(Call(line["verb"], resource, user, job, status, received))
        if target.get("resource") == "pods" and 200 <= status < 300:
            self._add_pods(line, target, received)

    @staticmethod
    def _created_name(line: Mapping[str, Any]) -> str:
        created = line.get("requestObject") or {}
        return str((created.get("metadata") or {}).get("name", ""))

    def _add_pods(
        self, line: Mapping[str, Any], target: Mapping[str, Any], received: float
    ) -> None:
        response = line.get("responseObject") or {}
        if line["verb"] == "deletecollection":
            for item in response.get("items") or ():
                self._add_deletion(line, item, received)
        elif target.get("subresource") == "eviction":
            self._add_eviction(line, target)
        elif response.get("metadata", {}).get("uid") and response.get("kind") == "Pod":
            pod = self._pod_for(line, response)
            if line["verb"] == "delete":
                self._add_deletion(line, response, received)
            elif (response.get("status") or {}).get("phase") in _FINAL_PHASES:
                pod.over = min(pod.over, received)

    def _pod_for(self, line: Mapping[str, Any], item: Mapping[str, Any]) -> Pod:
        """Return the pod of an API object; create it at the first line about it."""
        meta = item["metadata"]
        pod = self.pods.get(meta["uid"])
        labels = meta.get("labels") or {}
        if pod is None:
            pod = Pod(meta["namespace"], meta["name"], meta["uid"])
            pod.logged = line["verb"] == "create"
            if pod.logged:
                pod.made = _time(line["stageTimestamp"])
            else:  # creationTimestamp is rounded down to whole seconds
                received = _time(line["requestReceivedTimestamp"])
                pod.made = min(_time(meta["creationTimestamp"]) + 1.0, received)
            pod.service, pod.job = labels.get(SERVICE, ""), labels.get(JOB, "")
            pod.generation = int(labels.get(GENERATION, 0))
            self.pods[pod.uid] = pod
        return pod

    def _add_deletion(
        self, line: Mapping[str, Any], item: Mapping[str, Any], received: float
    ) -> None:
        meta = item["metadata"]
        pod = self._pod_for(line, item)
        grace = meta.get("deletionGracePeriodSeconds")
        pod.told += (f"{line['user'].get('username', '')} grace {grace}",)
        # Without a deletion time or grace period, this request removed the object. Otherwise the
        # kubelet removes it after the pod has ended, by a second request.
        if "deletionTimestamp" not in meta or not grace:
            pod.removed = min(pod.removed, received)
            pod.over = min(pod.over, received)

    def _add_eviction(self, line: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        for pod in self.pods.values():
            same = (pod.namespace, pod.name) == (target["namespace"], target["name"])
            if same and pod.removed == _NEVER:
                pod.told += (f"{line['user'].get('username', '')} evicts",)

    # -------------------------------------------------------------- checks

    def of_service(self, service: str) -> Audit:
        """Return the audit of one service's pods, with all requests."""
        return Audit(
            {uid: pod for uid, pod in self.pods.items() if pod.service == service}, self.calls
        )

    def of_jobs(self) -> list[Pod]:
        """Return the pods with labels of a job, in the order of their creation."""
        return sorted((pod for pod in self.pods.values() if pod.job), key=lambda pod: pod.made)

    def doubled(self) -> list[str]:
        """Return pairs of live pods of a job's different generations, a line each."""
        violations = []
        live: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.of_jobs():
            live_of_job = live.setdefault((pod.service, pod.job), [])
            live_of_job[:] = [other for other in live_of_job if other.over > pod.made]
            violations += [
                f"{pod} of generation {pod.generation} was made while {other} of generation"
                f" {other.generation} was live"
                for other in live_of_job
                if other.generation != pod.generation
            ]
            live_of_job.append(pod)
        return violations

    def twice(self) -> list[str]:
        """Return pods that were created twice under one name, a line each.

        A generation starts once, so each of its pods is created once.
        """
        names = Counter((pod.service, pod.job, pod.generation, str(pod)) for pod in self.of_jobs())
        return [
            f"{name} was made {count} times" for (*_, name), count in names.items() if count > 1
        ]

    def backwards(self) -> list[str]:
        """Return pods of a generation created after those of a newer one, a line each."""
        violations, newest = [], dict[tuple[str, str], int]()
        for pod in self.of_jobs():
            job = (pod.service, pod.job)
            if pod.generation < newest.get(job, 0):
                violations.append(f"{pod} of generation {pod.generation} came after {newest[job]}")
            newest[job] = max(newest.get(job, 0), pod.generation)
        return violations

    def orphaned(self, expected: Collection[tuple[str, int]] = ()) -> list[str]:
        """Return pods of jobs that were never removed, a line each.

        Parameters
        ----------
        expected : collection of (str, int)
            Keys of jobs and generations whose pods may still exist.
        """
        return [
            f"{pod} of generation {pod.generation} is left; deletion was requested by:"
            f" {', '.join(pod.told) or 'none'}"
            for pod in self.of_jobs()
            if pod.removed == _NEVER and (pod.job, pod.generation) not in expected
        ]

    def faults(self, expected: Collection[tuple[str, int]] = ()) -> list[str]:
        """Return all violations; see `doubled`, `twice`, `backwards`, `orphaned`."""
        return [*self.doubled(), *self.twice(), *self.backwards(), *self.orphaned(expected)]

    def present(self) -> set[str]:
        """Return the uids of the pods that exist at the end of the log."""
        return {pod.uid for pod in self.pods.values() if pod.removed == _NEVER}

    def counts(self, *users: str) -> dict[str, Counter[str]]:
        """Return the number of requests for each job and verb, by the digits of the job's key.

        Parameters
        ----------
        *users : str
            Users whose requests count; all by default. Requests without a job have an empty key.
        """
        counted: dict[str, Counter[str]] = {}
        for call in self.calls:
            if not users or call.user in users:
                counted.setdefault(call.job, Counter())[f"{call.verb} {call.resource}"] += 1
        return counted
