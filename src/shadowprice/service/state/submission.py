"""Submissions and revisions of jobs.

Both are validated completely when they arrive. When they are decided, they are resolved against the
cluster of that time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from shadowprice.core.amounts import Duration
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.job_keys import (
    ID_PREFIX,
    RESERVED_LABELS,
    Owner,
    qualified_name,
    repeated_key,
)
from shadowprice.core.length_history import DEFAULT_SECONDS
from shadowprice.core.specs import JobSpec, validate
from shadowprice.core.specs.fields import check_path_segment
from shadowprice.core.submit_options import has_options, option_for_key
from shadowprice.core.wording import hint_for_unknown
from shadowprice.inputs.families import Families, with_family
from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.problems import ProblemError

REVISABLE_KEYS: Final = (
    "utility",
    "by",
    "steps",
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
"""Keys of the job file that can be revised after the submission."""

SPEED_KEYS: Final = frozenset({"throughput", "minibatch_time"})  # keys that state the speed
_MAX_DIAGNOSTICS: Final = 50  # maximum number of diagnostics of one request
MISSING_FAMILY_HINT: Final = "state its `throughput`, or start the service with --families FILE"
"""Hint for a job that names its family, if the service has no family library."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted job.

    ``record`` is the requested job with its tenant and the keys of its family (``throughput``,
    ``restart``) filled in, and ``spec`` is the validated record. ``content_hash`` is the hash of
    the record without the keys that the family added. Jobs with an equal name and hash are the same
    submission while the job is open. ``request`` identifies the request for a job (`request_hash`):
    a retry has the same value.
    """

    name: str
    tenant: str | None
    record: Mapping[str, Any]
    spec: JobSpec
    content_hash: str
    request: str | None = None

    @property
    def qualified_name(self) -> str:
        """The name together with the tenant."""
        return qualified_name(self.tenant, self.name)

    def key(self, job_id: int, *, is_repeated: bool) -> str:
        """Return the key of the job with an id; ``is_repeated`` if its name may be used already."""
        owner = Owner.from_labels(self.spec.labels)
        if owner is not None:
            return owner.key
        qualified = self.qualified_name
        return repeated_key(qualified, job_id) if is_repeated else qualified


def read_submissions(
    records: Sequence[object],
    cluster: Cluster,
    *,
    tenant: str | None,
    runs: bool,
    single: bool = False,
    from_controller: bool = False,
    families: Families = MappingProxyType({}),
    now: int | None = None,
) -> list[Submission]:
    """Validate jobs in the format of job files; accept all of them or none.

    Each job must fit ``cluster``, and have ``run`` if jobs really run (``runs``). ``tenant`` is
    that of the request's token; None for other tokens. If the request holds a ``single`` job,
    locations have no index. Reserved labels name the TrainingJob of a job, so they are only allowed
    if its controller set them (``from_controller``). ``now`` is the submission time in nanoseconds
    since 1970; None refuses deadlines on the clock.

    ``families`` has speed curves and restart costs for jobs that name a family and state no speed.
    They don't affect ``content_hash``, so a repeated submission is equal even if they have changed.

    Raise `InputError` with at most `_MAX_DIAGNOSTICS` diagnostics, and `ProblemError` if a job
    names another tenant than the token's.
    """
    submissions: list[Submission] = []
    faults: list[Fault] = []
    seen: set[tuple[str | None, str]] = set()
    for index, sent in enumerate(records):
        record = sent
        location = "job" if single else f"jobs[{index}]"
        diagnostics: list[Fault] = []
        if isinstance(record, Mapping) and tenant is not None:
            named = record.get("tenant")
            if named is not None and named != tenant:
                message = f"{location}.tenant: the token belongs to tenant {tenant!r}"
                raise ProblemError("forbidden", message)
            record = {**record, "tenant": tenant}
        content = content_hash(record) if isinstance(record, Mapping) else ""
        try:
            hint = MISSING_FAMILY_HINT
            record = with_family(record, families, location, hint_without_library=hint)
        except InputError as error:
            faults += error.faults
            continue
        spec, diagnostics = validate(JobSpec, record, location)
        if spec is None:
            faults += diagnostics
        else:
            assert isinstance(record, Mapping)
            diagnostics = _faults(spec, location, runs=runs, from_controller=from_controller)
            if (spec.tenant, spec.name) in seen:
                message = f"{spec.name!r} is repeated"
                diagnostics.append(Fault(f"{location}.name", message, "rename one"))
            seen.add((spec.tenant, spec.name))
            try:
                spec.resolve(cluster, submitted=now, length=DEFAULT_SECONDS)
            except InputError as error:
                diagnostics += [
                    replace(fault, location=f"{location}.{fault.location}".rstrip("."))
                    for fault in error.faults
                ]
            faults += diagnostics
            if not diagnostics:
                submissions.append(Submission(spec.name, spec.tenant, record, spec, content))
        if len(faults) > _MAX_DIAGNOSTICS:
            break
    if faults:
        raise InputError(faults[:_MAX_DIAGNOSTICS])
    return submissions


def _faults(spec: JobSpec, location: str, *, runs: bool, from_controller: bool) -> list[Fault]:
    """Return diagnostics for parts of a valid job file that can't be submitted."""
    faults = []
    if spec.name.startswith(ID_PREFIX):
        message = f"{spec.name!r} begins with {ID_PREFIX!r}, like a reference to an id"
        faults.append(Fault(f"{location}.name", message, "rename it"))
    if not from_controller:
        faults += [
            Fault(f"{location}.labels.{label}", "reserved for the service", "remove it")
            for label in spec.labels
            if label.startswith(RESERVED_LABELS)
        ]
    if spec.arrival.seconds or spec.arrival.slots:
        hint = "remove it: a job arrives when it is submitted"
        faults.append(Fault(f"{location}.arrival", "only valid in simulations", hint))
    if spec.tasks is not None:
        hint = "submit one job that runs shadowprice.training.bag, or one job a task"
        message = "bags of tasks are simulated only: executors start trainings, not tasks"
        faults.append(Fault(f"{location}.tasks", message, hint))
    if runs and spec.run is None:
        hint = "add the command: {command: [python, train.py]}"
        faults.append(Fault(f"{location}.run", "is missing", hint))
    for key, name in (("name", spec.name), ("tenant", spec.tenant)):
        faults += path_segment_diagnostics(name or "", f"{location}.{key}")
    return faults


