"""What clients submit: checked in full against the model of job files, resolved when decided."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from shadowprice.core.amounts import Duration
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.owner import RESERVED_LABELS
from shadowprice.core.specs import JobSpec, validate
from shadowprice.core.specs.fields import addressed
from shadowprice.inputs.families import Families, with_family
from shadowprice.service.clock import SECOND, Calendar
from shadowprice.service.problems import ProblemError

REVISABLE: Final = (
    "utility",
    "epochs",
    "chunks",
    "minibatches",
    "minibatch_time",
    "throughput",
    "workers",
    "priority",
    "walltime",
    "labels",
)
"""What of a job can be revised once it was submitted."""

NO_LIBRARY: Final = "state its `throughput`, or start the service with --families FILE"
"""What helps where a job names its family, and the service knows of none."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it was submitted.

    Parameters
    ----------
    name : str
        Its name.
    tenant : str or None
        Its owner.
    record : mapping
        What was sent, the owner filled in.
    spec : JobSpec
        The same, checked.
    content : str
        Hash of the record: equal ones are the same job.
    """

    name: str
    tenant: str | None
    record: Mapping[str, Any]
    spec: JobSpec
    content: str


def read_submissions(
    records: Sequence[object],
    cluster: Cluster,
    *,
    tenant: str | None,
    runs: bool,
    single: bool = False,
    owned: bool = False,
    families: Families = MappingProxyType({}),
) -> list[Submission]:
    """Check what was sent; all of it is taken or nothing.

    Parameters
    ----------
    records : sequence
        Jobs as in a job file.
    cluster : Cluster
        What they are for.
    tenant : str or None
        Whose token it is, where it is a tenant's.
    runs : bool
        Whether jobs really run, so that they have to say what.
    single : bool
        Whether one job was sent by itself, which places of faults then do not count.
    owned : bool
        Whether the labels that name an owner may be set, which only the service itself does.
    families : mapping
        Curves for jobs that name their family and no speed of their own. What was sent stays what a
        job is known by, so that sending it again is the same job after the library has changed.

    Raises
    ------
    InputError
        With every fault.
    ProblemError
        If a job is another tenant's.
    """
    found: list[Submission] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for at, sent in enumerate(records):
        record = sent
        place = "job" if single else f"jobs[{at}]"
        wrong: list[Fault] = []
        if isinstance(record, Mapping) and tenant is not None:
            asked = record.get("tenant")
            if asked is not None and asked != tenant:
                raise ProblemError("forbidden", f"{place}.tenant: the token is {tenant!r}'s")
            record = {**record, "tenant": tenant}
        content = content_of(record) if isinstance(record, Mapping) else ""
        try:
            record = with_family(record, families, place, without=NO_LIBRARY)
        except InputError as error:
            faults += error.faults
            continue
        spec, wrong = validate(JobSpec, record, place)
        if spec is None:
            faults += wrong
        else:
            assert isinstance(record, Mapping)
            wrong = _faults(spec, place, runs=runs, owned=owned)
            if spec.name in seen:
                wrong.append(Fault(f"{place}.name", f"{spec.name!r} is given twice", "rename one"))
            seen.add(spec.name)
            try:
                spec.resolve(cluster)
            except InputError as error:
                wrong += [
                    Fault(f"{place}.{fault.place}" if fault.place else place, *_rest(fault))
                    for fault in error.faults
                ]
            faults += wrong
            if not wrong:
                found.append(Submission(spec.name, spec.tenant, record, spec, content))
        if len(faults) > 50:
            break
    if faults:
        raise InputError(faults[:50])
    return found


def _rest(fault: Fault) -> tuple[str, str]:
    return fault.message, fault.mend


def _faults(spec: JobSpec, place: str, *, runs: bool, owned: bool) -> list[Fault]:
    """Return what makes a job of a file none that can be submitted."""
    faults = []
    if not owned:
        faults += [
            Fault(f"{place}.labels.{label}", "is set by the service alone", "leave it out")
            for label in spec.labels
            if label.startswith(RESERVED_LABELS)
        ]
    if spec.arrival.seconds or spec.arrival.slots:
        mend = "leave it out: a job arrives when it is submitted"
        faults.append(Fault(f"{place}.arrival", "is for simulations", mend))
    if spec.tasks is not None:
        mend = "submit one job that runs shadowprice.training.bag, or one job a task"
        message = "bags of tasks are simulated only: executors start trainings, not tasks"
        faults.append(Fault(f"{place}.tasks", message, mend))
    if runs and spec.run is None:
        mend = "say what it runs: {command: [python, train.py]}"
        faults.append(Fault(f"{place}.run", "is missing", mend))
    for key, name in (("name", spec.name), ("tenant", spec.tenant)):
        faults += not_addressed(name or "", f"{place}.{key}")
    return faults


def not_addressed(name: str, place: str) -> list[Fault]:
    """Return why an address cannot hold a name, at its place; none where it can."""
    try:
        addressed(name)
    except InputError as error:
        return [Fault(place, *_rest(fault)) for fault in error.faults]
    return []


def content_of(record: Mapping[str, Any]) -> str:
    """Return the hash that equal submissions share."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def revised_record(record: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's record with changes laid over it; ``deadline`` is short for a utility's.

    Raises
    ------
    InputError
        If something is to change that cannot.
    """
    revised = dict(record)
    faults = []
    for key, value in changes.items():
        if key == "deadline":
            utility = dict(revised.get("utility") or {})
            if utility.get("kind") != "deadline":
                mend = "give the whole `utility`"
                faults.append(Fault("deadline", "its utility has none", mend))
            revised["utility"] = utility | {"by": value}
        elif key == "labels":
            revised["labels"] = _labels(record.get("labels") or {}, value, faults)
        elif key in REVISABLE:
            if value is None:
                revised.pop(key, None)
            else:
                revised[key] = value
            if key in {"throughput", "minibatch_time"}:
                revised.pop("family", None)  # it is its own from now on
        else:
            faults.append(
                Fault(key, "cannot be revised", f"these can: deadline, {', '.join(REVISABLE)}")
            )
    if faults:
        raise InputError(faults)
    return revised


def _labels(before: Mapping[str, str], after: Any, faults: list[Fault]) -> Any:
    """Return a job's labels as revised; those that name its owner stay."""
    if after is not None and not isinstance(after, Mapping):
        return after  # the model says what is wrong with it
    kept = {key: value for key, value in before.items() if key.startswith(RESERVED_LABELS)}
    given = dict(after or {})
    faults += [
        Fault(f"labels.{key}", "is set by the service alone", "leave it out")
        for key, value in given.items()
        if str(key).startswith(RESERVED_LABELS) and kept.get(key) != value
    ]
    return {**given, **kept}


def resolved(spec: JobSpec, cluster: Cluster, calendar: Calendar, moment: int) -> Job:
    """Return a job as schedulers see it.

    Parameters
    ----------
    spec : JobSpec
        What was submitted.
    cluster : Cluster
        The servers.
    calendar : Calendar
        When slots are.
    moment : int
        When it was submitted.

    Raises
    ------
    InputError
        If the cluster has not what it asks for.
    """
    since = max(0, moment - calendar.origin)
    arrival = Duration(Fraction(since, SECOND), on_clock=True)
    return spec.model_copy(update={"arrival": arrival}).resolve(cluster)
