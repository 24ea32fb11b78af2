"""Every command prints JSON on request, and its progress without a terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from shadowprice.cli import console
from shadowprice.cli.commands import follow
from shadowprice.cli.commands.bound import bound_progress
from shadowprice.cli.console import NOTE_SECONDS, print_csv, print_more, progress_bar
from shadowprice.cli.live import confirm, print_table
from shadowprice.cli.main import app, main, report_errors
from shadowprice.client import Client
from tests.support.waiting import WAIT_LIMIT_SECONDS


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all commands below a group, with their names."""
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    else:
        yield " ".join(path), command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL)
def test_every_command_has_json(words: str) -> None:
    [option] = [p for p in ALL[words].params if "--output" in p.opts]
    assert "-o" in option.opts


def test_commands_that_write_files_name_them_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def shadowprice(*words: str) -> Any:
        assert main([*words, "-o", "json"]) == 0
        return json.loads(capfd.readouterr().out)

    monkeypatch.chdir(tmp_path)
    generated = shadowprice("generate", "--jobs", "4", "--slots", "12", "--out", "made")
    assert generated == {"jobs": 4, "servers": 100, "directory": "made"}
    (tmp_path / "log.csv").write_text("submit,duration,gpus\n0,3600,2\n60,1800,1\n")
    converted = shadowprice("trace", "convert", "csv:log.csv", "jobs.jsonl", "--cluster", "c.yaml")
    assert {name: converted[name] for name in ("jobs", "file", "cluster")} == {
        "jobs": 2,
        "file": "jobs.jsonl",
        "cluster": "c.yaml",
    }
    assert "2 x submit: column 'submit' (read)" in converted["notes"]
    files = ("-c", "c.yaml", "-j", "jobs.jsonl")
    shadowprice("simulate", *files, "-p", "fifo", "--out", "run")
    assert shadowprice("report", "run") == {"page": "run/report.html"}


class Clock:
    """A monotonic clock that advances a second at each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = count()
        monkeypatch.setattr(console.time, "monotonic", lambda: float(next(ticks)))


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    with progress_bar("fifo", quiet=False) as bar:
        assert bar is not None
        for done in range(1, 101):
            bar(done, 100, 2_000 + done)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "fifo, slot 2,010: 10 of 100 jobs"
    assert len(lines) == 100 // NOTE_SECONDS


def test_the_bound_reports_progress_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    with bound_progress(quiet=False) as report:
        assert report is not None
        for _ in range(12):
            report(200.0, 150.0)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("bound 200.00, best 150.00, gap 25.0%, ")


def test_quiet_commands_report_no_progress() -> None:
    with progress_bar("fifo", quiet=True) as bar, bound_progress(quiet=True) as report:
        assert bar is None
        assert report is None


@pytest.mark.parametrize("words", [["policies"], ["--help"], ["policies", "-o", "json"]])
def test_a_closed_stdout_ends_a_command_as_sigpipe_does(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "shadowprice", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_another_broken_pipe_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(
        "import socket\n"
        "def read(path, reading):\n"
        "    ours, theirs = socket.socketpair()\n"
        "    theirs.close()\n"
        "    ours.send(b'anyone there?')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "shadowprice", "trace", "info", "./lab.py:read:lab.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: Broken pipe" in done.stderr


def test_without_stdin_nothing_is_asked(tmp_path: Path) -> None:
    call = f"exec {sys.executable} -m shadowprice login http://127.0.0.1:1 <&-"
    done = subprocess.run(
        ["sh", "-c", call],
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the token: contains no token")


def test_questions_are_asked_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result, on stdout, may go to a file."""
    terminal = io.StringIO("n\ny\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert [confirm("Cancel 3 jobs?", yes=False), confirm("Sure?", yes=False)] == [False, True]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Cancel 3 jobs? [y/N]: Sure? [y/N]: "


def test_a_text_as_exit_status_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_errors(lambda: sys.exit("gave up"), debug=False) == 1
    assert capsys.readouterr().err == "gave up\n"


def test_csv_is_exact_in_a_file_and_harmless_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"job": "a\x1b[31mred", "tenant": "two\nlines"}]
    print_csv(["job", "tenant"], rows)
    assert capsys.readouterr().out == 'job,tenant\na\x1b[31mred,"two\nlines"\n'
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_csv(["job", "tenant"], rows)
    assert capsys.readouterr().out == 'job,tenant\na\\x1b[31mred,"two\nlines"\n'


def test_the_hint_at_more_rows_names_a_valid_limit(capsys: pytest.CaptureFixture[str]) -> None:
    for limit in (100, 60_000, 100_000):
        print_more(limit, 100_000)
    assert capsys.readouterr().err.splitlines() == [
        "and more; --limit 200 shows more",
        "and more; --limit 100000 shows more",
        "and more",
    ]


def test_a_row_is_one_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "REASON"], [("n" * 90, "why " * 90)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("n" * 90)


def test_notes_of_a_conversion_are_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "20")
    (tmp_path / "log.csv").write_text("submit,duration,gpus\n0,3600,2\n60,1800,1\n")
    assert main(["trace", "convert", "csv:log.csv", "made\x1b[2J.jsonl"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "2 jobs in made\\x1b[2J.jsonl\n"
    notes = captured.err.splitlines()
    assert len(notes) == 3
    assert all(note.startswith("note: ") for note in notes)


def test_a_cordoned_server_that_runs_jobs_is_busy_and_away() -> None:
    servers = [
        SimpleNamespace(state=state, jobs=jobs)
        for state, jobs in (("up", ["a"]), ("up", []), ("cordoned", ["a"]), ("lost", []))
    ]
    client = cast(
        Client,
        SimpleNamespace(
            service=lambda: SimpleNamespace(policy="fifo", slot=3, slot_seconds=60.0),
            servers=lambda: servers,
            jobs=lambda *_: iter(()),
            address=SimpleNamespace(url="http://127.0.0.1:1"),
        ),
    )
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(follow._render_screen(client, 40))
    assert "servers 2 busy, 1 idle, 2 away" in console.export_text()
