"""``shadowprice profile`` on jobs of known speed, and on jobs that can't be measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shadowprice.cli.main import main
from shadowprice.executors.supervision.children import processes
from shadowprice.inputs.files import read_cluster, read_jobs
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
PACED = ROOT / "tests" / "support" / "paced_job.py"
ENOUGH = "600s"
"""Time limit of measurements that other conditions end."""

CLUSTER = "slot: 10s\nhorizon: 100\nservers: [{name: one, capacity: {cpu: 8, memory: 8GiB}}]\n"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs run on Linux"),
]


def _words(*options: str, job: tuple[str, ...] = ()) -> list[str]:
    own = ["profile", "--env", f"PYTHONPATH={ROOT / 'src'}", "--cpu", "0", *options]
    return [*own, "--", sys.executable, str(PACED), *job]


def test_known_speed_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "jobs.yaml"
    options = ("--workers", "1,2,5", "--out", str(out), "-o", "json", "--minibatches", "1001")
    words = _words(*options, job=("--serial", "0.02", "--shared", "0.08", "--noise", "0.05"))
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    for point in result["points"]:
        takes = 0.02 + 0.08 / point["workers"]
        tolerance = max(3.0 * point["half_width"], 0.02 * takes)
        assert point["step_time"] == pytest.approx(takes, abs=tolerance)
        assert point["half_width"] < 0.3 * takes
        assert point["memory"]["worker"] > 1 << 20
    assert [point["resumed"] for point in result["points"]] == [None, True, True]
    assert result["points"][0]["warm_up"] > 0
    assert result["linear"]["verdict"] == "does not fit"
    assert result["serial"]["serial"] == pytest.approx(0.02, rel=0.8)
    assert result["serial"]["shared"] == pytest.approx(0.08, rel=0.4)
    assert result["metrics"] == {"gradient_bytes": 4e6}
    assert result["restart"] > 0.0

    # The output is a job file that a cluster accepts.
    content = out.read_text()
    assert "linear model (tau + 2 e / b) does not fit" in content
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    cluster = read_cluster(tmp_path / "cluster.yaml")
    (job,) = read_jobs(out, cluster)
    assert job.worker_counts.tolist() == [1, 2, 5]
    assert job.work == 1001
    for workers in (1, 2, 5):
        speed = result["throughput"][str(workers)]
        assert job.gain(workers) == pytest.approx(10.0 * speed * 1e6)
    stated = yaml.safe_load(content)["jobs"][0]
    assert stated["run"]["command"] == [
        sys.executable,
        str(PACED),
        *words[words.index("--serial") :],
    ]
    # And it may be written again, but only over itself.
    assert main(_words("--out", str(ROOT / "README.md"))) == 2
    assert "that this command did not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "limit", "reason", "output"),
    [
        (("--way", "dies"), ENOUGH, "worker-0 exited 1", "| worker 0 of 1, step 0"),
        (("--way", "silent"), "5s", "it never reported within 5 s; worker 0 must call", ""),
        (
            ("--way", "backwards", "--warm-up", "0"),
            ENOUGH,
            "report the total since the job's first start",
            "",
        ),
        (("--steps", "4"), ENOUGH, "it ended after 4 mini-batches and", ""),
    ],
)
def test_unmeasurable_commands_report_the_reason(
    job: tuple[str, ...],
    limit: str,
    reason: str,
    output: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out = tmp_path / "jobs.yaml"
    assert main(_words("--time", limit, "--workers", "1", "--out", str(out), job=job)) == 1
    errors = capsys.readouterr().err
    assert reason in errors.splitlines()[-1]
    assert errors.splitlines()[-1].startswith("error: not measured: 1 worker: ")
    assert output in errors
    assert not out.exists()


def test_sharing_of_gpus_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    job = ("--way", "dies")
    note = "note: this machine has GPUs, but --gpu assigns none"
    assert main(_words("--workers", "1", job=job)) == 1
    assert note in capsys.readouterr().err
    assert main(_words("--workers", "1", "--gpu", "1", job=job)) == 1
    assert note not in capsys.readouterr().err


def test_measurements_are_kept_if_more_workers_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "jobs.yaml"
    options = ("--workers", "1,2,3", "--time", ENOUGH, "--steps", "10", "--out", str(out))
    assert main(_words(*options, job=("--way", "dies-with-two"))) == 1
    assert "not measured: 2 workers: worker-" in capsys.readouterr().err
    content = out.read_text()
    assert list(yaml.safe_load(content)["jobs"][0]["throughput"]) == [1, 3]
    assert "2 workers: not measured: worker-" in content
    # Three restarted because two had failed, which doesn't show that the job has checkpoints.
    assert "never resumed from a checkpoint" not in content


def test_a_family_keeps_its_curve_for_jobs_that_were_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "families.yaml"
    library.write_text("families:\n  other: {throughput: {1: 3.5, 2: 6}, restart: 4s}\n")
    options = ("--workers", "1", "--time", ENOUGH, "--steps", "10", "--cpu", "0")
    keep = ("--family", "paced", "--families", str(library))
    assert main(_words(*options, *keep, job=("--serial", "0.06", "--warm-up", "0"))) == 0
    assert "the curve of family 'paced' is in" in capsys.readouterr().out
    families = yaml.safe_load(library.read_text())["families"]
    assert list(families) == ["other", "paced"]
    assert families["other"]["throughput"] == {1: 3.5, 2: 6}
    assert families["paced"]["throughput"][1] == pytest.approx(10.0, rel=0.05)
    (tmp_path / "jobs.yaml").write_text(
        "families: families.yaml\n"
        "jobs: [{name: new, family: paced, minibatches: 900, worker: {cpu: 1},"
        " utility: {kind: constant, value: 1}}]\n"
    )
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (job,) = read_jobs(tmp_path / "jobs.yaml", read_cluster(tmp_path / "cluster.yaml"))
    assert job.gain(1) == pytest.approx(10.0 * 1e6 * families["paced"]["throughput"][1])
    # A file that is no library stays as it is.
    library.write_text("something: else\n")
    assert main(_words(*keep)) == 2
    assert "something" in capsys.readouterr().err


def test_invalid_arguments_are_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    families, same = f"{tmp_path}/x.yaml", f"{tmp_path}/../{tmp_path.name}/x.yaml"
    for words, message in (
        (["profile", "--", "no-such-program"], "unknown program 'no-such-program'"),
        (_words("--workers", "1,1"), "has a number out of range or repeated"),
        (_words("--workers", "0"), "out of range"),
        (_words("--ps", "two"), "--ps: expected a list of integers, got 'two'"),
        (_words("--time", "soon"), "--time"),
        (_words("--env", "RANK=1"), "--env: 'RANK' is reserved: the executor sets it"),
        (_words("--env", "A"), "write NAME=VALUE"),
        (
            _words("--family", "f", "--families", families, "--out", same),
            f"--out: {same} is also the file of --families; give another name",
        ),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, -1), (signal.SIGKILL, -9)],
)
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: int, status: int) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("ignored by the process that started the tests, such as nohup")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    mark = f"--noise=0.00{os.getpid()}"  # identifies its processes
    words = [sys.executable, "-c", "from shadowprice.cli.main import run; run()"]
    with subprocess.Popen(
        [*words, *_words("--time", ENOUGH, "--precision", "0.0001", job=(mark,))],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        assert program.stderr is not None
        for line in program.stderr:
            if line.strip().endswith("measuring"):
                break
        assert _running(mark) >= 1
        program.send_signal(number)
        assert program.wait(WAIT_LIMIT_SECONDS) == status
    wait_until(lambda: not _running(mark))
    assert status < 0 or not list(tmp_path.glob("shadowprice-profile-*"))


def _running(mark: str) -> int:
    count = 0
    for process, _, _ in processes():
        if process == os.getpid():
            continue
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        count += mark.encode() in words and b"profile" not in words
    return count
