"""The testbed's jobs under each policy: real runs, compared with the simulator.

The cost of a start is measured first, on jobs that start together, and then stated in the files. In
real runs, a start takes a large part of a slot; in the paper it takes a fiftieth. `measure_starts`
isolates that difference: it simulates many draws of the jobs, submitted as in real runs.

The cluster and the jobs are scaled down from nine servers to two cores. All times (slots and
mini-batches), cores and memory are multiplied by constant factors. The result is the same problem
for schedulers, because they only compare shares of servers and slots.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import polars as pl

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.figures import (
    PALETTE,
    draw_box,
    draw_completions,
    draw_predicted_and_real,
    policy_colours,
    samples_by_policy,
    write_above,
)
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables, grid
from shadowprice.experiments.live import (
    ExecutorTarget,
    LiveJobResult,
    Prediction,
    check_live_jobs,
    compare_runs,
    predict,
    run_live_in_temp_dir,
    simulate_submissions,
    summarize_runs,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import compare_with_first
from shadowprice.traces.generator import TESTBED, generate, oasis_testbed_cluster
from shadowprice.traces.workload import NANO

# ------------------------------------------------------------------ files


CORES: Final = Fraction(1, 20)
"""Factor of stated cores: 32 cores of a server become 1.6."""

MEMORY: Final = Fraction(1, 4)  # factor of stated memory
SCRIPT: Final = Path(__file__).with_name("train.py")
GRACE: Final = "20s"


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Cluster and jobs as records of their files, for the simulator and the service."""

    cluster: Mapping[str, Any]  # record of the cluster file
    jobs: tuple[Mapping[str, Any], ...]  # records of the job file, by arrival
    seconds: float  # length of a slot
    slots: int  # slots of the run
    pace: Mapping[str, float]  # stated seconds of each job's mini-batch, including exchange
    utilities: Mapping[str, Sigmoid]  # utility of each job

    def arrival(self, name: str) -> int:
        """Return the slot in which a job arrives."""
        (arrival,) = (job["arrival"] for job in self.jobs if job["name"] == name)
        return int(str(arrival).removesuffix(" slots"))

    def speeds(self, job: Mapping[str, Any]) -> dict[int, float]:
        """Return a job's mini-batches per second by number of workers."""
        pace = self.pace[str(job["name"])]
        return {workers: workers / pace for workers in range(1, job["workers"]["max"] + 1)}


def scaled(
    seconds: int,
    *,
    seed: int = 0,
    jobs: int = TESTBED.jobs,
    slots: int = TESTBED.slots,
    restart: float | None = None,
    share: Fraction = Fraction(1),
) -> InputFiles:
    """Return the testbed's files for a length of slots in seconds.

    ``jobs`` arrive within ``slots``. ``restart`` is the seconds that a job loses at each start and
    move; None for none. ``share`` scales cores and memory once more, so that several copies of the
    cluster fit on one machine.
    """
    cores, memory = share * CORES, share * MEMORY
    options = replace(TESTBED, jobs=jobs, slots=slots)
    workload = generate(options, seed=seed)
    scale = Fraction(seconds) / TESTBED.slot_seconds
    cluster = oasis_testbed_cluster(slot_seconds=Fraction(seconds), horizon=slots)
    for server in cluster["servers"]:
        capacity = server["capacity"]
        capacity["cpu"] = float(capacity["cpu"] * cores)
        capacity["memory"] = f"{int(capacity['memory'].removesuffix('GB')) * 1000 * memory}MB"
    if restart is not None:
        cluster["restart_first"] = True
    records = []
    for index in range(len(workload)):
        profile = workload.profiles[index]
        record = workload.to_record(index)
        record["arrival"] = f"{int(workload.arrival[index] / NANO / TESTBED.slot_seconds)} slots"
        record["minibatch_time"] = f"{float(workload.minibatch_time[index] * scale / NANO):.9f}s"
        record["gradient"] = f"{int(profile.gradient * scale)}B"
        record["worker"] = _scale_resources(profile.worker, cores, memory)
        record["ps"] = _scale_resources(profile.ps or {}, cores, memory)
        if restart is not None:
            record["restart"] = f"{restart:.2f}s"
        records.append(record)
    on = ClusterSpec.model_validate(cluster).resolve("testbed")
    resolved = [JobSpec.model_validate(record).resolve(on) for record in records]
    pace = {job.name: job.step_seconds for job in resolved}
    utilities = {job.name: job.utility for job in resolved if isinstance(job.utility, Sigmoid)}
    return InputFiles(cluster, tuple(records), float(seconds), slots, pace, utilities)


