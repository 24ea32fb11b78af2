"""Jobs as columns: the result of synthesis and generation, independent of a cluster.

A workload of 50,000 jobs becomes `Job` objects in well under a second, because its rows aren't
validated one by one. `to_records` yields the same jobs for a job file; a test checks that reading
the file gives equal `Job` objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI, Dimension
from shadowprice.core.cluster import BANDWIDTH, Amounts, Cluster
from shadowprice.core.devices import GPU, is_gpu_kind
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import MICRO, Job, StepModel, build_job
from shadowprice.core.specs.utilities import with_default_utility
from shadowprice.core.utility import Constant, Deadline, Reciprocal, Sigmoid, Utility
from shadowprice.core.wording import quote_for_display
from shadowprice.inputs.text import check_document_size
from shadowprice.results.output_paths import (
    YAML_MARK,
    atomic_write,
    check_output_file,
    is_job_lines,
    is_marked_yaml,
)
from shadowprice.traces.throughput import Curve

NANO: Final = 10**9

_UNITS: Final[Mapping[Dimension, tuple[tuple[str, int], ...]]] = {
    Dimension.BYTES: (
        *(("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)),
        *(("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1)),
    ),
    Dimension.RATE: (("Gbps", 10**9), ("Mbps", 10**6), ("kbps", 10**3), ("bps", 1)),
}
_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "memory": Dimension.BYTES,
    "storage": Dimension.BYTES,
    BANDWIDTH: Dimension.RATE,
}


@dataclass(frozen=True, eq=False)
class JobProfile:
    """Properties that jobs of one kind share; profiles are compared by identity."""

    worker: Mapping[str, int]  # request of one worker
    ps: Mapping[str, int] | None  # request of one parameter server; None for all-reduce
    gradient: int = 0  # size of the gradients in bytes; 0 if communication isn't modelled
    curve: Curve | None = None
    """Measured mini-batches/s by number of workers, instead of the linear model."""
    internal: int = 0  # bandwidth of a co-located job in bit/s; 0 if co-location isn't faster
    gpu_types: tuple[str, ...] = ()
    """Types of GPU that the job may run on, as its trace names them; empty for any. `fitted_to`
    replaces them by a resource of the cluster."""


UtilityKind = Literal["sigmoid", "deadline", "reciprocal", "default"]


@dataclass(frozen=True, eq=False)
class Workload:
    """Jobs as columns, in order of arrival; every array has one entry for each job."""

    names: Sequence[str]  # unique names
    tenants: Sequence[str | None]  # tenant of each job
    arrival: NDArray[np.int64]
    """Nanoseconds after time 0; a job that arrives within a slot waits for the next."""
    epochs: NDArray[np.int64]
    """Number of epochs; all mini-batches are epochs x chunks x minibatches."""
    chunks: NDArray[np.int64]  # number of chunks of the data
    minibatches: NDArray[np.int64]  # mini-batches per chunk
    minibatch_time: NDArray[np.int64]
    """Nanoseconds of a mini-batch on one worker; 0 if the profile has a curve."""
    min_workers: NDArray[np.int64]  # minimum number of workers in a slot
    max_workers: NDArray[np.int64]  # maximum number of workers in a slot
    profiles: Sequence[JobProfile]  # demands and speed of each job
    kind: Sequence[UtilityKind]  # kind of the utility; ``default`` for jobs that state none
    value: NDArray[np.float64]  # value of the utility, if its kind has one
    decay: NDArray[np.float64]  # decay per slot, if the kind has one
    target: NDArray[np.float64]
    """Target or deadline in slots after the arrival slot (the papers' ``d``), if there is one."""
    labels: Sequence[Mapping[str, str]]  # model family and utility class of each job
    slot_seconds: Fraction  # length of the slots in which ``decay`` and ``target`` are measured
    notes: tuple[str, ...] = field(default=())  # everything dropped or assumed
    drawn: tuple[str, ...] = field(default=())
    """Properties that were drawn at random, because the trace lacks them."""
    within: NDArray[np.int64] | None = None
    """Target in clock time: nanoseconds from the submission, within which the completion slot
    ends. It overrides ``target``, unless it is -1 for a job or None for all."""
    time_limit: NDArray[np.float64] | None = None
    """Seconds that each job was allowed to run with ``requested`` workers; NaN without a limit.
    None if no job has a limit."""
    requested: NDArray[np.int64] | None = None
    """Number of workers of each job in the trace; None if there is no trace."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def work(self) -> NDArray[np.int64]:
        """Mini-batches of each job."""
        return self.epochs * self.chunks * self.minibatches

    def fitted_to(self, cluster: Cluster, *, skip_invalid: bool = False) -> Workload:
        """Return the workload with requests only for resources that a cluster has.

        A cluster may count places for processes (resources ``worker`` and ``ps``, as Astraea does)
        instead of GPUs. Then each worker and each parameter server requests one place. Unknown
        tenants are mapped onto the cluster's tenants round robin, in order of first arrival. If
        servers name types of GPU, workers request their type. ``notes`` list the changes.

        Raises `InputError` if the cluster counts neither GPUs nor places, but the jobs use GPUs, or
        if no server has a job's type of GPU; ``skip_invalid`` leaves such jobs out.
        """
        requested = {
            name
            for profile in set(self.profiles)
            for demand in (profile.worker, profile.ps or {})
            for name in demand
        }
        notes = list(self.notes)
        counts_places = "worker" in cluster.column and cluster.find_resource("gpu") is None
        unknown = sorted(
            name for name in requested - {BANDWIDTH} if cluster.find_resource(name) is None
        )
        if counts_places:
            notes.append("the cluster counts places: a worker and a parameter server take one each")
        elif "gpu" in unknown:
            raise InputError("the jobs use GPUs and no server of the cluster has a resource 'gpu'")
        elif unknown:
            notes.append(f"the cluster has no {', '.join(unknown)}: not requested")
        if not counts_places:
            resources = {
                profile: choose_resource(profile.gpu_types, cluster)
                for profile in dict.fromkeys(self.profiles)
            }
            if None in resources.values():  # no server has the type of some jobs
                return self._without_types_of(resources, cluster, skip_invalid=skip_invalid)
            notes += self._notes_on_types(resources, cluster)
        else:
            resources = dict.fromkeys(self.profiles, GPU)
        fitted = {
            profile: _fit(profile, cluster, counts_places, resource or GPU)
            for profile, resource in resources.items()
        }
        tenants = list(self.tenants)
        if cluster.tenants:
            by_name = cluster.tenant_index
            others = [
                tenant_name for tenant_name in dict.fromkeys(tenants) if tenant_name not in by_name
            ]
            names = [tenant.name for tenant in cluster.tenants]
            mapping = {other: names[index % len(names)] for index, other in enumerate(others)}
            tenants = [mapping.get(tenant, tenant) for tenant in tenants]
            if others:
                notes.append(f"{len(others)} tenants are mapped onto the cluster's {len(names)}")
        return replace(
            self,
            profiles=[fitted[profile] for profile in self.profiles],
            tenants=tenants,
            notes=tuple(notes),
        )

    def _without_types_of(
        self, resources: Mapping[JobProfile, str | None], cluster: Cluster, *, skip_invalid: bool
    ) -> Workload:
        """Leave out the jobs whose type of GPU no server has, or raise `InputError`."""
        lacking: dict[str, list[str]] = {}
        kept = []
        for index, profile in enumerate(self.profiles):
            if resources[profile] is not None:
                kept.append(index)
                continue
            lacking.setdefault(" or ".join(profile.gpu_types), []).append(self.names[index])
        if skip_invalid and kept:
            dropped = tuple(
                f"{len(jobs):,} x no server has GPUs of type {quote_for_display(name)} (dropped)"
                for name, jobs in lacking.items()
            )
            remaining = replace(self._select(kept), notes=(*self.notes, *dropped))
            return remaining.fitted_to(cluster)
        kinds = ", ".join(name.partition("/")[2] for name in cluster.resources if is_gpu_kind(name))
        hint = (
            f"the cluster's types are {kinds}; add servers of the type, use gpu_types=any in the "
            "trace, or leave these jobs out by --skip-invalid"
        )
        faults = []
        for name, jobs in lacking.items():
            listed = ", ".join(quote_for_display(job) for job in jobs[:3])
            more = f" and {len(jobs) - 3:,} more" if len(jobs) > 3 else ""
            noun = "jobs" if len(jobs) > 1 else "job"
            message = f"no server has GPUs of type {quote_for_display(name)}"
            faults.append(Fault(f"{noun} {listed}{more}", message, hint))
        raise InputError(faults)

    def _notes_on_types(
        self, resources: Mapping[JobProfile, str | None], cluster: Cluster
    ) -> list[str]:
        """Return notes on jobs whose request for types of GPU was changed."""
        if not any(is_gpu_kind(name) for name in cluster.resources):
            count = sum(bool(profile.gpu_types) for profile in self.profiles)
            reason = "the cluster names no types of GPU: any type"
            return [f"{count:,} x {reason}"] if count else []
        several: dict[str, int] = {}
        for profile in self.profiles:
            resource = resources[profile] or GPU
            if len(profile.gpu_types) > 1 and is_gpu_kind(resource):
                several[resource] = several.get(resource, 0) + 1
        return [
            f"{count:,} x a job that may run on several types of GPU requests {name}"
            for name, count in several.items()
        ]

    def _select(self, indices: Sequence[int]) -> Workload:
        changes: dict[str, object] = {}
        for item in fields(self):
            values = getattr(self, item.name)
            if item.name in {"slot_seconds", "notes", "drawn"} or values is None:
                continue
            is_array = isinstance(values, np.ndarray)
            changes[item.name] = (
                values[indices] if is_array else [values[index] for index in indices]
            )
        return replace(self, **changes)  # type: ignore[arg-type]  # by the types of the fields

    def to_jobs(self, cluster: Cluster) -> list[Job]:
        """Build all jobs for a cluster, in order of arrival.

        They are equal to the jobs of the written job file. Raises `InputError` if the cluster's
        slot length isn't that of the workload, or the cluster lacks a resource.
        """
        if cluster.slot_seconds != self.slot_seconds:
            raise InputError(
                f"the jobs were made for slots of {float(self.slot_seconds):g} s, but the "
                f"cluster's slots last {float(cluster.slot_seconds):g} s; give both the same length"
            )
        resolver = _Resolver(cluster)
        return [resolver.job(self, index) for index in range(len(self))]

    def work_limits(self, jobs: Sequence[Job]) -> dict[str, int]:
        """Return the progress units that time limits allow, by name of the jobs that have one."""
        if self.time_limit is None or self.requested is None:
            return {}
        slot = float(self.slot_seconds)
        return {
            job.name: max(1, math.ceil(seconds / slot * job.gain(workers)))
            for job, seconds, workers in zip(
                jobs, self.time_limit.tolist(), self.requested.tolist(), strict=True
            )
            if not math.isnan(seconds)
        }

    def to_records(self) -> Iterator[dict[str, object]]:
        """Yield each job in the format of a job file."""
        for index in range(len(self)):
            yield self.to_record(index)

    def to_record(self, index: int) -> dict[str, object]:
        """Return the job at an index in the format of a job file."""
        name = self.names[index]
        profile = self.profiles[index]
        record: dict[str, object] = {"name": name}
        if self.tenants[index] is not None:
            record["tenant"] = self.tenants[index]
        record["arrival"] = _seconds(int(self.arrival[index]))
        record["epochs"] = int(self.epochs[index])
        record["chunks"] = int(self.chunks[index])
        record["minibatches"] = int(self.minibatches[index])
        if profile.curve is None:
            record["minibatch_time"] = _seconds(int(self.minibatch_time[index]))
            if profile.gradient:
                record["gradient"] = _amount("memory", profile.gradient)
        else:
            record["throughput"] = {
                count: rate
                for count, rate in profile.curve.items()
                if self.min_workers[index] <= count <= self.max_workers[index]
            }
        record["worker"] = {k: _amount(k, v) for k, v in profile.worker.items()}
        if profile.ps is not None:
            record["ps"] = {k: _amount(k, v) for k, v in profile.ps.items()}
        record["workers"] = {
            "min": int(self.min_workers[index]),
            "max": int(self.max_workers[index]),
        }
        if profile.internal:
            record["internal_bandwidth"] = _amount(BANDWIDTH, profile.internal)
        if self.kind[index] != "default":
            record["utility"] = self._utility_record(index)
        elif self.within is not None and self.within[index] >= 0:
            record["by"] = _seconds(int(self.within[index]))
        record["labels"] = dict(self.labels[index])
        return record

    def _utility_record(self, index: int) -> dict[str, object]:
        value, target = float(self.value[index]), f"{float(self.target[index])!r} slots"
        if self.within is not None and self.within[index] >= 0:
            target = _seconds(int(self.within[index]))
        if self.kind[index] == "deadline":
            return {"kind": "deadline", "value": value, "by": target}
        if self.kind[index] == "reciprocal":
            return {"kind": "reciprocal", "value": value}
        return {
            "kind": "sigmoid",
            "value": value,
            "decay": float(self.decay[index]),
            "target": target,
        }

    def write(self, path: Path) -> None:
        """Write a job file atomically: JSON Lines for ``.jsonl``, YAML for ``.yaml`` or ``.yml``.

        Raises `InputError` if the name has another suffix, the folder doesn't exist, or there are
        too many jobs for YAML.
        """
        check_job_file(path)
        if path.suffix != ".jsonl":
            hint = "write a job file that ends in .jsonl"
            write_yaml(path, {"jobs": list(self.to_records())}, hint)
            return
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for record in self.to_records():
                file.write(json.dumps(record) + "\n")


def write_yaml(path: Path, document: Mapping[str, object], hint: str) -> None:
    """Write a file of jobs or servers atomically; raise `InputError` if it is too large."""
    check_document_size(path, document, hint)
    text = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
    with atomic_write(path) as temporary:
        temporary.write_text(YAML_MARK + text, encoding="utf-8")


def check_job_file(path: Path) -> None:
    """Raise `InputError` if `Workload.write` can't write to a path."""
    if path.suffix not in {".jsonl", ".yaml", ".yml"}:
        raise InputError(f"{path}: a job file ends in .jsonl or .yaml")
    check_output_file(path, is_job_lines if path.suffix == ".jsonl" else is_marked_yaml)


def _fit(profile: JobProfile, cluster: Cluster, places: bool, gpu: str) -> JobProfile:
    """Return a profile that requests only resources of a cluster; ``gpu`` is that of its GPUs."""
    if places:
        worker = {"worker": MILLI}
        ps = None if profile.ps is None else {"ps": MILLI}
        if BANDWIDTH in cluster.column or profile.gradient:
            worker |= {name: amount for name, amount in profile.worker.items() if name == BANDWIDTH}
            ps = ps and ps | {
                name: amount for name, amount in (profile.ps or {}).items() if name == BANDWIDTH
            }
        return replace(profile, worker=worker, ps=ps)

    if gpu != GPU and GPU in profile.worker:
        request = {gpu if name == GPU else name: n for name, n in profile.worker.items()}
        profile = replace(profile, worker=request)

    def available(amounts: Mapping[str, int]) -> dict[str, int]:
        return {
            name: amount
            for name, amount in amounts.items()
            if name == BANDWIDTH or cluster.find_resource(name) is not None
        }

    available_ps = None if profile.ps is None else available(profile.ps)
    return replace(profile, worker=available(profile.worker), ps=available_ps)


class _Resolver:
    """Builds jobs for a cluster, and caches what `build_job` computes for jobs that share it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slot = cluster.slot_seconds
        self._restart = cluster.restart_seconds
        self._demands: dict[JobProfile, tuple[Amounts, Amounts | None]] = {}
        self._templates: dict[tuple[JobProfile, int, int], Job] = {}

    def job(self, workload: Workload, index: int) -> Job:
        """Build one job; it takes its template's fields unless they depend on its work."""
        profile = workload.profiles[index]
        min_workers = int(workload.min_workers[index])
        max_workers = min(int(workload.max_workers[index]), int(workload.chunks[index]))
        template = self._templates.get((profile, min_workers, max_workers))
        if template is None:
            template = self._template(
                profile, min_workers, max_workers, int(workload.minibatch_time[index])
            )
            # Otherwise gains are fractions of a mini-batch, and depend on the job's own time.
            if not profile.internal and not self._restart:
                self._templates[profile, min_workers, max_workers] = template
        counts = (
            int(workload.epochs[index]),
            int(workload.chunks[index]),
            int(workload.minibatches[index]),
        )
        work = counts[0] * counts[1] * counts[2]
        if profile.curve is None and not template.two_rates and not self._restart:
            # OASiS (2), as in `build_job`, over the common denominator NANO * bandwidth. Gradients
            # and parameters take 2 * 8 bits per byte of the gradient.
            bandwidth = template.worker_bandwidth or 1
            comm = 2 * 8 * NANO * profile.gradient if template.worker_bandwidth else 0
            step = int(workload.minibatch_time[index]) * bandwidth + comm
            divisor = self._slot.numerator * NANO * bandwidth
            required = -(-work * step * self._slot.denominator // divisor)
            # Equal to the bit: int / int is rounded correctly, as Fraction to float in `build_job`.
            step_seconds = step / (NANO * bandwidth)
        else:
            required, step_seconds = work * MICRO, template.step_seconds
        submitted = int(workload.arrival[index]) * self._slot.denominator
        slot = self._slot.numerator * NANO
        arrival = -(-submitted // slot)
        name = workload.names[index]
        _check_size(name, arrival, required, int(template.internal_gains.max()))
        target = self._target(workload, index, arrival)
        job = replace(
            template,
            name=name,
            arrival=arrival,
            before_arrival=(arrival * slot - submitted) / slot,
            required=required,
            utility=_utility(workload, index, target),
            tenant=workload.tenants[index],
            epochs=counts[0],
            chunks=counts[1],
            minibatches=counts[2],
            step_seconds=step_seconds,
            labels=workload.labels[index],
        )
        if workload.kind[index] != "default":
            return job
        by = target if workload.within is not None and workload.within[index] >= 0 else None
        return with_default_utility(job, profile.worker, self._slot, by=by)

    def _target(self, workload: Workload, index: int, arrival: int) -> float:
        """Return the papers' ``d``, computed as in `core.moments.deadline_in_slots`."""
        if workload.within is None or workload.within[index] < 0:
            return float(workload.target[index])
        due = (int(workload.arrival[index]) + int(workload.within[index])) * self._slot.denominator
        whole, rest = divmod(due, self._slot.numerator * NANO)
        return float(whole - arrival - 1) + rest / (self._slot.numerator * NANO)

    def _template(
        self, profile: JobProfile, min_workers: int, max_workers: int, minibatch_time: int
    ) -> Job:
        """Return a template job with everything that doesn't depend on the amount of work."""
        if profile not in self._demands:
            ps = None if profile.ps is None else self._cluster.demand(profile.ps)
            self._demands[profile] = (self._cluster.demand(profile.worker), ps)
        worker, ps = self._demands[profile]
        speed = (
            StepModel(
                Fraction(minibatch_time if profile.internal or self._restart else NANO, NANO),
                gradient_bytes=profile.gradient,
            )
            if profile.curve is None
            else {count: Fraction(str(rate)) for count, rate in profile.curve.items()}
        )
        return build_job(
            name="template",
            arrival=0,
            epochs=1,
            chunks=max_workers,
            minibatches=1,
            speed=speed,
            worker=worker,
            ps=ps,
            utility=Deadline(0.0, 0.0),  # `job` replaces it
            slot_seconds=self._slot,
            worker_bandwidth=profile.worker.get(BANDWIDTH, 0),
            ps_bandwidth=(profile.ps or {}).get(BANDWIDTH, 0),
            internal_bandwidth=profile.internal,
            worker_range=(min_workers, max_workers),
            restart_seconds=self._restart,
        )


def _check_size(name: str, arrival: int, required: int, fastest: int) -> None:
    """Raise `InputError` if a job arrives too late or takes too long for slots of this length."""
    location, hint = f"job {quote_for_display(name)}", "make slots longer"
    bounds.SLOT.check(arrival, location, hint)
    bounds.PROGRESS.check(required, location, hint)
    bounds.JOB_SLOTS.check(-(-required // max(fastest, 1)), location, hint)


def _utility(workload: Workload, index: int, target: float) -> Utility:
    """Return the stated utility of a job; 0 if it states none, which the caller replaces."""
    value = float(workload.value[index])
    if workload.kind[index] == "deadline":
        return Deadline(value, target)
    if workload.kind[index] == "reciprocal":
        return Reciprocal(value)
    if workload.kind[index] == "default":
        return Constant(0.0)
    return Sigmoid(value, float(workload.decay[index]), target)


def _seconds(nanoseconds: int) -> str:
    return f"{Decimal(nanoseconds).scaleb(-9).normalize():f}s"


def _amount(name: str, value: int) -> int | float | str:
    dimension = _DIMENSIONS.get(name, Dimension.COUNT)
    if dimension is Dimension.COUNT:
        return value // MILLI if value % MILLI == 0 else value / MILLI
    unit, size = next(unit for unit in _UNITS[dimension] if value % unit[1] == 0)
    return f"{value // size}{unit}"


# ------------------------------------------------------------------ types of GPU


_ANY: frozenset[str] = frozenset({"", "*", "any", "gpu", "none", "null", "unknown", "n/a", "-"})
"""Words in place of a type, in lower case, which mean any type."""


def split_types(text: str | None) -> tuple[str, ...]:
    """Return the types that a job may run on, as its trace writes them; empty for any type."""
    types = tuple(word.strip() for word in re.split(r"[|,;]", text or ""))
    return () if any(name.lower() in _ANY for name in types) else types


def choose_resource(types: Sequence[str], cluster: Cluster) -> str | None:
    """Return the resource of the GPUs that a job requests; None if no server has its types.

    It is ``gpu`` if the cluster's servers name no types, or the job may run on all of them. Of
    several types, the most numerous is chosen, because a job can only request one resource.
    """
    kinds = [name for name in cluster.resources if is_gpu_kind(name)]
    if not types or not kinds:
        return GPU
    closest = {kind for name in types for kind in _closest(name, kinds)}
    allowed = [kind for kind in kinds if kind in closest]
    totals = {name: int(cluster.capacity[:, cluster.column[name]].sum()) for name in allowed}
    if len(allowed) > 1 and len(allowed) == len(kinds):
        all_gpus = int(cluster.capacity[:, cluster.column[GPU]].sum())
        if sum(totals.values()) == all_gpus:  # no server has GPUs of an unknown type
            return GPU
    return max(allowed, key=totals.__getitem__) if allowed else None


def _closest(name: str, kinds: Sequence[str]) -> list[str]:
    """Return the resources ``gpu/KIND`` that a trace's name of a type is likely to mean.

    Either name may have more words: ``Tesla-V100-SXM2-32GB`` is a ``v100``, unless there is a
    ``v100-32gb``. The closest resources have the most common words, then the fewest other words.
    """
    wanted = _words(name)
    scores: dict[str, tuple[int, int]] = {}
    for kind in kinds:
        words = _words(kind.partition("/")[2])
        if words and wanted and (words <= wanted or wanted <= words):
            scores[kind] = len(words & wanted), -len(words ^ wanted)
    return [kind for kind, score in scores.items() if score == max(scores.values())]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
