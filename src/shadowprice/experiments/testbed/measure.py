"""The testbed's jobs under each policy: run for real, and beside it what the simulator says.

What a start costs is measured first, on jobs that begin together, and is what the files then say.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.errors import MissingExtraError, ShadowpriceError
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.beside import as_submitted, measured_progress, predicted_progress
from shadowprice.experiments.framework import UnavailableError
from shadowprice.experiments.live import Lived, Where, live_once
from shadowprice.experiments.testbed.files import Files, runnable, scaled
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.files import Run
from shadowprice.simulator.scenario import run_policy
from shadowprice.simulator.source import Source

if TYPE_CHECKING:
    from shadowprice.experiments.framework import Settings, Tables

POLICIES: Final = (
    PolicyChoice("fifo"),
    PolicyChoice("drf"),
    PolicyChoice("rrh"),
    PolicyChoice("dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}, "dorm"),
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("rolling", {"steady": True}, "rolling"),
)
"""As where jobs really run: nobody knows the jobs that are still to come."""

AHEAD: Final = 3.0
"""Seconds before its slot at which a job is submitted."""

PROBED: Final = 3
"""Jobs that begin together where a start is measured, twice."""

APART: Final = 2
"""Slots between the two times."""

PATIENT: Final = 4
"""Times as many slots in which they are tried again, where a busy machine began none of them."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    seconds: int
    slots: int
    jobs: int
    policies: tuple[PolicyChoice, ...]


FULL: Final = Size(seconds=40, slots=10, jobs=12, policies=POLICIES)
QUICK: Final = Size(seconds=30, slots=4, jobs=4, policies=(POLICIES[0], POLICIES[-2]))


def measure_testbed(settings: Settings) -> Tables:
    """Measure a start, run the jobs for real under each policy, and simulate the same files."""
    if not sys.platform.startswith("linux"):
        raise UnavailableError("jobs really run in this experiment, which needs Linux")
    for module, extra, what in (
        ("uvicorn", "service", "running the live service"),
        ("torch", "train", "training the jobs"),
    ):
        if find_spec(module) is None:
            raise MissingExtraError(module, extra, what)
    size = QUICK if settings.quick else FULL
    where = settings.where or Where()
    (start,) = settings.each(
        _started, [(size, where, settings.seed)], lambda *_: "measuring a start"
    )
    restart = min(float(size.seconds), start)
    files = _files(size, settings.seed, restart)
    ran = settings.each(
        _ran,
        [(size, who, where, settings.seed, restart) for who in size.policies],
        lambda _size, who, *_: f"really running under {who.label}",
    )
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    hindsight: list[float] = []
    for who, lived in zip(size.policies, ran, strict=True):
        _compare(files, who, lived, rows, curves)
        took = _mean_start(files, lived)
        again = _files(size, settings.seed, restart if took is None else took)
        hindsight.append(_predicted_utility(again, who, lived))
    # Where nothing completed, or began, nothing tells what a column holds.
    whole = dict.fromkeys(("completion", "predicted_completion"), pl.Int64)
    real = dict.fromkeys(("late", "predicted_late", "start"), pl.Float64)
    table = pl.DataFrame(rows, schema_overrides={**whole, **real}, infer_schema_length=None)
    progress = pl.DataFrame(curves, infer_schema_length=None)
    return {
        "jobs": table,
        "progress": progress,
        "starts": pl.DataFrame(
            [{"executor": where.executor, "slot": size.seconds, "start": start}]
        ),
        "summary": _summary(table, progress, [who.label for who in size.policies]).with_columns(
            hindsight_utility=pl.Series(hindsight)
        ),
    }


def _files(size: Size, seed: int, restart: float | None) -> Files:
    return scaled(size.seconds, seed=seed, jobs=size.jobs, slots=size.slots, restart=restart)


# ------------------------------------------------------------------ for real


def _lived(
    files: Files,
    jobs: Sequence[Mapping[str, Any]],
    who: PolicyChoice,
    where: Where,
    seed: int,
    slots: int,
) -> dict[str, Lived]:
    """Run some of the files' jobs, and return what became of each."""
    asked = []
    for job in jobs:
        after = files.seconds * int(str(job["arrival"]).removesuffix(" slots"))
        asked.append((after, runnable(files, job, seed)))
    return live_once(files.cluster, asked, who, files.seconds * slots, where, ahead=AHEAD)


def _started(size: Size, where: Where, seed: int) -> float:
    """Return the seconds from a slot's beginning in which a job that begins does nothing.

    In the runs several begin, and others are moved, at one edge, and share this machine's
    processors; so they do here. The first of all find everything cold, and count only where no
    others got anywhere.
    """
    files = _files(size, seed, None)
    waves = [wave for wave in (files.jobs[:PROBED], files.jobs[PROBED : 2 * PROBED]) if wave]
    jobs = [
        {**job, "arrival": f"{APART * at} slots"} for at, wave in enumerate(waves) for job in wave
    ]
    once = APART * len(waves)
    for slots in (once, PATIENT * once):
        lived = _lived(files, jobs, PolicyChoice("drf"), where, seed, slots)
        for wave in reversed(waves):
            found = [lived[str(job["name"])].start(files.speeds(job)) for job in wave]
            known = [one for one in found if one is not None]
            if known:
                return fmean(known)
    told = [one.record.get("reason") for one in lived.values()]
    raise ShadowpriceError(f"the jobs that were to be measured got nowhere: {told}")


def _ran(
    size: Size, who: PolicyChoice, where: Where, seed: int, restart: float
) -> dict[str, Lived]:
    """Run all jobs under a policy until the last slot is over."""
    files = _files(size, seed, restart)
    return _lived(files, files.jobs, who, where, seed, size.slots)


