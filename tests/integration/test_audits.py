"""Audits: misreports that gain in the paper's own example, and accounts that add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.audit import TrueRevenue, audit_sharing, audit_truthfulness, misreports
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import ExactExecution
from shadowprice.simulator.scenario import Scenario
from shadowprice.simulator.source import ScenarioSource
from tests.support.astraea_cases import (
    SETTINGS,
    example_cluster,
    example_jobs,
    shared_cluster,
    shared_job,
)

ASTRAEA = PolicyChoice("astraea", SETTINGS)


@pytest.fixture(scope="module")
def example() -> Scenario:
    cluster = example_cluster()
    return Scenario(cluster, example_jobs(cluster))


def test_misreports_pay_in_the_paper_s_example(example: Scenario) -> None:
    # Theorem 4 says it never does; design note 0004 has the case by hand: 82 + 8 honest, and
    # 86 + 12 by claiming that waiting costs j21 twice as much.
    steps = []
    (result,) = audit_truthfulness(
        example,
        ASTRAEA,
        tenants=["u2"],
        trials=60,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert (result.honest_utility, result.honest_revenue) == (82.0, 90.0)
    assert result.best is not None
    assert result.best.gain >= 8.0 - 1e-6
    assert result.trials == 60 == sum(tried for _, tried in result.gained.values())
    assert steps[-1][0] <= steps[-1][1] == 61
    hasty = [m for m in misreports(example.jobs, "u2", 60, 0, 8) if m.kind == "urgency"]
    assert hasty
    json.dumps(result.record())


def test_misreports_differ_and_change_no_other_tenant(example: Scenario) -> None:
    others = {job.name for job in example.jobs if job.tenant != "u2"}
    seen = set()
    for misreport in misreports(example.jobs, "u2", 150, seed=1, latest=4):
        reported = {job.name: job for job in misreport.jobs}
        assert all(reported[job.name] is job for job in example.jobs if job.name in others)
        assert misreport.jobs != tuple(example.jobs)
        seen.add(misreport.description)
    assert len(seen) > 100


@pytest.mark.parametrize(
    "utility",
    [
        {"kind": "constant", "value": 9},
        {"kind": "sigmoid", "value": 9, "decay": 0.5, "target": "4 slots"},
        {"kind": "reciprocal", "value": 9},
        {"kind": "linear", "value": 9, "slope": -0.5},
        {"kind": "power", "scale": 5, "exponent": 3},
        {"kind": "deadline", "value": 9, "by": "6 slots"},
    ],
)
def test_a_utility_misreport_multiplies_the_utility(utility: object) -> None:
    true = shared_job(example_cluster(), "j", "u1", utility=utility)
    ages = np.arange(1, 12)
    reports = [m for m in misreports([true], "u1", 300, 0, 0) if m.kind in {"value", "split"}]
    for misreport in reports:
        number = re.search(r"worth ([\d.]+) times", misreport.description)
        times = float(number[1]) if number else 1.0
        if "halves, each worth its part" in misreport.description:
            times = 1 / 2
        elif "thirds, each worth its part" in misreport.description:
            times = 1 / 3
        for job in misreport.jobs:
            assert job.utility.values(ages) == pytest.approx(times * true.utility.values(ages))
    assert len(reports) > 10


def test_utility_misreports_do_not_change_a_policy_that_ignores_utilities(
    example: Scenario,
) -> None:
    (result,) = audit_truthfulness(example, PolicyChoice("gandiva_fair"), tenants=["u1"], trials=40)
    for kind in ("value", "urgency"):
        won, tried = result.gained[kind]
        assert tried
        assert won == 0


def test_overstated_work_is_done_when_the_true_work_is() -> None:
    cluster = shared_cluster(2)
    jobs = [shared_job(cluster, "j", None, chunks=1, epochs=3)]
    with pytest.raises(InputError, match="with jobs: none"):
        audit_truthfulness(Scenario(cluster, jobs), PolicyChoice("hived"), tenants=["x"])
    owned = shared_cluster(2, {"a": {"worker": 4, "ps": 2}})
    jobs = [shared_job(owned, "j", "a", chunks=1, epochs=3)]
    (result,) = audit_truthfulness(Scenario(owned, jobs), PolicyChoice("hived"), trials=40)
    # Alone and served at once, the job earns 100 - 2 * 2 whatever it says about its work.
    assert result.honest_revenue == 96.0
    assert result.best is None
    assert result.gained["work"][1] > 0


def test_demands_are_tried_first_and_pay_in_the_example(example: Scenario) -> None:
    kinds = [m.kind for m in misreports(example.jobs, "u2", 40, 0, 8)]
    assert kinds[:4] == ["workers"] * 4
    assert kinds.index("less work") < kinds.index("split") < kinds.index("value")
    gains = {}
    for tenant in ("u1", "u2"):
        (result,) = audit_truthfulness(example, ASTRAEA, tenants=[tenant], trials=80)
        assert result.best is not None
        gains[tenant] = (result.best.misreport.kind, result.best.gain, result.honest_revenue)
        for kind in ("less work", "split"):
            assert result.gained[kind][1] > 0
    # Stated as half as long, both jobs fit its own share; one overruns into the next round, free.
    assert gains["u1"] == ("less work", pytest.approx(6.0), 160.0)
    assert gains["u2"] == ("work", pytest.approx(32 / 3, abs=1e-5), 90.0)


def test_understated_work_takes_its_true_time() -> None:
    """Under FIFO a job that states half of its work holds its servers until all of it is done."""
    owned = shared_cluster(1, {"a": {"worker": 2, "ps": 1}}, worker=2)
    job = shared_job(owned, "j", "a", chunks=1, epochs=6)
    (lie,) = [
        m
        for m in misreports([job], "a", 300, 0, 1)
        if m.kind == "less work" and m.description.startswith("j: 0.5")
    ]
    assert lie.jobs[0].required == job.required // 2
    observer = TrueRevenue({"j": job}, "a", lie.reported)
    policy = PolicyChoice("hived").build(Scenario(owned, lie.jobs).context())
    Simulation(owned, lie.jobs, policy, execution=lie.execution(ExactExecution())).run([observer])
    assert observer.done == {"j": 5}
    assert observer.utility == 100 - 2 * 5


@pytest.mark.parametrize(("latest", "tried"), [(2, {"value", "arrival", "several"}), (0, set())])
def test_a_bag_of_tasks_has_no_other_work_than_its_tasks(latest: int, tried: set[str]) -> None:
    """A worthless bag that may not be delayed can be misreported by a second one only."""
    value = 5.0 if latest else 0.0
    tasks = [{"count": 3, "duration": {"kind": "pareto", "shape": 2.0, "mean": "90s"}}]
    bag = {
        "name": "bag",
        "tenant": "a",
        "tasks": tasks,
        "deadline": "8 slots",
        "miss_probability": 0.1,
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": value},
    }
    cluster = {
        "slot": "1min",
        "horizon": 20,
        "servers": [{"name": "gpu", "capacity": {"gpu": 8}}],
    }
    source = ScenarioSource(cluster=cluster, jobs=[bag], until="20 slots")
    (result,) = audit_truthfulness(
        source.scenario()[0], PolicyChoice("rolling", {}), trials=60, latest=latest
    )
    assert result.gained.keys() - {"sham"} == tried


def test_parts_of_a_job_are_not_faster_than_the_job() -> None:
    owned = shared_cluster(2, {"a": {"worker": 4, "ps": 2}})
    job = shared_job(owned, "j", "a", chunks=1, epochs=4)
    splits = [m for m in misreports([job], "a", 300, 0, 1) if m.kind == "split"]
    assert {len(m.jobs) for m in splits} == {2, 3}
    for split in splits:
        observer = TrueRevenue({"j": job}, "a", split.reported)
        policy = PolicyChoice("hived").build(Scenario(owned, split.jobs).context())
        Simulation(owned, split.jobs, policy).run([observer])
        # Alone and complete, it takes slots 0 to 3; the parts' effects on each other are lost.
        assert observer.done.get("j", 3) >= 3


def test_sharing_in_the_example(example: Scenario) -> None:
    u1, u2 = audit_sharing(example, ASTRAEA, SETTINGS)
    # u2 alone runs j21 at once, 100 - 2 * 7; the pool's prices move it back and pay for it.
    assert (u2.alone.earned, u2.pooled.earned_own) == (86.0, 82.0)
    assert not u2.utility_kept
    assert u2.revenue_kept
    assert u1.revenue_kept


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path
    (folder / "c.yaml").write_text(
        "slot: 1h\nhorizon: 16\n"
        "servers: [{name: s, count: 2, capacity: {worker: 2}}]\n"
        "tenants: [{name: a, share: {worker: 2}}, {name: b, share: {worker: 2}}]\n"
    )
    (folder / "j.yaml").write_text(
        "jobs:\n"
        + "".join(
            f"  - {{name: j{n}, tenant: {t}, chunks: 2, epochs: 2, minibatch_time: 1h, "
            "worker: {worker: 1}, utility: {kind: linear, value: 20, slope: -1}}\n"
            for n, t in enumerate("aab")
        )
    )
    files = ["-c", str(folder / "c.yaml"), "-j", str(folder / "j.yaml"), "-q"]
    assert main(["audit", "truthfulness", *files, "--trials", "12", "-o", "json"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert [result["tenant"] for result in captured] == ["a", "b"]
    assert main(["audit", "truthfulness", *files, "--trials", "6", "--tenant", "b"]) == 0
    assert "By kind of misreport" in capsys.readouterr().out
    assert main(["audit", "sharing", *files, "--set", "lambda=1"]) == 0
    assert "revenue kept" in capsys.readouterr().out
    assert main(["audit", "truthfulness", *files, "--tenant", "zz"]) == 2
