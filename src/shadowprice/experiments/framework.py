"""Declaration and execution of experiments: measurement, drawing and the paper's result.

An `Experiment` in the ``EXPERIMENTS`` of a module or package under ``experiments`` needs no other
registration. A run writes its tables as CSV, its figure as PNG and a manifest with its origin.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice import __version__
from shadowprice.core.errors import Fault, InputError, MissingExtraError, ShadowpriceError
from shadowprice.core.wording import hint_for_unknown
from shadowprice.experiments.figures import STYLE
from shadowprice.experiments.spreading import (
    CachingBackend,
    CpuTimes,
    RunBackend,
    SequentialBackend,
    Work,
)
from shadowprice.results.output_paths import AtomicDirectory, json_with

if TYPE_CHECKING:
    from matplotlib import figure

    from shadowprice.experiments.live import ExecutorTarget

    Figure = figure.Figure
else:  # matplotlib is an extra, and takes half a second to import; only drawing needs it
    Figure = Any

Tables = Mapping[str, pl.DataFrame]
Progress = Callable[[int, int, str], None]


def _ignore_progress(done: int, total: int, label: str) -> None:
    del done, total, label


MANIFEST: Final = "manifest.json"


class UnavailableError(ShadowpriceError):
    """An experiment can't run on this machine."""

    code = "unavailable"


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """Options of a run of an experiment."""

    quick: bool = False
    """A smaller version that finishes within about a minute and shows the same shape."""
    seed: int = 0
    progress: Progress = field(default=_ignore_progress)
    """Called with (steps done, all steps, current activity)."""
    spread: RunBackend = field(default_factory=SequentialBackend)
    """Executes the runs: locally one by one, or distributed."""
    times: CpuTimes = field(default_factory=CpuTimes)  # collects processor times
    target: ExecutorTarget | None = None  # executor of jobs that really run; None for the default

    def each(
        self, work: Work, cases: Iterable[tuple[Any, ...]], label: Callable[..., str]
    ) -> list[Any]:
        """Return the results of one run per case, in the order of the cases.

        ``work`` is a module's function, because it may run in another process. Each case is the
        tuple of its arguments, which have to be picklable. ``label`` formats them for progress.
        """
        arguments = list(cases)
        results: dict[int, Any] = {}

        def show(index: int) -> None:
            self.progress(len(results), len(arguments), label(*arguments[index]))

        for index, result, seconds in self.spread.run(work, arguments, show):
            results[index] = result
            self.times.runs.append(seconds)
            show(index)
        return [results[index] for index in range(len(arguments))]

    def table(
        self,
        work: Work,
        cases: Iterable[Mapping[str, Any]],
        label: Callable[..., str],
        *,
        dtypes: Mapping[str, pl.DataType | type[pl.DataType]] | None = None,
        **common: Any,
    ) -> pl.DataFrame:
        """Return the rows of one run per case, in the order of the cases.

        ``work`` takes a case's arguments and the ``common`` ones by name, and returns one row or
        several. The table has a column for each of the case's arguments that is a plain value, then
        the columns of ``work``. ``dtypes`` are the types of columns that may have only null values.
        """
        arguments = [{**case, **common} for case in cases]
        results = self.each(
            _call, [(work, each) for each in arguments], lambda _, each: label(**each)
        )
        rows: list[dict[str, Any]] = []
        for each, result in zip(arguments, results, strict=True):
            columns = {
                name: value
                for name, value in each.items()
                if name not in common and isinstance(value, str | int | float | None)
            }
            rows += [columns | row for row in ([result] if isinstance(result, dict) else result)]
        return pl.DataFrame(rows, schema_overrides=dtypes, infer_schema_length=None)


def _call(work: Work, arguments: Mapping[str, Any]) -> Any:
    return work(**arguments)


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Return all combinations of the axes' values; the last axis varies fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of a paper."""

    name: str  # name on the command line, such as ``oasis-fig3``
    title: str  # content in one line
    source: str  # the paper and its figure or table
    reported: str  # result that the paper reports
    measure: Callable[[ExperimentSettings], Tables]  # returns tables by name
    draw: Callable[[Tables, Figure], None]  # fills an empty figure
    size: tuple[float, float] = (11.0, 4.4)  # width and height of the figure in inches
    executors: tuple[str, ...] = ()
    """Executors that may run its real jobs, the default first; empty if it has none."""


