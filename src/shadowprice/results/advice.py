"""Verified changes of a refused job's entry in the job file that get the job admitted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

_LONG: Final = re.compile(r"\d+\.\d{6,}")  # numbers with more digits than a reader needs


def outcomes_with_advice(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the job outcomes of a run that qualify for advice.

    ``info`` is the content of ``run.json``. If the policy doesn't decide at once, a dropped job was
    never admitted either: it only ran on spare capacity.
    """
    final = info.get("capabilities", {}).get("answers_at_once", True)
    return ("refused",) if final else ("refused", "dropped")


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of a job's entry in its file that gets the job admitted."""

    way: str  # ``value``, ``work``, ``time``, ``size``, ``workers``, ``arrival`` or ``deadline``
    key: str  # path in the job's entry: ``utility.value``, ``worker.memory``
    before: str  # current value
    after: str  # new value
    change: str  # size of the change, formatted
    refused: str  # next smaller change, still refused: at most 1 % smaller, or one unit
    completion: int | None = None  # promised slot; None without a promise
    utility: float | None = None
    price: float | None = None
    verified: str = "quoted"  # ``run`` if the jobs were run again with the change
    # Result of the quote if it differs from that of the repeated run; ``nothing`` if no change gets
    # the job admitted at the quoted prices.
    at_quoted_prices: str | None = None
    # Option of ``submit`` for the change, and its values before and after. None if no options set
    # the job's keys, such as for a job from a file.
    option: str | None = None
    option_before: str | None = None
    option_after: str | None = None


@dataclass(frozen=True, slots=True)
class IneffectiveChange:
    """One kind of change that doesn't get a job admitted."""

    way: str
    key: str
    up_to: str  # largest change that was tried
    tried: int  # number of changes, spread over the whole range
    option: str | None = None  # option of ``submit``, if options set the job's keys
    option_up_to: str | None = None
    decreases: bool | None = None  # True if ``up_to`` is below the current value


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """All advice on one refused job."""

    job: str
    slot: int  # arrival slot, in which the policy is queried again
    held: str  # what the advice assumes to stay unchanged, formatted
    advice: Sequence[Advice]  # one for each kind of change that gets the job admitted
    ineffective: Sequence[IneffectiveChange] = ()  # kinds that don't
    left_out: Sequence[str] = ()  # keys whose changes need runs that take too long

    def record(self) -> dict[str, Any]:
        """Return the advice as plain values, without unknown ones."""
        return asdict(self, dict_factory=_without_unknown)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> JobAdvice:
        """Build the advice from the result of `record`."""
        parts = {
            "advice": [Advice(**item) for item in record["advice"]],
            "ineffective": [IneffectiveChange(**item) for item in record["ineffective"]],
        }
        return cls(**{**record, **parts})


def _without_unknown(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in values if value is not None}


def describe_change(advice: Advice) -> str:
    """Describe a change as its owner writes it: an option of a command, or a key of a file."""
    if advice.option is not None:
        after = shlex.quote(str(advice.option_after))
        return f"{advice.option} {after} instead of {advice.option_before}"
    before = _LONG.sub(lambda number: f"{float(number[0]):.6g}", advice.before)
    return f"{advice.key}: {advice.after} instead of {before}"


def advice_lines(
    job_advice: JobAdvice,
    completion_text: Callable[[int], str] = "in slot {}".format,
    left_out_reason: str = "each change needs another run of all jobs",
    change_text: Callable[[Advice], str] = describe_change,
) -> Iterator[tuple[str, str]]:
    """Yield advice on a refused job as (label, text), one change in each line.

    ``completion_text`` formats a completion slot, ``left_out_reason`` says why changes were not
    tried, and ``change_text`` describes a change.
    """
    label = "sufficient"
    shown = [*_smallest_work_changes(job_advice.advice)]
    for advice in shown:
        text = f"{change_text(advice)} ({advice.change})"
        if advice.completion is not None:
            text += f"; done {completion_text(advice.completion)}"
        if advice.at_quoted_prices is not None:
            sufficient = advice.at_quoted_prices
            sufficient = "no value" if sufficient == "nothing" else sufficient
            text += f"; at the prices of this run {sufficient} would suffice"
        yield label, text
        label = ""
    if not job_advice.advice:
        yield (
            label,
            "none of the following changes"
            if job_advice.ineffective
            else "no change that was tried",
        )
    elif len(shown) > 1:
        yield "", "each change alone suffices, and is the smallest to 1 %"
    if job_advice.ineffective:
        tried = ", ".join(_up_to(change) for change in job_advice.ineffective)
        yield "not enough", tried
    if job_advice.left_out:
        keys = ", ".join(job_advice.left_out)
        yield "not tried", f"{keys}: {left_out_reason}"
    yield "assuming", job_advice.held


def _smallest_work_changes(advice: Sequence[Advice]) -> Iterator[Advice]:
    """Yield all advice, except that only the smallest change to the amount of work is kept."""
    work = [item for item in advice if item.way == "work"]
    smallest = min(work, key=lambda item: 1 - int(item.after) / int(item.before), default=None)
    for item in advice:
        if item.way != "work" or item is smallest:
            yield item


def _up_to(change: IneffectiveChange) -> str:
    bound = "down to" if change.decreases else "up to"
    if change.option is not None:
        return f"{change.option} {bound} {shlex.quote(str(change.option_up_to))}"
    return f"{change.key} {bound} {change.up_to}"
