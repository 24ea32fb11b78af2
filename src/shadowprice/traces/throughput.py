"""Measured training speeds: mini-batches/s by number of workers.

The module reads throughput tables that accompany public traces, and the package's own table of
model families.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from shadowprice.core.amounts import parse_amount
from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import typed_columns
from shadowprice.traces.registry import ImportContext
from shadowprice.traces.text import file_error, load_json, read_head, read_table

Curve = Mapping[int, float]
"""Mini-batches/s of the whole job by number of workers; infeasible numbers are missing."""

WARM_UP_SHARE: Final = 0.1
"""Share of a Chronus series that counts as warm-up."""

_JOB_TYPE: Final = re.compile(r"(.+?)(?: \(batch size (\d+)\))?")


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A model and batch size that jobs train; families are compared by identity."""

    set: str
    """Set of measurements that the family belongs to: ``a100`` or ``v100``."""
    model: str
    """Model name as in traces."""
    batch_size: int | None
    """Samples of a mini-batch (the global batch in the set ``a100``)."""
    gradient: int
    """Size of the gradients in bytes."""
    curve: Curve
    """Measured mini-batches/s by number of workers."""

    @property
    def name(self) -> str:
        """Name with the batch size: ``resnet50/64``."""
        return self.model if self.batch_size is None else f"{self.model}/{self.batch_size}"

    @property
    def step_seconds(self) -> float:
        """Seconds of a mini-batch on one GPU."""
        return 1.0 / self.curve[1]


@dataclass(frozen=True, slots=True)
class FamilyTable:
    """Model families that are part of the package."""

    families: tuple[Family, ...]
    """Families in the order of the data file."""
    worker: Mapping[str, int]
    """Request of a worker with one GPU, without the GPU."""
    ps: Mapping[str, int]
    """Request of a parameter server."""

    @property
    def by_model(self) -> dict[tuple[str, int | None], Family]:
        """Families by model and batch size."""
        return {(family.model, family.batch_size): family for family in self.families}

    def of_set(self, name: str) -> tuple[Family, ...]:
        """Return the families of one set of measurements."""
        return tuple(family for family in self.families if family.set == name)


@cache
def family_table() -> FamilyTable:
    """Return the table of ``data/families.toml``, whose comments cite its sources."""
    text = resources.files("shadowprice.traces").joinpath("data/families.toml").read_text("utf-8")
    data = tomllib.loads(text)
    families = tuple(
        Family(
            set=entry["set"],
            model=entry["model"],
            batch_size=entry.get("batch_size"),
            gradient=parse_amount(entry["gradient"]).value,
            curve={int(count): float(rate) for count, rate in entry["throughput"].items()},
        )
        for entry in data["family"]
    )
    return FamilyTable(families, _amounts(data["worker"]), _amounts(data["ps"]))


def _amounts(entry: Mapping[str, Any]) -> dict[str, int]:
    return {name: parse_amount(value).value for name, value in entry.items()}


def rate_at(curve: Curve, workers: int) -> float | None:
    """Return a curve's rate at a number of workers.

    The rate is interpolated linearly between measured numbers. It is None outside their range.
    """
    if workers in curve:
        return curve[workers]
    below = max((n for n in curve if n < workers), default=None)
    above = min((n for n in curve if n > workers), default=None)
    if below is None or above is None:
        return None
    share = Fraction(workers - below, above - below)
    return float(curve[below] + (curve[above] - curve[below]) * share)


def read_elasticflow(path: Path) -> dict[int, Curve]:
    """Read an ElasticFlow table: iterations/s by global batch size and number of GPUs.

    The file is CSV with a column ``global_batch_size`` and a column for each number of GPUs. Blank,
    ``nan`` and ``0`` cells are infeasible and missing from the curves.

    Raise `InputError` if the file isn't such a table.
    """
    header = [name.strip() for name in read_head(path).splitlines()[0].split(",")]
    counts = [name for name in header if name.isdecimal()]
    columns = typed_columns("global_batch_size:i") | dict.fromkeys(counts, pl.Float64())
    table = read_table(path, columns, ImportContext())
    for name in counts:
        table.check(pl.col(name).fill_null(0).fill_nan(0) >= 0, name, "is a negative rate")
    return {
        int(row["global_batch_size"]): {
            int(name): float(row[name]) for name in counts if _feasible(row[name])
        }
        for row in table.done().iter_rows(named=True)
    }


def _feasible(rate: float | None) -> bool:
    return rate is not None and not math.isnan(rate) and rate > 0


