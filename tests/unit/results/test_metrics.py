"""Metrics of a run, against a computation job by job on the clock."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.main import main
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.comparison import display_rows
from shadowprice.results.metrics import common_completion, restricted_mean
from shadowprice.results.run_directory import RunData, read_run
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.trials import collect_seed_runs
from tests.support.examples import example_count, sample

SLOT = 600
SEEDS = st.integers(0, 10_000)


def clocked(seed: int) -> tuple[Cluster, list[dict[str, object]], list[Job]]:
    """Return a cluster of 4 GPUs and jobs whose times are on the clock, with their records."""
    rng = np.random.default_rng(seed)
    spec, _ = validate(
        ClusterSpec,
        {
            "slot": f"{SLOT}s",
            "horizon": 30,
            "servers": [{"name": "g", "count": 2, "capacity": {"gpu": 2}}],
        },
        "c",
    )
    assert spec is not None
    on = spec.resolve("c")
    records: list[dict[str, object]] = []
    for index in range(int(rng.integers(3, 9))):
        span = f"{int(rng.integers(0, 12 * SLOT))}s"
        utility: dict[str, object] = [
            {"kind": "deadline", "value": 9.0, "by": span},
            {"kind": "sigmoid", "value": 9.0, "decay": 1.0, "target": span},
            {"kind": "constant", "value": 9.0},
        ][int(rng.integers(3))]
        records.append(
            {
                "name": f"j{index}",
                "arrival": f"{int(rng.integers(0, 6 * SLOT))}s",
                "chunks": 4,
                "minibatches": int(rng.integers(2, 40)),
                "minibatch_time": "60s",
                "worker": {"gpu": 1},
                "utility": utility,
            }
        )
    jobs = []
    for record in records:
        job, faults = validate(JobSpec, record, "j")
        assert job is not None, faults
        jobs.append(job.resolve(on))
    return on, records, jobs


def ran(cluster: Cluster, jobs: list[Job], policy: str, **changes: object) -> RunData:
    scenario = Scenario(cluster, jobs, **changes)  # type: ignore[arg-type]  # what the test varies
    return record_run(scenario, policy, PolicyChoice(policy).build(scenario.context()))


def seconds(text: object) -> Fraction:
    return Fraction(str(text).removesuffix("s"))


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.sampled_from(["fifo", "drf"]))
def test_times_targets_and_utilities_agree_with_the_clock(seed: int, policy: str) -> None:
    on, records, jobs = clocked(seed)
    run = ran(on, jobs, policy, until=9)
    end = run.summary["end"]
    met = targeted = 0
    spent = []
    for record, row in zip(records, run.jobs.iter_rows(named=True), strict=True):
        submitted = seconds(record["arrival"])
        if row["outcome"] == "not arrived":
            continue
        utility = record["utility"]
        assert isinstance(utility, dict)
        span = utility.get("by", utility.get("target"))
        targeted += span is not None
        assert row["submitted"] * SLOT == pytest.approx(float(submitted))
        if span is not None:
            assert row["due"] * SLOT == pytest.approx(float(submitted + seconds(span)))
        if row["completion"] is None:
            spent.append(end * SLOT - submitted)
            assert row["jct"] is row["late"] is None
            continue
        ended = (row["completion"] + 1) * SLOT
        spent.append(ended - submitted)
        assert row["jct"] * SLOT == pytest.approx(float(ended - submitted))
        if span is None:
            assert row["late"] is None
            continue
        late = ended - submitted - seconds(span)
        met += late <= 0
        assert row["late"] * SLOT == pytest.approx(float(late), abs=1e-6)
        if utility["kind"] == "deadline":
            assert row["utility"] == (9.0 if late <= 0 else 0.0)
        else:
            assert row["utility"] == pytest.approx(9.0 / (1.0 + np.exp(float(late) / SLOT)))
    assert (run.summary["met_target"]["met"], run.summary["met_target"]["of"]) == (met, targeted)
    whole = float(sum(spent)) / len(spent) / SLOT if spent else None
    assert run.summary["jct"]["restricted_mean"] == pytest.approx(whole)


def test_a_server_that_is_lost_never_raises_the_share_in_time() -> None:
    better = 0
    for seed in sample(range(30)):
        on, _, jobs = clocked(seed)
        whole = ran(on, jobs, "drf", until=12).summary["met_target"]
        lost = ran(on, jobs, "drf", until=12, incidents=[ServerLost(1, on.names[1])]).summary[
            "met_target"
        ]
        assert lost["of"] == whole["of"]
        better += (lost["share"] or 0) > (whole["share"] or 0)
    assert better == 0  # the share of finished jobs rose in 4 of these 30


def test_a_late_incident_leaves_the_figures_alone() -> None:
    on, _, jobs = clocked(4)
    plain = ran(on, jobs, "fifo").summary
    late = ran(on, jobs, "fifo", incidents=[ServerLost(5_000, on.names[1])]).summary
    assert plain["utilisation"]["gpu"] > 0.1
    for name in ("end", "utilisation", "jct", "makespan", "met_target"):
        assert late[name] == plain[name], name


def test_jobs_that_never_arrived_are_in_no_figure() -> None:
    on, _, jobs = clocked(4)
    early = sorted(jobs, key=lambda job: job.arrival)
    until = early[len(early) // 2].arrival + 1
    there = [job for job in jobs if job.arrival < until]
    assert 0 < len(there) < len(jobs)
    all_of_them, those = (ran(on, some, "fifo", until=until).summary for some in (jobs, there))
    assert all_of_them.pop("not_arrived") == len(jobs) - len(there)
    assert those.pop("not_arrived") == 0
    assert all_of_them.pop("jobs") == those.pop("jobs") + len(jobs) - len(there)
    assert all_of_them == those


def test_cancelled_and_refused_jobs_count_as_long_as_the_run_lasts() -> None:
    on, _, jobs = clocked(4)
    run = ran(on, jobs, "fifo", incidents=[JobCancelled(jobs[0].arrival + 1, jobs[0].name)])
    row = run.jobs.row(0, named=True)
    assert row["outcome"] == "cancelled"
    alone = restricted_mean(run.jobs.head(1), run.summary["end"])
    assert alone == run.summary["end"] - row["submitted"]


def test_completion_times_are_compared_on_the_same_jobs() -> None:
    on, _, jobs = clocked(7)
    runs = [ran(on, jobs, policy, until=8) for policy in ("fifo", "drf")]
    done = [
        {name: jct for name, jct in run.jobs.select("job", "jct").rows() if jct is not None}
        for run in runs
    ]
    both = done[0].keys() & done[1].keys()
    assert 0 < len(both) < len(jobs)
    shared, means = common_completion([run.jobs for run in runs])
    assert shared == len(both)
    for mean, mine in zip(means, done, strict=True):
        assert mean == pytest.approx(sum(mine[name] for name in both) / len(both))
    rows = {row.name: row.values for row in display_rows(runs)}
    assert rows[f"mean JCT of {shared} finished by all"] == means
    end = max(run.summary["end"] for run in runs)
    wanted = [restricted_mean(run.jobs, end) for run in runs]
    assert rows["restricted mean JCT, slots"] == pytest.approx(wanted)


def test_over_seeds_times_of_all_jobs_go_up_to_the_latest_end_of_each() -> None:
    """A policy that refuses many jobs ends early: up to its own end it would look fast."""
    flattered, runs = 0, []
    for seed in sample(range(6)):
        on, _, jobs = clocked(seed)
        both = [ran(on, jobs, policy) for policy in ("fifo", "rrh")]
        end = max(run.summary["end"] for run in both)
        for run in both:
            short = run.summary["jct"]["restricted_mean"] < restricted_mean(run.jobs, end)
            flattered += short
        runs += [(run.policy, seed, run) for run in both]
    assert flattered, "none ended early with jobs left"
    trials = collect_seed_runs([(label, seed, run.info) for label, seed, run in runs])
    for policy in ("fifo", "rrh"):
        wanted = []
        for seed in sample(range(6)):
            end = max(run.summary["end"] for _, of, run in runs if of == seed)
            [mine] = [run for label, of, run in runs if (label, of) == (policy, seed)]
            wanted.append(restricted_mean(mine.jobs, end))
        assert trials.values(policy, "restricted_mean_jct") == pytest.approx(wanted)


def test_the_ends_of_other_runs_are_no_variation_of_a_policy() -> None:
    """Only `fifo` draws; a policy that refuses jobs waits for its end in the restricted mean."""
    on, _, jobs = clocked(3)
    runs = []
    for policy in ("fifo", "rrh", "drf"):
        info = ran(on, jobs, policy, until=9).info
        for seed in range(5):
            summary = info["summary"]
            if policy == "fifo":
                summary = summary | {"end": summary["end"] + seed, "finished": seed % 2}
            runs.append((policy, seed, info | {"summary": summary}))
    trials = collect_seed_runs(runs)
    assert len(set(trials.values("drf", "restricted_mean_jct"))) > 1
    assert trials.policies_with_variation == {"fifo"}
    kept = trials.record()["policies"]
    assert kept["drf"]["total_utility"]["low"] is None  # a single run
    assert kept["drf"]["restricted_mean_jct"]["low"] is not None
    unchanging = collect_seed_runs([run for run in runs if run[0] != "fifo"])
    assert unchanging.remark
    reordered = collect_seed_runs([*runs[5:], *runs[:5]])
    assert set(reordered.against_first("total_utility")) == {"fifo"}


def test_the_history_and_the_pages_have_the_same_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job of 40 minutes isn't in time if 20 are allowed, and is if 40 are."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("slot: 20min\nservers: [{name: g, capacity: {gpu: 1}}]\n")
    job = (
        "{{name: {}, arrival: {}, minibatches: 2, minibatch_time: 20min, worker: {{gpu: 1}}, "
        "utility: {{kind: deadline, value: 5, by: {}}}}}"
    )
    late, kept = job.format("late", "0min", "20min"), job.format("kept", "30min", "70min")
    Path("j.yaml").write_text(f"jobs:\n  - {late}\n  - {kept}\n")
    assert main(["simulate", "-c", "c.yaml", "-j", "j.yaml", "-p", "fifo", "--out", "r", "-q"]) == 0
    captured = capsys.readouterr().out
    assert re.search(r"in time, of all with a target +50\.0%", captured)
    assert re.search(r"total utility +5\n", captured)
    # `kept`, submitted at 30 min, ran in slots 2 and 3: 50 min, as 2.5 slots.
    assert re.search(r"mean JCT of finished, slots +2\.25", captured)
    for name, verdict, facts in (
        ("late", "finished late", ("2 slots (40min) after its submission", "1 slot (20min) past")),
        ("kept", "finished in time", ("2.5 slots (50min) after", "1 slot (20min) before")),
    ):
        assert main(["explain", "r", name]) == 0
        history = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
        assert verdict in history
        for fact in facts:
            assert fact in history
    page = Path("r/report.html").read_text()
    assert "of all 2 that arrived with a target" in page
    assert read_run(Path("r")).jobs["late"].to_list() == [1.0, -1.0]
