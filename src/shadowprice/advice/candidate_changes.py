"""Changes that the owner of a refused job can make, each with its possible values.

A change replaces the value of one key in the job's record. Its values are in order, from the
smallest change to the largest. Successive values are about 1 % apart, small integers 1 apart.
So the first value that gets the job admitted is the smallest sufficient change, to within 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shadowprice.core import amounts, bounds, submit_options
from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.length_history import length_of_progress
from shadowprice.core.specs.utilities import PRIORITY_LEVELS

Key = tuple[str | int, ...]
JobFileRecord = Mapping[str, Any]  # record of a job, as in its file

STEP_RATIO: Final = 1.009
"""Ratio of successive values; less than 1 % apart after rounding to four digits."""
MAX_UTILITY_FACTOR: Final = 1000.0  # maximum factor on a job's utility
_MAX_DEMAND_DIVISOR: Final = 100  # maximum factor by which a demand is reduced
_SIGMOID_RANGE: Final = 40.0
"""Decay times slots from the target at which a sigmoid is constant in double precision."""
_DEFAULT: Final = " (default)"  # ends the current value of a key that the record doesn't have
_BINARY_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_DECIMAL_UNITS: Final = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))
_RATE_UNITS: Final = (("Gbps", 10**9), ("Mbps", 10**6), ("kbps", 10**3), ("bps", 1))
_MIN_UNITS: Final = 1000  # amounts are written in the largest unit of which they have so many


@dataclass(frozen=True, slots=True)
class OptionChange:
    """The option of ``submit`` that makes a change, and the option's values as text."""

    name: str
    before: str  # current value
    text: Callable[[Any], str]  # formats a value of the change for the option


@dataclass(frozen=True, slots=True)
class JobChange:
    """One key of a job's record, and its possible values."""

    kind: str  # ``value``, ``work``, ``time``, ``size``, ``workers``, ``arrival`` or ``deadline``
    key: Key  # path of the value in the record
    before: str  # current value, as text
    values: Sequence[Any]  # possible values, from the smallest change to the largest
    describe: Callable[[Any], str]  # describes the change to a value in words
    option: OptionChange | None = None  # if options set the job's keys

    @property
    def label(self) -> str:
        """Text of the key: ``utility.value``, ``tasks[0].count``."""
        return "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.key
        ).removeprefix(".")

    @property
    def decreases(self) -> bool:
        """Whether the values become smaller."""
        if self.kind == "workers":
            return bool(self.values) and self.values[-1] < int(self.before.removesuffix(_DEFAULT))
        return self.kind in {"work", "time", "size"}


def with_value(entry: JobFileRecord, key: Key, value: Any) -> dict[str, Any]:
    """Return a job's record with one value replaced."""
    result: Any = deepcopy(dict(entry))
    inner = result
    for part in key[:-1]:
        inner = inner.setdefault(part, {}) if isinstance(inner, dict) else inner[part]
    inner[key[-1]] = value
    return dict(result)


class SlotDeadlines:
    """Writes later deadlines in slots, because simulations have no calendar."""

    def write(self, key: Key, slots: float) -> str:
        """Return a deadline for a job file; ``slots`` are counted from the arrival slot."""
        del key
        return _slots(slots) if isinstance(slots, int) else f"{slots!r} slots"

    def describe_delay(self, slots: float) -> str:
        """Describe the delay of a deadline in words."""
        return f"{_digits(slots)} slots later" if slots != 1 else "1 slot later"


SLOT_DEADLINES: Final = SlotDeadlines()


def candidate_changes(
    entry: JobFileRecord,
    job: Job,
    cluster: Cluster,
    end: int,
    texts: SlotDeadlines = SLOT_DEADLINES,
) -> Iterator[JobChange]:
    """Yield the possible changes of a job, except a later arrival.

    ``entry`` is the record in the file, ``job`` the job resolved from it, and ``end`` the first
    slot after all plans. ``texts`` formats later deadlines.
    """
    changes = _key_changes(entry, job, cluster, end, texts)
    return _option_changes(entry, changes) if submit_options.has_options(entry) else changes


