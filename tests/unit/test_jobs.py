"""The API for a job's own script: reports, checkpoints, and its end."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from shadowprice import jobs
from shadowprice.executors.progress import read_progress
from shadowprice.training.reporting import ProgressReporter
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.processes


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith("SHADOWPRICE_")]:
        monkeypatch.delenv(name)
    variables = {"JOB": "j", "GENERATION": "3", "RANK": "0", "ROLE": "worker", "WORKERS": "2"}
    variables |= {"PS": "1", "CHECKPOINT_DIR": str(tmp_path / "c"), "SLOT_END": "12.500"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SHADOWPRICE_{name}", value)
    monkeypatch.setattr(jobs, "_checkpoints", False)  # other tests load checkpoints
    return tmp_path


def dead_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(WAIT_LIMIT_SECONDS)
    return process.pid


def test_reports_are_read(inside: Path) -> None:
    assert jobs.current() == jobs.Job("j", 3, "worker", 0, 2, 1, inside / "c", 12.5)
    assert jobs.current().leads


def test_a_report_goes_into_the_file(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    assert jobs.report(12, loss=0.5)
    assert jobs.report(13, loss=0.25, accuracy=1)
    body = json.loads((inside / "progress.json").read_bytes())
    report, omitted = read_progress("j", body, 0.0)
    assert omitted == ()
    assert (report.progress, report.generation) == (13_000_000, 3)
    assert report.metrics == {"loss": 0.25, "accuracy": 1.0}
    assert [path.name for path in inside.iterdir()] == ["progress.json"]


def test_an_invalid_count_is_not_reported_and_warned_about_once(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    monkeypatch.setattr(jobs, "_logged_kinds", set())
    for count in (float("nan"), -1, float("inf"), 1e13, float("nan"), 10**400, "many", None):
        assert not jobs.report(cast(float, count), loss=0.5)
    assert list(inside.iterdir()) == []
    said = capsys.readouterr().err
    assert said == "shadowprice: nan is not a number of mini-batches, so it is not reported\n"
    assert jobs.report(1e12)


def test_only_worker_0_reports(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    for rank, role in (("1", "worker"), ("0", "ps")):
        monkeypatch.setenv("SHADOWPRICE_RANK", rank)
        monkeypatch.setenv("SHADOWPRICE_ROLE", role)
        assert not jobs.report(1)
    assert list(inside.iterdir()) == []


def test_further_processes_of_a_launcher_do_not_lead(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun starts several processes for worker 0, with the same environment."""
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not jobs.report(1)
    jobs.save(3, b"three")
    assert list(inside.iterdir()) == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert jobs.report(1)
    jobs.save(3, b"three")
    assert jobs.load() == jobs.Checkpoint(3, b"three")


