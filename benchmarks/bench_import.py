"""Time to import a million trace rows, compared with a plain loop over Python's csv module.

Generates files of 1,000,000 rows in a temporary directory (Philly's flat layout, plain and gzip,
Helios, and SWF), imports each, and checks that the loop reads the same jobs in the same order. The
aim is 3 s for a million rows. Times are medians of three runs.

Run: ``python -m benchmarks.bench_import [ROWS]``
"""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from shadowprice.traces.locate import read_trace

AIM_SECONDS = 3.0
EPOCH = 1_504_756_737  # Unix time of the first submissions
TIME = "%Y-%m-%d %H:%M:%S"
Rows = list[tuple[float, float, float]]


def draw(rows: int) -> pl.DataFrame:
    """Draw submissions, run times and GPUs."""
    generator = np.random.default_rng(0)
    submit = EPOCH + generator.integers(0, 9_000_000, rows)
    run = generator.integers(1, 100_000, rows)
    frame = pl.DataFrame(
        {"submit": submit, "run": run, "gpus": generator.choice([1, 2, 4, 8], rows)}
    )
    times = [
        pl.from_epoch(seconds).dt.strftime(TIME).alias(name)
        for name, seconds in (
            ("submit_time", pl.col("submit")),
            ("start_time", pl.col("submit") + 5),
            ("end_time", pl.col("submit") + 5 + pl.col("run")),
        )
    ]
    return frame.with_columns(times)


def write_files(folder: Path, rows: int) -> dict[str, Path]:
    """Write the same jobs in each layout."""
    frame = draw(rows)
    philly, helios, swf = folder / "philly.csv", folder / "helios.csv", folder / "log.swf"
    frame.select(
        timestamp="submit_time",
        duration=pl.col("run").cast(pl.Float64),
        num_gpus="gpus",
        gpu_time=(pl.col("run") * pl.col("gpus")).cast(pl.Float64),
        cluster=pl.lit("6214e9"),
    ).write_csv(philly)
    zipped = folder / "philly.csv.gz"
    with gzip.open(zipped, "wb", compresslevel=1) as file:
        file.write(philly.read_bytes())
    frame.with_row_index("job_id").select(
        "job_id",
        user=pl.lit("u"),
        vc=pl.lit("v"),
        gpu_num="gpus",
        cpu_num="gpus",
        node_num=pl.lit(1),
        state=pl.lit("COMPLETED"),
        submit_time="submit_time",
        start_time="start_time",
        end_time="end_time",
        duration="run",
        queue=pl.lit(5),
    ).write_csv(helios)
    frame.with_row_index("job").select(
        pl.format("{} {} 5 {} {} -1 -1 {} -1 -1 1 3 7 -1 -1 -1 -1 -1", *_swf_columns())
    ).write_csv(swf, include_header=False, quote_style="never")
    return {"philly": philly, "philly gzip": zipped, "helios": helios, "swf": swf}


def _swf_columns() -> list[str]:
    return ["job", "submit", "run", "gpus", "gpus"]


def naive(name: str, path: Path) -> Rows:
    """Read with the csv module (SWF: str.split), one dict and one datetime at a time."""
    rows: Rows = []
    if name == "swf":
        with path.open(encoding="utf-8") as file:
            for line in file:
                part = line.split()
                rows.append((float(part[1]), float(part[3]), float(part[4])))
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if name == "helios":
                    start, end = _seconds(row["start_time"]), _seconds(row["end_time"])
                    submit, run = _seconds(row["submit_time"]), end - start
                    rows.append((submit, run, float(row["gpu_num"])))
                else:
                    submit = _seconds(row["timestamp"])
                    rows.append((submit, float(row["duration"]), float(row["num_gpus"])))
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return [(submit - first, run, gpus) for submit, run, gpus in rows]


def _seconds(text: str) -> float:
    return datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), rows)
        print(f"{rows:,} rows; aim {AIM_SECONDS:g} s a million")
        print(f"{'file':12} {'MB':>6} {'import s':>9} {'plain loop s':>13} {'ratio':>6}")
        for name, path in files.items():
            spec = f"{name.split()[0]}:{path}"
            fast = statistics.median(timed(lambda spec=spec: read_trace(spec)) for _ in range(3))
            start = time.perf_counter()
            expected = naive(name, path)
            slow = time.perf_counter() - start
            imported = read_trace(spec).jobs.select("submit", "duration", "gpus").rows()
            if imported != expected:
                raise SystemExit(f"{name}: the import and the plain loop read different jobs")
            size = path.stat().st_size / 1e6
            print(f"{name:12} {size:6.0f} {fast:9.2f} {slow:13.2f} {slow / fast:6.1f}")


if __name__ == "__main__":
    main()
