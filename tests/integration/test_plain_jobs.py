"""Commands without a job file, submitted to a service that runs them as local processes."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.cli.main import main
from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.registry import create_executor
from tests.support.services import RunningService, run_service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

CLUSTER = {"slot": "1s", "horizon": 100, "servers": [{"name": "g", "capacity": {"cpu": 4}}]}

SCRIPT = """\
import json, os, sys
names = ("VIRTUAL_ENV", "PASSWORD", "LR")
print(json.dumps([os.getcwd(), sys.argv[1:], [os.environ.get(name) for name in names]]))
sys.exit(int(os.environ.get("STATUS", 0)))
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("plain")
    options = ExecutorOptions(str(folder / "data" / "executor"), settings={"cgroup": "off"})
    with run_service(folder, cluster=CLUSTER, executor=create_executor("local", options)) as found:
        yield found


@pytest.fixture(autouse=True)
def _submitter(live: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", live.service.token_file.read_text().strip())
    monkeypatch.setenv("VIRTUAL_ENV", "/opt/venv")
    monkeypatch.setenv("PASSWORD", "secret")
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)


def _submit(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[Any]:
    assert main(["submit", "-o", "json", *words]) == status
    return list(json.loads(capsys.readouterr().out))


def test_a_command_runs_where_it_was_submitted(
    live: RunningService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = (sys.executable, "train.py", "--lr", "0.1", "--debug")
    [job] = _submit(capsys, "--time", "2s", "--env", "LR=3", "--wait", "--", *command)
    assert job["name"].startswith("train-")
    assert job["state"] == "finished"
    log = live.client.get(f"/v1/jobs/{job['name']}/logs").json()["text"]
    expected = [str(tmp_path), ["--lr", "0.1", "--debug"], ["/opt/venv", None, "3"]]
    assert json.loads(log) == expected
    [second] = _submit(capsys, "--wait", "--", *command)
    assert second["name"] != job["name"]


def test_options_describe_the_job(live: RunningService, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--name", "mine", "--time", "1h", "--steps", "1800", "--cpus", "2")
    [job] = _submit(
        capsys, *words, "--by", "2099-01-01", "--priority", "high", "--", sys.executable, "-c", "1"
    )
    spec = live.client.get("/v1/jobs/mine").json()["spec"]
    assert (job["required"], spec["minibatch_time"], spec["worker"]) == (1800, "2s", {"cpu": 2})
    assert spec["by"].endswith("+00:00")
    assert spec["priority"] == "high"
    assert "utility" not in spec
    wait_until(lambda: live.client.get("/v1/jobs/mine").json()["state"] == "finished")
    assert live.client.get("/v1/jobs/mine").json()["utility"] == 4.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "error: FILE: nothing to submit; write a job file, a script, or a command"),
        (("--",), "COMMAND: is missing after --"),
        (("--gpus", "two", "--", "true"), "--gpus: expected a number, got 'two'"),
        (("--time", "3", "--", "true"), "--time: '3' is a duration without a unit"),
        (("--by", "2020-01-01", "--", "true"), "--by: '2020-01-01' has passed"),
        (
            ("--priority", "top", "--", "true"),
            "error: --priority: expected low, normal",
        ),
        (("--env", "UNSET_VARIABLE", "--", "true"), "--env: 'UNSET_VARIABLE' isn't set"),
        (("--workdir", "absent", "--", "true"), "absent' is not a directory"),
        (("--name", "", "--", "true"), "error: --name: "),
        (("--", "no-such-program"), "'no-such-program' is not an executable program"),
        (("--gpus", "1", "--", "true"), "error: --gpus: no server has 'gpu'"),
        (("--gpus", "a100:1", "--", "true"), "error: --gpus: no server has 'gpu/a100'"),
        (("--memory", "x", "--", "true"), "error: --memory: 'x' is not a quantity"),
        (("--env", "1A=x", "--", "true"), "error: --env: '1A' is not a valid variable name"),
        (
            ("--steps", "1600000000", "--time", "1s", "--", "true"),
            "error: --steps: each of 1,600,000,000 steps would take less than a nanosecond",
        ),
        (("--retries", "9999", "--", "true"), "error: --retries: 9,999 exceeds the limit of 1,000"),
        (
            ("train.py",),
            "train.py: is a program, not a job file; write -- before a command: -- python",
        ),
        (("sh", "train.sh"), "sh: is a program, not a job file; write -- before a command: -- sh"),
        (("--gpus", "1", "sh", "x.sh"), "sh: is a program, not a job file"),
        (("no-such-file.yaml",), "no-such-file.yaml: no such file"),
        (("jobs.yaml", "--", "true"), "jobs.yaml: not valid with a command"),
        (("jobs.yaml", "--time", "3h"), "--time: has no effect on a job file"),
        (("--only", "a", "--", "true"), "--only: has no effect on a command"),
    ],
)
def test_invalid_arguments_are_refused_with_a_hint(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *words]) == 2
    assert message in capsys.readouterr().err


