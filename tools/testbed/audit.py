"""Checks of the API server's audit log: duplicate pods, orphans, and numbers of requests.

The log has a line for every request, in the order of the responses. A pod counts as live from the
response to its creation until the request for its removal, or for a final status. So pods that
count as overlapping did overlap, whatever the order of lines.
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

_OVER = {"Succeeded", "Failed"}
_NAMED = re.compile(r"sp-(?P<of>[0-9a-f]{16})-\d+|.*-(?P<key>[0-9a-f]{32})$")
"""Patterns of the names of a generation's objects and of a job's record."""
_NEVER = float("inf")


@dataclass
class Pod:
    """The life of one pod.

    Parameters
    ----------
    namespace, name, uid : str
        Its identity.
    service, job : str
        The service and the job that its labels name; empty for foreign pods.
    generation : int
        The generation that its labels name.
    made : float
        Time of the response to its creation, seconds since 1970; the latest possible one without a
        line.
    over : float
        Time of the first request after which it no longer ran: a removal, or a final status.
    removed : float
        Time of the request that removed it.
    told : tuple of str
        Users that requested its deletion, with grace period or eviction; in order.
    logged : bool
        Whether its creation has a line: the API server may have been killed before it wrote one.
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
        Time of the request, seconds since 1970.
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
        Every request except starts of watches, in the order of the responses.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Audit:
        """Read a log up to its present end."""
        return cls.of(entries(path))

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Audit:
        """Build the audit from parsed lines."""
        audit = cls()
        for line in lines:
            audit._take(line)
        return audit

    # -------------------------------------------------------------- reading

    def _take(self, line: Mapping[str, Any]) -> None:
        if line["stage"] != "ResponseComplete":
            return
        about = line.get("objectRef") or {}
        resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
        status = int((line.get("responseStatus") or {}).get("code", 0))
        came = _time(line["requestReceivedTimestamp"])
        if resource:
            found = _NAMED.match(about.get("name") or self._made_name(line))
            job = (found["of"] or found["key"])[:16] if found else ""
            user = line["user"].get("username", "")
            self.calls.append(Call(line["verb"], resource, user, job, status, came))
        if about.get("resource") == "pods" and 200 <= status < 300:
            self._pods(line, about, came)

    @staticmethod
    def _made_name(line: Mapping[str, Any]) -> str:
        made = line.get("requestObject") or {}
        return str((made.get("metadata") or {}).get("name", ""))

    def _pods(self, line: Mapping[str, Any], about: Mapping[str, Any], came: float) -> None:
        answer = line.get("responseObject") or {}
        if line["verb"] == "deletecollection":
            for one in answer.get("items") or ():
                self._deleted(line, one, came)
        elif about.get("subresource") == "eviction":
            self._evicted(line, about)
        elif answer.get("metadata", {}).get("uid") and answer.get("kind") == "Pod":
            pod = self._seen(line, answer)
            if line["verb"] == "delete":
                self._deleted(line, answer, came)
            elif (answer.get("status") or {}).get("phase") in _OVER:
                pod.over = min(pod.over, came)

    def _seen(self, line: Mapping[str, Any], found: Mapping[str, Any]) -> Pod:
        meta = found["metadata"]
        pod = self.pods.get(meta["uid"])
        labels = meta.get("labels") or {}
        if pod is None:
            pod = Pod(meta["namespace"], meta["name"], meta["uid"])
            pod.logged = line["verb"] == "create"
            if pod.logged:
                pod.made = _time(line["stageTimestamp"])
            else:  # the creation time has whole seconds
                came = _time(line["requestReceivedTimestamp"])
                pod.made = min(_time(meta["creationTimestamp"]) + 1.0, came)
            pod.service, pod.job = labels.get(SERVICE, ""), labels.get(JOB, "")
            pod.generation = int(labels.get(GENERATION, 0))
            self.pods[pod.uid] = pod
        return pod

    def _deleted(self, line: Mapping[str, Any], found: Mapping[str, Any], came: float) -> None:
        meta = found["metadata"]
        pod = self._seen(line, found)
        grace = meta.get("deletionGracePeriodSeconds")
        pod.told += (f"{line['user'].get('username', '')} grace {grace}",)
        # A response without deletion time or grace period belongs to the removal.
        if "deletionTimestamp" not in meta or not grace:
            pod.removed = min(pod.removed, came)
            pod.over = min(pod.over, came)

    def _evicted(self, line: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        for pod in self.pods.values():
            same = (pod.namespace, pod.name) == (about["namespace"], about["name"])
            if same and pod.removed == _NEVER:
                pod.told += (f"{line['user'].get('username', '')} evicts",)

    # -------------------------------------------------------------- judging

    def of_service(self, service: str) -> Audit:
        """Return the audit of one service's pods, with all requests."""
        return Audit(
            {uid: pod for uid, pod in self.pods.items() if pod.service == service}, self.calls
        )

    def of_jobs(self) -> list[Pod]:
        """Return the pods with labels of a job, in the order of their creation."""
        return sorted((pod for pod in self.pods.values() if pod.job), key=lambda pod: pod.made)

    def doubled(self) -> list[str]:
        """Return pairs of generations of a job with live pods at the same time, a line each."""
        found = []
        live: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.of_jobs():
            mine = live.setdefault((pod.service, pod.job), [])
            mine[:] = [other for other in mine if other.over > pod.made]
            found += [
                f"{pod} of generation {pod.generation} was made while {other} of generation"
                f" {other.generation} was live"
                for other in mine
                if other.generation != pod.generation
            ]
            mine.append(pod)
        return found

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
        found, newest = [], dict[tuple[str, str], int]()
        for pod in self.of_jobs():
            job = (pod.service, pod.job)
            if pod.generation < newest.get(job, 0):
                found.append(f"{pod} of generation {pod.generation} came after {newest[job]}")
            newest[job] = max(newest.get(job, 0), pod.generation)
        return found

    def orphaned(self, expected: Collection[tuple[str, int]] = ()) -> list[str]:
        """Return pods of jobs that were never removed, a line each.

        Parameters
        ----------
        expected : collection of (str, int)
            Jobs' keys and generations whose pods may still be there.
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
