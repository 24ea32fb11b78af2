"""Prediction of a job's length from the jobs of its tenant that have finished.

A job's length is the time that its work takes at its fastest worker count. Recent jobs of one user
predict it (Tsafrir, Etsion and Feitelson, Backfilling using system-generated predictions rather
than user runtime estimates, TPDS 2007), above all those of the same name and GPUs (Hu et al.,
Lucid, ASPLOS 2023). If a job exceeds its prediction, the next one is made from the similar jobs
that ran longer (Park et al., 3Sigma, EuroSys 2018). Without such jobs, the prediction doubles. So
jobs without history fall in priority as in the discretised queues of Tiresias (Gu et al., NSDI
2019).
"""

from __future__ import annotations

import math
import re
from collections import deque
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import Final, NamedTuple

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import gpus_of_worker
from shadowprice.core.job import Job
from shadowprice.core.utility import Constant, Deadline, Utility

DEFAULT_SECONDS: Final = 3600  # length of a job without history and time limit, in seconds
QUANTILE: Final = Fraction(3, 4)  # quantile of earlier lengths that is predicted
MIN_SIMILAR: Final = 3  # minimum number of earlier jobs that a prediction is made from
MAX_SIMILAR: Final = 50  # maximum number of earlier jobs, because older ones may be outdated
GROWTH: Final = 2  # factor by which a length grows if no earlier job ran as long
MAX_GROUPS: Final = 1_000  # maximum number of groups of a tenant; the oldest is dropped first
MAX_TENANTS: Final = 10_000  # maximum number of tenants; the oldest is dropped first

_GENERATED_PART: Final = re.compile(r"[-_.:/][^-_.:/]*\d[^-_.:/]*$")


class JobKind(NamedTuple):
    """Properties by which jobs are similar."""

    tenant: str | None
    stem: str  # name without generated parts
    gpus: int  # of one worker, in thousandths
    min_workers: int
    max_workers: int


class LengthPrediction(NamedTuple):
    """A predicted length, in the unit of its history."""

    length: float
    jobs: int = 0  # earlier jobs that it was made from
    probability: float | None = None  # that the job ends by then, if it is like those jobs


class LengthHistory:
    """Lengths of finished jobs, in any unit; ``default`` is the length without history.

    Similar jobs belong to the same tenant, so that no tenant affects predictions of another. A
    prediction uses jobs with the same name, GPUs and worker range. If there are fewer than
    `MIN_SIMILAR`, it uses jobs with the same GPUs and range, or else all jobs of the tenant.
    """

    def __init__(self, default: float) -> None:
        self._default = default
        self._tenants: dict[str | None, dict[tuple[object, ...], deque[float]]] = {}

    def add(self, kind: JobKind, length: float) -> None:
        """Record a job that finished."""
        # Both dictionaries are in order of the last change: the first entry is the oldest.
        groups = self._tenants.pop(kind.tenant, None) or {}
        self._tenants[kind.tenant] = groups
        for key in _group_keys(kind):
            lengths = groups.pop(key, None) or deque(maxlen=MAX_SIMILAR)
            lengths.append(length)
            groups[key] = lengths
        while len(groups) > MAX_GROUPS:
            del groups[next(iter(groups))]
        while len(self._tenants) > MAX_TENANTS:
            del self._tenants[next(iter(self._tenants))]

    def predict(self, kind: JobKind, attained: float = 0.0) -> LengthPrediction:
        """Return the predicted length of a job that has run for the length ``attained``.

        It is the `QUANTILE` of the lengths of similar jobs that ran longer. If none ran longer, it
        is `GROWTH` times ``attained``, and without any similar jobs at least the default.
        """
        groups = self._tenants.get(kind.tenant, {})
        similar = next(
            (
                lengths
                for key in _group_keys(kind)
                if len(lengths := groups.get(key, ())) >= MIN_SIMILAR
            ),
            (),
        )
        longer = sorted(length for length in similar if length > attained)
        if longer:
            rank = math.ceil(QUANTILE * len(longer))
            # The job's own length is equally likely to have any rank among them.
            probability = rank / (len(longer) + 1)
            return LengthPrediction(longer[rank - 1], len(longer), probability)
        length = GROWTH * attained
        return LengthPrediction(length if similar else max(self._default, length))

    def copy(self) -> LengthHistory:
        """Return an independent copy."""
        twin = LengthHistory(self._default)
        twin._tenants = {
            tenant: {key: copy(lengths) for key, lengths in groups.items()}
            for tenant, groups in self._tenants.items()
        }
        return twin


def kind_of_job(job: Job, cluster: Cluster, name: str | None = None) -> JobKind:
    """Return the kind of a job; ``name`` replaces the job's own name, such as a generated key."""
    stem = name_stem(job.name if name is None else name)
    gpus = gpus_of_worker(job, cluster)
    return JobKind(job.tenant, stem, gpus, int(job.worker_counts[0]), job.max_workers)


def _group_keys(kind: JobKind) -> tuple[tuple[object, ...], ...]:
    """Return the keys of the groups of a kind of job, the closest first."""
    resources = (kind.gpus, kind.min_workers, kind.max_workers)
    return ((*resources, kind.stem), resources, ())


def name_stem(name: str) -> str:
    """Return a job's name without numbered or generated parts: ``train-3`` becomes ``train``."""
    while (shorter := _GENERATED_PART.sub("", name)) not in ("", name):
        name = shorter
    return name


def with_length(job: Job, length: float) -> Job:
    """Return the job with a predicted length, in slots; its number of mini-batches stays."""
    gain = int(max(job.gains.max(), job.internal_gains.max()))
    slots = min(length, bounds.JOB_SLOTS.maximum)
    required = max(1, min(math.ceil(slots * gain), int(bounds.PROGRESS.maximum)))
    utility = utility_of_length(job, required)
    return replace(job, required=required, utility=utility, predicted=True)


def length_of_progress(job: Job, progress: int) -> float:
    """Return the slots that progress units take at a job's fastest worker count."""
    return progress / int(max(job.gains.max(), job.internal_gains.max()))


def utility_of_length(job: Job, required: int) -> Utility:
    """Return a job's utility with ``required`` progress units; only a default utility differs."""
    utility = job.utility
    if job.value_per_unit is not None and isinstance(utility, Constant | Deadline):
        return replace(utility, value=job.value_per_unit * required)
    return utility
