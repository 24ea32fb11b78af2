"""Files of measured durations, and the distributions fitted to them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.bag import DurationDistribution
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.distributions import EmpiricalDuration, EmpiricalLoader
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.distributions.empirical import build_distribution
from shadowprice.inputs.text import read_lines


def duration_loader(folder: Path) -> EmpiricalLoader:
    """Return a loader of the durations that a file in ``folder`` names; it reads each file once."""

    @cache
    def measured(spec: EmpiricalDuration) -> DurationDistribution:
        path = Path(spec.file)
        path = path if path.is_absolute() else folder / path
        sample = read_durations(path, spec.column) * spec.seconds_per_unit
        parameters = {
            "durations": tuple(sample.tolist()),
            "tail": spec.tail,
            "factor": spec.factor,
            "name": spec.file,
        }
        spec_in_seconds = DurationDistribution("empirical", parameters, 0.0, 0.0)
        distribution = build_distribution(spec_in_seconds)
        return replace(spec_in_seconds, shortest=distribution.shortest, mean=distribution.mean)

    return measured


def read_durations(path: Path, column: str | None = None) -> NDArray[np.float64]:
    """Read positive durations from a file, possibly gzipped.

    With a column's name, the file is CSV with a header; without one, every line holds one number.
    An error names the line of each of the first 20 values that are not positive numbers.
    """
    values: list[float] = []
    faults: list[Fault] = []
    index: int | None = 0 if column is None else None
    for number, cells in _rows(path, is_table=column is not None):
        if index is None:
            if column not in cells:
                hint = hint_for_unknown(str(column), cells)
                raise InputError(Fault(f"{path}: line {number}", f"has no column {column!r}", hint))
            index = cells.index(column)
            continue
        text = cells[index] if index < len(cells) else ""
        value = _number(text)
        if 1e-9 <= value <= bounds.SECONDS.maximum:
            values.append(value)
            bounds.MEASURED.check(len(values), str(path))
        elif len(faults) < 20:
            hint = "" if column is not None else "name the column of a CSV file by `column`"
            message = f"expected a positive number, got {quote_for_display(text)}"
            faults.append(Fault(f"{path}: line {number}", message, hint))
    if faults:
        raise InputError(faults)
    if not values:
        raise InputError(Fault(str(path), "contains no durations"))
    return np.array(values)


def _rows(path: Path, *, is_table: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row, and the line in which it begins; blank lines are left out."""
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in read_lines(path):  # noqa: B007  # the reader's position
            yield f"{line}\n"

    rows = csv.reader(texts(), strict=True) if is_table else ([text] for text in texts())
    first = 1
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if len(cells) > 1 or any(cells):
                yield first, cells
            first = number + 1
    except csv.Error as error:
        raise InputError(Fault(f"{path}: line {number}", f"is not CSV: {error}")) from error


def _number(text: str) -> float:
    """Return a number; NaN for other text, also for what only Python reads, such as ``1_000``."""
    try:
        return math.nan if "_" in text or not text.isascii() else float(text)
    except ValueError:
        return math.nan
