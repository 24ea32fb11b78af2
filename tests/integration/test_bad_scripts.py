"""Wrong scripts of every kind: each ends with a reason in its history, and other jobs run on.

The same list is used here and on a Ray cluster.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.contract import Executor, ExecutorOptions
from shadowprice.executors.registry import create_executor
from tests.contract.harness import LocalHarness, RayHarness
from tests.support.ray_cluster import RayCluster
from tests.support.services import RunningService, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the local executor needs Linux"
    ),
]

OVER = {"finished", "refused", "failed", "cancelled"}
CLUSTER = {
    "slot": "2s",
    "horizon": 400,
    "servers": [{"name": "box", "count": 2, "capacity": {"cpu": 8}}],
}
START = "from shadowprice import jobs\nimport os, sys, time\n"

BACKWARDS = START + (
    "for step, pause in ((9, 6), (4, 2), (2, 2)):\n"
    " jobs.report(step, loss=1 / step)\n time.sleep(pause)\n"
    "print('step 2 again', flush=True)\nsys.exit('the loss went up')"
)
DEAF = START + (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\ntime.sleep(600)"
)
SILENT = "import time\nprint('what is a report?', flush=True)\ntime.sleep(600)"
HALF = START + (
    "found = jobs.load()\nfolder = jobs.current().checkpoint_dir\n"
    "print('generation', jobs.current().generation, 'begins at', found.step if found else 0)\n"
    "if found is None:\n"
    " jobs.save(3, b'three' * 100)\n jobs.save(4, b'four' * 100)\n"
    " path = folder / f'checkpoint-{4:015d}'\n"
    " path.write_bytes(path.read_bytes()[:200])\n"
    " sys.exit('cut off')\n"
    "sys.exit(0 if found.step == 3 else 'something else was restored')"
)
CONFUSED = START + (
    "path, step = os.environ['SHADOWPRICE_PROGRESS_FILE'], 0\n"
    "while True:\n"
    " step += 1\n"
    " jobs.report(float('nan'), loss=1.0)\n"  # which it doesn't report, and says so
    " open(path + '.new', 'w').write('{\"generation\": 1, \"minibatches\": -%d}' % step)\n"
    " os.replace(path + '.new', path)\n"
    " time.sleep(0.3)"
)
POSTS = (
    "import os, urllib.request\n"
    "address, token = (os.environ['SHADOWPRICE_PROGRESS_' + one] for one in ('URL', 'TOKEN'))\n"
    "head = {'Authorization': 'Bearer ' + token, 'Content-Type': 'application/json'}\n"
    "answers = set()\n"
    "for step in range(500):\n"
    ' body = b\'{"minibatches": "%d of 500"}\' % step\n'
    " try:\n  urllib.request.urlopen(urllib.request.Request(address, body, head))\n"
    " except urllib.error.HTTPError as error:\n  answers.add(error.code)\n"
    "print('answered', answers, flush=True)"
)
FORKS = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n os.setsid()\n"
    " if os.fork() == 0:\n  print('forked away', flush=True)\n  time.sleep(600)\n"
    " os._exit(0)\n"
    "time.sleep(0.5)\nsys.exit(5)"
)
DAEMON = (
    "import os, time\n"
    "if os.fork():\n os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork():\n os._exit(0)\n"
    "print('training in the background', flush=True)\ntime.sleep(600)"
)
DIES = START + (
    "gone = jobs.current().checkpoint_dir / 'gone'\n"
    "if os.environ['RANK'] == '1':\n"
    " print('dying', flush=True)\n gone.touch()\n os.kill(os.getpid(), 9)\n"
    "while not gone.exists():\n time.sleep(0.05)\n"
    "time.sleep(1)\nprint('alone', flush=True)"
)
FULL = START + (
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
    "jobs.save(1, b'small')\njobs.save(2, b'x' * 100_000)"
)
DISK = START + "jobs.save(1, b'small')\njobs.save(2, os.urandom(500_000))"
MOUNTED = 'mount -t tmpfs -o size=128k none "$SHADOWPRICE_CHECKPOINT_DIR" && exec "$@"'
"""Mounts a small private file system for the checkpoints of a job."""

GOOD = START + "for step in range(1, 5):\n jobs.report(step)\n time.sleep(0.2)\nprint('good')"


def job(name: str, script: str, **more: Any) -> dict[str, Any]:
    before = more.pop("before", [])
    run = {"command": [*before, sys.executable, "-c", script], **more.pop("run", {})}
    run["env"] = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return {
        "name": name,
        "minibatches": 10,
        "minibatch_time": "1s",
        "worker": {"cpu": 1},
        "utility": {"kind": "deadline", "value": 50, "by": "10min"},
        "run": run,
        **more,
    }


def small_disk() -> list[str]:
    """Return arguments to put before a command, empty if nothing may be mounted."""
    words = ["unshare", "--mount", "--", "sh", "-c"]
    try:
        tried = subprocess.run(
            [*words, "mount -t tmpfs -o size=128k none /mnt"],
            capture_output=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
    except FileNotFoundError:
        return []
    return [*words, MOUNTED, "sh"] if tried.returncode == 0 else []


@contextmanager
def executing(name: str, folder: Path) -> Iterator[Executor]:
    """Yield an executor of jobs, and check that nothing is left of them."""
    if name == "local":
        harness = LocalHarness(folder, {"cgroup": "off"})
        try:
            yield create_executor(
                "local", ExecutorOptions(str(harness.path), settings=harness.settings)
            )
        finally:
            harness.end()  # nothing of them is left, or this fails
        return
    pytest.importorskip("ray")
    cluster = RayCluster({name: {"num_cpus": 8} for name in ("box-0", "box-1")})
    try:
        on_ray = RayHarness(folder, cluster)
        try:
            yield on_ray.make()
        finally:
            on_ray.end()
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("bad")
    with (
        executing(request.param, folder / "executor") as executor,
        run_service(folder, cluster=CLUSTER, policy="rolling", executor=executor) as found,
    ):
        # It must have started before then; starting an actor and then a process takes longer than a
        # slot.
        by = {"local": "24s", "ray": "90s"}[request.param]
        soon = {"kind": "deadline", "value": 50, "by": by}
        for record in (
            job("import", "import torch_but_misspelt"),
            job("backwards", BACKWARDS),
            job("deaf", DEAF, run={"grace": "1s"}),
            job("silent", SILENT, utility=soon, run={"grace": "1s"}),
            job("confused", CONFUSED, utility=soon, run={"grace": "1s"}),
            job("posts", POSTS),
            job("unasked", "import sys; print('I was told?', flush=True); sys.exit(143)"),
            job("elsewhere", GOOD, run={"workdir": "/no/such/place"}),
            job("relative", "", run={"command": [sys.executable, "train.py"]}),
            job("nothing", "", run={"command": ["./train.sh"]}),
            job("half", HALF, run={"retries": 1}),
            job("forks", FORKS),
            job("daemon", DAEMON),
            job("dies", DIES, chunks=2, workers={"min": 2}, run={"tolerates": "workers"}),
            job("full", FULL),
            job("disk", DISK, before=small_disk()),
            job("good", GOOD),
        ):
            response = found.client.post("/v1/jobs", json=record)
            assert response.status_code == 200, response.text
        yield found


def job_history(live: RunningService, name: str) -> dict[str, Any]:
    return dict(live.client.get(f"/v1/jobs/{name}/explain").json())


def state(live: RunningService, name: str) -> str:
    return str(live.client.get(f"/v1/jobs/{name}").json()["state"])


def over(live: RunningService, name: str) -> dict[str, Any]:
    wait_until(lambda: state(live, name) in OVER, lambda: job_history(live, name))
    return job_history(live, name)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "reason", "last"),
    [
        ("import", "worker-0 exited 1", "No module named 'torch_but_misspelt'"),
        ("backwards", "worker-0 exited 1", "the loss went up"),
        ("forks", "worker-0 exited 5", "forked away"),
        ("full", "worker-0 exited 1", "File too large"),
        (
            "unasked",
            "exited 143, or was ended by a SIGTERM that the scheduler did not send",
            "I was told?",
        ),
        ("elsewhere", "worker-0 exited 127: cannot start in /no/such/place", "check run.workdir"),
    ],
)
def test_failing_script_fails_with_reason_and_last_log_lines(
    live: RunningService, name: str, reason: str, last: str
) -> None:
    history = over(live, name)
    assert history["job"]["state"] == "failed", history
    message = history["job"]["reason"]["message"]
    assert reason in message
    assert last in message


def test_missing_script_is_reported_with_a_hint(
    live: RunningService,
) -> None:
    for name, script in (("relative", "train.py"), ("nothing", "./train.sh")):
        history = over(live, name)
        assert history["job"]["state"] == "failed", history
        said = history["job"]["reason"]["message"].splitlines()[0]
        assert f"; '{script}' is not in " in said
        assert said.endswith(", where the job runs; set run.workdir, or write an absolute path")
        (line,) = [line for line in history["lines"] if "failed with generation 1" in line]
        assert "set run.workdir" in line
    assert "/work, where the job runs" in over(live, "relative")["job"]["reason"]["message"]


def test_daemonizing_script_finishes_and_reports_killed_processes(
    live: RunningService,
) -> None:
    history = over(live, "daemon")
    assert history["job"]["state"] == "finished", history
    log = last_of(live, "daemon")
    assert "ended with status 0: every worker exited 0; worker-0: background processes" in log
    assert "(python" in log
    assert "keep the command running until they finish" in log
    assert "training in the background" in log


def test_finished_job_reports_workers_that_died(live: RunningService) -> None:
    history = over(live, "dies")
    assert history["job"]["state"] == "finished", history
    log = last_of(live, "dies")
    assert "ended with status 0: the remaining workers exited 0; earlier worker-1" in log
    assert "worker-1 ended by SIGKILL, status 137" in log


@pytest.mark.skipif(not small_disk(), reason="no disk may be mounted here")
def test_full_disk_is_the_failure_reason(live: RunningService) -> None:
    history = over(live, "disk")
    assert history["job"]["state"] == "failed", history
    message = history["job"]["reason"]["message"]
    assert "worker-0 exited 1" in message
    assert "No space left on device" in message


def test_valid_jobs_finish_beside_failing_ones(live: RunningService) -> None:
    assert over(live, "good")["job"]["state"] == "finished"


def test_progress_never_decreases(live: RunningService) -> None:
    over(live, "backwards")
    # 9 mini-batches, in whole worker-slots of 2; the later reports of 4 and 2 are 1 or 2 of them.
    assert live.client.get("/v1/jobs/backwards").json()["progress"] == 8.0


def test_partial_checkpoint_falls_back_to_the_previous_one(live: RunningService) -> None:
    assert over(live, "half")["job"]["state"] == "finished"
    message = live.client.get("/v1/jobs/half/logs").json()["text"]
    assert "begins at 3" in message


@pytest.mark.extended
def test_job_without_reports_is_measured_by_time_and_abandoned_when_worthless(
    live: RunningService,
) -> None:
    history = over(live, "silent")
    assert history["job"]["state"] == "failed"
    assert "without an end" in str(history["job"]["reason"])
    log = last_of(live, "silent")
    assert "the scheduler stopped it; it never reported progress" in log
    assert "what is a report?" in log


def test_invalid_reports_get_an_error_message(live: RunningService) -> None:
    history = over(live, "confused")
    assert history["job"]["state"] == "failed"
    (log_line,) = [
        line for line in history["lines"] if "an invalid progress report, which is ignored" in line
    ]
    assert "it is not a count; write the number of mini-batches since" in log_line
    assert "nan is not a number of mini-batches" in last_of(live, "confused")
    assert live.client.get("/v1/jobs/confused/progress").json()["points"] == []


def test_invalid_progress_request_appears_in_the_job_history(live: RunningService) -> None:
    history = over(live, "posts")
    (said,) = [
        line for line in history["lines"] if "an invalid progress report, which is ignored" in line
    ]
    assert "progress.minibatches: it is not a count; write the number of mini-batches" in said
    assert "answered {422}" in live.client.get("/v1/jobs/posts/logs").json()["text"]


def last_of(live: RunningService, name: str) -> str:
    """Return the end of a job in its history, as soon as it is recorded."""

    def lines() -> list[str]:
        return [line for line in job_history(live, name)["lines"] if "ended" in line]

    wait_until(lambda: bool(lines()), lambda: job_history(live, name))
    return lines()[-1]


def test_job_ignoring_sigterm_is_killed_after_the_grace_period(live: RunningService) -> None:
    wait_until(lambda: state(live, "deaf") == "running", lambda: job_history(live, "deaf"))
    ready = "/v1/jobs/deaf/logs"
    wait_until(lambda: "ready" in live.client.get(ready).json().get("text", ""), lambda: ready)
    live.client.delete("/v1/jobs/deaf")
    assert over(live, "deaf")["job"]["state"] == "cancelled"

    def ended() -> str:
        rows = live.client.get("/v1/jobs/deaf/generations").json()["generations"]
        return str(rows[-1]["reason"])

    wait_until(lambda: "was killed" in ended(), ended)
    assert "worker-0 did not exit within its grace period" in ended()
    log = last_of(live, "deaf")
    assert "was killed" in log
    assert "ready" in log