def read_gavel(
    path: Path, gpu: str = "v100", *, consolidated: bool = True
) -> dict[tuple[str, int | None], Curve]:
    """Read Gavel's throughputs of jobs that run alone, by model and batch size (or None).

    The file is ``simulation_throughputs.json`` or ``physical_cluster_throughputs.json``, plain or
    gzip. ``gpu`` is k80, p100 or v100. ``consolidated`` workers are on one machine. Rates are
    steps/s summed over all n workers, so one worker makes curve[n] / n. A rate of 0.0 (the job
    didn't fit) is missing from the curve.

    Raise `InputError` if the file isn't such a table, or lacks the GPU.
    """
    read_head(path)
    data = load_json(path)
    kind = gpu if consolidated else f"{gpu}_unconsolidated"
    if not isinstance(data, dict) or not isinstance(data.get(kind), dict):
        gpus = ", ".join(data) if isinstance(data, dict) else "none"
        raise file_error(path, f"has no GPU {kind!r}", f"its GPUs are {gpus}")
    curves: dict[tuple[str, int | None], dict[int, float]] = {}
    for key, rates in data[kind].items():
        try:
            job_type, workers = ast.literal_eval(key)
            workers, rate = int(workers), float(rates["null"])
            match = _JOB_TYPE.fullmatch(job_type)
        except (ValueError, SyntaxError, LookupError, TypeError, RecursionError) as error:
            raise InputError(
                Fault(f"{path}: {kind}: {key}", "expected (job type, GPUs) with the rate alone")
            ) from error
        if match is not None and rate > 0:
            model = (match[1], int(match[2]) if match[2] else None)
            curves.setdefault(model, {})[workers] = rate
    return dict(curves)


def read_pollux_placements(path: Path) -> pl.DataFrame:
    """Read Pollux's measurements of step times by placement (``placements.csv``).

    Each digit of a placement is the number of GPUs on a node: ``112`` is three nodes with 1, 1 and
    2 GPUs. The columns are placement, nodes, replicas, local_bsz (per GPU), batch_size (local_bsz x
    replicas), and step_time and sync_time in seconds.
    """
    columns = typed_columns("placement local_bsz:i step_time:f sync_time:f")
    table = read_table(path, columns, ImportContext())
    text = pl.col("placement")
    table.check(text.str.contains(r"^[1-9]+$"), "placement", "is not digits above 0")
    table.check_positive("local_bsz", "step_time")
    digits = text.str.split("").list.eval(pl.element().filter(pl.element() != ""))
    replicas = digits.cast(pl.List(pl.Int64())).list.sum()
    return table.done().select(
        "placement",
        nodes=text.str.len_chars().cast(pl.Int64),
        replicas=replicas,
        local_bsz="local_bsz",
        batch_size=pl.col("local_bsz") * replicas,
        step_time="step_time",
        sync_time="sync_time",
    )


def pollux_curve(placements: pl.DataFrame, local_batch: int) -> Curve:
    """Return mini-batches/s by number of workers: ``n / step_time``, one per worker and step.

    For each number of workers, the rate is that of the fastest placement on the fewest nodes.
    ``local_batch`` is in samples per GPU and step.
    """
    rows = placements.filter(pl.col("local_bsz") == local_batch)
    best = rows.sort("replicas", "nodes", "step_time").group_by("replicas").first()
    return {
        int(row["replicas"]): row["replicas"] / row["step_time"]
        for row in best.sort("replicas").iter_rows(named=True)
    }


def read_chronus(folder: Path, name: str) -> Curve:
    """Read Chronus's samples of seconds per iteration; return iterations/s of the whole job.

    ``folder`` contains ``<name>_gpu_<n>.npy`` with 500 to 1,000 samples each; ``name`` is a model
    such as ``imagenet_arch_resnet50``. The rate is 1 over the median of the samples after the
    warm-up (`WARM_UP_SHARE`).

    Raise `InputError` if there is no file, or one has no positive seconds.
    """
    curve: dict[int, float] = {}
    for path in sorted(folder.glob(f"{name}_gpu_*.npy")):
        try:
            samples = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise file_error(path, "is not an array of seconds") from error
        steady = samples[int(len(samples) * WARM_UP_SHARE) :]
        middle = float(np.median(steady)) if len(steady) else 0.0
        if not middle > 0:
            raise file_error(path, "contains no positive seconds")
        curve[int(path.stem.rsplit("_", 1)[1])] = 1.0 / middle
    if not curve:
        raise InputError(Fault(str(folder), f"has no {name}_gpu_*.npy"))
    return dict(sorted(curve.items()))
