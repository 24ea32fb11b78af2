"""The experiment on real jobs: its job, its sums, and a small run of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from shadowprice import jobs
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.executors.local.launch_plan import free_port
from shadowprice.experiments import live as really
from shadowprice.experiments.elastic import measure, train
from shadowprice.experiments.elastic.measure import MIN_SLOT_SECONDS as SLOT
from shadowprice.experiments.elastic.measure import SCRIPT
from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.experiments.live import (
    LiveJobResult,
    measured_progress,
    predict,
    run_live,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import policy_info
from tests.support.ideal_service import run_declared
from tests.support.services import job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs run on Linux")
SPEEDS = {1: 4.0, 2: 7.0, 4: 12.0}


def _train(folder: Path, workers: int, steps: int) -> tuple[int, np.ndarray]:
    port = str(free_port(set()))
    words = [sys.executable, str(SCRIPT), "--steps", str(steps), "--shared", "0", "--serial", "0"]
    processes = []
    for rank in range(workers):
        variables = {
            "SHADOWPRICE_JOB": "job", "SHADOWPRICE_GENERATION": "1", "SHADOWPRICE_RANK": str(rank),
            "SHADOWPRICE_WORKERS": str(workers), "SHADOWPRICE_CHECKPOINT_DIR": str(folder),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PET_RDZV_ID": "job-1",
        }  # fmt: skip
        processes.append(
            subprocess.Popen(words, env=os.environ | measure._environment() | variables)
        )
    assert [process.wait(WAIT_LIMIT_SECONDS) for process in processes] == [0] * workers
    result = jobs.load(folder)
    assert result is not None
    return result.step, np.frombuffer(result.data)


def test_the_job_learns_the_same_however_many_workers_it_has(tmp_path: Path) -> None:
    step, alone = _train(tmp_path / "alone", 1, 25)
    assert step == 25
    _train(tmp_path / "shared", 1, 10)
    step, shared = _train(tmp_path / "shared", 3, 25)
    assert step == 25
    np.testing.assert_allclose(shared, alone, rtol=1e-9)
    assert np.linalg.norm(alone) > 0.5


def test_a_worker_without_a_leader_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port(set())),
        "PET_RDZV_ID": "job-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(train, "time", SimpleNamespace(sleep=lambda _: None))
    job: Any = SimpleNamespace(workers=2, rank=1)
    with pytest.raises(SystemExit, match="worker 0 accepted no connection"):
        train.connected(job)


@pytest.mark.parametrize(
    "who", [measure.POLICIES[0], PolicyChoice("drf")], ids=lambda who: who.name
)
def test_predicted_progress_is_the_simulators_own(who: PolicyChoice) -> None:
    requests = [(one.after, measure._record(one, SPEEDS, 0, 2.0)) for one in measure.WORKLOAD]
    lived = {
        job["name"]: LiveJobResult({"name": job["name"]}, after, ()) for after, job in requests
    }
    prediction = predict(measure.cluster(SLOT), [job for _, job in requests], lived, who)
    finished = prediction.run.jobs.filter(pl.col("completion").is_not_null())
    assert len(finished) >= 4
    for row in finished.iter_rows(named=True):
        # Done by the end of the slot in which the simulator completes it, and not before that one.
        shares = prediction.progress[row["job"]]
        assert max(shares) == row["completion"]
        assert shares[row["completion"]] >= 1.0
        assert all(share < 1.0 for slot, share in shares.items() if slot < row["completion"])


@pytest.mark.parametrize("who", measure.POLICIES, ids=lambda who: who.name)
def test_a_service_decides_as_the_simulator_on_the_same_facts(
    who: PolicyChoice, tmp_path: Path
) -> None:
    requests = [
        (one.after + 0.1 * index, measure._record(one, SPEEDS, 0, 1.5))
        for index, one in enumerate(measure.WORKLOAD, start=1)
    ]
    ended, submitted = run_declared(tmp_path / "data", measure.cluster(SLOT), requests, who)
    jobs_ = [job for _, job in requests]
    run = predict(measure.cluster(SLOT), jobs_, submitted, who).run
    completions = {row["job"]: row["completion"] for row in run.jobs.iter_rows(named=True)}
    assert ended == {name_of_key(key): slot for key, slot in completions.items()}


def test_policies_are_set_as_where_jobs_really_run() -> None:
    for who in measure.POLICIES:
        assert policy_info(who.name).live_settings.items() <= dict(who.settings).items()


def test_measured_progress_is_what_was_reported_by_the_end_of_a_slot() -> None:
    curve = [
        (0.4 * SLOT, 3.0),
        (0.9 * SLOT, 5.0),
        (1.5 * SLOT, 4.0),
        (2.5 * SLOT, 9.0),
    ]
    lived = LiveJobResult({}, 0.0, curve)
    shares = measured_progress(lived, range(5), SLOT, 3, 12.0)
    assert shares == [5 / 12, 5 / 12, 9 / 12, 1.0, 1.0]
    unreported = LiveJobResult({}, 0.0, [])
    assert measured_progress(unreported, range(2), SLOT, None, 12.0) == [0.0, 0.0]


def test_a_first_start_takes_what_its_steps_do_not() -> None:
    curve = [(13.0, 6.0), (14.0, 20.0)]
    assert LiveJobResult({}, 0.0, curve, began=10.0, workers=4).start(SPEEDS) == 2.5
    assert LiveJobResult({}, 0.0, curve, began=12.9, workers=1).start(SPEEDS) == 0.0
    assert LiveJobResult({}, 0.0, [], began=10.0, workers=1).start(SPEEDS) is None
    assert LiveJobResult({}, 0.0, []).start(SPEEDS) is None


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ((None, {"code": "failed", "message": "it exited 3"}), "it exited 3"),
        ((None, None), "the service recorded no reason"),
    ],
)
def test_jobs_that_never_start_are_named_with_their_reason(
    monkeypatch: pytest.MonkeyPatch, reasons: tuple[Any, ...], message: str
) -> None:
    results = {
        str(number): LiveJobResult({"reason": reason}, 0.0, [])
        for number, reason in enumerate(reasons)
    }
    monkeypatch.setattr(measure, "_run_live", lambda *_: results)
    with pytest.raises(ShadowpriceError, match=f"^the measured job made no progress: {message}$"):
        measure._median_start_seconds(SPEEDS, really.LOCAL_TARGET, 0)


def test_where_a_start_takes_long_all_is_as_many_longer_slots() -> None:
    requests = [(one, one.scaled(3)) for one in measure.WORKLOAD]
    for short, long in requests:
        on = {at: ClusterSpec.model_validate(measure.cluster(at)).resolve() for at in (5.0, 15.0)}
        fields = {
            seconds: JobSpec.model_validate(
                {**measure._record(one, SPEEDS, 0, 1.0), "arrival": f"{one.after:g}s"}
            ).resolve(on[seconds])
            for seconds, one in ((5.0, short), (15.0, long))
        }
        few, many = fields[5.0], fields[15.0]
        assert (few.arrival, few.min_slots_colocated) == (many.arrival, many.min_slots_colocated)
        at = np.arange(12.0)
        np.testing.assert_allclose(few.utility.values(at), many.utility.values(at))


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.train
def test_real_jobs_are_set_beside_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tuple(
        measure.WorkloadJob(name, tenant, after, 40, {"kind": "constant", "value": 5})
        for name, tenant, after in (("one", "vision", 0.0), ("two", "language", 4.0))
    )
    monkeypatch.setattr(measure, "WORKLOAD", small)
    who = (
        PolicyChoice("fifo"),
        next(policy for policy in measure.POLICIES if policy.name == "rolling"),
    )
    monkeypatch.setattr(measure, "POLICIES", who)
    monkeypatch.setattr(measure, "WORKER_COUNTS", (1, 2, 4))
    ran: list[str] = []

    def noted(*given: Any, **more: Any) -> Any:
        ran.append(given[3].name)
        return run_live(*given, **more)

    def cut_off(done: int, total: int, label: str) -> None:
        if (done, total, label) == (1, 2, "really running under fifo"):
            raise KeyboardInterrupt

    class Elsewhere:
        """The option that distributes other experiments' runs:

        not these, which would run side by side.
        """

        def run(self, *_: Any) -> None:
            raise AssertionError("spread")

    monkeypatch.setattr(really, "run_live", noted)
    chosen = find_experiment("elastic-training")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(chosen, tmp_path / "out", ExperimentSettings(quick=True, progress=cut_off))
    # A start and a move are measured, and then the first of two policies.
    assert ran == ["fifo", "drf", "fifo"]
    settings = ExperimentSettings(quick=True, spread=Elsewhere())
    figure = run_experiment(chosen, tmp_path / "out", settings)
    assert ran == ["fifo", "drf", "fifo", "rolling"]  # finished ones are kept, and no more are made
    assert figure.stat().st_size > 10_000
    tmp_path /= "out"
    found = {path.stem: pl.read_csv(path) for path in tmp_path.glob("*.csv")}
    [starts] = found["starts"].to_dicts()
    assert 0.0 < measure.MIN_STARTS_PER_SLOT * starts["restart"] <= starts["slot"]
    assert starts["restart"] >= starts["move"] > 0.0
    assert starts["restart"] > starts["start"]
    assert found["summary"]["policy"].to_list() == ["fifo", "rolling"]
    assert found["summary"]["finished"].to_list() == [2, 2]
    assert found["summary"]["utility"].to_list() == [10.0, 10.0]
    assert (found["progress"]["measured"].is_between(0.0, 1.0)).all()
    assert (
        found["progress"]
        .group_by("policy", "job")
        .agg(pl.col("measured").max())["measured"]
        .to_list()
        == [1.0] * 4
    )


def test_jobs_beyond_the_first_page_are_seen_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_service(tmp_path) as running:
        api = really._Api(running.address, running.service.token_file.read_text().strip())
        names = {f"job-{number}" for number in range(120)}
        api.request("POST", "/v1/jobs", {"jobs": [job(name) for name in sorted(names)]})
        assert {entry["name"] for entry in api.list_all("/v1/jobs", "jobs")} == names
        monkeypatch.setattr(really, "_PAGE_ENTRIES", 50)
        assert {entry["name"] for entry in api.list_all("/v1/jobs", "jobs")} == names
        really._cancel_all(api)
        states = {entry["state"] for entry in api.list_all("/v1/jobs", "jobs")}
        assert states == {"cancelled"}


def test_a_service_that_ignores_sigterm_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        really._stop(service, 0.1)
        assert service.returncode == -signal.SIGKILL
    assert "killed the service: it ran 0.1 s after SIGTERM" in capfd.readouterr().err
