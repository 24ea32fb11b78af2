"""The part of a job file that describes its processes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from shadowprice.core.program import Program
from shadowprice.core.specs import ClusterSpec, JobSpec, RunSpec, resolve_jobs, validate

CLUSTER = {"slot": "20s", "servers": [{"name": "s", "capacity": {"gpu": 8}}]}
JOB = {
    "name": "j",
    "minibatch_time": "1s",
    "worker": {"gpu": 1},
    "utility": {"kind": "constant", "value": 1},
}


def faults_of(run: Any, **job: Any) -> list[str]:
    spec, faults = validate(JobSpec, {**JOB, **job, "run": run}, "jobs.yaml: jobs[0]")
    if spec is not None:
        cluster, _ = validate(ClusterSpec, CLUSTER, "")
        assert cluster is not None
        _, faults = resolve_jobs([("jobs.yaml: jobs[0]", spec)], cluster.resolve())
    return [str(fault) for fault in faults]


def program_of(run: Any) -> Program:
    spec, faults = validate(RunSpec, run, "run")
    assert spec is not None, faults
    return spec.resolve(Fraction(20))


def test_arguments_are_used_as_they_are() -> None:
    program = program_of({"command": ["python", "train.py", "--n", 3, "a b; c"]})
    assert program.command == ("python", "train.py", "--n", "3", "a b; c")
    assert (program.retries, program.grace, program.directory) == (0, 30.0, "")
    assert not program.tolerates_workers


def test_a_line_is_for_the_shell() -> None:
    assert program_of({"command": "exec a | b"}).command == ("/bin/sh", "-c", "exec a | b")


def test_everything_is_carried() -> None:
    program = program_of(
        {
            "command": ["x"],
            "env": {"OMP_NUM_THREADS": 1, "NAME": "v"},
            "workdir": "/srv/x",
            "retries": 3,
            "grace": "0.5 slots",
            "tolerates": "workers",
        }
    )
    environment = {"OMP_NUM_THREADS": "1", "NAME": "v"}
    assert program == Program(("x",), environment, "/srv/x", 3, 10.0, True)
    assert Program.from_record(program.record()) == program


def test_a_job_plans_the_same_with_and_without_it() -> None:
    cluster = ClusterSpec.model_validate(CLUSTER).resolve()
    plain = JobSpec.model_validate(JOB).resolve(cluster)
    running = JobSpec.model_validate({**JOB, "run": {"command": "true"}}).resolve(cluster)
    assert running.record() == plain.record()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({}, "run.command: is missing"),
        ({"comand": "x"}, "did you mean 'command'"),
        ({"command": "x", "work_dir": "/"}, "did you mean 'workdir'"),
        ({"command": []}, "is empty"),
        ({"command": [["x"]]}, "a shell command or a list of arguments, got a list"),
        ({"command": {"x": 1}}, "a shell command or a list of arguments, got a mapping"),
        ({"command": ["x", 0.1]}, "expected text, got 0.1; quote it"),
        ({"command": ["x", True]}, "boolean"),
        ({"command": "  "}, "is empty"),
        ({"command": ["", "x"]}, "is empty"),
        ({"command": "a\0b"}, "null character"),
        ({"command": ["x"] * 1001}, "1,001 exceeds the limit of 1,000 words of a command"),
        ({"command": "x" * 2001}, "2,001 exceeds the limit of 2,000 characters"),
        ({"command": "x", "env": {"A B": "c"}}, "'A B' is not a valid variable name"),
        ({"command": "x", "env": {"A": "\0"}}, "null character"),
        ({"command": "x", "env": {"RANK": 1}}, "'RANK' is reserved: the executor sets it"),
        ({"command": "x", "env": {"SHADOWPRICE_JOB": "k"}}, "is reserved: the executor sets it"),
        ({"command": "x", "env": {"A": True}}, "boolean"),
        ({"command": "x", "env": {"A": 0.1}}, "run.env.A"),
        ({"command": "x", "env": {f"A{n}": n for n in range(201)}}, "environment variables"),
        ({"command": "x", "workdir": "here"}, "'here' is not an absolute path"),
        ({"command": "x", "workdir": "/a\0"}, "null character"),
        ({"command": "x", "retries": -1}, "run.retries"),
        ({"command": "x", "retries": 1001}, "1,001 exceeds the limit of 1,000 failures"),
        ({"command": "x", "retries": True}, "boolean"),
        ({"command": "x", "tolerates": "servers"}, "run.tolerates"),
        ({"command": "x", "grace": 30}, "run.grace"),
        ({"command": "x", "grace": "2d"}, "172,800 exceeds the limit of 86,400 seconds"),
        ({"command": "x", "grace": "-1s"}, "run.grace"),
    ],
)
def test_errors_have_a_location(run: Any, message: str) -> None:
    said = faults_of(run)
    assert sum(message in one for one in said) == 1, said
    assert all(one.startswith("jobs.yaml: jobs[0].run") for one in said)
    assert len(said) == 1 or "comand" in run  # a misspelt command is missing as well


def test_a_bag_of_tasks_runs_nothing() -> None:
    tasks = [{"duration": {"kind": "pareto", "shape": 2.0, "mean": "12s"}}]
    bag = {"tasks": tasks, "deadline": "60s", "miss_probability": 0.05, "minibatch_time": None}
    document = {**{k: v for k, v in JOB.items() if k != "minibatch_time"}, **bag}
    document.pop("minibatch_time")
    _, faults = validate(JobSpec, {**document, "run": {"command": "x"}}, "j")
    assert "leave out run" in str(faults[0])


def test_secrets_are_not_shown() -> None:
    spec = RunSpec.model_validate({"command": "x", "env": {"KEY": "hush"}})
    assert "hush" not in repr(spec) + str(spec) + repr(spec.resolve(Fraction(1)))
