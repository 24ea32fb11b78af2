"""Output locations, and real errors of the file system."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import ShadowpriceError
from shadowprice.results.output_paths import AtomicDirectory
from shadowprice.results.run_directory import is_run
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes

CALL = [sys.executable, "-c", "from shadowprice.cli.main import run; run()"]
CLUSTER = "slot: 10min\nhorizon: 20\nservers: [{name: g, count: 2, capacity: {gpu: 4}}]\n"
JOBS = """\
jobs:
- {name: "a\\e[31m", chunks: 4, minibatches: 100, minibatch_time: 60s, worker: {gpu: 1},
   utility: {kind: constant, value: 5}}
- {name: "b\\u202e\\x9b\\xe9", chunks: 4, minibatches: 100, minibatch_time: 60s, worker: {gpu: 1},
   utility: {kind: constant, value: 5}}
"""
TRACE = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-03 00:00:00,3600,2,7200,6214e9\n"
SIMULATE = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "-p", "fifo", "-q")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    Path("j.yaml").write_text(JOBS)
    Path("t.csv").write_text(TRACE)
    yield tmp_path
    assert not [entry for entry in tmp_path.rglob("*") if entry.name.startswith(".")]


def snapshot() -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for entry in Path().rglob("*"):
        link = entry.is_symlink()
        found[str(entry)] = (
            str(entry.readlink()) if link else entry.read_bytes() if entry.is_file() else ""
        )
    return found


def lay_traps() -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    Path("forged").mkdir()
    Path("forged/run.json").write_text('{"mine": true}')
    Path("compared").mkdir()
    Path("compared/compare.json").write_text('{"mine": true}')
    for name in ("mine.jsonl", "mine.yaml", "mine.html"):
        Path(name).write_text('{"name": "mine", "utility": 1, "labels": {}}\n')
    Path("loose").symlink_to("nowhere")
    Path("bent").symlink_to("mine")
    Path("bent.jsonl").symlink_to("mine.jsonl")
    Path("bent.html").symlink_to("mine.html")


FOREIGN = "contains files that no earlier run of this kind wrote"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SIMULATE, "--out", "mine"), FOREIGN),
        ((*SIMULATE, "--out", "forged"), FOREIGN),
        ((*SIMULATE, "--out", "loose"), "is a symbolic link"),
        ((*SIMULATE, "--out", "bent"), "is a symbolic link"),
        ((*SIMULATE, "--out", "mine.jsonl"), "is not a directory"),
        ((*SIMULATE, "--out", "mine.jsonl/run"), "cannot be written"),
        ((*SIMULATE, "--out", "/dev/null"), "is not a directory"),
        ((*SIMULATE, "--out", "."), "contains the current directory"),
        ((*SIMULATE, "--out", "/"), "contains the current directory"),
        ((*SIMULATE, "--out", "/proc"), "is a mount point; give --out a new directory inside it"),
        ((*SIMULATE, "--out", "x" * 300), "cannot be written"),
        (
            ("compare", *SIMULATE[1:], "--out", "compared"),
            FOREIGN,
        ),
        (("trace", "convert", "philly:t.csv", "mine.jsonl"), "that this command did not write"),
        (("trace", "convert", "philly:t.csv", "mine.yaml"), "that this command did not write"),
        (("trace", "convert", "philly:t.csv", "bent.jsonl"), "is a link"),
        (("trace", "convert", "philly:t.csv", "/dev/null"), "ends in .jsonl or .yaml"),
        (("trace", "convert", "philly:t.csv", "new.jsonl", "--cluster", "c.yaml"), "did not write"),
        (("trace", "convert", "philly:t.csv", "new.yaml", "--cluster", "new.yaml"), "job file"),
        (("trace", "convert", "philly:t.csv", "no/new.yaml"), "does not exist; create it first"),
        (("generate", "--out", "mine.jsonl"), "is a file"),
        (("generate", "--out", "loose"), "loose is a link to nothing"),
        (("generate", "--out", "loose/x"), "loose is a link to nothing"),
        (("generate", "--out", "mine.jsonl/x"), "cannot be created as a directory"),
        (("generate", "--out", "new/" + "x" * 300), "cannot be created as a directory"),
        ((*SIMULATE, "--out", "loose/x"), "loose is a link to nothing"),
        (
            ("simulate", "--trace", "philly:t.csv", "--out", "mine"),
            "contains files that no earlier run",
        ),
        (
            ("compare", "-p", "fifo", "--trace", "philly:t.csv", "--out", "loose/x"),
            "a link to nothing",
        ),
        (("report", "mine", "--to", "bent.html"), "is a link"),
        (("experiment", "all", "--out", "loose"), "loose is a link to nothing"),
        (
            ("experiment", "oasis-fig3", "--out", "mine"),
            FOREIGN,
        ),
    ],
)
def test_foreign_output_is_refused_before_the_run(
    folder: Path,
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lay_traps()
    before = snapshot()

    def ran(*args: object, **kwargs: object) -> None:
        raise AssertionError("it ran before it looked")

    for name in (
        # First, because a module that is imported while its source is patched keeps the patch.
        "simulator.trials.record_run",
        "simulator.scenario.record_run",
        "experiments.framework.run_experiment",
        "results.run_directory.read_run",
        "traces.generator.generate",
        "traces.locate.read_trace",
        "traces.synthesis.synthesize",
    ):
        monkeypatch.setattr(f"shadowprice.{name}", ran)
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert snapshot() == before


def test_a_report_goes_only_where_a_page_may_be_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SIMULATE, "--out", "run"]) == 0
    lay_traps()
    before = snapshot()
    for place in ("mine.html", "bent.html", "loose", "mine", "/dev/full", "no/page.html"):
        assert main(["report", "run", "--to", place]) == 2, place
    assert snapshot() == before
    for _ in range(2):  # a new one, and then over itself
        assert main(["report", "run", "--to", "page.html"]) == 0
        assert main(["report", "run"]) == 0
    capsys.readouterr()


def test_own_results_are_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("fifo", "drf"):
        assert main([*SIMULATE, "-p", policy, "--out", "run"]) == 0
        assert main(["trace", "convert", "philly:t.csv", "j.jsonl", "--cluster", "k.yaml"]) == 0
        assert main(["trace", "convert", "philly:t.csv", "k2.yaml"]) == 0
        assert main(["generate", "--out", "drawn", "--jobs", "3"]) == 0
    assert json.loads(Path("run/run.json").read_text())["policy"] == "drf"
    capsys.readouterr()


def test_output_created_during_the_run_is_kept(folder: Path) -> None:
    with AtomicDirectory(Path("out"), is_run) as pending:
        (pending.path / "result").write_text("ours")
        Path("out").mkdir()
        Path("out/theirs").write_text("theirs")
        with pytest.raises(ShadowpriceError, match=r"the results are in .*out-2"):
            pending.commit()
    assert Path("out/theirs").read_text() == "theirs"
    assert Path("out-2/result").read_text() == "ours"


def test_results_that_cannot_be_moved_are_kept(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "old").touch()

    def is_replaceable(_: Path) -> bool:
        for pending in folder.glob(".shadowprice.*.unfinished"):
            # The earlier result can't move to its temporary name.
            (pending.with_suffix(".replaced") / "taken").mkdir(parents=True)
        return True

    with AtomicDirectory(folder / "out", is_replaceable) as pending:
        (pending.path / "result").write_text("kept")
        with pytest.raises(
            ShadowpriceError, match=r"out: cannot be written: .*; the results are in .*out-2"
        ):
            pending.commit()
    assert (folder / "out" / "old").exists()
    assert (folder / "out-2" / "result").read_text() == "kept"
    shutil.rmtree(pending.path.with_suffix(".replaced"))


def test_failed_run_removes_the_folders_it_created(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot()
    words = (*SIMULATE, "-s", "workers=nonsense", "--out", "a/b/c")
    assert main(words) == 2
    assert snapshot() == before
    capsys.readouterr()


# ---------------------------------------------------------------- the system says no


def called(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*CALL, *words],
        text=True,
        capture_output=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
        **options,
    )


def test_file_size_limit_is_reported(folder: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    before = snapshot()
    # SIGXFSZ is ignored by Python, so that the write fails as on a full disk.
    answer = called(*SIMULATE, "--out", "run", preexec_fn=small_files)
    assert answer.returncode == 1
    assert "File too large" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert snapshot() == before
    assert called(*SIMULATE, "--out", "run").returncode == 0
    answer = called("report", "run", "--to", "page.html", preexec_fn=small_files)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "File too large; raise the limit of file sizes" in answer.stderr
    assert not Path("page.html").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disk_is_reported(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        answer = called(*SIMULATE, "--out", "disk/run")
        assert answer.returncode == 1
        assert "No space left on device" in answer.stderr
        assert "make room" in answer.stderr
        assert "total utility" in answer.stdout  # the total utility is printed all the same
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)
        disk.rmdir()


def test_read_only_folder_is_refused_before_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # /proc refuses every user, root included.
    for words in (
        (*SIMULATE, "--out", "/proc/run"),
        ("trace", "convert", "philly:t.csv", "/proc/new.jsonl"),
        ("generate", "--out", "/proc/drawn"),
    ):
        status = main(words)
        err = capsys.readouterr().err
        assert status in {1, 2}, err
        assert "this is a bug" not in err
        assert err.count("\n") == 1


def test_folder_removed_during_the_run_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shadowprice.simulator import scenario

    record = scenario.record_run

    def removing(*args: object, **options: object) -> object:
        run = record(*args, **options)  # type: ignore[arg-type]
        shutil.rmtree(folder / "parent")
        return run

    monkeypatch.setattr(scenario, "record_run", removing)
    assert main([*SIMULATE, "--out", "parent/run"]) == 1
    err = capsys.readouterr().err
    assert "was a folder removed while this ran?" in err
    assert err.count("\n") == 1


def test_missing_working_directory_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "j.yaml").write_text(JOBS)
    words = ("simulate", "-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml"))
    script = f"import os, shutil; shutil.rmtree({str(gone)!r}); {CALL[2]}"
    result = subprocess.run(
        [sys.executable, "-c", script, *words, "-p", "fifo", "--out", "run"],
        cwd=gone, capture_output=True, text=True, check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )  # fmt: skip
    assert result.returncode in {1, 2}
    assert result.stderr.count("\n") == 1
    assert "No such file or directory" in result.stderr


def test_a_closed_pipe_ends_a_command_quietly(folder: Path) -> None:
    for words in (("policies",), (*SIMULATE, "-o", "json")):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            [*CALL, *words],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
        os.close(writer)
        assert (result.returncode, result.stderr) == (141, "")


def test_reading_only_the_first_lines_is_no_error(folder: Path) -> None:
    """A reader that leaves in the middle of an output of any length."""
    command = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    for words in (("policies",), ("trace", "formats"), (*SIMULATE, "-o", "json")):
        result = subprocess.run(
            ["bash", "-c", command, "bash", *CALL, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
        *first, status = result.stdout.splitlines()
        assert len(first) == 1, words
        # A short output fits into the pipe before its reader leaves.
        assert status in {"0", "141"}, words
        assert result.stderr == "", words


def test_full_stdout_is_reported(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*CALL, "policies"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
    assert result.returncode == 1
    assert result.stderr == "error: No space left on device; make room, or write elsewhere\n"


@pytest.mark.extended
def test_closed_stdout_is_reported_if_results_were_requested(
    folder: Path,
) -> None:
    argv = ("policies", "fifo")
    message = "error: stdout was closed before the command started; its output is lost\n"
    for words, closing, status, said in (
        (argv, "2>&-", 0, ""),
        (argv, ">&- 2>&-", 1, ""),
        ((*SIMULATE, "--out", "run"), ">&-", 1, message),
        (("whatif", *SIMULATE[1:5], "-q", "-p", "fifo", "-o", "json"), ">&-", 1, message),
    ):
        result = subprocess.run(
            ["sh", "-c", f'"$@" {closing}', "sh", *CALL, *words],
            capture_output=True, text=True, check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (status, said), (words, closing)
    assert Path("run/run.json").exists(), "what goes to files goes there"


def test_ascii_terminals_get_ascii_output(folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert main([*SIMULATE, "--out", "run"]) == 0
    for words in (("explain", "run", "a\x1b[31m"), ("jobs", "run"), ("simulate", "--help")):
        result = subprocess.run(
            [*CALL, *words],
            capture_output=True,
            check=False,
            env=environment,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert result.stderr == b""
        assert result.returncode == 0
        assert result.stdout.isascii()
        assert b"\x1b" not in result.stdout
        if words[0] == "jobs":
            assert rb"a\x1b[31m" in result.stdout
            assert rb"b\u202e\x9b\xe9" in result.stdout


@pytest.mark.extended
def test_tables_use_ascii_signs(folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [*CALL, "compare", *SIMULATE[1:5], "-p", "fifo,drf", "-q"]
    for more, expected in (
        (("--seeds", "2"), r"mean of 2 seeds \+- 95 %"),
        ((), r"decision, median +[\d.]+ [um]?s"),
    ):
        result = subprocess.run(
            [*words, *more],
            capture_output=True,
            check=False,
            env=environment,
            text=True,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert result.returncode == 0, result.stderr
        assert re.search(expected, result.stdout)
        assert "\\x" not in result.stdout


# ---------------------------------------------------------------- SIGTERM


@pytest.mark.extended
def test_sigterm_keeps_completed_slots(folder: Path) -> None:
    with Path("many.jsonl").open("w") as file:
        for index in range(20_000):
            record = {
                "name": f"j{index}",
                "arrival": f"{index} slots",
                "chunks": 4,
                "minibatches": 100,
            }
            record |= {"minibatch_time": "60s", "worker": {"gpu": 1}}
            file.write(json.dumps(record | {"utility": {"kind": "constant", "value": 9}}) + "\n")
    words = ["simulate", "-c", "c.yaml", "-j", "many.jsonl", "-p", "fifo", "--out", "run"]
    # The count begins once the folder exists: the jobs are read, and the run is under way.
    process = subprocess.Popen([*CALL, *words], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or list(folder.glob(".shadowprice.*")))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_LIMIT_SECONDS)
    assert process.returncode == 143
    assert "marked partial" in err
    info = json.loads(Path("run/run.json").read_text())
    assert info["partial"] is True
    assert main(["report", "run"]) == 0


def test_sigterm_before_a_run_leaves_nothing(folder: Path) -> None:
    # While it reads its files, which this call never ends.
    script = (
        "import os, signal, shadowprice.cli.options as w\n"
        "w.read = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM) or input()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script + CALL[2], *SIMULATE, "--out", "run"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        timeout=WAIT_LIMIT_SECONDS,
    )  # fmt: skip
    assert result.returncode == 143
    assert result.stderr == "terminated\n"
    assert not Path("run").exists()
