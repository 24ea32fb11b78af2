"""Every command prints JSON if asked to, and its progress without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer

from shadowprice.cli import console
from shadowprice.cli.commands.bound import bound_progress
from shadowprice.cli.console import NOTE_SECONDS, progress_bar
from shadowprice.cli.main import app, main
from tests.support.waiting import WAIT_LIMIT_SECONDS


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all commands below a group, with their words."""
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
    """A monotonic clock of one second a look."""

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
