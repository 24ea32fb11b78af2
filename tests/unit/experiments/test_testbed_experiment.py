"""The testbed with real jobs: its files, its sums, its job, and a small run of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import polars as pl
import pytest

from shadowprice.cli.main import main
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.experiments.framework import (
    ExperimentSettings,
    UnavailableError,
    find_experiment,
    run_experiment,
)
from shadowprice.experiments.live import (
    ExecutorTarget,
    LiveJobResult,
    compare_runs,
    summarize_runs,
)
from shadowprice.experiments.oasis import build_testbed_inputs
from shadowprice.experiments.testbed import measure, paced, virtual
from shadowprice.experiments.testbed.measure import InputFiles, scaled, to_submission
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import record_run, run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.generator import (
    TESTBED,
    generate,
    oasis_testbed_cluster,
)
from tests.support import ideal_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until


def _resolved(files: InputFiles) -> tuple[Any, list[Any]]:
    on = ClusterSpec.model_validate(files.cluster).resolve("testbed")
    return on, [JobSpec.model_validate(job).resolve(on) for job in files.jobs]


def _simulate(files: InputFiles, who: PolicyChoice) -> RunData:
    source = ScenarioSource(cluster=dict(files.cluster), jobs=list(files.jobs))
    return run_policy(source.scenario()[0], who)


@pytest.mark.parametrize("seed", [0, 3])
def test_in_shares_and_slots_the_files_are_those_of_the_papers_testbed(seed: int) -> None:
    stated, jobs = build_testbed_inputs(seed)
    on, ours = _resolved(scaled(45, seed=seed))
    assert on.names == stated.names
    assert [job.name for job in ours] == [job.name for job in jobs]
    for mine, theirs in zip(ours, jobs, strict=True):
        assert mine.arrival == theirs.arrival
        assert mine.utility == theirs.utility
        assert mine.step_seconds * float(TESTBED.slot_seconds) / 45 == pytest.approx(
            theirs.step_seconds, rel=1e-6
        )
        assert mine.required == theirs.required
        assert np.array_equal(mine.gains, theirs.gains)
        assert np.array_equal(mine.ps_counts, theirs.ps_counts)
        for side in ("worker", "ps"):
            before = getattr(theirs, side) / stated.capacity.max(axis=0)
            after = getattr(mine, side) / on.capacity.max(axis=0)
            np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("who", measure.POLICIES, ids=lambda who: who.name)
def test_a_service_decides_as_the_simulator_on_the_same_facts(
    who: PolicyChoice, tmp_path: Path
) -> None:
    files = measure._files(measure.FULL, 0, 3.0)
    requests = [
        (
            (2 + files.arrival(str(job["name"]))) * files.seconds
            - measure.SUBMIT_LEAD_SECONDS
            + 0.02 * index,
            job,
        )
        for index, job in enumerate(files.jobs)
    ]
    requests.sort(key=lambda one: one[0])
    ended, submitted = ideal_service.run_declared(tmp_path / "data", files.cluster, requests, who)
    run = measure._predict(files, who, submitted).run
    assert ended == {row["job"]: row["completion"] for row in run.jobs.iter_rows(named=True)}


@pytest.mark.parametrize("who", measure.POLICIES, ids=lambda who: who.name)
def test_no_scheduler_sees_that_the_files_are_scaled(who: PolicyChoice) -> None:
    records: Any = list(generate(TESTBED, seed=0).to_records())
    scenario, _ = ScenarioSource(cluster=oasis_testbed_cluster(), jobs=records).scenario()
    policy = PolicyChoice(who.name, dict(who.settings)).build(scenario.context())
    stated = record_run(scenario, who.name, policy, settings=dict(who.settings))
    ours = _simulate(scaled(45, seed=0), who)
    columns = ["job", "arrival", "completion"]
    assert ours.jobs.select(columns).equals(stated.jobs.select(columns))
    assert ours.jobs["utility"].sum() == pytest.approx(stated.jobs["utility"].sum())


@pytest.mark.parametrize("who", [measure.POLICIES[1], measure.POLICIES[-1]], ids=["drf", "rolling"])
def test_predicted_progress_is_the_simulators_own(who: PolicyChoice) -> None:
    files = scaled(45, seed=0, restart=9.0)
    lived = {
        str(job["name"]): LiveJobResult(
            {"name": job["name"]}, 45.0 * files.arrival(str(job["name"])), ()
        )
        for job in files.jobs
    }
    prediction = measure._predict(files, who, lived)
    finished = prediction.run.jobs.filter(pl.col("completion").is_not_null())
    assert len(finished) >= 6
    for row in finished.iter_rows(named=True):
        shares = prediction.progress[row["job"]]
        assert max(shares) == row["completion"]
        assert shares[row["completion"]] >= 1.0
        assert all(share < 1.0 for slot, share in shares.items() if slot < row["completion"])


def test_promises_are_kept_where_starts_are_counted() -> None:
    oasis, rolling = measure.POLICIES[-2:]
    assert (oasis.name, rolling.name) == ("oasis", "rolling")
    for seed in range(3):
        free, counted, printed, ours = (
            measure.run_policy_draw(who, start, seed)
            for who, start in (
                (measure.PRINTED, 0.0),
                (oasis, 12.0),
                (measure.PRINTED, 12.0),
                (rolling, 12.0),
            )
        )
        assert free | {"policy": ""} == measure.run_policy_draw(oasis, 0.0, seed) | {"policy": ""}
        for kept in (free, counted, ours):
            assert 0 < kept["promised"] == kept["kept"]
        assert printed["kept"] < printed["promised"]
        assert printed["utility"] < counted["utility"]


@pytest.mark.extended
def test_starts_are_simulated_for_every_policy(tmp_path: Path) -> None:
    figure = run_experiment(
        find_experiment("testbed-starts"), tmp_path, ExperimentSettings(quick=True)
    )
    assert figure.stat().st_size > 10_000
    summary, runs = (pl.read_csv(tmp_path / f"{name}.csv") for name in ("summary", "runs"))
    assert set(summary["policy"]) == {"fifo", "drf", "rrh", "oasis", "rolling", "oasis, as printed"}
    assert len(runs) == 3 * len(summary)
    assert summary["utility"].sum() == pytest.approx(runs["utility"].sum() / 3)
    differences = pl.read_csv(tmp_path / "differences.csv")
    assert len(differences) == len(summary) - 3  # oasis is the reference at each of three starts
    utilities = {(row["policy"], row["start"]): row["utility"] for row in summary.to_dicts()}
    for row in differences.to_dicts():
        mean = utilities[row["policy"], row["start"]] - utilities["oasis", row["start"]]
        assert row["beyond_oasis"] == pytest.approx(mean)
        assert 0 < row["p"] <= row["adjusted_p"] <= 1
        spread = [
            mine - reference
            for mine, reference in zip(
                *(
                    runs.filter(
                        (pl.col("policy") == policy) & (pl.col("start") == row["start"])
                    ).sort("seed")["utility"]
                    for policy in (row["policy"], "oasis")
                ),
                strict=True,
            )
        ]
        # Student's t with two degrees of freedom
        assert row["beyond_half"] == pytest.approx(4.302653 * stdev(spread) / 3**0.5)


def test_a_job_is_submitted_with_what_it_runs() -> None:
    files = scaled(45, seed=1, restart=5.0)
    job = files.jobs[0]
    submission = to_submission(files, job, 7)
    assert "arrival" not in submission
    words = submission["run"]["command"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--family"] == job["labels"]["family"]
    assert float(given["--pace"]) == pytest.approx(files.pace[job["name"]], abs=1e-6)
    assert int(given["--epochs"]) == job["epochs"]
    assert given["--seed"] == "7"
    # A single worker takes as long as in the paper, 40 minutes to two hours, scaled.
    for one in files.jobs:
        alone = one["epochs"] * one["chunks"] * one["minibatches"] * files.pace[one["name"]]
        assert 40 <= alone / 45 * 20 <= 121
    JobSpec.model_validate(submission)


def test_measurements_are_compared_with_predictions() -> None:
    files = scaled(10, seed=0, jobs=2, slots=4, restart=1.0)
    names = [str(job["name"]) for job in files.jobs]
    base = 5
    lived = {}
    for index, (name, job) in enumerate(zip(names, files.jobs, strict=True)):
        submitted = 10.0 * (base + files.arrival(name)) - 3.0
        work = job["epochs"] * job["chunks"] * job["minibatches"]
        finished = {"state": "finished", "completion_slot": base + 3, "utility": 4.5}
        late = {"state": "running", "completion_slot": base + 9, "utility": None}
        record = {
            **(late if index else finished),
            "name": f"{name}-ab",
            "generation": 2,
            "failures": 0,
            "reason": None,
        }
        curve = [(10.0 * base + 35.0, work / 2)]
        lived[name] = LiveJobResult(record, submitted, curve, 10.0 * (base + 3), 1, base)
    runs = {"fifo": (lived, measure._predict(files, measure.POLICIES[0], lived))}
    more = partial(measure._more_columns, files)
    table, progress = compare_runs(files.jobs, runs, files.speeds, 10.0, files.slots, more)
    assert table["completion"].to_list() == [3, None]
    assert table["utility"].to_list() == [4.5, 0.0]
    due = files.arrival(names[0]) + _resolved(files)[1][0].utility.target
    assert table["late"][0] == pytest.approx(3 - due)
    assert table["late"][1] is None
    for name, measured in zip(names, ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.5]), strict=True):
        assert progress.filter(job=name)["measured"].to_list() == measured
    summary = summarize_runs(table, progress, completed=pl.col("completion").count())
    assert summary["completed"].to_list() == [1]
    assert summary["utility"].to_list() == [4.5]
    errors = (progress["measured"] - progress["predicted"]).abs()
    assert summary["progress_off"].to_list() == pytest.approx([errors.mean()])
    assert measure._mean_start(files, lived) is not None
    predicted = measure._predicted_utility(files, measure.POLICIES[0], lived)
    assert predicted == pytest.approx(table["predicted_utility"].sum())


def test_fifo_is_predicted_with_the_workers_that_it_really_drew() -> None:
    files = scaled(40, seed=0, restart=5.0)
    found = {}
    for mark in ("ab", "cd"):
        names = {str(job["name"]): f"{job['name']}-{mark}" for job in files.jobs}
        lived = {
            name: LiveJobResult({"name": own}, 40.0 * (files.arrival(name) + 2) - 3.0, [], base=2)
            for name, own in names.items()
        }
        run = measure._predict(files, measure.POLICIES[0], lived).run
        assert set(run.jobs["job"]) == set(names.values())
        found[mark] = run.jobs["workers_peak"].to_list()
    assert found["ab"] != found["cd"]  # they are drawn by name


def test_an_executor_is_refused_where_nothing_runs_on_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["experiment", "oasis-fig3", "--executor", "kubernetes"]) == 2
    assert "run on no executor" in capsys.readouterr().err
    assert main(["experiment", "elastic-training", "--executor", "kubernetes"]) == 2
    assert "name local or ray" in capsys.readouterr().err


@pytest.mark.train
def test_paced_jobs_are_refused_where_jobs_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(paced, "_run_live", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="needs Linux"):
        paced.measure_paced(ExperimentSettings(quick=True))
    assert not started


def test_families_have_the_layers_of_their_papers() -> None:
    torch = pytest.importorskip("torch")
    from shadowprice.experiments.testbed import train

    layers = {
        "alexnet": 8, "vgg-11": 11, "resnet-50": 50, "resnet-101": 101, "resnet-152": 152,
    }  # fmt: skip
    for family, made in train.FAMILIES.items():
        model = made()
        results = [
            name
            for name, one in model.named_modules()
            if isinstance(one, (torch.nn.Conv2d, torch.nn.Linear)) and ".shortcut." not in name
        ]
        if family in layers:
            assert len(results) == layers[family]
        data = train.images(train.MINIBATCH, 0)
        batch = {name: torch.from_numpy(one) for name, one in data.items()}
        train.loss(model, batch).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.train
def test_its_optimiser_is_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    from shadowprice.experiments.testbed import train

    values = []
    for made in (
        lambda given: train.Momentum(given, 0.1, 0.9),
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
    ):
        one = torch.nn.Parameter(torch.arange(4.0))
        optimizer = made([one])
        for step in range(5):
            one.grad = torch.cos(one.detach() + step)
            optimizer.step()
        values.append(one.detach())
    torch.testing.assert_close(values[0], values[1])


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.train
@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs run on Linux")
def test_real_jobs_are_set_beside_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    small = measure.ExperimentScale(seconds=20, slots=2, jobs=2, policies=(PolicyChoice("fifo"),))
    monkeypatch.setattr(measure, "QUICK", small)
    monkeypatch.setattr(measure, "PROBE_JOBS", 2)  # a third model would show no more here
    settings = ExperimentSettings(quick=True, target=ExecutorTarget())
    figure = run_experiment(find_experiment("testbed"), tmp_path, settings)
    assert figure.stat().st_size > 10_000
    found = {path.stem: pl.read_csv(path) for path in tmp_path.glob("*.csv")}
    assert found["starts"]["executor"].to_list() == ["local"]
    assert found["starts"]["start"][0] > 0.0
    assert len(found["jobs"]) == 2
    assert found["jobs"]["failures"].sum() == 0
    assert found["progress"]["measured"].max() > 0.0


@pytest.mark.extended
def test_live_in_virtual_time_earns_what_the_simulator_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tuple(
        variant for variant in virtual.VARIANTS if variant.label in {"oasis", "fifo", "drf"}
    )
    monkeypatch.setattr(virtual, "VARIANTS", few)
    figure = run_experiment(
        find_experiment("testbed-virtual"), tmp_path / "v", ExperimentSettings(quick=True)
    )
    assert figure.exists()
    summary = pl.read_csv(tmp_path / "v" / "summary.csv")
    for policy in ("oasis", "fifo", "drf"):
        rows = summary.filter(pl.col("policy") == policy).sort("live")
        simulated, live = map(float, rows["utility"].to_list())
        # Starts that take longer than the stated mean may cost a job its slot.
        assert live == pytest.approx(simulated, rel=0.05)
        assert live > 0.0
    order = pl.read_csv(tmp_path / "v" / "order.csv")
    assert order["policy"].to_list() == [
        "oasis",
        *(one.label for one in few if one.label != "oasis"),
    ]
    utility = dict(zip(order["policy"], order["utility"], strict=True))
    for row in order.iter_rows(named=True):
        if row["policy"] != "oasis":
            difference = utility[row["policy"]] - utility["oasis"]
            assert row["beyond_oasis"] == pytest.approx(difference)


@pytest.mark.parametrize("shell", [("/bin/sh",), ("busybox", "sh")], ids=["sh", "busybox"])
@pytest.mark.parametrize("reports", ["file", "http"])
def test_a_paced_worker_saves_on_sigterm_and_goes_on_from_there(
    tmp_path: Path, shell: tuple[str, ...], reports: str
) -> None:
    if shutil.which(shell[0]) is None or (shell[0] == "/bin/sh" and shutil.which("wget") is None):
        pytest.skip(f"needs {shell[0]} and wget")
    posted: list[dict[str, Any]] = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] == "Bearer secret":
                posted.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # inherited name
            """Print nothing."""

    progress = tmp_path / "progress.json"

    def worker(generation: int, work: int, pace: int) -> subprocess.Popen[bytes]:
        env = {
            "PATH": os.environ["PATH"],
            "SHADOWPRICE_CHECKPOINT_DIR": str(tmp_path),
            "SHADOWPRICE_PROGRESS_URL": f"http://127.0.0.1:{server.server_port}/progress",
            "SHADOWPRICE_PROGRESS_TOKEN": "secret",
            "SHADOWPRICE_ROLE": "worker",
            "SHADOWPRICE_RANK": "0",
            "SHADOWPRICE_WORKERS": "2",
            "SHADOWPRICE_GENERATION": str(generation),
        }
        if reports == "file":
            env["SHADOWPRICE_PROGRESS_FILE"] = str(progress)
        words = [*shell, "-c", paced.SCRIPT, "paced", str(work), str(pace)]
        return subprocess.Popen(words, env=env)

    def reported() -> dict[str, Any]:
        if reports == "http":
            return posted[-1] if posted else {}
        return json.loads(progress.read_text()) if progress.exists() else {}

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with worker(1, 1_000_000, 10) as first:
            wait_until(lambda: reported().get("minibatches", 0) > 0)
            first.terminate()
            assert first.wait(WAIT_LIMIT_SECONDS) == 143
        saved = int((tmp_path / "step").read_text())
        assert 0 < saved == reported()["minibatches"]
        with worker(2, saved + 1, 10) as second:
            assert second.wait(WAIT_LIMIT_SECONDS) == 0
        server.shutdown()
    assert reported() == {
        "generation": 2,
        "minibatches": saved + 1,
        "metrics": {},
        "checkpoints": True,
    }
