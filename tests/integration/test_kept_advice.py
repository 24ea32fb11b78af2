"""Advice that a run keeps: the answers of `explain`, in the folder and on the page."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shadowprice
from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.advice import JobAdvice, advice_lines
from shadowprice.results.report.section_job_histories import histories_data
from shadowprice.results.report.section_job_histories import jobs as jobs_section
from shadowprice.results.run_directory import read_advice, read_run
from shadowprice.simulator.advice import add_advice, advise, advisor
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.source import ScenarioSource
from tests.support.advice_cases import random_entry, random_servers, resolve_jobs
from tests.support.command_line import CLUSTER, JOBS
from tests.support.report_pages import unpack_data

CALL = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "-p", "oasis", "-q")
WORTHLESS = (
    "  - {name: fourth, chunks: 4, minibatches: 10, minibatch_time: 60s, worker: {gpu: 1}, "
    "utility: {kind: deadline, value: 1, by: 1 slots}, arrival: 0 slots}\n"
)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    Path("j.yaml").write_text(JOBS + WORTHLESS)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(words))
        return status, *capsys.readouterr()

    return run


def advice_of_explain(call: Callable[..., tuple[int, str, str]], run: str, job: str) -> object:
    status, out, err = call("explain", run, job, "--advice", "-o", "json")
    assert status == 0, err
    return json.loads(out)["advice"]


def test_stored_advice_equals_that_of_explain(call: Callable[..., tuple[int, str, str]]) -> None:
    assert call(*CALL, "--out", "plain")[0] == 0
    assert call(*CALL, "--advice", "--out", "run")[0] == 0
    kept = read_advice(Path("run"))
    jobs = read_run(Path("plain")).jobs
    refused = jobs.filter(jobs["outcome"] == "refused").sort("value", descending=True)
    assert [*kept] == refused["job"].to_list()
    assert kept
    assert any(job_advice.advice for job_advice in kept.values())
    for job, job_advice in kept.items():
        assert advice_of_explain(call, "plain", job) == job_advice.record()
    info = read_run(Path("run")).info
    assert info["advice"] == {"refused": len(kept), "advised": len(kept), "seconds": 60.0}
    # Kept advice no longer needs any file of the run.
    Path("j.yaml").unlink()
    for job, job_advice in kept.items():
        assert advice_of_explain(call, "run", job) == job_advice.record()


def test_the_page_shows_advice_beside_the_refusal(
    call: Callable[..., tuple[int, str, str]],
) -> None:
    assert call(*CALL, "--advice", "--out", "run")[0] == 0
    written = Path("run/report.html").read_text()
    block = re.search(r'<script [^>]*id="histories".*?</script>', written, re.DOTALL)
    assert block is not None
    histories: Any = unpack_data(block[0])
    kept = read_advice(Path("run"))
    for index, job in enumerate(histories["jobs"]["job"]):
        lines = [tuple(line) for line in histories["facts"][index]]
        assert histories["jobs"]["advised"][index] == (job in kept)
        if job in kept:
            stored = [*advice_lines(kept[job])]
            assert lines[-len(stored) :] == stored
        else:
            assert not {"sufficient", "not enough"} & {label for label, _ in lines}
    assert f"of {len(kept)} of {len(kept)} refused jobs." in written
    # The page that is written again from the folder is the same.
    assert call("report", "run")[0] == 0
    assert Path("run/report.html").read_text() == written


@pytest.mark.parametrize(
    "words",
    [
        ("--advice",),
        ("--advice-time", "0s", "--advice", "--out", "run"),
        ("--advice-time", "5", "--advice", "--out", "run"),
    ],
)
def test_advice_needs_a_folder_and_a_time(
    call: Callable[..., tuple[int, str, str]], words: tuple[str, ...]
) -> None:
    status, _, err = call(*CALL, *words)
    assert status == 2
    assert words[0] in err


def test_jobs_that_rolling_abandoned_get_the_advice_of_explain() -> None:
    """It runs jobs on spare capacity, promises nothing, and may abandon them."""
    rng = np.random.default_rng(0)
    on = random_servers(rng)
    entries = [random_entry(rng, f"job-{index}") for index in range(10)]
    scenario = Scenario(on, resolve_jobs(on, entries), entry=entries.__getitem__)
    rolling = PolicyChoice("rolling")
    run = add_advice(run_policy(scenario, rolling), scenario, rolling, seconds=600.0)
    outcomes = dict(zip(run.jobs["job"], run.jobs["outcome"], strict=True))
    given_up = {job for job, outcome in outcomes.items() if outcome == "dropped"}
    assert given_up
    assert "finished" in outcomes.values()
    assert run.advice.keys() == {
        job for job, outcome in outcomes.items() if outcome in ("refused", "dropped")
    }
    for index, entry in enumerate(entries):
        if entry["name"] in given_up:
            assert run.advice[entry["name"]] == advise(scenario, rolling, index, entry)
    histories = histories_data(replace(run, advice={}), run.jobs, {})["jobs"]
    advisable = {
        job for job, at in zip(histories["job"], histories["advisable"], strict=True) if at
    }
    assert advisable == run.advice.keys()
    assert "refused or dropped jobs" in (jobs_section(run) or "")


def test_advice_ends_at_its_time_limit_or_on_request(
    call: Callable[..., tuple[int, str, str]],
) -> None:
    scenario, _ = ScenarioSource(cluster=Path("c.yaml"), jobs=Path("j.yaml")).scenario(0)
    oasis = PolicyChoice("oasis")
    run = run_policy(scenario, oasis)
    assert not add_advice(run, scenario, oasis, seconds=0.0).advice
    stop = StopRequestObserver()
    some = add_advice(
        run, scenario, oasis, seconds=60.0, stop=stop,
        progress=lambda done, total: setattr(stop, "requested_at", 0.0),
    )  # fmt: skip
    assert len(some.advice) == 1
    assert some.info["advice"]["advised"] == 1
    assert some.info["advice"]["refused"] > 1


def test_a_second_request_ends_advice_immediately_and_the_run_is_kept(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, requested = advisor.advise_together, []

    def interrupted(*arguments: Any, **more: Any) -> list[JobAdvice | InputError]:
        requested.append(arguments)
        if len(requested) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **more)

    monkeypatch.setattr(advisor, "advise_together", interrupted)
    status, out, err = call(*CALL, "--advice", "--out", "run")
    assert status == 143, err
    assert "interrupted: the run is complete, with advice on 1 of " in err
    run = read_run(Path("run"))
    assert not run.info["partial"]
    assert len(run.advice) == run.info["advice"]["advised"] == 1
    assert "total utility" in out


def test_a_comparison_keeps_the_advice_of_each_policy(
    call: Callable[..., tuple[int, str, str]],
) -> None:
    assert call(*CALL, "--advice", "--out", "run")[0] == 0
    words = ("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "fifo,oasis", "-q", "--advice")
    assert call(*words)[0] == 2  # it needs a directory
    assert call(*words, "--out", "both")[0] == 0
    kept = read_advice(Path("run"))
    assert kept
    assert read_advice(Path("both/oasis")) == kept
    compared = shadowprice.compare("c.yaml", "j.yaml", ("fifo", "oasis"), advice_seconds=600)
    simulated = shadowprice.simulate("c.yaml", "j.yaml", "oasis", advice_seconds=600)
    expected = {job: job_advice.record() for job, job_advice in kept.items()}
    assert compared.runs["oasis"].advice == simulated.advice == expected
    assert shadowprice.open_run("both/oasis").advice == expected
    assert shadowprice.simulate("c.yaml", "j.yaml", "fifo").advice is None
