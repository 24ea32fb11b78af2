from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from shadowprice.cli.main import main
from shadowprice.cloning.api import (
    Empirical,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
    solve,
)
from shadowprice.core.errors import InputError
from shadowprice.inputs.cloning import parse_cloning, read_cloning
from shadowprice.inputs.durations import read_durations

FILE = """\
machines: 200
deadline: 1min
miss_probability: 0.05
tasks:
  - {count: 20, duration: {kind: pareto, shape: 2.0, mean: 12s}}
"""
MIXED = """\
machines: 60
deadline: 90s
miss_probability: 0.1
tasks:
  - {count: 2, duration: {kind: pareto, shape: 1.5, minimum: 4s}}
  - {duration: {kind: weibull, shape: 0.7, mean: 9s, minimum: 500ms}}
  - {duration: {kind: exponential, mean: 9s}}
  - count: 3
    duration:
      kind: hyper-exponential
      phases: [{share: 0.9, mean: 4s}, {share: 0.1, mean: 20s}]
  - {duration: {kind: log-normal, sigma: 1.0, median: 8s, minimum: 1s}}
  - {duration: {kind: empirical, file: times.csv, column: ms, unit: ms, factor: 2}}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def write_times(folder: Path) -> None:
    times = np.round(np.random.default_rng(2).pareto(1.8, 300) * 3000 + 3000, 3)
    lines = ["name,ms", *(f"x,{time}" for time in times)]
    (folder / "times.csv").write_text("\n".join(lines) + "\n")


def test_every_distribution_can_be_written(tmp_path: Path) -> None:
    write_times(tmp_path)
    problem = read_cloning(write(tmp_path, MIXED)).problem()
    assert [type(group.duration) for group in problem.groups] == [
        Pareto, Weibull, Weibull, HyperExponential, LogNormal, Empirical,
    ]  # fmt: skip
    assert [group.count for group in problem.groups] == [2, 1, 1, 3, 1, 1]
    assert problem.deadline == 90.0
    assert problem.groups[0].duration.shortest == 4.0
    assert problem.groups[2].duration.mean == 9.0
    assert float(problem.groups[4].duration.inverse_survival(0.5)) == pytest.approx(8.0)
    assert 12.0 < problem.groups[5].duration.mean < 16.0
    assert solve(problem).proved


def faults_of(text: str, folder: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_cloning(write(folder, text)).problem()
    return [str(fault) for fault in caught.value.faults]


def test_all_problems_are_listed_with_their_locations(tmp_path: Path) -> None:
    faults = faults_of(
        """\
machines: 200
deadlin: 60s
miss_probability: 0.05
tasks:
  - {count: 2, duration: {kind: paretto, shape: 2.0, mean: 12s}}
  - {count: 2, duration: {kind: pareto, shape: 1.0, mean: 12s}}
  - {count: 2, duration: {kind: pareto, shap: 2.0, mean: 12}}
  - {count: 0, duration: {kind: weibull, shape: 1.5, mean: 12s}}
  - {count: 2, duration: {kind: pareto, shape: 2.0}}
  - {count: 2, duration: {shape: 2.0, mean: 3s}}
  - {count: 2, duration: {kind: exponential, mean: 2 slots}}
  - {count: 2, duration: {kind: empirical, file: nope.csv}}