def path_segment_diagnostics(name: str, location: str) -> list[Fault]:
    """Return diagnostics at ``location`` if a name can't be part of a URL."""
    try:
        check_path_segment(name)
    except InputError as error:
        return [replace(fault, location=location) for fault in error.faults]
    return []


def request_hash(scope: str | None, idempotency_key: str | None, *parts: str) -> str | None:
    """Return the hash of a tenant's request with an idempotency key; None without one."""
    if idempotency_key is None:
        return None
    return hashlib.sha256(json.dumps([scope, idempotency_key, *parts]).encode()).hexdigest()


def content_hash(record: Mapping[str, Any]) -> str:
    """Return the hash of a record, independent of the order of its keys."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def family_keys(record: Mapping[str, Any], content: str) -> frozenset[str]:
    """Return the keys that the family added: without them, the hash is ``content``."""
    # The family adds both keys, or one: the job or a revision may state the other key, and a
    # family may have no restart cost.
    for keys in (_FAMILY_KEYS, frozenset({"throughput"}), frozenset({"restart"})):
        if content_hash(without_keys(record, keys)) == content:
            return keys
    return frozenset()


def without_keys(record: Mapping[str, Any], keys: Set[str]) -> dict[str, Any]:
    """Return a record without some keys."""
    return {key: value for key, value in record.items() if key not in keys}


_FAMILY_KEYS: Final = frozenset({"throughput", "restart"})


def merge_changes(record: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply allowed changes to a job's record, or raise `InputError`."""
    revised = dict(record)
    faults = []
    for key, value in changes.items():
        if key == "deadline" and not revised.get("utility"):
            revised["by"] = value
        elif key == "deadline":
            utility = revised["utility"]
            if isinstance(utility, Mapping) and utility.get("kind") == "deadline":
                revised["utility"] = {**utility, "by": value}
            else:
                hint = "give the whole `utility`"
                faults.append(Fault("deadline", "its utility has no deadline", hint))
        elif key == "labels":
            revised["labels"] = _labels(record.get("labels") or {}, value, faults)
        elif key in REVISABLE_KEYS:
            if value is None:
                revised.pop(key, None)
            else:
                revised[key] = value
            if key in SPEED_KEYS:
                revised.pop("family", None)  # the job states its own speed from now on
        else:
            keys = ("deadline", *REVISABLE_KEYS)
            problem, hint = "can't be changed after submission", f"these can: {', '.join(keys)}"
            if key not in JobSpec.model_fields:
                problem, hint = "unknown key", hint_for_unknown(key, keys)
            faults.append(Fault(key, problem, hint))
    # A revision to `steps` removes `chunks`, which was the maximum number of workers unless the job
    # states another.
    if changes.get("steps") is not None and "chunks" not in revised:
        chunks, workers = record.get("chunks"), revised.get("workers")
        has_maximum = isinstance(workers, Mapping) and workers.get("max") is not None
        if isinstance(chunks, int) and chunks > 1 and not (has_maximum or "throughput" in revised):
            problem = f"would lower the maximum number of workers from chunks = {chunks} to 1"
            faults.append(Fault("steps", problem, f"give workers: {{max: {chunks}}} too"))
    if faults:
        raise InputError(faults)
    # Advice about the job names options of `submit` only while options set all of its keys. Two
    # keys don't count: no advice is about `labels`, and `deadline` sets `by`, which has an option.
    stated = {key for key, value in changes.items() if value is not None} - {"labels", "deadline"}
    if has_options(revised) and any(option_for_key(key) is None for key in stated):
        revised["run"] = without_keys(revised["run"], {"from_options"})
    return revised


