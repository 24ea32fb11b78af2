"""Synthesis of what a trace lacks: model, speed, gradient, demand, utility, elasticity.

Everything is drawn from one seed: the same trace, options and seed give the same jobs. Two
properties hold by construction and are tested:

- **GPU-time is conserved.** Mini-batches and step time are set so that a job takes its traced
  duration with its traced workers. In the linear model, ``work * step_time`` worker-seconds equal
  ``workers * duration`` to a nanosecond per mini-batch. With a measured curve,
  ``work / rate(workers)`` equals ``duration`` to a mini-batch.
- **Data of the trace is used unchanged.** Model, batch size, iterations and deadline (in
  ElasticFlow's and Gavel's files) are taken from the trace instead of drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI, format_seconds
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.traces.gpu_types import split_types
from shadowprice.traces.locate import parse_spec, read_trace
from shadowprice.traces.options import OPTION_NAMES, SynthesisOptions
from shadowprice.traces.records import Trace
from shadowprice.traces.speeds import JobSpeeds
from shadowprice.traces.throughput import Curve, Family, family_table
from shadowprice.traces.workload import NANO, JobProfile, UtilityKind, Workload

__all__ = ["CLASSES", "OPTION_NAMES", "SynthesisOptions", "load_jobs", "synthesize"]

CLASSES: Final = ("time-insensitive", "time-sensitive", "time-critical")
_DECAYS: Final = ((0.0, 0.0), (0.01, 1.0), (4.0, 6.0))

_LATEST: Final = 9e9
"""Maximum target in seconds; it fits int64 nanoseconds, and later targets have no effect."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def load_jobs(
    spec: str,
    cluster: Cluster,
    *,
    seed: int = 0,
    skip_invalid: bool = False,
) -> tuple[list[Job], Workload, Trace]:
    """Read a trace; return its jobs by arrival, the workload with notes, and the trace.

    ``spec`` is ``format:path?option=value&...`` with options of the format, of the selection
    (`shadowprice.traces.locate`) and of `SynthesisOptions`. Requests for resources that the cluster
    doesn't have are dropped. A job that requests a missing type of GPU is invalid. ``skip_invalid``
    drops invalid rows and counts them.
    """
    parsed = parse_spec(spec, OPTION_NAMES)
    options = SynthesisOptions.from_text(dict(parsed.synthesis))
    skip_invalid = skip_invalid or parsed.skip_invalid
    trace = read_trace(parsed, skip_invalid=skip_invalid)
    workload = synthesize(trace, cluster.slot_seconds, options, seed=seed)
    workload = workload.fitted_to(cluster, skip_invalid=skip_invalid)
    return workload.to_jobs(cluster), workload, trace


def synthesize(
    trace: Trace,
    slot_seconds: Fraction,
    options: SynthesisOptions | None = None,
    *,
    seed: int = 0,
) -> Workload:
    """Build a workload from a trace, drawing values that the trace lacks from a seed.

    Targets and decays are in slots of ``slot_seconds``. The workload's ``notes`` list everything
    dropped or assumed.

    Raise `InputError` if no job remains.
    """
    options = (options or SynthesisOptions()).resolved(trace.format)
    notes: list[str] = []
    frame = _filter_usable_jobs(trace, options, notes)
    rng = np.random.default_rng(seed)
    families = _families(frame, options, rng, notes)
    traced, per_worker = _traced_workers(frame)
    speeds = JobSpeeds(frame, families, traced, options, notes)
    drawn = _describe_drawn(frame, speeds.curves, options)
    submit = _nanoseconds(frame["submit"].to_numpy())
    kind, value, decay, target, within, classes = _utilities(
        frame, submit, speeds.duration, slot_seconds, options, rng, notes
    )
    limit = frame["time_limit"].fill_null(np.nan).to_numpy().astype(np.float64)
    return Workload(
        names=frame["job"].to_list(),
        tenants=frame["tenant"].to_list(),
        arrival=submit,
        epochs=speeds.epochs,
        chunks=speeds.chunks,
        minibatches=speeds.minibatches,
        minibatch_time=speeds.minibatch_time,
        min_workers=speeds.min_workers,
        max_workers=speeds.max_workers,
        profiles=_profiles(frame, families, speeds.curves, traced, per_worker, options),
        kind=kind,
        value=value,
        decay=decay,
        target=target,
        labels=[
            {"family": family.name, "class": name}
            for family, name in zip(families, classes, strict=True)
        ],
        slot_seconds=slot_seconds,
        notes=tuple(notes),
        drawn=drawn,
        within=within,
        time_limit=None if np.isnan(limit).all() else limit,
        requested=traced,
    )


