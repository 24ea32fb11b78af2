"""Advice on a refused job, computed from the run's input files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.extensions import FileExtension, split_path

if TYPE_CHECKING:
    from shadowprice.results.advice import JobAdvice
    from shadowprice.results.job_history import JobHistory
    from shadowprice.simulator.scenario import Scenario

MAX_UNREQUESTED_SECONDS: Final = 10.0
"""Limit of the estimated time of advice that wasn't requested, in seconds."""
FORMAT: Final = "trace format"  # kind of input that is the file of a trace format

_SECONDS_PER_JOB: Final = 0.0003  # estimated time of a job in addition to its decision, in seconds
_RUNS_WITHOUT_QUOTES: Final = 60
"""Estimated number of runs if the policy can't quote and every change is simulated."""


def needs_advice(history: JobHistory) -> bool:
    """Return whether advice applies: the job was refused, or dropped where that is equivalent."""
    from shadowprice.results.advice import outcomes_with_advice

    return history.job["outcome"] in outcomes_with_advice(history.info)


def executes_files(info: Mapping[str, Any]) -> bool:
    """Return whether repeating a run executes user files: of its policy or trace format."""
    kinds = {entry["kind"] for entry in info["inputs"]}
    return "file" in (info.get("policy_origin") or {}) or FORMAT in kinds


def expected_seconds(history: JobHistory) -> float:
    """Estimate the time that advice takes, in seconds.

    It repeats the run up to the job's arrival, at the pace of the original run.
    """
    info = history.info
    latency = info["timing"]["decision_latency"] or {}
    jobs = int(info["summary"]["jobs"])
    # The median excludes the first decisions, which compile. Work before the first decision
    # is only included in the wall time.
    seconds = jobs * (float(latency.get("p50") or 0.0) + _SECONDS_PER_JOB)
    capabilities = info["capabilities"]
    if capabilities.get("quotes", False) and capabilities.get("answers_at_once", False):
        return seconds
    return _RUNS_WITHOUT_QUOTES * max(seconds, float(info["timing"]["wall_seconds"]))


def compute_advice(folder: Path, history: JobHistory) -> JobAdvice:
    """Find the changes that would have had a run's refused job admitted.

    Raises `InputError` if an input file of the run is missing, changed or was never named.
    """
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.advice import advise

    info = history.info
    if info.get("settings") is None or "options" not in info:
        raise InputError(
            Fault(str(folder), "doesn't record its settings and options", "run it again")
        )
    if "lengths" in info["options"]:
        problem = f"was run with --lengths {info['options']['lengths']}"
        raise InputError(Fault(str(folder), problem, "run it with known lengths for advice"))
    if "values" in info["options"]:
        problem = f"was run with --values {info['options']['values']}"
        raise InputError(Fault(str(folder), problem, "run it with stated values for advice"))
    scenario = _scenario(folder, info)
    name = history.job["job"]
    position = next(index for index, job in enumerate(scenario.jobs) if job.name == name)
    assert scenario.entry is not None
    choice = PolicyChoice.of_run(info)
    return advise(scenario, choice, position, scenario.entry(position))


def _scenario(folder: Path, info: dict[str, Any]) -> Scenario:
    """Read the inputs of a run again, and check that their digests haven't changed."""
    from shadowprice.simulator.source import ScenarioSource

    inputs = {entry["kind"]: entry for entry in info["inputs"]}
    options = info["options"]
    until = info["until"]
    trace = inputs["trace"]["name"] if "trace" in inputs else None
    if FORMAT in inputs:
        reference, _ = split_path(str(trace)) or ("", "")
        file = FileExtension.read(reference, "trace")
        if file.sha256 != inputs[FORMAT]["sha256"]:  # check before the file is executed
            raise InputError(Fault(file.path, "has changed since the run", "run it again"))
    files = {kind: entry for kind, entry in inputs.items() if kind not in {"trace", FORMAT}}
    paths = {kind: _find_input(folder, entry["name"]) for kind, entry in files.items()}
    if "jobs" not in paths and trace is None:
        raise InputError(Fault(str(folder), "has no job file", "advice needs a job file to change"))
    source = ScenarioSource(
        cluster=paths.get("cluster"),
        jobs=paths.get("jobs"),
        trace=trace,
        incidents=paths.get("incidents"),
        until=None if until is None else f"{until} slots",
        slot=options["slot"],
        load=options["load"],
        skip_invalid=options["skip_invalid"],
    )
    scenario, _ = source.scenario(info["seed"])
    for entry in scenario.inputs:
        if entry.sha256 != inputs[entry.kind]["sha256"]:
            raise InputError(Fault(entry.name, "has changed since the run", "run it again"))
    return scenario


def _find_input(folder: Path, name: str) -> Path:
    """Return the path of an input, relative to here or to a folder above the run."""
    candidates = [Path(name), *(parent / name for parent in folder.resolve().parents)]
    match = next((path for path in candidates if path.exists()), None)
    if match is None:
        raise InputError(Fault(name, "file not found", "use the directory where the run was made"))
    return match