BATCH = """\
#!/usr/bin/env bash
#SBATCH --job-name=Nightly --cpus-per-task=3 --partition=gpu
#SBATCH --time=2:00:00 --nodes=1
#SHADOWPRICE --cpus 2 --env LR=3
#SHADOWPRICE --priority high

: "${2:?}"
printf '%s|' first "$PWD" "$LR" "$@"
"""


def test_script_runs_as_submitted(
    live: RunningService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # No server has a core left until the blocker ends, so the script runs after its change.
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    blocker = (sys.executable, "-c", wait)
    _submit(capsys, "--name", "blocker", "--cpus", "4", "--time", "1min", "--", *blocker)
    wait_until(lambda: live.client.get("/v1/jobs/blocker").json()["state"] == "running")
    script = tmp_path / "train.sh"
    script.write_text(BATCH + "# " + "é" * 5000 + "\necho last\n")
    assert main(["submit", "-o", "json", "train.sh", "--", "--lr", "0.1 $x"]) == 0
    printed = capsys.readouterr()
    [job] = json.loads(printed.out)
    assert printed.err == "train.sh: ignored #SBATCH options: --partition\n"
    name = job["name"]
    assert name.startswith("nightly-")
    assert job["state"] != "running"
    script.write_text("#!/bin/sh\necho changed\n")
    go.touch()
    wait_until(lambda: live.client.get(f"/v1/jobs/{name}").json()["state"] == "finished")
    log = live.client.get(f"/v1/jobs/{name}/logs").json()["text"]
    assert log == f"first|{tmp_path}|3|--lr|0.1 $x|last\n"
    spec = live.client.get(f"/v1/jobs/{name}").json()["spec"]
    assert (spec["worker"], spec["priority"], spec["walltime"]) == (
        {"cpu": 2},
        "high",
        "7200s",
    )


def test_command_line_options_override_the_script_header(
    live: RunningService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run").write_text(
        f"#!{sys.executable}\n#SHADOWPRICE --cpus 9 --name header -t me --env LR=1 --env STATUS=0\n"
        "import os, sys\nprint(sys.argv[1:], os.environ['LR'], os.environ['STATUS'])\n"
        "os.kill(os.getpid(), 9) if sys.argv[1] == 'die' else sys.exit(0)\n"
    )
    words = ("--cpus", "1", "--name", "line", "--tenant", "vision", "--env", "LR=2")
    [job] = _submit(capsys, "run", *words, "--time", "2s", "--wait", "--", "x")
    assert (job["name"], job["tenant"], job["state"]) == ("line", "vision", "finished")
    assert live.client.get("/v1/jobs/line/logs").json()["text"] == "['x'] 2 0\n"
    [job] = _submit(capsys, "run", *words, "--name", "dies", "--wait", "--", "die", status=1)
    assert job["state"] == "failed"


def test_a_script_may_name_a_directory_below_the_home_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "train.sh").write_text("#SHADOWPRICE --workdir ~/experiment\ntouch here\n")
    [job] = _submit(capsys, "train.sh", "--time", "2s", "--wait")
    assert job["state"] == "finished"
    assert (tmp_path / "experiment" / "here").exists()


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            "\n#SHADOWPRICE --gpu 2",
            (),
            "train.sh:2: unknown option '--gpu'; did you mean '--gpus'?",
        ),
        ("#SHADOWPRICE --wait 1", (), "train.sh:1: unknown option '--wait'; "),
        ("#SHADOWPRICE --qos a", (), "train.sh:1: unknown option '--qos'; write --priority high"),
        ("true", ("--gres", "gpu:2"), "error: --gres: unknown option; write --gpus 2\n"),
        ("true", ("--mem=8G",), "error: --mem: unknown option; write --memory 16GiB\n"),
        (
            "true",
            ("-N", "2", "--", "x"),
            "error: -N: unknown option; write `workers` in a job file",
        ),
        (
            "true",
            ("--nope",),
            "No such option: --nope (Possible options: --name); see shadowprice ",
        ),
        ("true", ("--gpus",), "requires an argument; see shadowprice submit --help"),
        ("#SHADOWPRICE --steps ten", (), "train.sh:1: --steps: "),
        ("#SHADOWPRICE -g two", (), "train.sh:1: --gpus: expected a number, got 'two'"),
        ("#SBATCH --gpus=1", (), "train.sh:1: --gpus: no server has 'gpu'"),
        ("#SHADOWPRICE --memory x", (), "train.sh:1: --memory: 'x' is not a quantity"),
        ("#SBATCH --gpus=two", (), "train.sh:1: --gpus: expected a number, got 'two'"),
        ("#SHADOWPRICE -g two", ("--gpus", "x"), "error: --gpus: expected a number, got 'x'"),
        ("#SBATCH --time=x", (), "train.sh:1: --time: unexpected value 'x'"),
        ("#!/no/such/shell", (), "'/no/such/shell' is not an executable program"),
        ("true", ("0.1",), "0.1: not valid with a script; write arguments of the script after --"),
        ("true", ("a", "b c", "--", "d"), "after --: train.sh -- a 'b c' d\n"),
        ("true", ("--only", "a"), "--only: has no effect on a command"),
    ],
)
def test_errors_of_scripts_name_the_line(
    text: str,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "train.sh").write_text(f"{text}\n")
    assert main(["submit", "train.sh", *words]) == 2
    assert message in capsys.readouterr().err


