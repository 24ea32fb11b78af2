"""Runs of one workload under several policies: table rows, plain values, directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shadowprice.results import run_directory
from shadowprice.results.difference import CapacityGain
from shadowprice.results.metric_definitions import (
    RESTRICTED,
    TIMING_METRICS,
    best_positions,
    metrics_for,
    restricted_mean_until,
)
from shadowprice.results.metrics import common_completion
from shadowprice.results.output_paths import json_with
from shadowprice.results.report.comparison import render_comparison
from shadowprice.results.report.number_format import format_number
from shadowprice.results.report.page import write_run_with_report
from shadowprice.results.run_directory import Fields, RunData
from shadowprice.short_table import ShortTable

PAGE: Final = "compare.html"
JSON_FILE: Final = "compare.json"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of several runs."""

    key: str
    name: str
    values: Sequence[float | None]  # one for each run; None if the run has no value
    texts: Sequence[str]  # formatted values
    best: frozenset[int]  # positions; empty if all are equal or no direction is better


def display_rows(runs: Sequence[RunData]) -> list[MetricRow]:
    """Return the rows of a comparison in display order, without those that have no values."""
    infos = [run.info for run in runs]
    end = max(run.summary["end"] for run in runs)
    rows = []
    for metric in metrics_for(infos):
        values = [metric.read(info) for info in infos]
        if metric.key == RESTRICTED:
            if len(runs) > 1:
                rows.append(_common_jct_row(runs))
            # Runs are only comparable up to a common end.
            values = [restricted_mean_until(info, end) for info in infos]
        texts = ["-" if value is None else metric.written(value) for value in values]
        rows.append(
            MetricRow(metric.key, metric.name, values, texts, best_positions(values, metric.better))
        )
    return [row for row in rows if any(value is not None for value in row.values)]


def comparison_short_table(
    title: str, labels: Sequence[str], rows: Sequence[MetricRow]
) -> ShortTable:
    """Return rows of a comparison as a table, without the metrics of elapsed time."""
    cells = [(row.name, *row.texts) for row in rows if row.key not in TIMING_METRICS]
    return ShortTable(title, ("", *labels), cells, len(cells), range(1, len(labels) + 1))


def _common_jct_row(runs: Sequence[RunData]) -> MetricRow:
    """Return the row of mean completion times over the jobs that every run finished."""
    shared, means = common_completion([run.jobs for run in runs])
    texts = ["-" if mean is None else format_number(mean) for mean in means]
    return MetricRow(
        "common_jct",
        f"mean JCT of {shared:,} finished by all",
        means,
        texts,
        best_positions(means, -1),
    )


def comparison_to_record(
    runs: Sequence[RunData],
    trials: Fields | None = None,
    gains: Sequence[CapacityGain] = (),
    drawn: Sequence[str] = (),
) -> Fields:
    """Return a comparison as stored in ``compare.json``.

    ``runs`` are those of the first seed, and ``trials`` holds the metrics of all seeds; see
    `seeds_section` of the page. ``gains`` are those of more servers, and ``drawn`` lists the inputs
    that were drawn at random.
    """
    record: Fields = {
        "drawn": list(drawn),
        "partial": any(run.info["partial"] for run in runs),
        "seed": runs[0].info["seed"],
        "inputs": runs[0].info["inputs"],
        "default_utility": runs[0].info["default_utility"],
        "policies": {
            run.policy: {
                "parameters": run.info["parameters"],
                "summary": run.summary,
                "timing": run.info["timing"],
                "partial": run.info["partial"],
            }
            for run in runs
        },
        # Not in the summaries: some metrics depend on all runs, or on their latest end.
        "measures": {
            row.name: dict(zip((run.policy for run in runs), row.values, strict=True))
            for row in display_rows(runs)
        },
    }
    if gains:
        record["more"] = [gain.record() for gain in gains]
    return record if trials is None else record | {"trials": trials}


def drawn_text(drawn: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the sentence about inputs drawn at random with ``seeds``; empty if none were."""
    if not drawn:
        return ""
    *others, last = drawn
    listed = f"{', '.join(others)} and {last}" if others else last
    if len(seeds) == 1:
        hint = "--seeds 10 shows what other draws change"
        return f"drawn at random with seed {seeds[0]}: {listed}; {hint}"
    return f"drawn at random with {len(seeds)} seeds, {min(seeds)} to {max(seeds)}: {listed}"


def is_comparison(path: Path) -> bool:
    """Return whether a directory contains a comparison and nothing else."""
    entries = list(path.iterdir())
    if any(entry.is_symlink() for entry in entries):
        return False
    return json_with(path / JSON_FILE, ("partial", "seed", "policies")) and all(
        entry.is_file()
        if entry.name in {PAGE, JSON_FILE}
        else entry.is_dir() and run_directory.is_run(entry)
        for entry in entries
    )


def write_compared_run(run: RunData, folder: Path) -> None:
    """Write one of the runs, with its page, into the directory of a comparison."""
    directory = folder / run_directory.folder_name(run.policy)
    directory.mkdir()
    write_run_with_report(run, directory)


def write_comparison(
    runs: Sequence[RunData],
    folder: Path,
    trials: Mapping[str, Any] | None = None,
    gains: Sequence[CapacityGain] = (),
    drawn: Sequence[str] = (),
) -> None:
    """Write the page and the numbers of a comparison; see `comparison_to_record`."""
    record = None if trials is None else dict(trials)
    seeds = [runs[0].info["seed"]] if record is None else record["seeds"]
    page = render_comparison(
        runs,
        [(row.name, row.texts, row.best) for row in display_rows(runs)],
        record,
        gains,
        drawn_text(drawn, seeds),
    )
    (folder / PAGE).write_text(page, encoding="utf-8")
    run_directory.write_json(folder / JSON_FILE, comparison_to_record(runs, record, gains, drawn))
