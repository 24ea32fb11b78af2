"""Options that several commands share, and reading what they name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli.console import Output
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import shown

if TYPE_CHECKING:
    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.results.collect import Input
    from shadowprice.simulator.scenario import Scenario

LEAST_LOAD = 1e-3
"""Least load that a cluster is sized for: a thousand times the servers that the work needs."""

WHAT, HOW, OUTPUT = "What to run", "How to run it", "Results"


def complete_policy(incomplete: str) -> list[str]:
    """Return the policies that a list of names, the last one unfinished, can end in."""
    from shadowprice.policies.registry import policies

    *before, last = incomplete.split(",")
    prefix = "".join(f"{name}," for name in before)
    return [prefix + name for name in policies() if name.startswith(last)]


ClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster", "-c", help="Cluster file (YAML).", rich_help_panel=WHAT, metavar="FILE"
    ),
]
JobsOption = Annotated[
    Path | None,
    typer.Option(
        "--jobs", "-j", help="Job file: YAML, or JSON Lines.", rich_help_panel=WHAT, metavar="FILE"
    ),
]
TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace",
        help="A cluster trace in place of a job file, such as philly:PATH?limit=1000; without "
        "--cluster, on one sized to it (--load, --slot).",
        rich_help_panel=WHAT,
        metavar="FORMAT:PATH",
    ),
]
IncidentsOption = Annotated[
    Path | None,
    typer.Option(
        "--incidents",
        help="Servers lost and back, jobs cancelled, by slot (YAML or JSON Lines).",
        rich_help_panel=WHAT,
        metavar="FILE",
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        help="Timespan T, such as '300 slots' or 5d: nothing runs in slot T or later; without "
        "it, until the last job is done.",
        rich_help_panel=WHAT,
    ),
]
SlotOption = Annotated[
    str,
    typer.Option(
        "--slot", help="Slot length of the cluster that --trace brings.", rich_help_panel=WHAT
    ),
]
LoadOption = Annotated[
    float,
    typer.Option(
        "--load",
        min=LEAST_LOAD,
        max=bounds.LOAD.most,
        help="GPU-time asked for over GPU-time there is, of that cluster.",
        rich_help_panel=WHAT,
    ),
]
SkipInvalidOption = Annotated[
    bool,
    typer.Option(
        "--skip-invalid",
        help="Leave faulty jobs out instead of refusing the file.",
        rich_help_panel=WHAT,
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        "-p",
        help="Who decides; `shadowprice policies` lists them.",
        rich_help_panel=HOW,
        autocompletion=complete_policy,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="A parameter of the policy; may be given several times.",
        rich_help_panel=HOW,
        metavar="KEY=VALUE",
    ),
]
ParamsOption = Annotated[
    Path | None,
    typer.Option(
        "--params", help="Parameters from a TOML file.", rich_help_panel=HOW, metavar="FILE"
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=bounds.SEED.most,
        help="Seed of everything drawn.",
        rich_help_panel=HOW,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Directory to write the results to; an earlier result there is replaced.",
        rich_help_panel=OUTPUT,
        metavar="DIR",
    ),
]
OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="What to print on stdout.", rich_help_panel=OUTPUT),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no remarks.", rich_help_panel=OUTPUT)
]


def load_scenario(
    *,
    cluster: Path | None,
    jobs: Path | None,
    trace: str | None,
    incidents: Path | None,
    params: Path | None,
    until: str | None,
    slot: str,
    load: float,
    seed: int,
    skip_invalid: bool,
) -> tuple[Scenario, list[str]]:
    """Read everything that a run is made of.

    Returns
    -------
    (Scenario, list of str)
        What to run, and remarks on what was left out or assumed.

    Raises
    ------
    InputError
        If an option is missing or contradicts another, or a file is wrong.
    """
    from shadowprice.inputs import read_cluster
    from shadowprice.inputs.incidents import read_incidents
    from shadowprice.results.collect import Input
    from shadowprice.simulator.scenario import Scenario

    if (jobs is None) == (trace is None):
        found = "both --jobs and --trace are given" if jobs else "what to run is missing"
        raise InputError(Fault("", found, "give --jobs FILE with --cluster FILE, or --trace"))
    if trace is None and cluster is None:
        raise InputError(Fault("", "--cluster is missing", "give the cluster file of these jobs"))
    inputs: list[Input] = []
    servers = None
    if cluster is not None:
        servers = read_cluster(cluster)
        inputs.append(Input.of("cluster", cluster))
    if jobs is not None:
        assert servers is not None
        workload, remarks = _read_jobs(jobs, servers, skip_invalid)
        inputs.append(Input.of("jobs", jobs))
    else:
        assert trace is not None
        servers, workload, remarks, read = _read_trace(
            trace, servers, _slot_length(slot), load, seed, skip_invalid
        )
        inputs.append(read)
    happenings = [] if incidents is None else read_incidents(incidents, servers, workload)
    for kind, file in (("incidents", incidents), ("params", params)):
        if file is not None:
            inputs.append(Input.of(kind, file))
    scenario = Scenario(
        cluster=servers,
        jobs=workload,
        until=_timespan(until, servers),
        seed=seed,
        incidents=happenings,
        inputs=inputs,
    )
    return scenario, remarks


def _read_jobs(path: Path, cluster: Cluster, skip_invalid: bool) -> tuple[list[Job], list[str]]:
    from shadowprice.inputs import read_jobs

    return read_jobs(path, cluster, skip_invalid=skip_invalid), []


def _read_trace(
    spec: str, cluster: Cluster | None, slot: Fraction, load: float, seed: int, skip_invalid: bool
) -> tuple[Cluster, list[Job], list[str], Input]:
    from shadowprice.core.specs import ClusterSpec, validate
    from shadowprice.results.collect import Input
    from shadowprice.traces.generator import cluster_for
    from shadowprice.traces.locate import parse_spec, read_trace
    from shadowprice.traces.synthesis import OPTION_NAMES, SynthesisOptions, synthesize

    parsed = parse_spec(spec, OPTION_NAMES)
    options = SynthesisOptions.from_text(dict(parsed.synthesis))
    traced = read_trace(parsed, skip_invalid=skip_invalid)
    length = slot if cluster is None else cluster.slot_seconds
    workload = synthesize(traced, length, options, seed=seed)
    remarks = [f"{note.count:,} x {note.reason} ({note.action})" for note in traced.notes]
    if cluster is None:
        document = cluster_for(workload, load=load)
        built, faults = validate(ClusterSpec, document, "the cluster sized to the trace")
        if built is None:
            raise InputError(faults)
        cluster = built.resolve("the cluster sized to the trace")
        counts = ", ".join(f"{part['count']} x {part['name']}" for part in document["servers"])
        remarks.append(f"a cluster sized to the trace at load {load:g}: {counts}")
    workload = workload.fitted_to(cluster)
    jobs = workload.to_jobs(cluster)
    return cluster, jobs, [*remarks, *workload.notes], Input.of("trace", parsed.path, spec)


def _slot_length(text: str) -> Fraction:
    from shadowprice.core.amounts import parse_duration

    try:
        duration = parse_duration(text)
    except InputError as error:
        raise InputError(Fault("--slot", str(error))) from error
    if duration.slots or not duration.seconds:
        raise InputError(Fault("--slot", f"{text!r} is no length of time", "write 20min"))
    return duration.seconds


def _timespan(text: str | None, cluster: Cluster) -> int | None:
    """Return T: the slots that are over by then, since nothing may run later."""
    from shadowprice.core.amounts import parse_duration

    if text is None:
        return None
    try:
        slots = int(parse_duration(text).in_slots(cluster.slot_seconds))
    except InputError as error:
        raise InputError(Fault("--until", str(error))) from error
    bounds.SLOT.check(slots, "--until")
    if slots < 1:
        raise InputError(Fault("--until", f"{text!r} is less than a slot", "write '300 slots'"))
    return slots


def policy_settings(
    params: Path | None, settings: Sequence[str] | None, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each policy from ``--params`` and ``--set``.

    A TOML table or a first name that is a policy's (``[oasis]``, ``--set oasis.prices=online``)
    is for that policy; anything else is for every policy that has the parameter.

    Parameters
    ----------
    params : Path, optional
        The TOML file.
    settings : sequence of str, optional
        ``KEY=VALUE`` pairs; they come after the file.
    names : sequence of str
        Policies that will run.

    Raises
    ------
    InputError
        If a pair has no value, or no policy has the parameter.
    """
    from shadowprice.inputs import read_parameters
    from shadowprice.policies.registry import policies, policy_info

    known = {
        name: {
            label
            for field, info in policy_info(name).parameters.model_fields.items()
            for label in (field, info.alias)
        }
        for name in names
    }
    result: dict[str, dict[str, Any]] = {name: {} for name in names}
    layers = [] if params is None else [(str(params), read_parameters(params))]
    layers += [("--set", setting(text)) for text in settings or ()]
    for place, layer in layers:
        for key, value in layer.items():
            if key in policies() and isinstance(value, dict):
                owners, addition = [name for name in names if name == key], value
                if not owners and place == "--set":
                    raise InputError(Fault(f"{place} {key}", f"{key!r} is not among the policies"))
            else:
                owners = [name for name in names if key in known[name]]
                # One policy reports an unknown name itself, with the nearest it knows.
                owners = owners or ([names[0]] if len(names) == 1 else [])
                addition = {key: value}
                if not owners:
                    fault = Fault(f"{place} {key}", f"no policy of {', '.join(names)} has it")
                    raise InputError(fault)
            for name in owners:
                merge(result[name], addition)
    return result


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise InputError(Fault("--set", f"{shown(text)} is no parameter", "write KEY=VALUE"))
    value = value.strip()
    if value[0] in "[{":
        try:
            return key.strip(), tomllib.loads(f"value = {value}")["value"]
        except RecursionError as error:
            raise InputError(Fault(f"--set {shown(key)}", "is nested too deeply")) from error
        except ValueError as error:
            message = f"{shown(value)} is not TOML: {error}"
            raise InputError(Fault(f"--set {shown(key)}", message)) from error
    return key.strip(), value


def setting(text: str) -> dict[str, Any]:
    """Return one ``KEY=VALUE`` pair as nested mappings.

    Raises
    ------
    InputError
        If it has no value.
    """
    from shadowprice.policies.registry import nested

    return nested([_pair(text)])


def merge(target: dict[str, Any], addition: Mapping[str, Any]) -> None:
    """Lay nested settings over others, in place."""
    for key, value in addition.items():
        inner = target.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            merge(inner, value)
        elif isinstance(value, Mapping):
            target[key] = {}
            merge(target[key], value)
        else:
            target[key] = value