def _option_changes(entry: JobFileRecord, changes: Iterator[JobChange]) -> Iterator[JobChange]:
    """Yield the changes that options of ``submit`` can make, each with its option."""
    for change in changes:
        name = submit_options.option_for_key(change.label)
        if name == "--steps":
            # `--time` is the time of all steps together, so fewer steps aren't less work.
            if _has_run_time(entry):
                yield from _run_time_changes(entry)
        elif change.option is not None:
            yield change
        elif name is not None:

            def text(value: Any, key: str = change.label, name: str = name) -> str:
                shown = format_value(value)
                return submit_options.gpus_text(key, shown) if name == "--gpus" else shown

            before = text(change.before.removesuffix(_DEFAULT))
            yield replace(change, option=OptionChange(name, before, text))


def _key_changes(
    entry: JobFileRecord, job: Job, cluster: Cluster, end: int, texts: SlotDeadlines
) -> Iterator[JobChange]:
    yield from _utility_changes(entry)
    yield from _priority_changes(entry, job)
    yield from _deadline_changes(entry, job, cluster, end, texts)
    if job.bag is None:
        if job.predicted:  # the prediction is of the whole job, so fewer steps aren't less work
            yield from _predicted_time_changes(entry, job, cluster)
        else:
            factors = ("epochs", "minibatches") if entry.get("steps") is None else ("steps",)
            for name in factors:
                yield from _count_changes((name,), int(entry.get(name, 1)))
            yield from _time_changes(entry)
        yield from _worker_changes(entry, job, cluster)
    else:
        for index, group in enumerate(entry["tasks"]):
            yield from _count_changes(("tasks", index, "count"), int(group.get("count", 1)))
        yield from _miss_probability_changes(entry)
    for role in ("worker", "ps"):
        for resource, amount in (entry.get(role) or {}).items():
            yield from _demand_changes((role, resource), amount)


def arrival_change(job: Job, last: int) -> JobChange:
    """Return the change to a later arrival, at most in slot ``last``."""
    delays = _increasing_integers(0, last - job.arrival)

    def describe(text: str) -> str:
        return f"{_count(int(text.split(maxsplit=1)[0]) - job.arrival, 'slot')} later"

    values = [_slots(job.arrival + delay) for delay in delays]
    return JobChange("arrival", ("arrival",), _slots(job.arrival), values, describe)


# ---------------------------------------------------------------- changes


def _utility_changes(entry: JobFileRecord) -> Iterator[JobChange]:
    utility = entry.get("utility") or {}
    name = next((name for name in ("value", "scale") if name in utility), None)
    if name is None:
        return
    current = float(utility[name])
    maximum = float(bounds.NUMBER.maximum)
    if name == "scale" and (exponent := float(utility["exponent"])) > 1:
        # The limit is on scale ** exponent. The factor 0.999 keeps a rounded scale below the limit.
        maximum = float(f"{0.999 * maximum ** (1 / exponent):.4g}")
    # Multiples of 0 are 0, so the values start at a thousandth.
    values = (
        _increasing_numbers(current, min(current * MAX_UTILITY_FACTOR, maximum))
        if current > 0
        else _increasing_numbers(1e-3, min(MAX_UTILITY_FACTOR, maximum))
    )
    yield JobChange(
        "value",
        ("utility", name),
        format_value(utility[name]),
        values,
        lambda value: (
            f"{_digits(value / current)} times as much" if current > 0 else "more than nothing"
        ),
    )


