"""Astraea's experiments: their workload, their metrics, and that each measures and draws."""

from __future__ import annotations

import gzip
from pathlib import Path
from statistics import pvariance
from typing import Any

import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shadowprice.core.errors import InputError
from shadowprice.experiments.astraea import figures, ratio, setting
from shadowprice.experiments.astraea.setting import POLICIES, STATED, initial_shares
from shadowprice.experiments.framework import ExperimentSettings, experiments, run_experiment
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.accounts import compute_tenant_accounts
from shadowprice.simulator.scenario import Scenario, record_run

PATIENCE = 300.0
"""Time limit of an optimum in seconds; a figure's limit would end it early on a busy machine."""


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Generate arrivals, so that tests don't depend on trace files."""
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(tmp_path / "absent"))
    setting._philly.cache_clear()


def test_all_figures_are_declared() -> None:
    names = {f"astraea-fig{number}" for number in (1, *range(4, 14))} | {"astraea-table2"}
    assert names <= experiments().keys()


def _log(folder: Path, name: str, running: list[int], pending: list[int], gpus: int) -> None:
    rows = zip(running, pending, strict=True)
    lines = ["time,running_gpu_num,pending_gpu_num,idle_gpu_num"]
    lines += [
        f"2020-05-01 00:{minute:02}:00,{used},{waiting},{gpus - used}"
        for minute, (used, waiting) in enumerate(rows)
    ]
    path = folder / figures.FOLDER / name / figures.FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_the_most_unequal_pair_of_virtual_clusters_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(tmp_path))
    # Full in minutes 1 to 4, with jobs waiting in 2 to 4; the other is half idle in 0 to 3.
    _log(tmp_path, "busy", [4, 8, 8, 8, 8, 6], [0, 0, 2, 2, 2, 2], 8)
    _log(tmp_path, "calm", [2, 2, 1, 2, 3, 4], [0] * 6, 4)
    tables = figures.measure_fig1(ExperimentSettings())
    first = tables["pairs"].row(0, named=True)
    assert (first["full"], first["full_gpus"]) == ("busy", 8)
    assert (first["underused"], first["underused_gpus"]) == ("calm", 4)
    assert first["hours"] * 60 == pytest.approx(2)
    assert first["longest_hours"] * 60 == pytest.approx(2)
    assert tables["pairs"]["hours"][1] == 0
    run_experiment(experiments()["astraea-fig1"], tmp_path / "out", ExperimentSettings())
    assert (tmp_path / "out" / "astraea-fig1.png").is_file()


def test_absent_logs_of_virtual_clusters_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"no logs of virtual clusters.*HeliosArtifact"):
        figures.measure_fig1(ExperimentSettings())


def test_users_own_all_servers() -> None:
    for users, servers in ((5, 100), (8, 60), (11, 100), (14, 45)):
        shares = setting.user_shares(users, servers)
        assert len(shares) == users
        assert sum(shares.values()) == servers
        assert min(shares.values()) >= 1
    assert {name.partition("/")[0] for name in setting.user_shares(14, 100)} == set(setting.NODES)


def test_the_workload_is_the_paper_s_and_says_where_it_comes_from() -> None:
    cluster = setting.shared_cluster(14, 20, 64)
    jobs, source = setting.draw_jobs(cluster, 40, seed=3)
    assert source == "generated"
    assert [job.arrival for job in jobs] == sorted(job.arrival for job in jobs)
    for job in jobs:
        assert 50 <= job.epochs <= 100
        assert 20 <= job.chunks <= 50
        assert 10 <= job.minibatches <= 50
        assert 100e6 <= job.worker_bandwidth <= min(5.12e9, job.ps_bandwidth)
        assert job.utility.kind == "linear"
        assert job.two_rates
    repeated, _ = setting.draw_jobs(cluster, 40, seed=3)
    assert [job.record() for job in repeated] == [job.record() for job in jobs]


@pytest.mark.traces
def test_arrivals_are_the_trace_s_where_it_is(
    monkeypatch: pytest.MonkeyPatch, traces: Path
) -> None:
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(traces))
    setting._philly.cache_clear()
    cluster = setting.shared_cluster(14, 20, 64)
    jobs, source = setting.draw_jobs(cluster, 30, seed=1)
    assert source == "philly"
    assert {str(job.tenant) for job in jobs} <= {tenant.name for tenant in cluster.tenants}
    setting._philly.cache_clear()


def test_a_run_s_fairness_is_the_books_one() -> None:
    cluster = setting.shared_cluster(5, 8, 64)
    jobs, _ = setting.draw_jobs(cluster, 25, seed=2, ranges=setting.TINY)
    outcome = STATED.run("astraea", cluster, jobs)
    scenario = Scenario(cluster, jobs)
    books = compute_tenant_accounts(
        record_run(scenario, "astraea", PolicyChoice("astraea").build(scenario.context()))
    )
    for name, value in outcome.fairness().items():
        assert value == pytest.approx(books.accounts[name].fairness)
    assert pvariance(outcome.fairness().values()) == pytest.approx(books.fairness_variance)
    assert outcome.ideal >= outcome.revenue > 0


