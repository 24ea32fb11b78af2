"""Fairness, restarts and lost work of a run agree with a naive account of its files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.main import main
from shadowprice.core.amounts import MILLI, UNLIMITED
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results import fairness
from shadowprice.results.comparison import display_rows
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.as_it_was import as_it_was
from shadowprice.simulator.driver import Incident
from shadowprice.simulator.scenario import Scenario, record_run, run_policy
from shadowprice.simulator.source import ScenarioSource
from tests.support.audited_runs import SEEDS, random_world
from tests.support.bag_cases import build_bag, pareto, place_cluster
from tests.support.examples import example_count, sample
from tests.support.flat_rate import FlatPricePolicy
from tests.support.policies import RandomPolicy
from tests.support.workloads import faster_together, make_cluster, make_job, mixed

# ---------------------------------------------------------------- a naive twin


def lives(jobs: list[Job], run: RunData) -> dict[str, tuple[Fraction, Fraction | None]]:
    """Return the interval in which each job was present, from decisions and incidents."""
    outcomes = dict(run.jobs.select("job", "outcome").rows())
    gone: dict[str, int] = {}
    for decision in run.decisions(False):
        if decision["outcome"] in {"rejected", "dropped"}:
            gone[decision["job"]] = decision["slot"]
    for incident in run.info["incidents"]:
        if outcomes.get(incident.get("cancel")) == "cancelled":
            gone[incident["cancel"]] = incident["slot"]
    gone |= {
        name: completion + 1
        for name, completion in run.jobs.select("job", "completion").rows()
        if completion is not None
    }
    found = {}
    for job in jobs:
        if outcomes[job.name] != "not arrived":
            start = job.arrival - Fraction(job.before_arrival)
            end = gone.get(job.name)
            if end is not None and end <= job.arrival:
                end = start  # refused when it arrived: it never competed
            found[job.name] = start, None if end is None else Fraction(end)
    return found


def present(
    of: tuple[Fraction, Fraction], others: Iterable[tuple[Fraction, Fraction | None]]
) -> Fraction:
    """Return the mean number of jobs present from a moment to another, overlap by overlap."""
    start, end = of
    overlap = Fraction(0)
    for first, last in others:
        until = end if last is None else min(end, last)
        overlap += max(Fraction(0), until - max(start, first))
    return overlap / (end - start)


def held(cluster: Cluster, demand: np.ndarray, roles: set[Role]) -> int:
    """Return how many processes the servers of these roles hold, server by server."""
    total = 0
    for role, capacity in zip(cluster.roles, cluster.capacity.tolist(), strict=True):
        if role in roles:
            total += min(
                has // requested
                for has, requested in zip(capacity, demand.tolist(), strict=True)
                if requested > 0
            )
    return total


def alone(cluster: Cluster, job: Job, n: Fraction) -> Fraction:
    """Return the time of a job alone on an n-th of the cluster, worker count by worker count."""
    times = []
    for choice, workers in enumerate(job.worker_counts.tolist()):
        ps = int(job.ps_counts[choice])
        needed = [Fraction(workers, max(1, held(cluster, job.worker, {Role.WORKER, Role.ANY})))]
        if ps:
            assert job.ps is not None
            needed.append(Fraction(ps, max(1, held(cluster, job.ps, {Role.PS, Role.ANY}))))
        use = [workers * amount for amount in job.worker.tolist()]
        if job.ps is not None:
            use = [used + ps * amount for used, amount in zip(use, job.ps.tolist(), strict=True)]
        for resource, used in enumerate(use):
            column = cluster.capacity[:, resource].tolist()
            if used and max(column) < UNLIMITED:
                needed.append(Fraction(used, sum(column)) if sum(column) else Fraction(2))
        together = any(
            role is Role.ANY or (role is Role.WORKER and not ps)
            for role, capacity in zip(cluster.roles, cluster.capacity.tolist(), strict=True)
            if all(used <= has for used, has in zip(use, capacity, strict=True))
        )
        gain = int((job.internal_gains if together else job.gains)[choice])
        if max(needed) <= 1 and gain:
            slots = Fraction(job.required, gain)
            if job.bag is not None:
                means = [group.distribution.mean / job.bag.slot_seconds for group in job.bag.groups]
                slots = max(Fraction(1), Fraction(max(means)))
            if cluster.restart_first:
                slots += job.restart
            times.append(slots * max(Fraction(1), n * max(needed)))
    # The rounding of floats: a time that is whole but for it takes no other slot.
    return Fraction(job.before_arrival) + math.ceil(min(times) - Fraction(1, 10**9))


def moves(run: RunData, name: str) -> list[tuple[int, int, bool]]:
    """Return (slot, workers, whether it ran before) where the placement of a job changes."""
    by_slot: dict[int, dict[int, tuple[int, int]]] = {}
    mine = run.allocations.filter(pl.col("job") == name)
    for slot, _, server, workers, ps in mine.rows():
        by_slot.setdefault(slot, {})[server] = workers, ps
    return [
        (slot, sum(workers for workers, _ in placed.values()), slot > min(by_slot))
        for slot, placed in by_slot.items()
        if by_slot.get(slot - 1) != placed
    ]


def check(cluster: Cluster, jobs: list[Job], run: RunData) -> None:
    """Compare every metric of a run of training jobs with the twin."""
    times = lives(jobs, run)
    ratios, restarts, lost, spent, abandoned = [], 0, 0.0, 0, 0
    for job, row in zip(jobs, run.jobs.iter_rows(named=True), strict=True):
        gpus = int(job.worker[cluster.column["gpu"]]) / MILLI or 1.0
        changes = moves(run, job.name)
        again = sum(ran for _, _, ran in changes)
        workers = sum(count for _, count, ran in changes if ran or cluster.restart_first)
        hours = float(job.restart * cluster.slot_seconds) / 3600 * workers * gpus
        assert (row["restarts"], row["lost_gpu_hours"]) == (again, pytest.approx(hours))
        mine = run.allocations.filter(pl.col("job") == job.name)["workers"].sum()
        restarts, lost, spent = restarts + again, lost + hours, spent + mine
        if row["outcome"] != "finished":
            assert row["finish_time_fairness"] is None
            abandoned += mine
            continue
        start, end = times[job.name]
        assert end == row["ended"]
        ratio = (end - start) / alone(cluster, job, present((start, end), times.values()))
        assert row["finish_time_fairness"] == pytest.approx(float(ratio))
        ratios.append(float(ratio))
    summary = run.summary
    assert (summary["restarts"], summary["lost_gpu_hours"]) == (restarts, pytest.approx(lost))
    assert summary["abandoned_work"] == (pytest.approx(abandoned / spent) if spent else None)
    if not ratios:
        assert summary["finish_time_fairness"] == {"mean": None, "p99": None, "worst": None}
        return
    ratios.sort()
    # numpy's linear percentile: between the two ratios around 99 % of the way.
    place = 0.99 * (len(ratios) - 1)
    below = ratios[int(place)]
    p99 = below + (place - int(place)) * (ratios[min(int(place) + 1, len(ratios) - 1)] - below)
    wanted = {"mean": sum(ratios) / len(ratios), "p99": p99, "worst": ratios[-1]}
    assert summary["finish_time_fairness"] == pytest.approx(wanted)


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.sampled_from(["planner", "reactive", "drf", "srtf"]))
def test_metrics_agree_with_a_naive_account(seed: int, kind: str) -> None:
    cluster, jobs, incidents, rng = random_world(seed)
    if rng.random() < 0.5:
        cluster = mixed(cluster, rng)
    cluster = replace(cluster, restart_first=bool(rng.random() < 0.5))
    if rng.random() < 0.5:
        jobs = faster_together(jobs, rng)
    restarts = [Fraction(int(rng.integers(0, 5)), 8) for _ in jobs]
    before = [int(rng.integers(0, 4)) / 4 for _ in jobs]
    jobs = [
        replace(job, restart=restart, before_arrival=wait)
        for job, restart, wait in zip(jobs, restarts, before, strict=True)
    ]
    scenario = Scenario(cluster, jobs, until=int(rng.integers(8, 60)), incidents=incidents)
    if kind == "planner":
        policy = FlatPricePolicy(0.5)
    elif kind == "reactive":
        policy = RandomPolicy(seed)
    else:
        policy = PolicyChoice(kind).build(scenario.context())
    check(cluster, jobs, record_run(scenario, kind, policy))


def test_the_account_covers_what_it_claims() -> None:
    """Some of the random runs have restarts, losses, dropped jobs and jobs that never ran."""
    seen = set()
    for seed in sample(range(40)):
        cluster, jobs, incidents, _ = random_world(seed)
        jobs = [replace(job, restart=Fraction(1, 4)) for job in jobs]
        run = record_run(
            Scenario(cluster, jobs, until=20, incidents=incidents), "random", RandomPolicy(seed)
        )
        summary = run.summary
        check(cluster, jobs, run)
        seen |= {name for name in ("restarts", "lost_gpu_hours", "abandoned_work") if summary[name]}
        seen |= set(run.jobs["outcome"])
        seen |= {"never ran"} if run.jobs["start"].null_count() else set()
    assert seen >= {"restarts", "lost_gpu_hours", "abandoned_work", "finished", "never ran"}
    assert seen & {"dropped", "refused", "cancelled"}


# ---------------------------------------------------------------- a share is a smaller cluster


@pytest.mark.parametrize("shares", [1, 2, 4])
@pytest.mark.parametrize("curve", ["linear", "measured"])
def test_a_job_alone_takes_what_it_takes_on_a_cluster_of_that_size(shares: int, curve: str) -> None:
    whole, part = make_cluster(4, 0), make_cluster(4 // shares, 0)
    changes: dict[str, object] = {"ps_amounts": None, "chunks": 16, "minibatches": 73, "epochs": 3}
    if curve == "measured":
        rates = {1: 3, 2: 5, 4: 9, 8: 14, 16: 20}
        changes["speed"] = {count: Fraction(rate, 60) for count, rate in rates.items()}
    small = make_job(part, **changes)
    run = record_run(
        Scenario(part, [small]), "elasticflow", PolicyChoice("elasticflow").build(
            Scenario(part, [small]).context()
        )
    )  # fmt: skip
    [jct] = run.jobs["jct"].to_list()
    [predicted] = fairness.slots_alone(
        whole, [make_job(whole, **changes)], np.array([float(shares)])
    )
    assert jct == predicted
    assert run.jobs["finish_time_fairness"].to_list() == [1.0]


def test_a_job_wider_than_its_share_takes_turns() -> None:
    """A job of 8 workers on a quarter of 16 GPUs runs half of the time."""
    cluster = make_cluster(4, 0)
    wide = make_job(cluster, ps_amounts=None, chunks=8, minibatches=30, worker_range=(8, 8))
    times = fairness.slots_alone(cluster, [wide] * 3, np.array([1.0, 2.0, 4.0]))
    assert times.tolist() == [6.0, 6.0, 12.0]  # 48 worker-slots


def test_times_alone_are_the_same_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, jobs, _, _ = random_world(11)
    shared = np.linspace(1.0, 5.0, len(jobs))
    whole = fairness.slots_alone(cluster, jobs, shared)
    monkeypatch.setattr(fairness, "_BLOCK", 3)
    assert fairness.slots_alone(cluster, jobs, shared).tolist() == whole.tolist()


# ---------------------------------------------------------------- worked by hand


def simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str, *more: str, servers: str
) -> dict[str, object]:
    (tmp_path / "c.yaml").write_text(f"slot: 1h\nhorizon: 20\n{servers}\n")
    (tmp_path / "j.yaml").write_text(jobs)
    files = ["-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml")]
    assert main(["simulate", *files, "-q", "-o", "json", *more]) == 0
    summary: dict[str, object] = json.loads(capsys.readouterr().out)["summary"]
    return summary


ONE_GPU = "servers: [{name: g, capacity: {gpu: 1}}]"


def test_two_jobs_worked_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`a` runs in slots 0 to 3, and `b` in 4 and 5.

    While `a` is present, both are: n = 2, and 4 slots on half a GPU take 8. While `b` is (slots 0
    to 5), both are for 4 slots and one for 2: n = 5/3, and 2 slots on 3/5 of a GPU take 4.
    """
    line = "{{name: {}, minibatches: {}, minibatch_time: 1h, worker: {{gpu: 1}}}}"
    jobs = f"jobs:\n  - {line.format('a', 4)}\n  - {line.format('b', 2)}\n"
    summary = simulate(tmp_path, capsys, jobs, "-p", "fifo", servers=ONE_GPU)
    fair = summary["finish_time_fairness"]
    assert fair == pytest.approx({"mean": 1.0, "p99": 0.5 + 0.99, "worst": 1.5})
    assert (summary["restarts"], summary["lost_gpu_hours"]) == (0, 0.0)
    assert summary["abandoned_work"] == 0.0


