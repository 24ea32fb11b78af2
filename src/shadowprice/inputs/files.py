"""Cluster, job, incident and parameter files (see ``docs/formats.md``)."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec, Name, Spec, resolve_jobs, validate
from shadowprice.core.specs.faults import join_location
from shadowprice.core.specs.fields import max_value
from shadowprice.core.wording import hint_for_unknown, parse_error_text, quote_for_display
from shadowprice.core.yaml_values import keep_written_words
from shadowprice.engine.validation import EmptyClusterCheck
from shadowprice.inputs.durations import duration_loader
from shadowprice.inputs.families import Families, parse_families, read_families, with_family
from shadowprice.inputs.text import is_json_lines, load_yaml, read_json_lines, read_text

_TABLE_SUFFIXES: Final = frozenset({".csv", ".tsv"})
MAX_FAULTS: Final = int(bounds.FAULTS.maximum)
"""Maximum number of problems that are listed; reading stops after it."""


def read_cluster(path: Path, *, starts_cost: bool = False) -> Cluster:
    """Read a cluster file (YAML).

    ``starts_cost`` is the default of the file's ``restart_first``: whether the first start of a job
    also costs its restart time. For real processes it does; in the papers it doesn't. An
    `InputError` lists every problem of the file.
    """
    return resolve_cluster(load_yaml(path), str(path), starts_cost=starts_cost)


def resolve_cluster(
    document: object, location: str = "cluster", *, starts_cost: bool = False
) -> Cluster:
    """Return the cluster that the content of a cluster file describes.

    ``starts_cost`` is as in `read_cluster`. An `InputError` lists every problem; locations begin
    with ``location``.
    """
    spec, faults = validate(ClusterSpec, document, location)
    if spec is None:
        raise InputError(faults)
    return spec.resolve(location, starts_cost=starts_cost)


def read_jobs(path: Path, cluster: Cluster, *, skip_invalid: bool = False) -> list[Job]:
    """Read a job file: YAML with a ``jobs:`` list, or JSON Lines (``.jsonl``), possibly gzipped.

    A job that can never run on the cluster is a problem of the file. ``skip_invalid`` leaves
    invalid jobs out instead of refusing the file. An `InputError` lists the first `MAX_FAULTS`
    problems.
    """
    records = read_json_lines(path) if is_json_lines(path) else _yaml_jobs(path)
    return resolve_records(
        records, cluster, location=str(path), folder=path.parent, skip_invalid=skip_invalid
    )


def resolve_records(
    records: Iterable[tuple[str, Any]],
    cluster: Cluster,
    *,
    location: str = "jobs",
    folder: Path = Path(),
    skip_invalid: bool = False,
) -> list[Job]:
    """Return the jobs that records describe, in order.

    Each record comes with its location. An `InputError` in place of a record stands for one that
    couldn't be read. ``location`` is the location of errors about all records. Paths in jobs are
    relative to ``folder``. ``skip_invalid`` is as in `read_jobs`.
    """
    specs: list[tuple[str, JobSpec]] = []
    faults: list[Fault] = []
    location_by_name: dict[str, str] = {}
    for count, (where, record) in enumerate(records, start=1):
        bounds.JOBS.check(count, location)
        if isinstance(record, InputError):
            faults += record.faults
        else:
            spec, problems = validate(JobSpec, record, where)
            faults += [*_register_name(record, where, location_by_name), *problems]
            if spec is not None:
                specs.append((where, spec))
        if len(faults) > MAX_FAULTS:
            if not skip_invalid:
                raise InputError(_first_problems(faults, location))
            del faults[MAX_FAULTS:]
    resolved, problems = resolve_jobs(specs, cluster, duration_loader(folder))
    faults += problems
    # The more permissive rule for bandwidth, because the policy isn't known here.
    never_fits = EmptyClusterCheck(cluster, local_free=True)
    jobs: dict[str, Job] = {}  # by name; of equal names, the first valid record
    for where, job in resolved:
        refusal = never_fits(job)
        if refusal is None:
            jobs.setdefault(job.name, job)
        else:
            message = f"job {job.name!r} can never run here: it {refusal.message}"
            hint = f"request less of the scarce resource: {refusal.bottleneck}"
            faults.append(Fault(where, message, hint))
    if faults and not skip_invalid:
        raise InputError(_first_problems(faults, location))
    if not jobs:
        raise InputError(Fault(location, "contains no valid job" if faults else "contains no job"))
    return list(jobs.values())


def _first_problems(faults: Sequence[Fault], location: str) -> list[Fault]:
    """Return the first `MAX_FAULTS` problems, and a remark if there are more."""
    if len(faults) <= MAX_FAULTS:
        return list(faults)
    remark = Fault(location, f"has more problems; the first {MAX_FAULTS} are listed")
    return [*faults[:MAX_FAULTS], remark]


def _register_name(record: object, location: str, location_by_name: dict[str, str]) -> list[Fault]:
    """Register the name of a record, even if the record is invalid; return a fault if taken."""
    name = record.get("name") if isinstance(record, Mapping) else None
    if not isinstance(name, str):
        return []
    if name not in location_by_name:
        location_by_name[name] = location
        return []
    hint = f"the name is taken by {location_by_name[name]}; rename one"
    message = f"duplicate job name {quote_for_display(name)}"
    return [Fault(join_location(location, ".name"), message, hint)]


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a job file with their locations, not validated.

    A job with a ``family`` gets the curve of the file's library. If the file has no library, the
    key ``family`` stays, for a service that has one.
    """
    lines = is_json_lines(path)
    for location, record in (
        read_json_lines(path) if lines else _yaml_jobs(path, requires_library=False)
    ):
        if isinstance(record, InputError):
            raise record
        yield location, record


