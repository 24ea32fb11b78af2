"""Files of measured durations, and the distributions fitted to them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.bag import DurationDistribution
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.distributions import EmpiricalDuration, EmpiricalLoader
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.distributions.empirical import build_distribution
from shadowprice.inputs.text import read_lines

_MIN_SECONDS: Final = 1e-9
_MAX_FAULTS: Final = 20  # invalid values that an error lists


def duration_loader(folder: Path) -> EmpiricalLoader:
    """Return a function that loads the measured durations of a specification.

    Paths of their files are relative to ``folder``. Each specification is loaded once.
    """

    @cache
    def load(spec: EmpiricalDuration) -> DurationDistribution:
        path = Path(spec.file)
        path = path if path.is_absolute() else folder / path
        sample = read_durations(path, spec.column) * spec.seconds_per_unit
        parameters = {
            "durations": tuple(sample.tolist()),
            "tail": spec.tail,
            "factor": spec.factor,
            "name": spec.file,
        }
        description = DurationDistribution("empirical", parameters, 0.0, 0.0)
        distribution = build_distribution(description)
        return replace(description, shortest=distribution.shortest, mean=distribution.mean)

    return load


def read_durations(path: Path, column: str | None = None) -> NDArray[np.float64]:
    """Read positive durations from a file, possibly gzipped.

    With a column's name, the file is CSV with a header. Without it, every line holds one number.
    An `InputError` lists the first `_MAX_FAULTS` invalid values with their lines.
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
        if _MIN_SECONDS <= value <= bounds.SECONDS.maximum:
            values.append(value)
            bounds.MEASURED.check(len(values), str(path))
        elif len(faults) < _MAX_FAULTS:
            hint = "" if column is not None else "name the column of a CSV file by `column`"
            message = f"expected a positive number, got {quote_for_display(text)}"
            faults.append(Fault(f"{path}: line {number}", message, hint))
    if faults:
        raise InputError(faults)
    if not values:
        raise InputError(Fault(str(path), "contains no durations"))
    return np.array(values)


def _rows(path: Path, *, is_table: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield each row: the line in which it begins, and its fields. Blank lines are left out."""
    number = 0  # number of the last line that was read; a row of CSV may have several lines

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in read_lines(path):  # noqa: B007  # assigned for the code below
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
    """Parse a number; return NaN for other text, and for Python's own forms such as ``1_000``."""
    try:
        return math.nan if "_" in text or not text.isascii() else float(text)
    except ValueError:
        return math.nan