class Pair:
    """A tensor of two elements, as PyTorch refuses it."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_no_type_of_a_count_ends_the_job(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    monkeypatch.setattr(jobs, "_logged_kinds", set())
    assert not jobs.report(cast(float, Pair()))
    assert jobs.report(2)


@pytest.mark.parametrize("response", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 x\r\n\r\n"])
def test_a_server_that_does_not_speak_http_ends_no_job(
    inside: Path, monkeypatch: pytest.MonkeyPatch, response: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(response)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setenv("SHADOWPRICE_PROGRESS_URL", address)
        assert not jobs.report(1)
        thread.join(WAIT_LIMIT_SECONDS)


@pytest.mark.parametrize(
    "data",
    [b"", bytearray(b"ab"), memoryview(array("d", [1.0, 2.0])), np.arange(6.0).reshape(2, 3)],
    ids=["empty", "bytearray", "view", "array"],
)
def test_a_view_is_saved_with_all_its_bytes(inside: Path, data: Any) -> None:
    jobs.save(4, data)
    assert jobs.load() == jobs.Checkpoint(4, memoryview(data).tobytes())


def test_a_report_is_posted_where_there_is_no_file(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/v1/jobs/j/progress"
        monkeypatch.setenv("SHADOWPRICE_PROGRESS_URL", address)
        monkeypatch.setenv("SHADOWPRICE_PROGRESS_TOKEN", "token")
        assert jobs.report(2.5, loss=1)
    finally:
        server.shutdown()
        thread.join(WAIT_LIMIT_SECONDS)
        server.server_close()
    metrics = {"loss": 1.0}
    body = {"generation": 3, "minibatches": 2.5, "metrics": metrics, "checkpoints": False}
    assert got == [("/v1/jobs/j/progress", "Bearer token", body)]
    assert not jobs.report(3)  # without a listener it does no harm


@pytest.mark.parametrize("address", ["", "file:///etc/passwd", "ftp://x"])
def test_a_report_goes_nowhere_else(
    inside: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_URL", address)
    assert not jobs.report(1)


class Unmeasured:
    """A metric of a library, of which nothing was measured yet."""

    def __float__(self) -> float:
        raise ZeroDivisionError("the mean of no values")


def test_an_invalid_metric_costs_no_report(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    monkeypatch.setattr(jobs, "_logged_kinds", set())
    invalid: dict[str, Any] = {"a": None, "b": "high", "c": [1, 2], "d": 10**400, "e": object()}
    invalid["h"] = Unmeasured()
    nonfinite = {"f": float("nan"), "g": float("inf")}
    assert jobs.report(12, loss=0.5, **invalid, **nonfinite)
    body = json.loads((inside / "progress.json").read_bytes())
    assert body["minibatches"] == 12
    assert body["metrics"] == {"loss": 0.5}
    logged = capsys.readouterr().err
    assert logged.startswith("shadowprice: the metric 'a' is not reported: ")
    assert not jobs.report(-1)
    assert not jobs.report(-2)
    said = "shadowprice: -1 is not a number of mini-batches, so it is not reported\n"
    assert capsys.readouterr().err == said  # one message of each kind


def test_a_metric_may_have_the_name_of_the_count(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    assert jobs.report(12, minibatches=3.0)
    body = json.loads((inside / "progress.json").read_bytes())
    assert (body["minibatches"], body["metrics"]) == (12, {"minibatches": 3.0})


def test_a_token_that_http_cannot_send_ends_no_job(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "_logged_kinds", set())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setenv("SHADOWPRICE_PROGRESS_URL", address)
        monkeypatch.setenv("SHADOWPRICE_PROGRESS_TOKEN", "a\nb")
        assert not jobs.report(1)
    assert "shadowprice: progress is not reported: Invalid header" in capsys.readouterr().err
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_URL", "http://[::1/")
    assert not jobs.report(1)


def test_a_report_that_raises_does_not_end_the_reporter(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHADOWPRICE_PROGRESS_FILE", str(inside / "progress.json"))
    reporter = ProgressReporter(0.0)
    for invalid in ({1: 0.5}, {2: 0.5}):
        reporter.report(1, cast(dict[str, float], invalid))
        assert reporter.flush(WAIT_LIMIT_SECONDS)
    reporter.report(2, {})
    assert reporter.flush(WAIT_LIMIT_SECONDS)
    assert json.loads((inside / "progress.json").read_bytes())["minibatches"] == 2
    assert capsys.readouterr().err.count("failed to report progress") == 1


def test_workers_besides_the_first_save_nothing(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADOWPRICE_RANK", "1")
    jobs.save(3, b"three")
    assert jobs.load() is None
    monkeypatch.setenv("SHADOWPRICE_RANK", "0")
    jobs.save(3, b"three")
    assert jobs.load() == jobs.Checkpoint(3, b"three")


SAVING = """
import os, sys
from pathlib import Path
from shadowprice import jobs
parents = []
for rank in range(4):
    if os.fork() == 0:
        for step in range(1, 16):
            jobs.save(step, bytes(200_000), Path(sys.argv[1]))
        os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)])
"""


def test_processes_that_save_to_one_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SAVING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (ran.stdout, ran.stderr) == ("[0, 0, 0, 0]\n", "")
    assert next(jobs.saved(tmp_path)).step == 15


FORKING = """
import multiprocessing, os, signal, time
from shadowprice import jobs
if {first}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signals = [jobs.StopSignal() for _ in range({count})]
context = multiprocessing.get_context("fork")
child = context.Process(target=lambda: print(int(signal.getsignal(signal.SIGTERM)), flush=True))
child.start()
child.join()
if not {first}:
    child = context.Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print(*map(bool, signals), flush=True)
"""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("first", [False, True])
def test_a_forked_child_has_the_handler_from_before_the_stop_signal(
    count: int, first: bool
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKING.format(first=first, count=count)],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    handlers = [str(int(signal.SIG_IGN))] if first else [str(int(signal.SIG_DFL)), "-15"]
    assert ran.stdout.splitlines() == [*handlers, " ".join(["True"] * count)]


IMPORTED_AGAIN = """
import multiprocessing, os, signal, sys
from shadowprice import jobs
stop = jobs.StopSignal()  # a child imports this line again

def until_stopped(ready):
    own = jobs.StopSignal()
    ready.set()
    own.wait({limit})
    sys.exit(7 if own else 1)