def read_entry(path: Path, name: str) -> Mapping[str, Any]:
    """Return the record of one job of a job file, not validated."""
    records = read_json_lines(path) if is_json_lines(path) else _yaml_jobs(path)
    for _, record in records:
        if isinstance(record, Mapping) and record.get("name") == name:
            return record
    raise InputError(Fault(str(path), f"has no job {name!r}"))


def read_parameters(path: Path) -> dict[str, Any]:
    """Read a policy's parameters from a TOML file."""
    try:
        return tomllib.loads(read_text(path, bounds.PARAMETERS))
    except RecursionError as error:
        raise InputError(Fault(str(path), "is nested too deeply")) from error
    except ValueError as error:
        raise InputError(Fault(str(path), f"not TOML: {parse_error_text(error)}")) from error


def _yaml_list(path: Path, noun: str, hint: str, *others: str) -> tuple[Mapping[str, Any], Any]:
    """Return a YAML document and its list of ``noun``s.

    ``hint`` is the hint for a document without the list, and ``others`` are other valid keys.
    """
    document = load_yaml(path)
    key = f"{noun}s"
    entries = document.get(key) if isinstance(document, Mapping) else None
    if entries == []:
        raise InputError(Fault(str(path), f"contains no {noun}"))
    if not isinstance(entries, list):
        raise InputError(Fault(str(path), f"contains no {noun} list", hint))
    for unknown in document.keys() - {key, *others}:
        article = "an" if noun == "incident" else "a"
        more = "".join(f" and `{other}:`" for other in others)
        hint = f"{article} {noun} file has only `{key}:`{more}"
        raise InputError(Fault(f"{path}: {unknown}", "unknown key", hint))
    return document, entries


def _yaml_jobs(path: Path, *, requires_library: bool = True) -> Iterator[tuple[str, Any]]:
    hint = "begin it with `jobs:`"
    if _TABLE_SUFFIXES.intersection(suffix.lower() for suffix in path.suffixes):
        hint = f"read a table of jobs with --trace {shlex.quote(f'csv:{path}')}"
    document, jobs = _yaml_list(path, "job", hint, "families")
    families = _families(document.get("families"), path)
    for index, entry in enumerate(jobs):
        location, record = f"{path}: jobs[{index}]", keep_written_words(entry)
        try:
            resolves = families or requires_library
            yield location, with_family(record, families, location) if resolves else record
        except InputError as error:
            yield location, error


def _families(value: object, path: Path) -> Families:
    """Return the families of a job file; ``value`` has them, or is the path of a library."""
    if value is None:
        return {}
    if isinstance(value, str):
        bounds.PATH.check(len(value), f"{path}: families")
        return read_families(path.parent / value)
    return parse_families({"families": value}, str(path))