def _scale_resources(
    request: Mapping[str, int], cores: Fraction, memory: Fraction
) -> dict[str, int | float | str]:
    """Return the resources of a process as in a job file."""
    amounts: dict[str, int | float | str] = {}
    for name, amount in request.items():
        if name == "memory":
            amounts[name] = f"{int(amount * memory) // 10**6}MB"
        elif name == BANDWIDTH:
            amounts[name] = f"{amount // 10**6}Mbps"
        else:
            amounts[name] = float(amount * (cores if name == "cpu" else 1)) / MILLI
    return amounts


def to_submission(files: InputFiles, job: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a job as submitted: without an arrival, and with its command."""
    argv = [sys.executable, str(SCRIPT), "--family", job["labels"]["family"], "--seed", str(seed)]
    for name in ("epochs", "chunks", "minibatches"):
        argv += [f"--{name}", str(job[name])]
    argv += ["--pace", f"{files.pace[str(job['name'])]:.6f}"]
    env = {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run = {"command": argv, "env": env, "retries": 3, "grace": GRACE, "tolerates": "workers"}
    stated = {key: value for key, value in job.items() if key != "arrival"}
    return {**stated, "run": run}


# ------------------------------------------------------------------ policies


POLICIES: Final = (
    PolicyChoice("fifo"),
    PolicyChoice("drf"),
    PolicyChoice("rrh"),
    PolicyChoice("dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}, "dorm"),
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("rolling", {"steady": True}, "rolling"),
)
"""Policies as on a live service, which doesn't know future jobs."""

SUBMIT_LEAD_SECONDS: Final = 3.0  # seconds before its slot at which a job is submitted
PROBE_JOBS: Final = 3  # jobs that start together to measure a start, in each of two waves
PROBE_GAP_SLOTS: Final = 2  # slots between the two waves
BUSY_RETRY_FACTOR: Final = 4
"""Factor of the number of slots in a second attempt, if the machine was too busy for progress."""


@dataclass(frozen=True, slots=True)
class ExperimentScale:
    """Size of a run; ``seconds`` is the length of a slot."""

    seconds: int
    slots: int
    jobs: int
    policies: tuple[PolicyChoice, ...]


FULL: Final = ExperimentScale(seconds=40, slots=10, jobs=12, policies=POLICIES)
QUICK: Final = ExperimentScale(seconds=30, slots=4, jobs=4, policies=(POLICIES[0], POLICIES[-2]))


def measure_testbed(settings: ExperimentSettings) -> Tables:
    """Measure a start, run the jobs for real under each policy, and simulate the same files."""
    check_live_jobs(training=True)
    size = QUICK if settings.quick else FULL
    target = settings.target or ExecutorTarget()
    (start,) = settings.each(
        _mean_start_seconds, [(size, target, settings.seed)], lambda *_: "measuring a start"
    )
    restart = min(float(size.seconds), start)
    files = _files(size, settings.seed, restart)
    ran = settings.each(
        _run_policy,
        [(size, choice, target, settings.seed, restart) for choice in size.policies],
        lambda _size, choice, *_: f"really running under {choice.label}",
    )
    runs, hindsight = {}, []
    for choice, results in zip(size.policies, ran, strict=True):
        runs[choice.label] = results, _predict(files, choice, results)
        # Simulate again with the starts that this run measured, to explain differences.
        mean_start = _mean_start(files, results)
        adjusted = _files(size, settings.seed, restart if mean_start is None else mean_start)
        hindsight.append(_predicted_utility(adjusted, choice, results))
    table, progress = compare_runs(
        files.jobs, runs, files.speeds, files.seconds, files.slots, partial(_more_columns, files)
    )
    summary = summarize_runs(
        table,
        progress,
        completed=pl.col("completion").count(),
        predicted_completed=pl.col("predicted_completion").count(),
        late=pl.col("late").mean(),
        predicted_late=pl.col("predicted_late").mean(),
        deviation=pl.col("late").std(),
        predicted_deviation=pl.col("predicted_late").std(),
        failures=pl.col("failures").sum(),
    )
    return {
        "jobs": table,
        "progress": progress,
        "starts": pl.DataFrame(
            [{"executor": target.executor, "slot": size.seconds, "start": start}]
        ),
        "summary": summary.with_columns(hindsight_utility=pl.Series(hindsight)),
    }


def _more_columns(
    files: InputFiles, job: Mapping[str, Any], _result: LiveJobResult, row: Mapping[str, Any]
) -> dict[str, Any]:
    name = str(job["name"])
    arrival = files.arrival(name)
    due = arrival + files.utilities[name].target
    late, predicted_late = (
        None if slot is None else slot - due
        for slot in (row["completion"], row["predicted_completion"])
    )
    labels = {name: job["labels"][name] for name in ("family", "class")}
    return {**labels, "arrival": arrival, "late": late, "predicted_late": predicted_late}


def _files(size: ExperimentScale, seed: int, restart: float | None) -> InputFiles:
    return scaled(size.seconds, seed=seed, jobs=size.jobs, slots=size.slots, restart=restart)


# ------------------------------------------------------------------ real runs


def _run_live(
    files: InputFiles,
    jobs: Sequence[Mapping[str, Any]],
    choice: PolicyChoice,
    target: ExecutorTarget,
    seed: int,
    slots: int,
) -> dict[str, LiveJobResult]:
    """Run some of the files' jobs, and return their results."""
    submissions = []
    for job in jobs:
        after = files.seconds * int(str(job["arrival"]).removesuffix(" slots"))
        submissions.append((after, to_submission(files, job, seed)))
    return run_live_in_temp_dir(
        files.cluster, submissions, choice, files.seconds * slots, target, ahead=SUBMIT_LEAD_SECONDS
    )


def _mean_start_seconds(size: ExperimentScale, target: ExecutorTarget, seed: int) -> float:
    """Return the mean seconds from the beginning of a slot to the first progress of its starts.

    As in the real runs, several jobs start at one slot boundary and share this machine's
    processors. The first wave starts with cold caches, so it only counts if no job of the second
    made progress.
    """
    files = _files(size, seed, None)
    waves = [
        wave for wave in (files.jobs[:PROBE_JOBS], files.jobs[PROBE_JOBS : 2 * PROBE_JOBS]) if wave
    ]
    jobs = [
        {**job, "arrival": f"{PROBE_GAP_SLOTS * number} slots"}
        for number, wave in enumerate(waves)
        for job in wave
    ]
    usual = PROBE_GAP_SLOTS * len(waves)
    for slots in (usual, BUSY_RETRY_FACTOR * usual):
        live_results = _run_live(files, jobs, PolicyChoice("drf"), target, seed, slots)
        for wave in reversed(waves):
            starts = [live_results[str(job["name"])].start(files.speeds(job)) for job in wave]
            measured = [value for value in starts if value is not None]
            if measured:
                return fmean(measured)
    reasons = [value.record.get("reason") for value in live_results.values()]
    raise ShadowpriceError(f"the measured jobs made no progress: {reasons}")


def _run_policy(
    size: ExperimentScale, choice: PolicyChoice, target: ExecutorTarget, seed: int, restart: float
) -> dict[str, LiveJobResult]:
    """Run all jobs under a policy until the last slot is over."""
    files = _files(size, seed, restart)
    return _run_live(files, files.jobs, choice, target, seed, size.slots)


# ------------------------------------------------------------------ comparison with the simulator


def _predict(
    files: InputFiles, choice: PolicyChoice, live_results: Mapping[str, LiveJobResult]
) -> Prediction:
    return predict(files.cluster, files.jobs, live_results, choice)


def _mean_start(files: InputFiles, live_results: Mapping[str, LiveJobResult]) -> float | None:
    """Return the mean duration of first starts, at most a slot; None if no job started."""
    starts = (live_results[str(job["name"])].start(files.speeds(job)) for job in files.jobs)
    measured = [seconds for seconds in starts if seconds is not None]
    return min(files.seconds, fmean(measured)) if measured else None


def _predicted_utility(
    files: InputFiles, choice: PolicyChoice, live_results: Mapping[str, LiveJobResult]
) -> float:
    """Return the simulated utility at the end of the run."""
    end = next(iter(live_results.values())).base + files.slots
    done = _predict(files, choice, live_results).run.jobs.filter(pl.col("completion") < end)
    return float(done["utility"].sum())


# ------------------------------------------------------------------ figures


def draw_testbed(tables: Tables, figure: Figure) -> None:
    """Draw Figs. 7 and 8, predicted and measured, and the differences between the two."""
    panels = figure.subplots(2, 2)
    policies = tables["summary"]["policy"].to_list()
    title = "Fig. 7: predicted (pale) and earned"
    draw_predicted_and_real(panels[0, 0], tables["summary"], title=title, ylabel="total utility")
    _lateness(panels[0, 1], tables["jobs"], policies)
    # Slots are integers, so the points of policies would overlap without a spacing.
    title = "Slot of completion, by job"
    draw_completions(panels[1, 0], tables["jobs"], policies, 0.08, title=title)
    _progress(panels[1, 1], tables["progress"], policies)


def _lateness(panel: Any, jobs: pl.DataFrame, policies: list[str]) -> None:
    for index, (policy, colour) in enumerate(zip(policies, policy_colours(policies), strict=True)):
        rows = jobs.filter(policy=policy)
        for shift, column, alpha in ((-0.2, "predicted_late", 0.35), (0.2, "late", 1.0)):
            looks = {"facecolor": colour, "alpha": alpha}
            draw_box(panel, index + shift, rows[column], 0.32, (0, 100), **looks)
        done = rows["completion"].is_not_null().sum()
        write_above(panel, index, f"{done} of {len(rows)}")
    panel.axhline(0, color=PALETTE[6], lw=1)
    panel.set_xticks(range(len(policies)), policies)
    panel.set(
        title="Fig. 8: of those that completed, predicted (pale) and real",
        ylabel="completion minus target (slots)",
    )
    panel.margins(y=0.12)


def _progress(panel: Any, progress: pl.DataFrame, policies: list[str]) -> None:
    for policy, colour in zip(policies, policy_colours(policies), strict=True):
        rows = progress.filter(policy=policy)
        panel.scatter(rows["predicted"], rows["measured"], color=colour, s=14, alpha=0.6)
    panel.plot([0, 1], [0, 1], color=PALETTE[6], linewidth=1.0, linestyle=":")
    panel.set(
        title="Share of a job's work, by the end of each slot", xlabel="predicted", ylabel="real"
    )


# ------------------------------------------------------------------ cost of a start


SECONDS: Final = 40  # length of a slot, as in the real runs
BEFORE: Final = 2  # slots of the run before the first slot that counts
REFERENCE: Final = "oasis"  # policy to which the others are compared, draw by draw

PRINTED: Final = PolicyChoice(
    "oasis", {"prices": "online", "restarts": "ignored"}, "oasis, as printed"
)
"""OASiS as in its paper, which plans as if a start cost nothing."""


def measure_starts(settings: ExperimentSettings) -> Tables:
    """Simulate every policy on many draws of the jobs, for several costs of a start."""
    starts = (0.0, 12.0, 30.0) if settings.quick else (0.0, 3.0, 6.0, 12.0, 20.0, 30.0, 40.0)
    draws = 3 if settings.quick else 20
    choices = tuple(choice for choice in POLICIES if not (settings.quick and choice.name == "dorm"))
    seeds = range(settings.seed, settings.seed + draws)
    table = settings.table(
        run_policy_draw,
        grid(choice=(*choices, PRINTED), start=starts, seed=seeds),
        "{choice.label}, a start of {start:g} s".format,
    )
    summary = table.group_by("policy", "start", maintain_order=True).agg(
        utility=pl.col("utility").mean(),
        error=pl.col("utility").std() / pl.len().sqrt(),
        completed=pl.col("completed").mean(),
        promised=pl.col("promised").sum(),
        kept=pl.col("kept").sum(),
    )
    return {"summary": summary, "differences": _differences(table), "runs": table}


def _differences(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the paired differences in utility between each policy and `oasis`, by start."""
    rows: list[dict[str, Any]] = []
    for (start,), same in runs.group_by("start", maintain_order=True):
        pairs = compare_with_first(samples_by_policy(same, "utility", "seed", REFERENCE))
        rows += [
            {
                "policy": other,
                "start": start,
                "beyond_oasis": pair.difference.mean,
                "beyond_half": pair.difference.half,
                "p": pair.p,
                "adjusted_p": pair.adjusted,
            }
            for other, pair in pairs.items()
        ]
    return pl.DataFrame(rows)


def run_policy_draw(choice: PolicyChoice, start: float, seed: int) -> dict[str, Any]:
    """Return a policy's utility on one draw of the jobs, and its numbers of promises."""
    files = scaled(SECONDS, seed=seed, restart=start or None)
    first = BEFORE * files.seconds - SUBMIT_LEAD_SECONDS
    submitted = [
        (first + files.arrival(str(job["name"])) * files.seconds, job) for job in files.jobs
    ]
    run = simulate_submissions(files.cluster, submitted, choice, knows_jobs=True)
    completion = dict(run.jobs.select("job", "completion").iter_rows())
    promised: dict[str, int] = {}
    for decision in run.decisions(False):
        promise = decision.get("promise", decision.get("completion"))
        if decision["outcome"] == "admitted" and promise is not None:
            promised.setdefault(decision["job"], promise)
    kept = [job for job, promise in promised.items() if completion[job] in range(promise + 1)]
    done = run.jobs.filter(pl.col("completion") < BEFORE + files.slots)
    return {
        "policy": choice.label,
        "utility": float(done["utility"].sum()),
        "completed": len(done),
        "promised": len(promised),
        "kept": len(kept),
    }


def draw_starts(tables: Tables, figure: Figure) -> None:
    """Draw utility, and promises kept, by the cost of a start."""
    left, right = figure.subplots(1, 2)
    summary = tables["summary"]
    for policy in summary["policy"].unique(maintain_order=True):
        rows = summary.filter(policy=policy).sort("start")
        (colour,) = policy_colours([policy])
        style: dict[str, Any] = {
            "color": colour,
            "linestyle": "--" if "," in policy else "-",
            "marker": "o",
            "label": policy,
        }
        left.errorbar(rows["start"], rows["utility"], rows["error"], capsize=2, **style)
        rows = rows.filter(pl.col("promised") > 0)
        if len(rows):
            right.plot(rows["start"], 100 * rows["kept"] / rows["promised"], **style)
    left.set(
        title=f"Fig. 7 by the cost of a start (slots of {SECONDS} s)",
        xlabel="duration of a start (s)",
        ylabel="total utility, mean and standard error",
    )
    left.set_ylim(bottom=0)
    left.legend(fontsize=8, handlelength=3.5)
    right.set(
        title="First promises that are kept",
        xlabel="duration of a start (s)",
        ylabel="% of first promises",
    )
    right.set_ylim(-3, 103)
    right.legend(fontsize=8, handlelength=3.5)