def until_ended(ready):
    ready.set()
    signal.sigwait([signal.SIGUSR1])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for target in (until_ended, until_stopped):
        ready = context.Event()
        child = context.Process(target=target, args=(ready,))
        child.start()
        ready.wait()
        child.terminate()
        child.join()
        print(child.exitcode, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print(bool(stop), flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_that_imports_the_script_again_ends_on_terminate(
    method: str, tmp_path: Path
) -> None:
    """A handler of the child's own, made in its function, stays."""
    script = tmp_path / "script.py"
    script.write_text(IMPORTED_AGAIN.format(limit=WAIT_LIMIT_SECONDS))
    ran = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert ran.stdout.splitlines() == ["-15", "7", "True"]


def test_a_signal_that_comes_just_before_a_sleep_ends_the_wait() -> None:
    """Python's handler runs after the sleep that the signal was too early to end."""
    script = """
import os, signal, time
from shadowprice import jobs
stop, sleeps = jobs.StopSignal(), []
def sleep(seconds):
    sleeps.append(seconds)
    if len(sleeps) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
time.sleep = sleep
print(stop.wait(600.0), len(sleeps), max(sleeps) <= 0.1)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert ran.stdout.split() == ["True", "3", "True"]


def test_the_newest_whole_checkpoint_is_loaded(inside: Path) -> None:
    assert jobs.load() is None
    for step in (9, 10, 11):
        jobs.save(step, b"x" * step)
        killed = f".checkpoint-{step:015d}.{os.uname().nodename}.{dead_process()}.1"
        (inside / "c" / killed).touch()  # it was killed while saving
    jobs.save(11, b"x" * 11)
    names = sorted(path.name for path in (inside / "c").iterdir())
    assert names == [f"checkpoint-{step:015d}" for step in (10, 11)]
    assert jobs.load() == jobs.Checkpoint(11, b"x" * 11)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "rename", "longer"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_is_named(
    inside: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.save(1, b"one" * 100)
    jobs.save(2, b"two" * 100)
    newest = inside / "c" / f"checkpoint-{2:015d}"
    content = newest.read_bytes()
    if damage == "cut":
        newest.write_bytes(content[:-1])
    elif damage == "flip":
        newest.write_bytes(content[:100] + b"?" + content[101:])
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "rename":
        newest.rename(newest.with_name(f"checkpoint-{7:015d}"))
    else:
        newest.write_bytes(content + b"!")
    assert jobs.load() == jobs.Checkpoint(1, b"one" * 100)
    name = max((inside / "c").iterdir())
    assert capsys.readouterr().err == f"shadowprice: ignoring {name}: it is damaged\n"


def test_a_checkpoint_that_cannot_be_reached_is_not_taken_for_a_damaged_one(inside: Path) -> None:
    jobs.save(3, b"three")
    away = inside / "c" / f"checkpoint-{9:015d}"
    away.symlink_to(away)
    with pytest.raises(OSError, match="symbolic links"):
        jobs.load()


def test_a_damaged_checkpoint_is_not_counted_among_those_kept(inside: Path) -> None:
    jobs.save(5, b"five")
    jobs.save(9, b"nine")
    (inside / "c" / f"checkpoint-{9:015d}").write_bytes(b"damaged")
    jobs.save(6, b"six")
    jobs.save(7, memoryview(b"seven"))
    assert list(jobs.saved()) == [jobs.Checkpoint(7, b"seven"), jobs.Checkpoint(6, b"six")]


def test_a_save_removes_checkpoints_that_the_job_passed_over(inside: Path) -> None:
    """The job may refuse valid ones that other code saved; `load` would return them again."""
    for step in (19, 20, 10):
        jobs.save(step, b"%d" % step)
    assert jobs.load() == jobs.Checkpoint(10, b"10")
    for step in (15, 16):
        jobs.save(step, b"%d" % step)
    assert [checkpoint.step for checkpoint in jobs.saved()] == [16, 15]


def test_checkpoints_of_greater_steps_stay_in_a_directory_of_several_processes(
    tmp_path: Path,
) -> None:
    for step in (19, 20, 10, 15, 16):
        jobs.save(step, b"", tmp_path)
    assert [checkpoint.step for checkpoint in jobs.saved(tmp_path)] == [20, 19, 16, 15]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(inside: Path) -> None:
    script = (
        "import resource, signal; from shadowprice import jobs; jobs.save(1, b'one')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n jobs.save(2, b'x' * 5000)\nexcept OSError as error:\n print(error.errno)\n"
        "print(jobs.load())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.stdout.split("\n")[1] == "Checkpoint(step=1, data=b'one')"
    assert [path.name for path in (inside / "c").iterdir()] == [f"checkpoint-{1:015d}"]


def test_a_stopped_job_leaves_with_143(inside: Path) -> None:
    script = (
        "from shadowprice import jobs\nstop = jobs.StopSignal()\nprint(bool(stop), flush=True)\n"
        "while not stop.wait(60): pass\nprint(bool(stop), flush=True)\njobs.leave()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"False\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"True\n"
        assert process.wait(WAIT_LIMIT_SECONDS) == 143
    assert inside.is_dir()


def test_a_job_that_is_stopped_as_it_leaves_is_done(inside: Path) -> None:
    script = (
        "import os, signal\nfrom shadowprice import jobs\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):\n"
        "        kill(me, number)\n"
        "last, stop = Last(), jobs.StopSignal()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=WAIT_LIMIT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert inside.is_dir()


def test_importing_it_costs_a_job_nothing() -> None:
    script = "import sys; import shadowprice.jobs; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("shadowprice")} == {
        "shadowprice",
        "shadowprice.jobs",
        "shadowprice.jobs.changes",
        "shadowprice.jobs.files",
    }
    assert not loaded & {"numpy", "pydantic", "numba", "asyncio", "urllib.request", "statistics"}