Incident = ServerLost | ServerBack | JobCancelled


class IncidentSpec(Spec):
    """One incident: a slot, and a single event at its start."""

    slot: Annotated[int, Field(ge=0, strict=True), max_value(bounds.SLOT)]
    server_lost: Name | None = None
    server_back: Name | None = None
    cancel: Name | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> IncidentSpec:
        names = [name for name in (self.server_lost, self.server_back, self.cancel) if name]
        if len(names) != 1:
            raise ValueError("give one of server_lost, server_back or cancel")
        return self


def read_incidents(path: Path, cluster: Cluster, jobs: Sequence[Job]) -> list[Incident]:
    """Read incidents in order of slot from a YAML or JSON Lines file, possibly gzipped.

    Only jobs of the workload can be cancelled, in a slot after their arrival.
    """
    records = read_json_lines(path) if is_json_lines(path) else _yaml_incidents(path)
    return resolve_incidents(records, str(path), cluster, jobs)


def resolve_incidents(
    records: Iterable[tuple[str, Any]], location: str, cluster: Cluster, jobs: Sequence[Job]
) -> list[Incident]:
    """Return the incidents that records describe, as `read_incidents` does for a file.

    Each record comes with its location. An `InputError` in place of a record stands for one that
    couldn't be read. ``location`` is the location of errors about all records.
    """
    faults: list[Fault] = []
    incidents: list[tuple[str, Incident]] = []
    arrivals = {job.name: job.arrival for job in jobs}
    for where, record in records:
        if isinstance(record, InputError):
            faults += record.faults
            continue
        spec, problems = validate(IncidentSpec, record, where)
        faults += problems
        if len(faults) > bounds.FAULTS.maximum:
            break
        bounds.INCIDENTS.check(len(incidents), location)
        if spec is not None:
            try:
                incidents.append((where, _resolve_incident(spec, where, cluster, arrivals)))
            except InputError as error:
                faults += error.faults
    incidents.sort(key=lambda entry: entry[1].slot)
    faults += _server_faults(incidents)
    if faults:
        raise InputError(faults)
    return [incident for _, incident in incidents]


def _resolve_incident(
    spec: IncidentSpec, location: str, cluster: Cluster, arrivals: Mapping[str, int]
) -> Incident:
    kinds: dict[str, tuple[type[Incident], str, Collection[str]]] = {
        "server_lost": (ServerLost, "server", cluster.index),
        "server_back": (ServerBack, "server", cluster.index),
        "cancel": (JobCancelled, "job", arrivals),
    }
    key = next(key for key in kinds if getattr(spec, key) is not None)
    kind, noun, names = kinds[key]
    name: str = getattr(spec, key)
    if name not in names:
        hint = hint_for_unknown(name, names, "")
        key_location = join_location(location, f".{key}")
        raise InputError(Fault(key_location, f"unknown {noun} {name!r}", hint))
    if kind is JobCancelled and spec.slot <= arrivals[name]:
        message = f"{name!r} arrives in slot {arrivals[name]}"
        slot_location = join_location(location, ".slot")
        raise InputError(Fault(slot_location, message, "cancel it in a later slot"))
    return kind(spec.slot, name)


def _server_faults(incidents: Sequence[tuple[str, Incident]]) -> list[Fault]:
    """Return a problem for each loss of a lost server, and each return of a present server."""
    faults = []
    lost_servers: set[str] = set()
    for location, incident in incidents:
        if isinstance(incident, JobCancelled):
            continue
        name = incident.server
        is_loss = isinstance(incident, ServerLost)
        if is_loss == (name in lost_servers):
            state = "is already lost" if is_loss else "is not lost"
            faults.append(Fault(location, f"server {name!r} {state} in slot {incident.slot}"))
        lost_servers ^= {name}
    return faults


def _yaml_incidents(path: Path) -> Iterator[tuple[str, Any]]:
    _, incidents = _yaml_list(path, "incident", "begin it with `incidents:`")
    for index, record in enumerate(incidents):
        yield f"{path}: incidents[{index}]", record
