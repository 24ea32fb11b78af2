"""``shadowprice bound`` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadowprice.cli.main import main

CLUSTER = "slot: 10min\nhorizon: 10\nservers:\n  - {name: gpu, count: 1, capacity: {gpu: 2}}\n"
JOB = (
    "  - {{name: job-{worth}, arrival: 0 slots, chunks: 2, minibatches: 20, minibatch_time: 60s, "
    "worker: {{gpu: 1}}, utility: {{kind: constant, value: {worth}}}}}\n"
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Ten jobs that fill the machine for two slots each, in ten slots."""
    cluster, jobs = tmp_path / "cluster.yaml", tmp_path / "jobs.yaml"
    cluster.write_text(CLUSTER, encoding="utf-8")
    jobs.write_text("jobs:\n" + "".join(JOB.format(worth=w) for w in range(1, 11)), "utf-8")
    return ["-c", str(cluster), "-j", str(jobs), "--until", "10 slots"]


def test_bound_prints_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", *files, "-q", "-o", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    keys = {"bound", "best", "gap", "seconds", "processor_seconds", "rounds", "exact_pricing"}
    assert keys <= set(record)
    assert record["best"] == 40
    assert record["bound"] == pytest.approx(40, rel=0.011)
    assert record["exact_pricing"] is True


def test_bound_writes_prices_that_oasis_posts(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.json"
    exact = ["-q", "--gap", "0", "--time", "10min"]
    assert main(["bound", *files, *exact, "--prices", str(prices)]) == 0
    assert "no schedule earns more" in capsys.readouterr().out
    call = ["simulate", *files, "-q", "-o", "json", "-p", "oasis"]
    call += ["--set", f"prices=fixed:{prices}"]
    assert main(call) == 0
    earned = json.loads(capsys.readouterr().out)["summary"]["total_utility"]
    assert 34 <= earned <= 40  # a job worth exactly its price is not admitted
    assert main(["bound", *files, "-q", "--prices", str(prices)]) == 0  # its own file is replaced


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gap", "-1%"], "expected at least 0% and less than 100%, got '-1%'"),
        (["--gap", "nan"], "less than 100%, got 'nan'"),
        (["--gap", "100%"], "less than 100%, got '100%'"),
        (["--gap", "much"], "expected a number"),
        (["--time", "3 slots"], "is in slots, not on the clock"),
        (["--time", "0s"], "is not a positive time"),
        (["--clock", "sun"], "'wall', 'processor'"),
        (["--prices", "nowhere/prices.json"], "does not exist"),
    ],
)
def test_invalid_options_are_refused(
    files: list[str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bound", *files, *options]) == 2
    assert words in capsys.readouterr().err


def test_bound_replaces_no_foreign_file(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = tmp_path / "letter.json"
    letter.write_text("{}", encoding="utf-8")
    assert main(["bound", *files, "--prices", str(letter)]) == 2
    assert "that this command did not write" in capsys.readouterr().err
    assert letter.read_text(encoding="utf-8") == "{}"