def test_fairness_ratios_average_1_by_share_under_every_policy() -> None:
    """Ratios average 1, so if all are at least 1, all are 1."""
    cluster = setting.shared_cluster(5, 8, 64)
    jobs, _ = setting.draw_jobs(cluster, 25, seed=2, ranges=setting.TINY)
    servers = setting.user_shares(5, 8)
    shares = initial_shares(cluster)
    assert shares == pytest.approx({user: count / 8 for user, count in servers.items()})
    for policy in POLICIES:
        outcome = STATED.run(policy, cluster, jobs)
        for ideal in (False, True):
            ratios = outcome.fairness(ideal=ideal)
            assert sum(shares[user] * ratio for user, ratio in ratios.items()) == pytest.approx(1.0)


def test_no_policy_beats_the_offline_bound() -> None:
    cluster = setting.shared_cluster(2, 3, 64)
    jobs, _ = setting.draw_jobs(cluster, 5, seed=4, ranges=setting.TINY, convex=True)
    best = ratio.offline(cluster, jobs, time_limit=PATIENCE)
    assert best.proved
    for policy in POLICIES:
        assert STATED.run(policy, cluster, jobs).revenue <= best.bound * (1 + 1e-6)


@pytest.mark.extended
def test_the_linear_program_bounds_the_offline_optimum() -> None:
    """Against the integer program, which is exact up to placements."""
    for seed in range(6):
        cluster = setting.shared_cluster(2, 2 + seed % 3, 64)
        jobs, _ = setting.draw_jobs(cluster, 3 + seed, seed=seed, ranges=setting.TINY)
        best = ratio.offline(cluster, jobs, time_limit=PATIENCE)
        bound = ratio.linear_bound(cluster, jobs)
        assert best.proved
        assert bound >= best.value * (1 - 1e-6)
        # It is of use: not much above what a schedule earns.
        assert bound <= 1.2 * best.value


def test_ratios_as_stated_are_to_the_linear_bound() -> None:
    settings = ExperimentSettings(quick=True, seed=5)
    tables = ratio.measure(settings, ("linear", "stated"), (3,), (2,), ("astraea",))
    table = tables["ratio"]
    assert table["case"].to_list() == ["linear", "stated"]
    cluster = setting.STATED.cluster(2, 2, 512)
    jobs, _ = setting.STATED.draw(cluster, 3, 5 + 3)
    outcome = setting.STATED.run("astraea", cluster, jobs)
    stated = table.filter(pl.col("case") == "stated")
    assert stated["ratio"].item() == pytest.approx(
        outcome.revenue / ratio.linear_bound(cluster, jobs)
    )
    figure = Figure(figsize=(8, 4))
    FigureCanvasAgg(figure)
    ratio.draw_fig5(tables, figure)
    assert [axes.get_title() for axes in figure.axes] == [
        ratio.TITLES[case] for case in table["case"]
    ]


def test_machines_have_two_or_eight_workers_in_the_trace_s_proportion() -> None:
    cluster = setting.shared_cluster(14, 552, 64, mixed=True)
    sizes = cluster.capacity[:, cluster.column["worker"]] // 1000
    assert {int(size) for size in sizes} == {2, 8}
    assert int(sizes.sum()) == 2490
    owned = sum(tenant.share["worker"] for tenant in cluster.tenants)
    assert owned == cluster.capacity[:, cluster.column["worker"]].sum()


def test_demands_are_the_trace_s_or_up_to_the_chunks() -> None:
    cluster = setting.shared_cluster(5, 8, 64)
    traced, _ = setting.draw_jobs(cluster, 60, seed=2, demand="trace")
    free, _ = setting.draw_jobs(cluster, 60, seed=2)
    assert [job.labels for job in traced] == [job.labels for job in free]
    for job, wide in zip(traced, free, strict=True):
        assert job.worker_counts.tolist() == [int(job.labels["gang"])]
        assert wide.worker_counts.tolist() == list(range(1, wide.chunks + 1))
    for policy in ("gandiva_fair", "hived"):
        each = setting.VARIANTS["found, gangs per job"].run(policy, cluster, free[:8])
        result = STATED.run(policy, cluster, traced[:8])
        assert each.earned == result.earned


@pytest.mark.extended
@pytest.mark.parametrize(
    "name",
    [f"astraea-fig{n}" for n in (4, 7, 8, 11, 12, 13)] + ["astraea-table2", "astraea-settings"],
)
def test_experiments_measure_and_draw(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same code on a cluster and a workload small enough for a test.
    for key, value in {"USERS": 3, "SERVERS": 4, "JOBS": 8, "HORIZON": 64}.items():
        monkeypatch.setattr(figures, key, value)
    drawn, clustered = setting.draw_jobs, setting.shared_cluster

    def small(*args: Any, **options: Any) -> Any:
        return drawn(args[0], 8, *args[2:], **(options | {"ranges": setting.TINY}))

    def few(users: int, servers: int, horizon: int, **options: Any) -> Any:
        return clustered(min(users, 4), min(servers, 6), horizon, **options)

    monkeypatch.setattr(setting, "draw_jobs", small)
    monkeypatch.setattr(setting, "shared_cluster", few)
    figure = run_experiment(experiments()[name], tmp_path / "out", ExperimentSettings(quick=True))
    assert figure.stat().st_size > 5_000
    assert len(list((tmp_path / "out").glob("*.csv"))) >= 1
