"""Files and options of a run, from which a scenario is built for each seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.core import bounds
from shadowprice.core.amounts import parse_duration, parse_positive_duration
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.wording import hint_for_unknown
from shadowprice.extensions import FileExtension
from shadowprice.inputs import read_jobs
from shadowprice.inputs.files import (
    Incident,
    read_entry,
    read_incidents,
    resolve_cluster,
    resolve_incidents,
    resolve_records,
)
from shadowprice.inputs.text import load_yaml
from shadowprice.inputs.unpacking import split_member
from shadowprice.results.run_builder import RunInput
from shadowprice.simulator.lengths import KNOWN, walltime_limits
from shadowprice.simulator.scenario import Scenario, command_option

if TYPE_CHECKING:
    from shadowprice.simulator.traced import TraceWorkload
    from shadowprice.traces.records import Trace
    from shadowprice.traces.workload import Workload

Document = Mapping[str, Any]

SIZED_CLUSTER_LABEL = "the cluster sized to the trace"


@dataclass(frozen=True, eq=False)
class ScenarioSource:
    """Files and options that define a scenario for each seed."""

    cluster: Path | Document | None = None  # cluster file, or its content
    jobs: Path | Sequence[Document] | None = None  # job file, or its jobs
    trace: str | None = None
    """Trace instead of jobs, as in ``--trace``; without a cluster, one is sized to it."""
    incidents: Path | Sequence[Document] | None = None  # incident file, or its incidents
    params: Path | None = None  # file of policy parameters; only its digest is recorded here
    until: str | None = None  # such as ``300 slots``
    slot: str = "20min"  # slot length of the cluster that is sized to a trace
    load: float = 1.0  # requested over available GPU-time of that cluster (else core-time)
    skip_invalid: bool = False  # leave invalid jobs out
    lengths: str = KNOWN
    """Lengths that policies see: one of `shadowprice.simulator.lengths.LENGTHS`."""
    locate: Callable[[str], str] = command_option
    """Function that names a field in errors: as the option of a command, or as an argument."""
    _traces: dict[str, TraceWorkload] = field(default_factory=dict, init=False)

    def with_lengths(self, lengths: str) -> ScenarioSource:
        """Return this source with other lengths for policies; both share the traces read so far."""
        twin = copy(self)
        object.__setattr__(twin, "lengths", lengths)  # `replace` would not share the traces
        return twin

    def __post_init__(self) -> None:
        cluster, jobs, trace = map(self.locate, ("cluster", "jobs", "trace"))
        if (self.jobs is None) == (self.trace is None):
            problem = f"both {jobs} and {trace} are given" if self.jobs else "no workload is given"
            raise InputError(Fault("", problem, f"give {jobs} with {cluster}, or give {trace}"))
        if self.trace is None and self.cluster is None:
            raise InputError(Fault("", f"{cluster} is missing", "give the cluster of these jobs"))
        # Checked even if there is no trace, so that an invalid value isn't ignored.
        parse_positive_duration(self.slot, self.locate("slot"), "20min")

    def scenario(
        self, seed: int = 0, added: Mapping[str, int] | None = None
    ) -> tuple[Scenario, list[str]]:
        """Read all files; return the scenario, and remarks on omitted jobs and assumptions.

        ``added`` are numbers of servers to add to entries of the cluster, by the entry's name.
        Negative numbers remove servers.
        """
        inputs: list[RunInput] = []
        entry: Callable[[int], Document]
        document: Document | None = None
        if self.cluster is not None:
            document, location = self._document()
            inputs.append(_input("cluster", self.cluster))
        if self.jobs is None:
            servers, columns, remarks = self._read_trace(document, seed, added)
            workload, entry, drawn = columns.to_jobs(servers), columns.to_record, columns.drawn
            limits = columns.work_limits(workload)
            assert self.trace is not None
            traced = self._trace_workload()
            file, _ = split_member(traced.path)
            inputs.append(RunInput.of("trace", file, self.trace, traced.start))
            extension = traced.format.extension
            if isinstance(extension, FileExtension):
                inputs.append(RunInput("trace format", extension.path, extension.sha256))
        else:
            assert document is not None
            servers = resolve_cluster(
                with_servers_changed(document, added or {}, location), location
            )
            workload, remarks = self._read_jobs(servers), []
            entry = partial(_entry, self.jobs, workload)
            bags = sum(job.bag is not None for job in workload)
            drawn = (f"the run times of tasks of {bags:,} jobs",) if bags else ()
            limits = walltime_limits(workload)
            inputs.append(_input("jobs", self.jobs))
        events = self._read_incidents(servers, workload)
        if self.incidents is not None:
            inputs.append(_input("incidents", self.incidents))
        if self.params is not None:
            inputs.append(RunInput.of("params", self.params))
        scenario = Scenario(
            cluster=servers,
            jobs=workload,
            until=_timespan(self.until, servers, self.locate("until")),
            seed=seed,
            incidents=events,
            inputs=inputs,
            options={"slot": self.slot, "load": self.load, "skip_invalid": self.skip_invalid},
            entry=entry,
            work_limits=limits,
            drawn=drawn,
            locate=self.locate,
        )
        return scenario.with_lengths(self.lengths), remarks

    def log(self) -> Trace | None:
        """Return the trace as it was read, None if the jobs come from a file."""
        return None if self.trace is None else self._trace_workload().trace

    def kinds(self, seed: int = 0) -> list[str]:
        """Return the names of the cluster's server entries, in order."""
        return [str(entry["name"]) for entry in self.server_entries(seed)]

    def server_entries(self, seed: int = 0) -> Sequence[Document]:
        """Return the cluster's server entries as its file writes them, in order."""
        if self.cluster is not None:
            document = self._document()[0]
            resolve_cluster(document, self._document()[1])  # report a problem of the file first
        else:
            document = self._sized_cluster(seed)
        entries: Sequence[Document] = document["servers"]
        return entries

    def _document(self) -> tuple[Document, str]:
        if isinstance(self.cluster, Path):
            document, location = load_yaml(self.cluster), str(self.cluster)
            if document is None:  # an empty file; this raises its error
                resolve_cluster(document, location)
            return document, location
        assert self.cluster is not None
        return self.cluster, "cluster"

    def _read_jobs(self, cluster: Cluster) -> list[Job]:
        if isinstance(self.jobs, Path):
            return read_jobs(self.jobs, cluster, skip_invalid=self.skip_invalid)
        assert self.jobs is not None
        records = ((f"jobs[{index}]", record) for index, record in enumerate(self.jobs))
        return resolve_records(records, cluster, skip_invalid=self.skip_invalid)

    def _read_incidents(self, cluster: Cluster, jobs: Sequence[Job]) -> list[Incident]:
        if self.incidents is None:
            return []
        if isinstance(self.incidents, Path):
            return read_incidents(self.incidents, cluster, jobs)
        records = ((f"incidents[{index}]", record) for index, record in enumerate(self.incidents))
        return resolve_incidents(records, "incidents", cluster, jobs)

    # ------------------------------------------------------------ traces

    def _trace_workload(self) -> TraceWorkload:
        # Imported here, because runs of job files don't need this slow import.
        from shadowprice.simulator.traced import TraceWorkload  # noqa: PLC0415

        assert self.trace is not None
        if self.trace not in self._traces:
            self._traces[self.trace] = TraceWorkload(self.trace, skip_invalid=self.skip_invalid)
        return self._traces[self.trace]

    def _sized_cluster(self, seed: int) -> Document:
        traced = self._trace_workload()
        length = parse_positive_duration(self.slot, self.locate("slot"), "20min")
        return traced.sized(traced.workload(length, seed), self.load)

    def _read_trace(
        self, document: Document | None, seed: int, added: Mapping[str, int] | None
    ) -> tuple[Cluster, Workload, list[str]]:
        traced = self._trace_workload()
        location = SIZED_CLUSTER_LABEL if self.cluster is None else self._document()[1]
        length = parse_positive_duration(self.slot, self.locate("slot"), "20min")
        if document is not None:
            length = resolve_cluster(document, location).slot_seconds
        workload = traced.workload(length, seed)
        remarks = list(traced.remarks)
        if document is None:
            document = traced.sized(workload, self.load)
            counts = ", ".join(
                f"{entry['count']} x {entry['name']}" for entry in document["servers"]
            )
            remarks.append(f"a cluster sized to the trace at load {self.load:g}: {counts}")
        cluster = resolve_cluster(with_servers_changed(document, added or {}, location), location)
        workload = workload.fitted_to(cluster, skip_invalid=traced.skip_invalid)
        return cluster, workload, [*remarks, *workload.notes]


