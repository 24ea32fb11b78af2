"""Reading a run's files again to work out advice on a refused job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.extensions import FileExtension, split_path

if TYPE_CHECKING:
    from shadowprice.results.advice import Counsel
    from shadowprice.results.story import Story
    from shadowprice.simulator.scenario import Scenario

PATIENCE: Final = 10.0
"""Seconds that working out advice may take without being asked for."""
FORMAT: Final = "trace format"
"""Kind of the input that is the file of a trace format."""

_EACH: Final = 0.0003
"""Seconds that a job costs beside its decision."""
_RUNS: Final = 60
"""Runs that advice takes where every change is run."""


def wanted(story: Story) -> bool:
    """Whether there is something to advise: the job was refused, or given up as good as that."""
    from shadowprice.results.advice import advised_outcomes

    return story.job["outcome"] in advised_outcomes(story.info)


def executes_files(info: Mapping[str, Any]) -> bool:
    """Whether to repeat a run means to execute files of users: its policy's, its trace format's."""
    kinds = {part["kind"] for part in info["inputs"]}
    return "file" in (info.get("policy_origin") or {}) or FORMAT in kinds


def expected_seconds(story: Story) -> float:
    """Return about how long advice takes: runs up to the job's arrival, at the run's own pace."""
    info = story.info
    latency = info["timing"]["decision_latency"] or {}
    jobs = int(info["summary"]["jobs"])
    # Medians, because first decisions compile; solving beforehand shows in the wall time only.
    seconds = jobs * (float(latency.get("p50") or 0.0) + _EACH)
    can = info["capabilities"]
    if can.get("quotes", False) and can.get("answers_at_once", False):
        return seconds
    return _RUNS * max(seconds, float(info["timing"]["wall_seconds"]))


def counsel_on(folder: Path, story: Story) -> Counsel:
    """Work out what would have had a run's refused job admitted.

    Raises
    ------
    InputError
        If the files of the run are gone or changed, or were not named.
    """
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.advice import advise

    info = story.info
    if info.get("settings") is None or "options" not in info:
        raise InputError(Fault(str(folder), "does not say how it was made", "run it again"))
    scenario = _scenario(folder, info)
    name = story.job["job"]
    position = next(at for at, job in enumerate(scenario.jobs) if job.name == name)
    assert scenario.entry is not None
    choice = PolicyChoice.of_run(info)
    return advise(scenario, choice, position, scenario.entry(position))


def _scenario(folder: Path, info: dict[str, Any]) -> Scenario:
    """Read the inputs of a run once more, and make sure that they are what they were."""
    from shadowprice.simulator.source import Source

    named = {part["kind"]: part for part in info["inputs"]}
    options = info["options"]
    until = info["until"]
    trace = named["trace"]["name"] if "trace" in named else None
    if FORMAT in named:
        reference, _ = split_path(str(trace)) or ("", "")
        file = FileExtension.read(reference, "trace")
        if file.sha256 != named[FORMAT]["sha256"]:  # before it executes
            raise InputError(Fault(file.path, "has changed since the run", "run it again"))
    files = {kind: part for kind, part in named.items() if kind not in {"trace", FORMAT}}
    found = {kind: _found(folder, part["name"]) for kind, part in files.items()}
    if "jobs" not in found and trace is None:
        raise InputError(Fault(str(folder), "names no job file", "advice needs one to change"))
    source = Source(
        cluster=found.get("cluster"),
        jobs=found.get("jobs"),
        trace=trace,
        incidents=found.get("incidents"),
        until=None if until is None else f"{until} slots",
        slot=options["slot"],
        load=options["load"],
        skip_invalid=options["skip_invalid"],
    )
    scenario, _ = source.scenario(info["seed"])
    for part in scenario.inputs:
        if part.sha256 != named[part.kind]["sha256"]:
            raise InputError(Fault(part.name, "has changed since the run", "run it again"))
    return scenario


def _found(folder: Path, name: str) -> Path:
    """Return where a file is: as it was named, from here or from a folder above the run."""
    candidates = [Path(name), *(parent / name for parent in folder.resolve().parents)]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise InputError(Fault(name, "is not there any more", "go to where the run was made"))
    return found