def test_name_conflict_has_a_location_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _submit(capsys, "--name", "taken", "--time", "1min", "--", sys.executable, "-c", "1")
    assert main(["submit", "--name", "taken", "--", sys.executable, "-c", "2"]) == 2
    message = "job 'taken' was submitted with other content; "
    assert capsys.readouterr().err.startswith(f"error: --name: {message}give another name")
    (tmp_path / "t.sh").write_text("#!/bin/sh\n#SHADOWPRICE --name taken\n")
    assert main(["submit", "t.sh"]) == 2
    assert capsys.readouterr().err.startswith(f"error: t.sh:2: --name: {message}give another")
    work = {"steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}}
    record = {"name": "taken", **work, "run": {"command": "true"}}
    (tmp_path / "j.yaml").write_text(yaml.safe_dump({"jobs": [record]}))
    assert main(["submit", "j.yaml"]) == 2
    hint = "write another name, or revise the job: shadowprice revise taken --help"
    assert capsys.readouterr().err == f"error: j.yaml: jobs[0].name: {message}{hint}\n"


@pytest.mark.parametrize("run", [{"image": "registry/train:1"}, {"pod": {"labels": {"a": "b"}}}])
def test_an_image_is_refused_by_a_service_without_containers(
    live: RunningService, run: dict[str, Any]
) -> None:
    record = {"name": "contained", "worker": {"cpu": 1}, "run": {"command": ["true"], **run}}
    response = live.client.post("/v1/jobs", json=record)
    assert response.status_code == 422
    [fault] = response.json()["errors"]
    assert fault["location"] == f"job.run.{next(iter(run))}"
    assert fault["message"] == "this service runs jobs without containers"
    assert live.client.get("/v1/jobs/contained").status_code == 404


def test_a_late_prediction_is_warned_of(
    live: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(3):
        _submit(capsys, "--name", f"slow-{index}", "--wait", "--", "sleep", "3")
    assert main(["submit", "--name", "slow-9", "--by", "1s", "--", "sleep", "3"]) == 0
    warning = "if the job takes as long as predicted, it ends after its deadline"
    assert warning in capsys.readouterr().err
    live.client.delete("/v1/jobs/slow-9")


def test_without_a_token_the_command_to_run_is_named(
    live: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHADOWPRICE_TOKEN")
    assert main(["submit", "--", sys.executable]) == 2
    hint = f"run shadowprice login {live.address}, or set SHADOWPRICE_SERVER and SHADOWPRICE_TOKEN"
    assert capsys.readouterr().err == f"error: {live.address}: a token is needed; {hint}\n"


def test_remote_service_needs_a_directory_on_its_machines(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_service(tmp_path_factory.mktemp("elsewhere"), cluster=CLUSTER) as elsewhere:
        monkeypatch.setenv("SHADOWPRICE_SERVER", elsewhere.address)
        monkeypatch.setenv("SHADOWPRICE_TOKEN", elsewhere.service.token_file.read_text().strip())
        assert main(["submit", "--", "train"]) == 2
        assert "runs jobs on other machines" in capsys.readouterr().err
        [job] = _submit(capsys, "--workdir", "/srv/exp", "--", "train")
        run = elsewhere.client.get(f"/v1/jobs/{job['name']}").json()["spec"]["run"]
        assert run == {"command": ["train"], "workdir": "/srv/exp", "from_options": True}


def test_file_of_a_failed_job_resubmits_it(
    live: RunningService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def record(name: str, **run: Any) -> dict[str, Any]:
        command = [sys.executable, "train.py"]
        return {
            "name": name,
            "minibatch_time": "1s",
            "worker": {"cpu": 1},
            "run": {"command": command, "workdir": str(tmp_path), "env": {"LR": "7"}, **run},
        }

    failing = record("failing", env={"STATUS": "3"})
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [failing, record("kept")]}))
    first = {job["name"]: job for job in _submit(capsys, "--wait", "jobs.yaml", status=1)}
    assert main(["submit", "-o", "json", "jobs.yaml"]) == 0
    output = capsys.readouterr()
    resubmitted = {job["name"]: job for job in json.loads(output.out)}
    assert resubmitted["failing"]["id"] != first["failing"]["id"]
    assert resubmitted["kept"]["id"] == first["kept"]["id"]  # finished work isn't repeated
    assert "job 'kept' finished before" in output.err
    assert "`shadowprice resubmit kept`" in output.err

    assert main(["resubmit", "kept", "-o", "json"]) == 0
    [repeated] = json.loads(capsys.readouterr().out)
    name = repeated["name"]
    assert name.startswith("kept-")
    wait_until(lambda: live.client.get(f"/v1/jobs/{name}").json()["state"] == "finished")
    log = live.client.get(f"/v1/jobs/{name}/logs").json()["text"]
    assert json.loads(log)[2][2] == "7"  # values that responses mask


def test_jobs_are_cancelled_by_selection_and_requeued(
    live: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    long = (sys.executable, "-c", "import time; time.sleep(600)")
    for name in ("long-a", "long-b"):
        _submit(capsys, "--name", name, "--time", "1min", "--", *long)
    assert main(["resubmit", "long-a"]) == 2
    assert "requeue it instead" in capsys.readouterr().err
    invalid = live.client.post("/v1/jobs/long-a/resubmit?cancel=true", json={"name": "a" * 300})
    assert invalid.status_code == 422
    assert live.client.get("/v1/jobs/long-a").json()["state"] != "cancelled"
    assert main(["requeue", "long-a", "--yes", "-o", "json"]) == 0
    [repeated] = json.loads(capsys.readouterr().out)
    assert live.client.get("/v1/jobs/long-a").json()["state"] == "cancelled"
    assert main(["cancel", "--tenant", "nobody", "--yes", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["cancel", "--tenant", "nobody", "--yes"]) == 0
    assert capsys.readouterr() == ("", "no open job matches\n")
    assert main(["cancel", "--all", "--yes", "-o", "json"]) == 0
    cancelled = {job["name"] for job in json.loads(capsys.readouterr().out)}
    assert cancelled >= {"long-b", repeated["name"]}


def test_an_interrupted_submission_names_its_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their names are generated, and they run on."""
    sleep = time.sleep

    def interrupt(seconds: float) -> None:
        is_waiting = sys._getframe(1).f_code.co_name == "_wait_until_closed"
        signal.raise_signal(signal.SIGINT) if is_waiting else sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        long = (sys.executable, "-c", "import time; time.sleep(600)")
        assert main(["submit", "--time", "1min", "--wait", "--", *long]) == 130
    error = capsys.readouterr().err
    match = re.search(r"^submitted, and not cancelled: (\S+)$", error, re.MULTILINE)
    assert match is not None, error
    assert error.endswith("\ninterrupted\n")
    assert main(["cancel", match[1], "--yes"]) == 0


def test_cancellations_before_an_error_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = (sys.executable, "-c", "import time; time.sleep(600)")
    _submit(capsys, "--name", "stopped", "--time", "1min", "--", *long)
    _submit(capsys, "--name", "done", "--time", "1s", "--wait", "--", sys.executable, "-c", "")
    assert main(["cancel", "stopped", "done", "--yes", "-o", "json"]) == 2
    captured = capsys.readouterr()
    assert [(job["name"], job["state"]) for job in json.loads(captured.out)] == [
        ("stopped", "cancelled")
    ]
    assert "finished" in captured.err


def test_logs_end_although_the_job_keeps_printing(
    live: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import itertools\nfor n in itertools.count(): print(f'{n:07}', flush=True)"
    _submit(capsys, "--name", "busy", "--time", "1min", "--", sys.executable, "-c", code)

    def has_long_log() -> bool:
        response = live.client.get("/v1/jobs/busy/logs")
        return response.status_code == 200 and response.json()["end"] > 100_000

    wait_until(has_long_log)
    assert main(["logs", "busy"]) == 0
    tail = capsys.readouterr().out
    assert main(["logs", "busy", "--all"]) == 0
    whole = capsys.readouterr().out
    assert whole.startswith("0000000\n0000001\n")
    assert len(whole) > len(tail) > 0
    assert main(["cancel", "busy", "--yes"]) == 0


def test_waiting_selects_jobs_without_processes(
    live: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ("--cpus", "4", "--", sys.executable, "-c", "import time; time.sleep(600)")
    _submit(capsys, "--name", "runs", *long)
    wait_until(lambda: live.client.get("/v1/jobs/runs").json()["state"] == "running")
    _submit(capsys, "--name", "waits", *long)
    assert main(["queue", "--state", "waiting", "-o", "json"]) == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)] == ["waits"]
    assert main(["cancel", "--state", "waiting", "--yes", "-o", "json"]) == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)] == ["waits"]
    assert main(["cancel", "--state", "waiting,running", "--yes", "-o", "json"]) == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)] == ["runs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "JOB: expected either names or a selection"),
        (("a", "--all"), "JOB: expected either names or a selection"),
        (("--state", "finished"), "--state: 'finished' is not a state of open jobs"),
    ],
)
def test_cancel_needs_names_or_a_selection(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cancel", *words]) == 2
    assert message in capsys.readouterr().err


def test_jobs_of_one_name_and_two_tenants_run_apart(
    live: RunningService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import os
from urllib.request import ProxyHandler, Request, build_opener

values = os.environ
headers = {
    "Authorization": "Bearer " + values["SHADOWPRICE_PROGRESS_TOKEN"],
    "Content-Type": "application/json",
}
report = Request(values["SHADOWPRICE_PROGRESS_URL"], b'{"minibatches": 1}', headers)
with build_opener(ProxyHandler({})).open(report) as response:
    print(values["SHADOWPRICE_JOB"], values["SHADOWPRICE_CHECKPOINT_DIR"], response.status)
"""
    logs, numbers = [], []
    for tenant in ("red", "blue", "red"):
        token = live.token(tenant)
        monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
        # Other content each time: equal content of a finished job is the same job.
        words = ("--name", "same", "--env", f"N={len(logs)}", "--time", "2s", "--wait")
        [job] = _submit(capsys, *words, "--", sys.executable, "-c", script)
        assert (job["name"], job["tenant"], job["state"]) == ("same", tenant, "finished")
        numbers.append(job["id"])
        with live.as_(token) as client:
            logs.append(client.get("/v1/jobs/same/logs").json()["text"].split())
    assert len(set(numbers)) == 3
    assert [(words[0], words[2]) for words in logs] == [("same", "202")] * 3
    assert len({words[1] for words in logs}) == 3  # no job finds the checkpoints of another
    with live.as_(live.token("red")) as red:
        first = red.get(f"/v1/jobs/id:{numbers[0]}/logs").json()["text"].split()
        assert first == logs[0]
        assert red.get(f"/v1/jobs/id:{numbers[1]}/logs").status_code == 404