def _priority_changes(entry: JobFileRecord, job: Job) -> Iterator[JobChange]:
    """Yield a change to higher priorities, which are multiples of the default utility."""
    if not job.has_default_utility:
        return
    stated = entry.get("priority")
    current = stated if isinstance(stated, str) else "normal"
    multiple = PRIORITY_LEVELS[current].multiple
    levels = sorted(PRIORITY_LEVELS.items(), key=lambda item: item[1].multiple)
    values = [name for name, level in levels if level.multiple > multiple]
    before = f"{current}{_DEFAULT}" if stated is None else format_value(stated)
    yield JobChange(
        "value",
        ("priority",),
        before,
        values,
        lambda value: f"{_digits(PRIORITY_LEVELS[value].multiple / multiple)} times as much",
    )


def _deadline_changes(
    entry: JobFileRecord, job: Job, cluster: Cluster, end: int, texts: SlotDeadlines
) -> Iterator[JobChange]:
    """Yield changes to later deadlines and targets, and to a smaller slope."""
    utility = entry.get("utility") or {}
    # A deadline after the last slot of every plan has no effect.
    max_slots = max(end - job.arrival, cluster.horizon) + 1
    keys: tuple[Key, ...] = (("by",), ("utility", "by"), ("utility", "target"), ("deadline",))
    for key in keys:
        text = entry.get(str(key[0])) if len(key) == 1 else utility.get(key[1])
        if text is None:
            continue
        # Deadlines and targets are compared in slots, even if the file uses another unit.
        is_bag = job.bag is not None and key == ("deadline",)
        current = job.bag.deadline if is_bag and job.bag else getattr(job.utility, str(key[-1]))
        slots: Sequence[float]
        if key[-1] == "target":
            # Only targets within some slots of a plan's end change the utility.
            decay = float(getattr(job.utility, "decay", 1.0))
            spread = _SIGMOID_RANGE / max(decay, _SIGMOID_RANGE / max_slots)
            slots = _increasing_numbers(max(float(current), 0.1), max_slots + spread)
        else:
            # A deadline is at the end of a slot.
            slots = _increasing_integers(math.floor(current), max_slots)
        values = [texts.write(key, value) for value in slots]
        delays = {value: after - float(current) for value, after in zip(values, slots, strict=True)}

        def describe(value: str, delays: Mapping[str, float] = delays) -> str:
            return texts.describe_delay(delays[value])

        yield JobChange("deadline", key, str(text), values, describe)
    rate = amounts.parse_rate(utility.get("slope", 0.0))
    slope = float(rate.number)
    if slope < 0:
        slopes = [slope * (100 - percent) / 100 for percent in range(1, 100)]
        numbers = [float(f"{value:.4g}") for value in slopes] + [0.0]
        slope_values: Sequence[Any] = (
            [f"{format_value(number)}/{rate.unit}" for number in numbers] if rate.unit else numbers
        )

        def describe_slope(value: object) -> str:
            return f"{_reduction(float(amounts.parse_rate(value).number) / slope)} steep"

        yield JobChange(
            "deadline",
            ("utility", "slope"),
            format_value(utility["slope"]),
            slope_values,
            describe_slope,
        )


def _count_changes(key: Key, current: int) -> Iterator[JobChange]:
    """Yield a change to smaller integers, down to 1."""
    values = _decreasing_integers(current, 1)
    if values:
        yield JobChange(
            "work", key, str(current), values, lambda value: _reduction(value / current)
        )


