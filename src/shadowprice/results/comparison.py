"""Several policies' runs of one workload side by side: as rows, as plain values, as a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shadowprice.results.files import (
    REPORT,
    Fields,
    Run,
    folder_name,
    is_run,
    write_json,
    write_run,
)
from shadowprice.results.measures import RESTRICTED, best_of, measures_of, up_to
from shadowprice.results.metrics import common_completion
from shadowprice.results.report.comparison import render_comparison
from shadowprice.results.report.page import write_report
from shadowprice.results.report.scales import number
from shadowprice.results.target import json_with

PAGE: Final = "compare.html"
NUMBERS: Final = "compare.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of several runs.

    Parameters
    ----------
    name : str
        What people read.
    values : sequence of float or None
        A run each; None where it has none.
    texts : sequence of str
        The same as tables have it.
    best : set of int
        Positions of the best; none where all are equal, or neither end is better.
    """

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    best: frozenset[int]


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return the measures worth telling of runs of one workload, in the order of reading."""
    infos = [run.info for run in runs]
    end = max(run.summary["end"] for run in runs)
    rows = []
    for one in measures_of(infos):
        values = [one.read(info) for info in infos]
        if one.key == RESTRICTED:
            if len(runs) > 1:
                rows.append(_common(runs))
            values = [up_to(info, end) for info in infos]
        texts = ["-" if value is None else one.written(value) for value in values]
        rows.append(Row(one.name, values, texts, best_of(values, one.better)))
    return [row for row in rows if any(value is not None for value in row.values)]


def _common(runs: Sequence[Run]) -> Row:
    """Return the completion times of the jobs that all finished, the same for each."""
    shared, means = common_completion([run.jobs for run in runs])
    texts = ["-" if mean is None else number(mean) for mean in means]
    return Row(f"mean JCT of {shared:,} all finished", means, texts, best_of(means, -1))


def record_of(runs: Sequence[Run], trials: Fields | None = None) -> Fields:
    """Return a comparison as ``compare.json`` keeps it.

    Parameters
    ----------
    runs : sequence of Run
        The runs of the first seed.
    trials : mapping, optional
        Measures of all seeds, see `report.seeds.seeds_section`.
    """
    record: Fields = {
        "partial": any(run.info["partial"] for run in runs),
        "seed": runs[0].info["seed"],
        "inputs": runs[0].info["inputs"],
        "policies": {
            run.policy: {
                "parameters": run.info["parameters"],
                "summary": run.summary,
                "timing": run.info["timing"],
                "partial": run.info["partial"],
            }
            for run in runs
        },
        # What a run's own summary cannot say: some are of all runs together, or up to their end.
        "measures": {
            row.name: dict(zip((run.policy for run in runs), row.values, strict=True))
            for row in rows_of(runs)
        },
    }
    return record if trials is None else record | {"trials": trials}


def is_comparison(path: Path) -> bool:
    """Whether a directory is a comparison, and holds nothing else."""
    entries = list(path.iterdir())
    if any(entry.is_symlink() for entry in entries):
        return False
    return json_with(path / NUMBERS, ("partial", "seed", "policies")) and all(
        entry.is_file() if entry.name in {PAGE, NUMBERS} else entry.is_dir() and is_run(entry)
        for entry in entries
    )


def keep_run(run: Run, folder: Path) -> None:
    """Write one of the runs, with its page, into the directory of a comparison."""
    place = folder / folder_name(run.policy)
    place.mkdir()
    write_run(run, place)
    write_report(run, place / REPORT)


def keep_comparison(
    runs: Sequence[Run], folder: Path, trials: Mapping[str, object] | None = None
) -> None:
    """Write what is told of all runs: the page, and the numbers."""
    told = None if trials is None else dict(trials)
    page = render_comparison(runs, [(row.name, row.texts, row.best) for row in rows_of(runs)], told)
    (folder / PAGE).write_text(page, encoding="utf-8")
    write_json(folder / NUMBERS, record_of(runs, told))
