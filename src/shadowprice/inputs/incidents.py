"""Incident files: servers lost and returned, and jobs cancelled, each in its slot.

YAML with an ``incidents:`` list, or JSON Lines with one incident a line:

    incidents:
      - {slot: 12, server_lost: gpu-3}
      - {slot: 15, cancel: resnet50-a}
      - {slot: 40, server_back: gpu-3}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.specs import Name, Spec, validate
from shadowprice.core.specs.faults import join_location
from shadowprice.core.specs.fields import max_value
from shadowprice.core.wording import hint_for_unknown
from shadowprice.inputs.text import is_json_lines, load_yaml, read_json_lines

Incident = ServerLost | ServerBack | JobCancelled


class IncidentSpec(Spec):
    """One incident: a slot, and the one event at its start."""

    slot: Annotated[int, Field(ge=0, strict=True), max_value(bounds.SLOT)]
    server_lost: Name | None = None
    server_back: Name | None = None
    cancel: Name | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> IncidentSpec:
        given = [name for name in (self.server_lost, self.server_back, self.cancel) if name]
        if len(given) != 1:
            raise ValueError("give one of server_lost, server_back or cancel")
        return self


def read_incidents(path: Path, cluster: Cluster, jobs: Sequence[Job]) -> list[Incident]:
    """Read an incident file, YAML or JSON Lines (``.jsonl``), possibly gzipped; return it by slot.

    Only jobs of the workload can be cancelled, in a slot after their arrival.
    """
    records = read_json_lines(path) if is_json_lines(path) else _yaml(path)
    return resolve_incidents(records, str(path), cluster, jobs)


def resolve_incidents(
    records: Iterable[tuple[str, Any]], given: str, cluster: Cluster, jobs: Sequence[Job]
) -> list[Incident]:
    """Return the incidents that records describe, as `read_incidents` does for a file.

    Each record comes with its location; an `InputError` instead is a record that couldn't be read.
    Errors about the list as a whole begin with ``given``.
    """
    faults: list[Fault] = []
    incidents: list[tuple[str, Incident]] = []
    arrivals = {job.name: job.arrival for job in jobs}
    for location, record in records:
        if isinstance(record, InputError):
            faults += record.faults
            continue
        spec, problems = validate(IncidentSpec, record, location)
        faults += problems
        if len(faults) > bounds.FAULTS.maximum:
            break
        bounds.INCIDENTS.check(len(incidents), given)
        if spec is not None:
            try:
                incidents.append((location, _resolve(spec, location, cluster, arrivals)))
            except InputError as error:
                faults += error.faults
    incidents.sort(key=lambda entry: entry[1].slot)
    faults += _server_faults(incidents)
    if faults:
        raise InputError(faults)
    return [incident for _, incident in incidents]


def _resolve(
    spec: IncidentSpec, location: str, cluster: Cluster, arrivals: Mapping[str, int]
) -> Incident:
    if spec.cancel is not None:
        if spec.cancel not in arrivals:
            raise InputError(
                _unknown(join_location(location, ".cancel"), "job", spec.cancel, arrivals)
            )
        if spec.slot <= arrivals[spec.cancel]:
            message = f"{spec.cancel!r} arrives in slot {arrivals[spec.cancel]}"
            raise InputError(
                Fault(join_location(location, ".slot"), message, "cancel it in a later slot")
            )
        return JobCancelled(spec.slot, spec.cancel)
    key = "server_lost" if spec.server_lost is not None else "server_back"
    name = spec.server_lost or spec.server_back or ""
    if name not in cluster.index:
        raise InputError(
            _unknown(join_location(location, f".{key}"), "server", name, cluster.index)
        )
    kind = ServerLost if spec.server_lost is not None else ServerBack
    return kind(spec.slot, name)


def _unknown(location: str, what: str, name: str, known: Collection[str]) -> Fault:
    return Fault(location, f"unknown {what} {name!r}", hint_for_unknown(name, known, ""))


def _server_faults(found: Sequence[tuple[str, Incident]]) -> list[Fault]:
    """Return a problem for each loss of a lost server, and each return of one that isn't lost."""
    faults = []
    out: set[str] = set()
    for location, incident in found:
        if isinstance(incident, JobCancelled):
            continue
        name = incident.server
        lost = isinstance(incident, ServerLost)
        if lost == (incident.server in out):
            state = "is out already" if lost else "is not out"
            faults.append(Fault(location, f"server {name!r} {state} in slot {incident.slot}"))
        out ^= {incident.server}
    return faults


def _yaml(path: Path) -> Iterator[tuple[str, Any]]:
    document = load_yaml(path)
    incidents = document.get("incidents") if isinstance(document, Mapping) else None
    if incidents == []:
        raise InputError(Fault(str(path), "contains no incident"))
    if not isinstance(incidents, list):
        raise InputError(
            Fault(str(path), "contains no incident list", "begin it with `incidents:`")
        )
    for key in document.keys() - {"incidents"}:
        hint = "an incident file holds only `incidents:`"
        raise InputError(Fault(f"{path}: {key}", "unknown key", hint))
    for index, record in enumerate(incidents):
        yield f"{path}: incidents[{index}]", record