def _labels(before: Mapping[str, str], after: Any, faults: list[Fault]) -> Any:
    """Return a job's revised labels; reserved labels, which name its TrainingJob, are kept."""
    if after is not None and not isinstance(after, Mapping):
        return after  # validation of the record reports it
    kept = {key: value for key, value in before.items() if key.startswith(RESERVED_LABELS)}
    given = dict(after or {})
    faults += [
        Fault(f"labels.{key}", "reserved for the service", "remove it")
        for key, value in given.items()
        if str(key).startswith(RESERVED_LABELS) and kept.get(key) != value
    ]
    return {**given, **kept}


def resolve_job(
    spec: JobSpec,
    cluster: Cluster,
    calendar: SlotCalendar,
    moment: int,
    *,
    key: str | None = None,
    length: float | None = None,
) -> Job:
    """Resolve a job that was submitted at a moment in nanoseconds since 1970.

    The engine knows the job by ``key``; None keeps its name. A job that states no length gets
    ``length`` in seconds, or the default for None. Raise `InputError` if the cluster lacks a
    resource that the job needs.
    """
    since = max(0, moment - calendar.origin)
    arrival = Duration(Fraction(since, SECOND), on_clock=True)
    changes: dict[str, Any] = {"arrival": arrival}
    if key is not None:
        changes["name"] = key
    return spec.model_copy(update=changes).resolve(
        cluster, submitted=moment, length=DEFAULT_SECONDS if length is None else length
    )


def asks_for_more(before: Job, after: Job, *, horizon: int) -> bool:
    """Return whether a revision asks for more, so that current prices must admit it again.

    Utilities are compared in ``horizon`` slots from the arrival.
    """
    return (
        raises_terms(before, after, horizon=horizon)
        or not np.array_equal(before.worker_counts, after.worker_counts)
        or bool((after.ps_counts > before.ps_counts).any())
        or after.restart > before.restart
        or _is_slower(before, after)
    )


def raises_terms(before: Job, after: Job, *, horizon: int) -> bool:
    """Return whether a process needs more, or a completion slot has a higher utility."""
    slots = np.arange(horizon, dtype=np.float64)
    return (
        _needs_more(before.worker, after.worker)
        or _needs_more(before.ps, after.ps)
        or bool((after.utility.values(slots) > before.utility.values(slots)).any())
    )


def _needs_more(before: Amounts | None, after: Amounts | None) -> bool:
    if after is None or before is None:
        return after is not None
    return bool((after > before).any())


def _is_slower(before: Job, after: Job) -> bool:
    """Return whether a slot does a smaller part of the work, with any allowed worker count."""
    for old, new in ((before.gains, after.gains), (before.internal_gains, after.internal_gains)):
        pairs = zip(old.tolist(), new.tolist(), strict=True)
        if any(gain * after.required > new_gain * before.required for gain, new_gain in pairs):
            return True
    return False