def _time_changes(entry: JobFileRecord) -> Iterator[JobChange]:
    """Yield a change to shorter times of a job with a single step of a stated time."""
    if entry.get("steps") != 1 or not _has_run_time(entry):
        return
    span = amounts.parse_duration(entry["minibatch_time"])
    if submit_options.has_options(entry):
        yield from _run_time_changes(entry)
        return
    # Use at least a hundred units, so that successive values differ by at most 1 %.
    unit = next((unit for unit in (1, 1000) if span.seconds * unit >= 100), 1000)
    current = int(span.seconds * unit)
    values = {
        f"{format_value(value / unit)}s": value
        for value in _decreasing_integers(current, max(1, current // 100))
    }
    if values:
        before = str(entry["minibatch_time"])
        yield JobChange(
            "time",
            ("minibatch_time",),
            before,
            list(values),
            lambda text: _reduction(values[text] / current),
        )


def _has_run_time(entry: JobFileRecord) -> bool:
    """Return whether a record states the time of a mini-batch on the clock, not in slots."""
    text = entry.get("minibatch_time")
    return text is not None and amounts.parse_duration(text).on_clock


def _run_time_changes(entry: JobFileRecord) -> Iterator[JobChange]:
    """Yield a change to shorter run times of a job whose keys were set by options."""
    steps = int(entry["steps"])
    total = amounts.parse_duration(entry["minibatch_time"]).seconds * steps
    if steps > 1:  # a mini-batch's time has nine digits, so the product has rounding errors
        total = Fraction(f"{float(total):.7g}")
    before = str(entry["minibatch_time"]), submit_options.run_time_text(total)
    yield from _shorter_time_changes(total, steps, before, has_option=True)


def _predicted_time_changes(
    entry: JobFileRecord, job: Job, cluster: Cluster
) -> Iterator[JobChange]:
    """Yield a change that states a run time, at most the predicted run time."""
    length = length_of_progress(job, job.required)
    total = Fraction(f"{length * float(cluster.slot_seconds):.7g}")
    before = (f"{amounts.format_seconds(float(total))} (predicted)",) * 2
    steps = int(entry.get("steps") or 1)
    yield from _shorter_time_changes(
        total, steps, before, has_option=submit_options.has_options(entry), is_stated=False
    )


def _shorter_time_changes(
    total: Fraction,
    steps: int,
    before: tuple[str, str],
    *,
    has_option: bool,
    is_stated: bool = True,
) -> Iterator[JobChange]:
    """Yield a change of ``minibatch_time`` to run times below ``total``.

    If the record states no time, ``total`` itself is the first value. ``before`` has the texts of
    the current value, for the key and for the option.
    """
    # Use at least a hundred units, so that successive values differ by at most 1 %.
    units = (Fraction(3600), Fraction(60), Fraction(1))
    unit = next((unit for unit in units if total >= 100 * unit), Fraction(1, 1000))
    current = int(total / unit)
    texts: dict[str, str] = {}  # run times by the mini-batch's time
    sizes: dict[str, float] = {}
    values = _decreasing_integers(current, max(1, current // 100))
    for value in values if is_stated else [current, *values]:
        text = submit_options.run_time_text(value * unit)
        key = submit_options.minibatch_time(text, value * unit, steps)
        texts[key], sizes[key] = text, float(value * unit / total)

    def describe(value: str) -> str:
        is_less = 1 - sizes[value] >= 0.005
        return _reduction(sizes[value]) if is_less else "stated instead of predicted"

    if texts:
        option = OptionChange("--time", before[1], texts.__getitem__) if has_option else None
        yield JobChange("time", ("minibatch_time",), before[0], [*texts], describe, option)


def _worker_changes(entry: JobFileRecord, job: Job, cluster: Cluster) -> Iterator[JobChange]:
    min_workers, max_workers = int(job.worker_counts[0]), job.max_workers
    declared = entry.get("workers") or {}
    for bound, current, values in (
        ("min", min_workers, _decreasing_integers(min_workers, 1)),
        (
            "max",
            max_workers,
            _increasing_integers(max_workers, _max_possible_workers(entry, job, cluster)),
        ),
        ("max", max_workers, _decreasing_integers(max_workers, min_workers)),
    ):
        if values:
            before = (
                str(declared[bound]) if declared.get(bound) is not None else f"{current}{_DEFAULT}"
            )

            def describe(value: int, bound: str = bound, current: int = current) -> str:
                verb = "raised" if value > current else "lowered"
                return f"{bound}imum {verb} by {_count(abs(value - current), 'worker')}"

            yield JobChange("workers", ("workers", bound), before, values, describe)


def _max_possible_workers(entry: JobFileRecord, job: Job, cluster: Cluster) -> int:
    """Return the largest ``workers.max`` that can have an effect, given the rest of the record."""
    if entry.get("steps") is None:
        return job.chunks
    if entry.get("throughput"):
        return max(map(int, entry["throughput"]))
    needed = job.worker > 0
    capacity = cluster.capacity[cluster.hosts_workers]
    fit_counts = (capacity[:, needed] // job.worker[needed]).min(axis=1)
    # Workers can't share a step, so more workers than steps have no effect.
    return min(int(fit_counts.sum()), int(bounds.WORKER_COUNTS.maximum), int(entry["steps"]))


def _miss_probability_changes(entry: JobFileRecord) -> Iterator[JobChange]:
    current = float(entry["miss_probability"])
    values = [value for value in _increasing_numbers(current, 0.999) if value < 1.0]
    yield JobChange(
        "deadline",
        ("miss_probability",),
        format_value(entry["miss_probability"]),
        values,
        lambda value: f"missed {_digits(value / current)} times as often",
    )


def _demand_changes(key: Key, amount: object) -> Iterator[JobChange]:
    """Yield a change to a smaller demand of one resource per worker or parameter server."""
    parsed = amounts.parse_amount(amount)
    if parsed.dimension is Dimension.COUNT:
        whole, rest = divmod(parsed.value, 1000)
        # A count is in thousandths. Propose fractions only to jobs that already use fractions.
        values: list[Any] = [*_decreasing_integers(whole, 1)]
        if rest:
            values = [value / 1000 for value in _decreasing_integers(parsed.value, 1)]
        number = parsed.value / 1000
        sizes = {value: float(value) for value in values}
    else:
        units = _RATE_UNITS if parsed.dimension is Dimension.RATE else _DECIMAL_UNITS
        if parsed.dimension is Dimension.BYTES and "i" in str(amount):  # as in GiB
            units = _BINARY_UNITS
        unit, size = next(
            (pair for pair in units if parsed.value >= _MIN_UNITS * pair[1]), units[-1]
        )
        counts = _decreasing_integers(parsed.value // size, 1)
        number = parsed.value / size
        values = [f"{count}{unit}" for count in counts]
        sizes = {text: float(count) for text, count in zip(values, counts, strict=True)}
    values = [value for value in values if sizes[value] * _MAX_DEMAND_DIVISOR >= number]
    if values:
        before = format_value(amount)
        yield JobChange(
            "size", key, before, values, lambda value: _reduction(sizes[value] / number)
        )


# ---------------------------------------------------------------- values


def _increasing_numbers(current: float, maximum: float) -> list[float]:
    """Return increasing numbers above the current one, about 1 % apart; the last is the maximum."""
    if maximum <= current:
        return []
    count = math.ceil(math.log(maximum / current) / math.log(STEP_RATIO))  # until the maximum
    steps = (
        min(float(f"{current * STEP_RATIO**power:.4g}"), maximum) for power in range(1, count + 1)
    )
    return [step for step in dict.fromkeys(steps) if step > current]


def _increasing_integers(current: int, maximum: int) -> list[int]:
    """Return increasing integers up to a maximum; steps are about 1 %, but at least 1."""
    values = []
    while current < maximum:
        current = min(current + max(1, current // 100), maximum)
        values.append(current)
    return values


def _decreasing_integers(current: int, minimum: int) -> list[int]:
    """Return decreasing integers down to a minimum; steps are about 1 %, but at least 1."""
    values = []
    while current > minimum:
        current -= max(1, current // 100)
        values.append(max(current, minimum))
    return values


# ---------------------------------------------------------------- text


def _slots(number: int) -> str:
    return _count(number, "slot")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_value(value: object) -> str:
    """Return a value as text for a job file."""
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    return str(value)


def _reduction(ratio: float) -> str:
    """Return a reduction to ``ratio`` of a value, as text: 0.9 is `10 % less`."""
    return f"{_digits(100 * (1 - ratio))} % less"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