@cache
def experiments() -> Mapping[str, Experiment]:
    """Return every declared experiment by name."""
    root = "shadowprice.experiments"
    by_name: dict[str, Experiment] = {}
    for entry in pkgutil.iter_modules(importlib.import_module(root).__path__, f"{root}."):
        for experiment in getattr(importlib.import_module(entry.name), "EXPERIMENTS", ()):
            by_name[experiment.name] = experiment
    return dict(sorted(by_name.items()))


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name; raise `InputError` with the most similar name."""
    choices = experiments()
    if name not in choices:
        hint = hint_for_unknown(name, choices)
        raise InputError(Fault("experiment", f"unknown experiment {name!r}", hint))
    return choices[name]


def run_experiment(
    experiment: Experiment, out: Path, settings: ExperimentSettings, *, keep: bool = False
) -> Path:
    """Measure, write and draw an experiment; return the path of the figure.

    ``out`` is the directory for ``<table>.csv``, ``<name>.png`` and ``manifest.json``; an earlier
    result of an experiment there is replaced. Finished runs are stored beside ``out`` until all are
    done, so that an interrupted experiment resumes. ``keep`` leaves them there; see
    `remove_cached_runs`. Raises `MissingExtraError`, before measuring, if matplotlib is missing.
    """
    check_drawing()
    # Experiments with real jobs run one by one, on the executor of their jobs.
    spread = SequentialBackend() if experiment.executors else settings.spread
    with AtomicDirectory(out, is_experiment) as pending:
        began, worked = time.perf_counter(), time.process_time()
        caching = CachingBackend(spread, cache_dir(out))
        tables = experiment.measure(replace(settings, spread=caching))
        _write(experiment, settings, tables, time.perf_counter() - began, pending.path)
        # Runs in this process don't count as rest; those from the cache took no time now.
        own = (
            settings.times.runs[caching.skipped :] if isinstance(spread, SequentialBackend) else []
        )
        settings.times.rest = max(0.0, time.process_time() - worked - sum(own))
        pending.commit()
    if not keep:
        remove_cached_runs(out)
    return out / f"{experiment.name}.png"


def check_drawing() -> None:
    """Raise `MissingExtraError` if matplotlib isn't installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "figures", "drawing figures")


def remove_cached_runs(out: Path) -> None:
    """Remove the finished runs that are stored beside an experiment."""
    shutil.rmtree(cache_dir(out), ignore_errors=True)


def cache_dir(out: Path) -> Path:
    """Return the folder for finished runs of an experiment that isn't complete."""
    return out.with_name(f"{out.name}.runs")


def is_experiment(path: Path) -> bool:
    """Return whether a directory contains only files written by `run_experiment`."""
    return json_with(path / MANIFEST, ("experiment", "tables", "seed")) and all(
        entry.is_file()
        and not entry.is_symlink()
        and (entry.suffix in {".csv", ".png"} or entry.name == MANIFEST)
        for entry in path.iterdir()
    )


def _write(
    experiment: Experiment, settings: ExperimentSettings, tables: Tables, seconds: float, out: Path
) -> None:
    digests: dict[str, str] = {}
    for name, table in tables.items():
        path = out / f"{name}.csv"
        table.write_csv(path)
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    figure = out / f"{experiment.name}.png"
    _draw(experiment, tables, figure)
    manifest: dict[str, Any] = {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "reported": experiment.reported,
        "quick": settings.quick,
        "seed": settings.seed,
        "version": __version__,
        "python": platform.python_version(),
        "seconds": round(seconds, 2),
        "tables": digests,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _draw(experiment: Experiment, tables: Tables, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  # an extra, as above
    from matplotlib import figure  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        canvas = FigureCanvasAgg(figure.Figure(figsize=experiment.size, layout="constrained"))
        experiment.draw(tables, canvas.figure)
        canvas.figure.savefig(path, dpi=150)
