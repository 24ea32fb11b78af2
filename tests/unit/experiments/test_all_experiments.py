"""`experiment all`: every figure by one command, which goes on where it was cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shadowprice.cli.main import main
from shadowprice.experiments import framework
from shadowprice.experiments.framework import Experiment, Settings

pytest.importorskip("matplotlib")


def noted(folder: str, number: int) -> int:
    """Write down that it ran, and return what tells runs from each other."""
    with Path(folder, "ran").open("a") as stream:
        stream.write(f"{number} ")
    return number * number


def made(name: str, folder: Path, first: int) -> Experiment:
    """Return an experiment of three runs, of which one is cut off where a file says so."""

    def label(folder: str, number: int) -> str:
        cut = Path(folder, "cut")
        if cut.exists() and cut.read_text() == str(number):
            cut.unlink()
            raise KeyboardInterrupt
        return str(number)

    def measure(settings: Settings) -> dict[str, pl.DataFrame]:
        cases = [(str(folder), number) for number in range(first, first + 3)]
        return {"squares": pl.DataFrame({"square": settings.each(noted, cases, label)})}

    def draw(tables: Any, figure: Any) -> None:
        figure.subplots().plot(tables["squares"]["square"])

    return Experiment(name, name, "nowhere", "nothing", measure, draw)


def test_what_is_cut_off_makes_nothing_again_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {one.name: one for one in (made("a", tmp_path, 1), made("b", tmp_path, 4))}
    monkeypatch.setattr(framework, "experiments", lambda: known)
    out = tmp_path / "figures"
    (tmp_path / "cut").write_text("5")  # in the second experiment, after its first run
    assert main(["experiment", "all", "--out", str(out)]) == 130
    assert (out / "a" / "a.png").exists()
    assert "the same command goes on there" in capsys.readouterr().err
    assert main(["experiment", "all", "--out", str(out)]) == 0
    assert (tmp_path / "ran").read_text().split() == ["1", "2", "3", "4", "5", "6"]
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]
    assert pl.read_csv(out / "b" / "squares.csv")["square"].to_list() == [16, 25, 36]
    said = capsys.readouterr().out.replace("│", " ").split()
    runs = said[said.index("all", said.index("Seconds")) + 1]
    assert runs == "6"  # those that were kept count with the time that they took