def _filter_usable_jobs(trace: Trace, options: SynthesisOptions, notes: list[str]) -> pl.DataFrame:
    frame = trace.jobs
    if options.cpu_jobs == "drop":
        kept = frame.filter(pl.col("gpus") > 0)
        if kept.height < frame.height:
            dropped = _count(frame.height - kept.height, "CPU job")
            notes.append(f"{dropped} left out (cpu_jobs=keep schedules them)")
        frame = kept
    table = family_table()
    known = pl.struct("model", "batch_size").is_in(
        [{"model": family.model, "batch_size": family.batch_size} for family in table.families],
        nulls_equal=True,
    )
    timed = pl.col("duration").is_not_null() | (pl.col("iterations").is_not_null() & known)
    kept = frame.filter(timed)
    if kept.height < frame.height:
        dropped = _count(frame.height - kept.height, "job")
        notes.append(f"{dropped} without a duration or a known model left out")
    if kept.is_empty():
        raise InputError(f"{trace.source}: no job is left to schedule ({'; '.join(notes)})")
    return kept


def _families(
    frame: pl.DataFrame, options: SynthesisOptions, rng: np.random.Generator, notes: list[str]
) -> list[Family]:
    """Return each job's family: that of its traced model if known, else a random one."""
    table = family_table()
    pool = table.of_set(options.families)
    drawn = rng.integers(0, len(pool), frame.height)
    pairs = zip(frame["model"].to_list(), frame["batch_size"].to_list(), drawn, strict=True)
    named = {(item.model, item.batch_size): item for item in table.families}
    families = [named.get((model, batch)) or pool[int(index)] for model, batch, index in pairs]
    unknown = sum(
        model is not None and (model, batch) not in named
        for model, batch in zip(frame["model"], frame["batch_size"], strict=True)
    )
    if unknown:
        jobs = _count(unknown, "job")
        notes.append(f"{jobs} with a model without measurements: a family is drawn for each")
    return families


def _describe_drawn(
    frame: pl.DataFrame, curves: Sequence[Curve | None], options: SynthesisOptions
) -> tuple[str, ...]:
    """Return what is drawn because the trace lacks it, with numbers of jobs.

    Models don't count if jobs run with their traced workers only: their durations are traced, too.
    """
    known = {(family.model, family.batch_size) for family in family_table().families}
    pairs = zip(frame["model"].to_list(), frame["batch_size"].to_list(), strict=True)
    unknown = sum(
        pair not in known and curve is None for pair, curve in zip(pairs, curves, strict=True)
    )
    is_default = options.utility == "default"
    untargeted = frame["deadline"].null_count()
    counts = (
        ("model families", 0 if options.elasticity == 1 else unknown),
        ("utilities and targets", 0 if is_default else untargeted),
        ("values of deadlines", 0 if is_default else frame.height - untargeted),
    )
    return tuple(f"the {noun} of {_count(count, 'job')}" for noun, count in counts if count)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _traced_workers(frame: pl.DataFrame) -> tuple[Ints, Floats]:
    """Return the traced workers of each job, and the GPUs of one worker."""
    gpus = frame["gpus"].to_numpy()
    given = frame["workers"].fill_null(0).to_numpy()
    whole = np.maximum(1, np.ceil(gpus - 1e-9)).astype(np.int64)
    traced = np.where(given > 0, given, whole).astype(np.int64)
    return traced, gpus / traced


def _profiles(
    frame: pl.DataFrame,
    families: list[Family],
    curves: list[Curve | None],
    traced: Ints,
    per_worker: Floats,
    options: SynthesisOptions,
) -> list[JobProfile]:
    """Return demands and speed of every job; equal jobs share one object."""
    table = family_table()
    bandwidth = options.worker_bandwidth
    gpus = np.ceil(per_worker * MILLI - 1e-6).astype(np.int64)
    # Totals of the trace are divided by the workers and rounded up to the stored unit.
    cores = np.ceil(frame["cpus"].fill_null(0.0).to_numpy() * MILLI / traced - 1e-6)
    memory = np.ceil(frame["memory"].fill_null(0).to_numpy() / traced)
    cache: dict[tuple[object, ...], JobProfile] = {}
    profiles = []
    ps = {**table.ps} if options.training == "ps" else None
    if ps is not None:
        ps[BANDWIDTH] = max(ps[BANDWIDTH], bandwidth)
    traced_types = frame["gpu_type"].to_list() if options.gpu_types == "requested" else None
    for index, family in enumerate(families):
        types = split_types(traced_types[index]) if traced_types and gpus[index] else ()
        key = (id(family), id(curves[index]), gpus[index], cores[index], memory[index], types)
        if key not in cache:
            scale = max(float(per_worker[index]), 0.0) or 1.0
            assumed = {
                "cpu": max(1, math.ceil(table.worker["cpu"] * scale)),
                "memory": max(1, math.ceil(table.worker["memory"] * scale)),
            }
            worker = {
                **({"gpu": int(gpus[index])} if gpus[index] else {}),
                "cpu": int(cores[index]) or assumed["cpu"],
                "memory": int(memory[index]) or assumed["memory"],
                BANDWIDTH: bandwidth,
            }
            gradient = family.gradient if curves[index] is None else 0
            cache[key] = JobProfile(worker, ps, gradient, curves[index], gpu_types=types)
        profiles.append(cache[key])
    return profiles


