"""Completion in shells, requested as a shell does, by the installed command's protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from shadowprice.cli.main import main
from tests.hostile.commands import commands
from tests.support.completion import completion_environment, offered
from tests.support.waiting import WAIT_LIMIT_SECONDS

CALL = "from shadowprice.cli.main import run; run()"


def test_a_shell_gets_the_completions_that_tests_get(tmp_path: Path) -> None:
    for words in ("shadowprice simulate -p oa", "shadowprice explain nowhere re"):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv[0] = 'shadowprice'; {CALL}"],
            env=os.environ | completion_environment(words),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert not done.stderr
        assert done.stdout.split() == offered(words, tmp_path)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("shadowprice simulate -p oa", ["oasis"]),
        ("shadowprice compare -p fifo,ro", ["fifo,rolling"]),
        (
            "shadowprice compare -p oasis,fifo -s oasis.price",
            ["oasis.prices=", "oasis.price_scale="],
        ),
        ("shadowprice compare -p oasis,fifo -s oasis.prices=of", ["oasis.prices=offline"]),
        ("shadowprice compare -p oasis,fifo -s back", ["backfill="]),
        ("shadowprice simulate -p oasis --set low", ["lower="]),
        (
            "shadowprice simulate -p oasis --set lower=",
            ["lower=clearing", "lower=guaranteed", "lower=theory"],
        ),
        ("shadowprice experiment oasis-fig3", ["oasis-fig3"]),
        ("shadowprice simulate --trace phil", ["philly:"]),
        ("shadowprice trace info phil", ["philly:"]),
    ],
)
def test_names_are_offered(words: str, some: list[str], tmp_path: Path) -> None:
    assert set(some) <= set(offered(words, tmp_path))


@pytest.mark.parametrize("policies", ["fifo", "fifo,drf", "drf -p fifo", "fifo?workers=min,drf"])
def test_only_parameters_of_the_chosen_policies_are_offered(policies: str, tmp_path: Path) -> None:
    parameters = offered(f"shadowprice compare -p {policies} --set ", tmp_path)
    assert "workers=" in parameters
    assert "price_scale=" not in parameters  # of oasis


def test_kinds_of_servers_of_the_cluster_are_offered(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "servers: [{name: gpu, capacity: {gpu: 8}}, {name: net, capacity: {cpu: 8}}]"
    )
    for option in ("--add", "--remove"):
        line = f"shadowprice whatif -c c.yaml {option} "
        assert offered(line, tmp_path) == ["gpu:", "net:"]
        assert offered(f"{line}n", tmp_path) == ["net:"]
        assert offered(f"{line}gpu:2,n", tmp_path) == ["gpu:2,net:"]
        assert offered(f"shadowprice whatif {option} ", tmp_path) == []
    for wrong in ("servers: 3", "servers: [{}, 4]", "servers: [", "[]"):
        (tmp_path / "c.yaml").write_text(wrong)
        assert offered("shadowprice whatif -c c.yaml --add ", tmp_path) == []


def test_files_of_a_trace_are_offered(tmp_path: Path) -> None:
    (tmp_path / "lab.swf").write_text("", encoding="utf-8")
    (tmp_path / "labs").mkdir()
    assert offered("shadowprice simulate --trace swf:la", tmp_path) == ["swf:lab.swf", "swf:labs/"]


def test_jobs_of_a_run_are_offered(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    pl.DataFrame({"job": ["sweep", "resnet50", "resnet101"]}).write_parquet(
        tmp_path / "run" / "jobs.parquet"
    )
    assert offered("shadowprice explain run resnet", tmp_path) == ["resnet50", "resnet101"]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("--job sweep,res", ["sweep,resnet50", "sweep,resnet101"]),
        ("--outcome ", ["finished", "refused"]),
        ("--tenant v", ["vision"]),
        ("--columns job,out", ["job,outcome"]),
        ("--sort job,-te", ["job,-tenant"]),
    ],
)
def test_keys_of_the_runs_jobs_are_offered(words: str, some: list[str], tmp_path: Path) -> None:
    jobs = {
        "job": ["sweep", "resnet50", "resnet101"],
        "outcome": ["finished", "refused", "finished"],
        "tenant": ["vision", None, "speech"],
    }
    pl.DataFrame(jobs).write_parquet(tmp_path / "jobs.parquet")
    assert offered(f"shadowprice jobs . {words}", tmp_path) == some


def test_unreadable_files_are_not_offered(tmp_path: Path) -> None:
    (tmp_path / "jobs.parquet").write_bytes(b"PAR1 no table")
    assert offered("shadowprice explain nowhere re", tmp_path) == []
    assert offered("shadowprice explain . re", tmp_path) == []


def test_no_help_is_cut_short_on_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = commands()
    assert len(names) > 40
    for name in names:
        assert main([*name.words, "--help"]) == 0
        assert "…" not in capsys.readouterr().out, name.words


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("experiment", "(experiments/NAME)"),
        ("report", "(RUN/report.html)"),
        ("queue", "(open states: pending, admitted, standby, running, resizing)"),
    ],
)
def test_help_keeps_its_defaults(
    command: str, default: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"[default: {default}]" in shown


@pytest.mark.parametrize("group", ["trace", "cloning", "audit"])
def test_only_the_program_installs_completions(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out
    assert main([group, "--help"]) == 0
    assert "--install-completion" not in capsys.readouterr().out