def _entry(jobs: Path | Sequence[Document], workload: Sequence[Job], index: int) -> Document:
    """Return the record of a job by its name, as invalid jobs may have been left out."""
    name = workload[index].name
    if isinstance(jobs, Path):
        return read_entry(jobs, name)
    return next(record for record in jobs if record["name"] == name)


def with_servers_changed(document: Document, added: Mapping[str, int], location: str) -> Document:
    """Return the content of a cluster file with servers added or removed.

    Added servers continue the numbers of their entry: ``gpu-50`` after ``gpu-49``. An entry without
    a count gets servers with the names ``NAME-more-0`` and so on. The last servers are removed
    first. Errors begin with ``location``.
    """
    entries = document.get("servers") if isinstance(document, Mapping) else None
    if not added or not isinstance(entries, list):
        return document  # its reader reports a malformed file
    names = [entry.get("name") for entry in entries if isinstance(entry, Mapping)]
    for name in added:
        if name not in names:
            hint = hint_for_unknown(name, [str(candidate) for candidate in names])
            raise InputError(Fault(location, f"unknown servers {name!r}", hint))
    changed: list[Any] = []
    for entry in entries:
        difference = added.get(str(entry.get("name")), 0) if isinstance(entry, Mapping) else 0
        count = entry.get("count", 1) if difference else 1
        if not difference or not isinstance(count, int):
            changed.append(entry)
            continue
        if count + difference < 0:
            message = f"can't remove {-difference} of {count} servers {entry['name']!r}"
            raise InputError(Fault(location, message))
        copied = deepcopy(dict(entry))
        if "count" in copied and count + difference:
            changed.append(copied | {"count": count + difference})
        elif "count" not in copied and difference > 0:
            changed += [copied, copied | {"name": f"{copied['name']}-more", "count": difference}]
    return {**document, "servers": changed}


def _input(kind: str, content: Path | object) -> RunInput:
    """Return the record of an input: a file, or the content of one."""
    if isinstance(content, Path):
        return RunInput.of(kind, split_member(content)[0], str(content))
    text = json.dumps(content, sort_keys=True, default=str)
    return RunInput(kind, f"given as {kind}", hashlib.sha256(text.encode()).hexdigest())


def _timespan(text: str | None, cluster: Cluster, location: str) -> int | None:
    """Return the end of the timespan in slots, rounded down because nothing may run after it."""
    if text is None:
        return None
    try:
        slots = int(parse_duration(text).in_slots(cluster.slot_seconds))
    except InputError as error:
        raise InputError(Fault(location, str(error))) from error
    bounds.SLOT.check(slots, location)
    if slots < 1:
        raise InputError(Fault(location, f"{text!r} is less than a slot", "write '300 slots'"))
    return slots
