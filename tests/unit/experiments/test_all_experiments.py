"""`experiment all`: every figure by one command, which resumes after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import MissingExtraError, ShadowpriceError
from shadowprice.experiments import framework
from shadowprice.experiments.framework import Experiment, ExperimentSettings, UnavailableError

pytest.importorskip("matplotlib")


def noted(folder: str, number: int) -> int:
    """Record that it ran, and return a result that identifies the run."""
    with Path(folder, "ran").open("a") as stream:
        stream.write(f"{number} ")
    return number * number


def made(name: str, folder: Path, first: int, error: Exception | None = None) -> Experiment:
    """Return an experiment of three runs: one is interrupted if a file says so, then an error."""

    def label(folder: str, number: int) -> str:
        cut = Path(folder, "cut")
        if cut.exists() and cut.read_text() == str(number):
            cut.unlink()
            raise KeyboardInterrupt
        return str(number)

    def measure(settings: ExperimentSettings) -> dict[str, pl.DataFrame]:
        cases = [(str(folder), number) for number in range(first, first + 3)]
        if error is not None and not (folder / "mended").exists():
            raise error
        return {"squares": pl.DataFrame({"square": settings.each(noted, cases, label)})}

    def draw(tables: Any, figure: Any) -> None:
        figure.subplots().plot(tables["squares"]["square"])

    return Experiment(name, name, "nowhere", "nothing", measure, draw)


def test_an_interruption_repeats_nothing_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {one.name: one for one in (made("a", tmp_path, 1), made("b", tmp_path, 4))}
    monkeypatch.setattr(framework, "experiments", lambda: known)
    out = tmp_path / "figures"
    (tmp_path / "cut").write_text("5")  # in the second experiment, after its first run
    assert main(["experiment", "all", "--out", str(out)]) == 130
    assert (out / "a" / "a.png").exists()
    assert "the same command resumes" in capsys.readouterr().err
    assert main(["experiment", "all", "--out", str(out)]) == 0
    assert (tmp_path / "ran").read_text().split() == ["1", "2", "3", "4", "5", "6"]
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]
    assert pl.read_csv(out / "b" / "squares.csv")["square"].to_list() == [16, 25, 36]
    said = capsys.readouterr().out.replace("│", " ").split()
    at = said.index("all", said.index("Seconds"))
    assert said[at + 1 : at + 3] == [
        "2/2",
        "6",
    ]  # those that were kept count with their time


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ShadowpriceError("no job got anywhere"), "no job got anywhere"),
        (ZeroDivisionError("of its own"), "ZeroDivisionError: of its own"),
    ],
)
def test_one_that_fails_keeps_no_other_from_being_made_and_is_reported(
    error: Exception,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacks = MissingExtraError("torch", "train", "training the jobs")
    known = {
        one.name: one
        for one in (
            made("a", tmp_path, 1, error),
            made("b", tmp_path, 4),
            made("c", tmp_path, 7, lacks),
            made("d", tmp_path, 10, UnavailableError("it needs another system")),
        )
    }
    monkeypatch.setattr(framework, "experiments", lambda: known)
    out = tmp_path / "figures"
    words = ["experiment", "all", "--out", str(out)]
    assert main(words) == 1
    captured = capsys.readouterr().out
    rows = {row[0]: row[1] for line in captured.splitlines() if len(row := _cells(line)) > 1}
    assert [rows[name] for name in ("a", "b", "c", "d", "all")] == [
        "failed", "ran", "skipped", "skipped", "1/4"
    ]  # fmt: skip
    lines = captured.splitlines()
    assert any(line.startswith("a failed after") and line.endswith(says) for line in lines)
    assert any(
        line.startswith("c skipped after") and "shadowprice[train]" in line for line in lines
    )
    assert any(line.startswith("d skipped") and "needs another system" in line for line in lines)
    assert (out / "b" / "b.png").exists()
    assert not (out / "a").exists()
    # Once it is fixed, the same command makes what is missing, and repeats nothing.
    (tmp_path / "mended").touch()
    assert main(words) == 0
    ran = [int(word) for word in (tmp_path / "ran").read_text().split()]
    assert sorted(ran) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert sorted(path.name for path in out.iterdir()) == ["a", "b", "c", "d"]


def test_a_skip_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = MissingExtraError("torch", "train", "training the jobs")
    known = {one.name: one for one in (made("a", tmp_path, 1, lacks), made("b", tmp_path, 4))}
    monkeypatch.setattr(framework, "experiments", lambda: known)
    assert main(["experiment", "all", "--out", str(tmp_path / "figures")]) == 0
    assert "a skipped after" in capsys.readouterr().out
    # Requested alone, what it lacks is an error.
    assert main(["experiment", "a", "--out", str(tmp_path / "alone")]) == 1


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")][1:-1]