def _utilities(
    frame: pl.DataFrame,
    submit: Ints,
    duration: Floats,
    slot_seconds: Fraction,
    options: SynthesisOptions,
    rng: np.random.Generator,
    notes: list[str],
) -> tuple[list[UtilityKind], Floats, Floats, Floats, Ints, list[str]]:
    """Draw utilities: OASiS section V's mix, or the deadline of the trace.

    Targets from stretched durations or traced deadlines are wall-clock times: a job meets its
    target if its completion slot ends by then.
    """
    count = frame.height
    value, decay, classes = draw_sigmoids(rng, count, (options.insensitive, options.sensitive))
    target = np.ones(count)
    within = np.full(count, -1, dtype=np.int64)
    if options.target == "slots":
        target = rng.uniform(1.0, 15.0, count)
    else:
        stretch = np.exp(rng.uniform(0.0, math.log(options.stretch), count))
        stretched = _nanoseconds(duration * stretch)
        # A target is no earlier than the end of the slot after the arrival slot (d = 1). Otherwise
        # no schedule could meet the target of a job that lasts seconds in slots of 20 minutes.
        slot = float(slot_seconds * NANO)
        soonest = (np.ceil(submit / slot) + 2) * slot
        within = np.where(submit + stretched > soonest, stretched, within)
    due = frame["deadline"].fill_null(np.nan).to_numpy()
    has_deadline = ~np.isnan(due)
    if has_deadline.any():
        deadline = _nanoseconds(np.where(has_deadline, due, 0.0))
        within = np.where(has_deadline, np.maximum(0, deadline - submit), within)
        _note_early(submit[has_deadline], deadline[has_deadline], slot_seconds, notes)
    decay = np.where(has_deadline, 0.0, decay)
    names = [
        "deadline" if timed else CLASSES[index]
        for timed, index in zip(has_deadline, classes, strict=True)
    ]
    kinds: list[UtilityKind] = ["deadline" if timed else "sigmoid" for timed in has_deadline]
    if options.utility == "default":
        within = np.where(has_deadline, within, -1)
        names = ["default"] * count
        kinds = ["default"] * count
    return kinds, value, decay, target, within, names


def _note_early(submit: Ints, deadline: Ints, slot_seconds: Fraction, notes: list[str]) -> None:
    slot = float(slot_seconds * NANO)
    early = int((deadline < (np.ceil(submit / slot) + 1) * slot).sum())
    if early:
        notes.append(
            f"{_count(early, 'deadline')} before the end of the first slot the job could use: no "
            f"schedule in slots of {format_seconds(float(slot_seconds))} is in time, shorter slots "
            "may be"
        )


def draw_sigmoids(
    rng: np.random.Generator, count: int, shares: tuple[float, float] = (0.10, 0.55)
) -> tuple[Floats, Floats, Ints]:
    """Draw values, decays and classes of OASiS section V, each of shape (count,).

    Values are uniform in [1, 100]. Decays are 0, uniform in [0.01, 1] or uniform in [4, 6], by
    class. Classes are indices into `CLASSES`. ``shares`` are those of the time-insensitive and
    time-sensitive classes.
    """
    classes = np.searchsorted(np.cumsum(shares), rng.random(count), side="right").astype(np.int64)
    value = rng.uniform(1.0, 100.0, count)
    low = np.array([low for low, _ in _DECAYS])[classes]
    high = np.array([high for _, high in _DECAYS])[classes]
    return value, low + (high - low) * rng.random(count), classes


def _nanoseconds(seconds: Floats) -> Ints:
    return np.asarray(np.rint(np.minimum(seconds, _LATEST) * NANO), dtype=np.int64)
