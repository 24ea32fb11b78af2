"""Filters and sort order for the jobs of a run."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display

DEFAULT_COLUMNS: Final = (
    "job", "tenant", "class", "arrival", "start", "completion", "outcome", "utility", "value",
    "late", "worker_slots", "reason",
)  # fmt: skip
"""Default columns of a listing."""


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots from ``first`` to ``last``, both inclusive; None leaves a side open."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str, slot_seconds: float, location: str) -> SlotRange:
        """Parse ``10..50``, ``10..``, ``..2h`` or a single slot; durations count from the start."""
        first, dots, last = text.partition("..")
        if not dots:
            last = first
        try:
            ends = [_slot(part, slot_seconds) for part in (first, last)]
        except (InputError, ValueError) as error:
            hint = "write slots or times as FROM..TO, such as 10..50, 10.. or ..2h"
            fault = Fault(location, f"{quote_for_display(text)} is not a range of slots", hint)
            raise InputError(fault) from error
        if dots and None not in ends and ends[0] > ends[1]:  # type: ignore[operator]  # both known
            raise InputError(Fault(location, f"{text!r} ends before it begins"))
        return cls(*ends)

    def holds(self, column: str) -> pl.Expr:
        """Return an expression: the column's slot is in the range and not null."""
        inside = pl.col(column).is_not_null()
        if self.first is not None:
            inside &= pl.col(column) >= self.first
        if self.last is not None:
            inside &= pl.col(column) <= self.last
        return inside


def parse_slot(text: str, slot_seconds: float, location: str) -> int:
    """Parse a slot, given as a number or as a duration from the start."""
    try:
        slot = _slot(text, slot_seconds)
    except (InputError, ValueError):
        slot = None
    if slot is None:
        hint = "write a number from 0 on, or a time from the start such as 2h"
        raise InputError(Fault(location, f"{quote_for_display(text)} is not a slot", hint))
    return slot


def _slot(text: str, slot_seconds: float) -> int | None:
    text = text.strip()
    if not text:
        return None
    if re.fullmatch(r"\d{1,18}", text):
        return bounds.SLOT.checked(int(text))
    # By its decimal digits: the float 0.1 is above 1/10, which would round down to the slot before.
    return bounds.SLOT.checked(int(parse_duration(text).in_slots(Fraction(str(slot_seconds)))))


def filter_jobs(
    jobs: pl.DataFrame,
    patterns: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ranges: Mapping[str, SlotRange | None] = MappingProxyType({}),
    outcomes: Sequence[str] = (),
    late: bool | None = None,
) -> pl.DataFrame:
    """Return the rows of a job table that satisfy all restrictions; empty ones have no effect.

    ``patterns`` are by column, in the style of file names (``resnet*``); one of a column's patterns
    has to match. ``ranges`` are by column, for columns with slots. ``late`` selects jobs that
    missed their target, or if False, those that met it.
    """
    unknown = next((outcome for outcome in outcomes if outcome not in OUTCOMES), None)
    if unknown is not None:
        hint = hint_for_unknown(unknown, OUTCOMES)
        raise InputError(Fault("--outcome", f"unknown outcome {quote_for_display(unknown)}", hint))
    condition = pl.lit(value=True)
    for column, alternatives in patterns.items():
        if alternatives:
            matching = [
                value
                for value in jobs[column].drop_nulls().unique().to_list()
                if any(fnmatch.fnmatchcase(value, pattern) for pattern in alternatives)
            ]
            condition &= pl.col(column).is_in(matching).fill_null(value=False)
    if outcomes:
        condition &= pl.col("outcome").is_in(list(outcomes))
    for column, span in ranges.items():
        if span is not None:
            condition &= span.holds(column)
    if late is not None:
        is_late = pl.col("late") > 0
        condition &= (is_late if late else ~is_late).fill_null(value=False)
    return jobs.filter(condition)


OUTCOMES: Final = (
    "finished", "refused", "dropped", "cancelled", "running", "waiting", "not arrived",
)  # fmt: skip


def select_columns(
    jobs: pl.DataFrame, names: Sequence[str], location: str = "--columns"
) -> list[str]:
    """Return the requested columns; ``all`` stands for every column."""
    if list(names) == ["all"]:
        return jobs.columns
    for name in names:
        if name not in jobs.columns:
            hint = hint_for_unknown(name, jobs.columns)
            raise InputError(Fault(location, f"unknown column {quote_for_display(name)}", hint))
    return list(names)


def sort_jobs(jobs: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sort the rows by columns in order of priority; ``-utility`` sorts in descending order."""
    if not keys:
        return jobs
    names = select_columns(jobs, [key.removeprefix("-") for key in keys], "--sort")
    descending = [key.startswith("-") for key in keys]
    return jobs.sort(names, descending=descending, nulls_last=True, maintain_order=True)