def test_a_job_refused_when_it_arrives_is_not_present(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`r` is submitted within slot 0, and refused in slot 1: `a` is alone all the time."""
    line = "{{name: {}, minibatches: 4, minibatch_time: 1h, arrival: {}, worker: {{gpu: 1}}{}}}"
    jobs = f"jobs:\n  - {line.format('a', '6min', '')}\n"
    refused = f"  - {line.format('r', '30min', ', by: 2h')}\n"
    fair = []
    for text in (jobs, jobs + refused):
        summary = simulate(tmp_path, capsys, text, "-p", "oasis", servers=ONE_GPU)
        fair.append(summary["finish_time_fairness"]["mean"])
    assert summary["refused"] == 1
    assert fair == [1.0, 1.0]


def test_a_lost_server_costs_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker of 2 GPUs moves after an hour: a restart of 15 minutes takes 0.5 GPU-hours.

    The hour is kept, so slots 0 and 1 hold 1.75 hours of work, and slot 2 the rest of 2 hours.
    """
    servers = "servers: [{name: g, count: 2, capacity: {gpu: 2}}]\nrestart: 15min"
    jobs = "jobs: [{name: a, minibatches: 2, minibatch_time: 1h, worker: {gpu: 2}}]\n"
    (tmp_path / "i.yaml").write_text("incidents: [{slot: 1, server_lost: g-0}]\n")
    lost = ["--incidents", str(tmp_path / "i.yaml"), "-p", "fifo"]
    summary = simulate(tmp_path, capsys, jobs, *lost, servers=servers)
    assert (summary["restarts"], summary["lost_gpu_hours"]) == (1, pytest.approx(0.5))
    assert summary["finish_time_fairness"] == {"mean": 1.5, "p99": 1.5, "worst": 1.5}
    first = simulate(tmp_path, capsys, jobs, *lost, servers=f"{servers}\nrestart_first: true")
    assert (first["restarts"], first["lost_gpu_hours"]) == (1, pytest.approx(1.0))


def test_work_on_jobs_that_do_not_finish_is_abandoned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`a` runs three slots of five and is cancelled, `b` then runs one: 3 of 4 worker-slots."""
    line = "{{name: {}, minibatches: {}, minibatch_time: 1h, worker: {{gpu: 1}}}}"
    jobs = f"jobs:\n  - {line.format('a', 5)}\n  - {line.format('b', 1)}\n"
    (tmp_path / "i.yaml").write_text("incidents: [{slot: 3, cancel: a}]\n")
    cancelled = ["--incidents", str(tmp_path / "i.yaml"), "-p", "fifo"]
    summary = simulate(tmp_path, capsys, jobs, *cancelled, servers=ONE_GPU)
    assert summary["abandoned_work"] == 0.75
    # `b` was present for 4 slots, `a` for 3 of them: n = 7/4, and a slot on 4/7 of a GPU takes 2.
    assert summary["finish_time_fairness"] == {"mean": 2.0, "p99": 2.0, "worst": 2.0}


def test_jobs_that_never_run_have_no_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = "jobs: [{name: a, minibatches: 5, minibatch_time: 1h, worker: {gpu: 1}}]\n"
    (tmp_path / "i.yaml").write_text("incidents: [{slot: 0, server_lost: g}]\n")
    lost = ["--incidents", str(tmp_path / "i.yaml"), "-p", "fifo", "--until", "5 slots"]
    summary = simulate(tmp_path, capsys, jobs, *lost, servers=ONE_GPU)
    assert summary["finish_time_fairness"] == {"mean": None, "p99": None, "worst": None}
    assert (summary["restarts"], summary["lost_gpu_hours"]) == (0, 0.0)
    assert summary["abandoned_work"] is None


def test_a_run_without_jobs_has_no_metrics() -> None:
    run = record_run(Scenario(make_cluster(), []), "flat-rate", FlatPricePolicy())
    assert run.summary["finish_time_fairness"] == {"mean": None, "p99": None, "worst": None}
    assert (run.summary["restarts"], run.summary["lost_gpu_hours"]) == (0, 0.0)
    assert run.summary["abandoned_work"] is None


# ---------------------------------------------------------------- the log itself


def test_a_log_has_the_metrics_that_it_can(tmp_path: Path) -> None:
    rows = [(0, 700, 4300, 2), (300, 300, 1500, 8), (650, 2000, 9000, 4), (4000, 4600, 5000, 1)]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "log.csv").write_text("submit,start,end,gpus\n" + "\n".join(lines) + "\n")
    source = ScenarioSource(trace=f"csv:{tmp_path / 'log.csv'}", slot="10min")
    scenario, _ = source.scenario(0)
    run = run_policy(scenario, PolicyChoice("fifo"))
    trace = source.log()
    assert trace is not None
    log = as_it_was(trace, scenario.cluster, scenario.jobs, run)
    assert log is not None
    spans = [
        (Fraction(start), Fraction(completion + 1))
        for start, completion in log.jobs.select("submitted", "completion").rows()
    ]
    ratios = [
        float((end - start) / alone(scenario.cluster, job, present((start, end), spans)))
        for job, (start, end) in zip(scenario.jobs, spans, strict=True)
    ]
    assert log.jobs["finish_time_fairness"].to_list() == pytest.approx(ratios)
    assert log.summary["finish_time_fairness"]["worst"] == pytest.approx(max(ratios))
    assert (log.summary["restarts"], log.summary["lost_gpu_hours"]) == (None, None)
    gpus_of_worker = [int(job.worker[0]) // 1000 for job in scenario.jobs]
    traced = [(6, 2), (2, 8), (12, 4), (1, 1)]  # slots from start to end, and GPUs
    assert log.jobs["worker_slots"].to_list() == [
        slots * gpus // each for (slots, gpus), each in zip(traced, gpus_of_worker, strict=True)
    ]
    assert log.summary["abandoned_work"] == 0.0
    # An earlier attempt of the second job ran for half an hour on its 8 GPUs.
    lost = trace.jobs.with_columns(lost=pl.Series([None, 1800.0, None, 0.0]))
    again = as_it_was(replace(trace, jobs=lost), scenario.cluster, scenario.jobs, run)
    assert again is not None
    assert again.summary["lost_gpu_hours"] == pytest.approx(4.0)
    rows_by_name = {row.name: row.values for row in display_rows([run, log])}
    assert rows_by_name["restarts"] == [0, None]
    assert rows_by_name["finish-time fairness, worst"][1] == pytest.approx(max(ratios))


# ---------------------------------------------------------------- bags of tasks


def test_tasks_that_start_over_are_repeated_work() -> None:
    """Four tasks of at least three slots lose their servers after two: 8 task-slots are lost."""
    on = place_cluster(servers=2, each=4)
    bag = build_bag(on, pareto(4, 50.0, 3.0), deadline=12.0, miss_probability=0.5)
    incidents: list[Incident] = [ServerLost(2, name) for name in on.names]
    incidents += [ServerBack(3, name) for name in on.names]
    scenario = Scenario(on, [bag], incidents=incidents)
    run = record_run(scenario, "rolling", PolicyChoice("rolling").build(scenario.context()))
    row = run.jobs.row(0, named=True)
    assert row["outcome"] == "finished"
    assert row["restarts"] == 1
    assert row["lost_gpu_hours"] == pytest.approx(8 * 60 / 3600)
    longest = bag.bag.groups[0].distribution.mean / 60 if bag.bag else 0.0
    assert row["finish_time_fairness"] == pytest.approx(row["jct"] / math.ceil(longest))


def test_a_bag_whose_copies_end_does_not_restart() -> None:
    on = place_cluster(servers=2, each=8)
    bag = build_bag(on, pareto(8, 1.5, 0.5), deadline=12.0, miss_probability=0.5)
    scenario = Scenario(on, [bag])
    run = record_run(scenario, "rolling", PolicyChoice("rolling").build(scenario.context()))
    workers = run.allocations.group_by("slot").agg(pl.col("workers").sum()).sort("slot")["workers"]
    assert len(set(workers)) > 1  # copies ended before the bag did
    assert (run.summary["restarts"], run.summary["lost_gpu_hours"]) == (0, 0.0)


# ---------------------------------------------------------------- many jobs


def test_presence_is_exact_for_many_jobs() -> None:
    rng = np.random.default_rng(5)
    count = 400
    submitted = rng.integers(0, 4000, count) / 4
    ended = np.floor(submitted) + rng.integers(0, 90, count)
    table = pl.DataFrame(
        {
            "outcome": ["finished"] * count,
            "arrival": pl.Series(np.ceil(submitted).astype(np.int64)),
            "submitted": submitted,
            "ended": pl.Series(ended.astype(np.int64)),
        }
    )
    result = fairness.mean_present(table)
    spans = [
        (Fraction(start), Fraction(int(end)) if end > math.ceil(start) else Fraction(start))
        for start, end in zip(submitted.tolist(), ended.tolist(), strict=True)
    ]
    for mean, (start, end) in zip(result.tolist(), spans, strict=True):
        if start == end:
            assert math.isnan(mean)
        else:
            assert mean == pytest.approx(float(present((start, end), spans)), rel=1e-12)


def test_cancelled_jobs_that_had_finished_end_with_their_completion() -> None:
    cluster = make_cluster(1, 0)
    short = make_job(cluster, ps_amounts=None, minibatches=1)
    run = record_run(
        Scenario(cluster, [short], incidents=[JobCancelled(5, "job")]), "drf",
        PolicyChoice("drf").build(Scenario(cluster, [short]).context()),
    )  # fmt: skip
    row: Mapping[str, object] = run.jobs.row(0, named=True)
    assert row["outcome"] == "finished"
    assert row["ended"] == row["completion"] + 1  # type: ignore[operator]  # an integer