""",
        tmp_path,
    )
    for place, word in (
        ("job.yaml: deadline", "missing"),
        ("job.yaml: deadlin", "did you mean 'deadline'"),
        ("tasks[0].duration.kind", "did you mean 'pareto'"),
        ("tasks[1].duration", "no mean"),
        ("tasks[2].duration.shap", "did you mean 'shape'"),
        ("tasks[2].duration.shape", "missing"),
        ("tasks[2].duration.mean", "without a unit"),
        ("tasks[3].count", "greater than 0"),
        ("tasks[3].duration", "copies would not pay"),
        ("tasks[4].duration", "give one of mean and minimum"),
        ("tasks[5].duration.kind", "missing"),
        ("tasks[6].duration", "slots aren't valid here"),
        ("tasks[7].duration", "no such file"),
    ):
        assert any(place in fault and word in fault for fault in faults), (place, word, faults)
    assert len(faults) == 13


@pytest.mark.parametrize(
    ("old", "new", "place", "word"),
    [
        ("0.05", "0", "miss_probability", "outside (0, 1)"),
        ("0.05", "1.0", "miss_probability", "outside (0, 1)"),
        ("200", "19", "machines", "at least 20 machines"),
        ("200", "19", "machines", "cloning waves"),
        ("1min", "0s", "deadline", "greater than 0"),
        ("1min", "3 slots", "deadline", "slots aren't valid here"),
        ("machines: 200", "machines: many", "machines", "integer"),
        ("tasks:", "tasks: []\nrest:", "tasks", "expected 1 or more items"),
    ],
)
def test_wrong_values_are_reported_with_their_location(
    tmp_path: Path, old: str, new: str, place: str, word: str
) -> None:
    faults = faults_of(FILE.replace(old, new), tmp_path)
    assert any(place in fault and word in fault for fault in faults), faults


@pytest.mark.parametrize("document", [None, 3, [], {"tasks": 4}, {"tasks": [1, {"duration": 2}]}])
def test_other_content_is_refused(document: object) -> None:
    with pytest.raises(InputError):
        parse_cloning(document, "job.yaml", Path())


class TestDurations:
    def test_one_number_a_line_or_a_column(self, tmp_path: Path) -> None:
        plain = tmp_path / "plain.txt"
        plain.write_text("1.5\n2\n\n3e1\n")
        np.testing.assert_array_equal(read_durations(plain), [1.5, 2.0, 30.0])
        with gzip.open(tmp_path / "table.csv.gz", "wt") as file:
            file.write('a,"b"\n1,2\n3,"4"\n')
        np.testing.assert_array_equal(read_durations(tmp_path / "table.csv.gz", "b"), [2.0, 4.0])

    def test_wrong_lines_are_named(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text("time,x\n1,2\n-1,2\nfoo,2\nnan,2\n\n0,1\n")
        with pytest.raises(InputError) as caught:
            read_durations(path, "time")
        assert [str(fault).split(": ")[1] for fault in caught.value.faults] == [
            "line 3", "line 4", "line 5", "line 7",
        ]  # fmt: skip
        with pytest.raises(InputError, match=r"no column 'tim'.*did you mean 'time'"):
            read_durations(path, "tim")
        with pytest.raises(InputError, match="name the column"):
            read_durations(path)
        path.write_text("time\n")
        with pytest.raises(InputError, match="no durations"):
            read_durations(path, "time")

    def test_fields_are_read_as_in_other_tables(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text('name, time\n"a\nb", 2\n"c, d",x\n')
        with pytest.raises(InputError, match=r"line 4: expected a positive number, got 'x'"):
            read_durations(path, "time")
        path.write_text('name, time\n"a\nb", 2\n"c, d", 3\n')
        np.testing.assert_array_equal(read_durations(path, "time"), [2.0, 3.0])
        path.write_text('time,name\n1,"a\n2,b\n')
        with pytest.raises(InputError, match=r"line 3: is not CSV: unexpected end of data"):
            read_durations(path, "time")
        for text in ("1_000", "\u0661"):
            path.write_text(f"{text}\n", encoding="utf-8")
            with pytest.raises(InputError, match="expected a positive number"):
                read_durations(path)


class TestCommand:
    def test_solve_prints_the_contract(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for method in ("exact", "closed-form", "subgradient"):
            for constraint in ("exact", "relaxed"):
                path = str(write(tmp_path, FILE))
                words = ["cloning", "solve", path, "-o", "json"]
                assert main([*words, "--method", method, "--constraint", constraint]) == 0
                record = json.loads(capsys.readouterr().out)
                assert len(record["copies"]) == len(record["continuous"]) == 20
                assert all(isinstance(copies, int) for copies in record["copies"])
                assert record["miss_probability"] <= 0.05 * 1.001
                assert record["method"] == method
                closed = method == "closed-form"
                assert record["constraint"] == ("relaxed" if closed else constraint)
                assert record["iterations"] >= 1
                best = 304.0 if method == "exact" else 320.0
                assert record["expected_cost"] == pytest.approx(best)

    def test_tables_show_the_results(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_times(tmp_path)
        assert main(["cloning", "solve", str(write(tmp_path, MIXED))]) == 0
        text = capsys.readouterr().out
        assert "proved optimal" in text
        assert "tail of order" in text
        assert main(["cloning", "solve", str(write(tmp_path, FILE))]) == 0
        assert "16 x 2, 4 x 1" in capsys.readouterr().out

    def test_simulate_measures(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(write(tmp_path, FILE))
        words = ["cloning", "simulate", path, "--trials", "5000", "-o", "json"]
        assert main(words) == 0
        first = capsys.readouterr().out
        record = json.loads(first)
        low, high = record["interval"]
        assert low < record["miss_probability"] < high
        assert record["trials"] == 5000
        assert record["machine_time"] == pytest.approx(304.0, rel=0.02)
        assert main(words) == 0
        assert capsys.readouterr().out == first
        assert main(["cloning", "simulate", path, "--copies", "1", "--trials", "2000"]) == 0
        assert "95% interval" in capsys.readouterr().out

    def test_waves_compare_rules(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(write(tmp_path, FILE.replace("200", "12")))
        words = ["cloning", "waves", path, "--jobs", "30", "--load", "0.9"]
        assert main([*words, "-o", "json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert [rule["rule"] for rule in record["rules"]] == ["none", "full", "detect", "saving"]
        none, full, _, saving = record["rules"]
        assert none["copies_per_task"] == 1.0
        assert full["machine_time_per_job"] > none["machine_time_per_job"]
        assert saving["mean_flowtime"] < none["mean_flowtime"]
        assert main([*words, "--rule", "none,saving"]) == 0
        text = capsys.readouterr().out
        assert "saving" in text
        assert "detect" not in text
        assert main([*words, "--rule", "savings"]) == 2
        assert "did you mean 'saving'" in capsys.readouterr().err

    def test_bad_input_ends_with_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(write(tmp_path, FILE.replace("1min", "7s")))
        assert main(["cloning", "solve", path]) == 2
        assert "any one of these would do" in capsys.readouterr().err
        assert main(["cloning", "simulate", str(tmp_path / "none.yaml")]) == 2
        assert "no such file" in capsys.readouterr().err
        assert main(["cloning", "solve", path, "--method", "magic"]) == 2