# ------------------------------------------------------------------ beside the simulator


def simulated(files: Files, who: PolicyChoice, lived: Mapping[str, Lived] | None = None) -> Run:
    """Return what the simulator makes of the files, or of what was really submitted of them.

    Parameters
    ----------
    files : Files
        What is run.
    who : PolicyChoice
        Who decides.
    lived : mapping of str to Lived, optional
        What became of the jobs: then they have the names under which they ran, by which `fifo`
        draws how many workers they get, and arrive when they were submitted.
    """
    documents = list(files.jobs)
    if lived is not None:
        documents = [as_submitted(job, lived[str(job["name"])]) for job in documents]
    scenario, _ = Source(cluster=dict(files.cluster), jobs=documents).scenario()
    # Submitted ahead of its slot, a job is answered in the middle of the one before.
    at_once = lived is not None
    return run_policy(scenario, who, at_once=at_once)


def _compare(
    files: Files,
    who: PolicyChoice,
    lived: Mapping[str, Lived],
    rows: list[dict[str, Any]],
    curves: list[dict[str, Any]],
) -> None:
    """Set what was lived beside what the simulator says of the same files and submissions."""
    run = simulated(files, who, lived)
    told = {row["job"]: row for row in run.jobs.iter_rows(named=True)}
    on = ClusterSpec.model_validate(files.cluster).resolve("testbed")
    base = next(iter(lived.values())).base
    over = base + files.slots
    for job in files.jobs:
        name = str(job["name"])
        one = lived[name]
        record = one.record
        said = told[record["name"]]
        done = _within(record["completion_slot"], over) if record["state"] == "finished" else None
        expected = _within(said["completion"], over)
        utility = JobSpec.model_validate(job).resolve(on).utility
        assert isinstance(utility, Sigmoid)
        arrival = base + files.arrival(name)

        def late(slot: int | None, due: float = arrival + utility.target) -> float | None:
            return None if slot is None else slot - due

        rows.append(
            {
                "policy": who.label, "job": name, "family": job["labels"]["family"],
                "class": job["labels"]["class"], "arrival": arrival - base,
                "state": record["state"], "predicted_state": said["outcome"],
                "completion": None if done is None else done - base,
                "predicted_completion": None if expected is None else expected - base,
                "late": late(done), "predicted_late": late(expected),
                "utility": 0.0 if done is None else float(record["utility"] or 0.0),
                "predicted_utility": 0.0 if expected is None else float(said["utility"] or 0.0),
                "generations": record["generation"], "failures": record["failures"],
                "start": one.start(files.speeds(job)),
                "reason": (record["reason"] or {}).get("message", ""),
            }
        )  # fmt: skip
        work = float(job["epochs"] * job["chunks"] * job["minibatches"])
        named = {**job, "name": record["name"]}
        predicted = predicted_progress(
            run, files.cluster, named, files.speeds(job), over, files.seconds
        )
        measured = measured_progress(one, over, files.seconds, done, work)
        curves.extend(
            {
                "policy": who.label,
                "job": name,
                "slot": slot - base,
                "predicted": min(1.0, predicted[slot] / work),
                "measured": min(1.0, measured[slot] / work),
            }
            for slot in range(base, over)
        )


def _mean_start(files: Files, lived: Mapping[str, Lived]) -> float | None:
    """Return how long jobs' first starts really took, at most a slot; None where none began."""
    found = (lived[str(job["name"])].start(files.speeds(job)) for job in files.jobs)
    known = [one for one in found if one is not None]
    return min(files.seconds, fmean(known)) if known else None


def _predicted_utility(files: Files, who: PolicyChoice, lived: Mapping[str, Lived]) -> float:
    """Return what the simulator says is earned until all is over."""
    run = simulated(files, who, lived)
    over = next(iter(lived.values())).base + files.slots
    done = run.jobs.filter(pl.col("completion") < over)
    return float(done["utility"].sum())


def _within(slot: int | None, over: int) -> int | None:
    """Return a slot of completion, None where it comes when all is over."""
    return None if slot is None or slot >= over else int(slot)


def _summary(jobs: pl.DataFrame, progress: pl.DataFrame, policies: Sequence[str]) -> pl.DataFrame:
    """Return a row a policy; how far progress is off is a mean over jobs and slots."""
    progress = progress.with_columns(off=(pl.col("measured") - pl.col("predicted")).abs())
    found = []
    for policy in policies:
        rows = jobs.filter(pl.col("policy") == policy)
        both = rows.filter(
            pl.col("completion").is_not_null() & pl.col("predicted_completion").is_not_null()
        )
        off = (both["completion"] - both["predicted_completion"]).abs()
        found.append(
            {
                "policy": policy,
                "utility": rows["utility"].sum(),
                "predicted_utility": rows["predicted_utility"].sum(),
                "completed": rows["completion"].is_not_null().sum(),
                "predicted_completed": rows["predicted_completion"].is_not_null().sum(),
                "late": rows["late"].mean(),
                "predicted_late": rows["predicted_late"].mean(),
                "deviation": rows["late"].std(),
                "predicted_deviation": rows["predicted_late"].std(),
                "slots_off": off.mean() if len(off) else math.nan,
                "progress_off": progress.filter(pl.col("policy") == policy)["off"].mean(),
                "start": rows["start"].mean(),
                "generations": int(rows["generations"].sum()),
                "failures": int(rows["failures"].sum()),
            }
        )
    return pl.DataFrame(found, infer_schema_length=None)
