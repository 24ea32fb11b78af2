"""Variants of a job, resolved from its record with one key changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from shadowprice.advice.candidate_changes import JobChange, JobFileRecord, Key, with_value
from shadowprice.core.amounts import parse_amount, parse_duration
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.specs import JobSpec, resolve_utility, validate
from shadowprice.core.specs.fields import to_integer_amounts
from shadowprice.core.specs.utilities import UtilitySpec

_UTILITY: Final[TypeAdapter[Any]] = TypeAdapter(UtilitySpec)


class JobVariants:
    """Cache of a job's variants, each resolved from its record with one key changed.

    ``entry`` is the record in the file, ``job`` the job resolved from it, and ``resolve`` the
    function that resolves it, by default `JobSpec.resolve`. It raises InputError for an invalid
    job.
    """

    def __init__(
        self,
        entry: JobFileRecord,
        job: Job,
        cluster: Cluster,
        resolve: Callable[[JobSpec], Job] | None = None,
    ) -> None:
        self.entry = entry
        self._job = job
        self._cluster = cluster
        self._spec = JobSpec.model_validate(entry)
        self._resolve = resolve or (lambda spec: spec.resolve(cluster))
        self._before = Fraction(job.before_arrival)
        if resolve is None:
            self._before = job.arrival - self._spec.arrival.in_slots(cluster.slot_seconds)
        # A utility is resolved without the rest of the record if the result is the same.
        self._resolves_utility_alone = self._utility(entry) == job.utility
        self._cached: dict[tuple[Key, Any], Job | None] = {}

    def job(self, change: JobChange, step: int) -> Job | None:
        """Return the job with the ``step``-th value of a change, from 1; None if it is invalid."""
        # Many values are tried at the decision point first, then in a full run.
        key = change.key, change.values[step - 1]
        if key not in self._cached:
            self._cached[key] = self.with_value(*key)
        return self._cached[key]

    def with_last_values(self, changes: Iterable[JobChange]) -> Job | None:
        """Return the job with the last values of several changes; None without changes."""
        entry: JobFileRecord | None = None
        for change in changes:
            entry = with_value(entry or self.entry, change.key, change.values[-1])
        return None if entry is None else self._resolve_or_none(validate(JobSpec, entry, "job")[0])

    def with_value(self, key: Key, value: Any) -> Job | None:
        """Return the job with a value of its record replaced; None if the value is invalid."""
        # Most changes affect one number, so the whole record needn't be resolved again.
        is_demand = len(key) == 2 and key[0] in ("worker", "ps") and key[1] != BANDWIDTH
        if is_demand and not self._job.has_default_utility:  # that depends on the worker's GPUs
            amounts = to_integer_amounts(getattr(self._spec, str(key[0])))
            amounts[str(key[1])] = parse_amount(value).value
            demand: Any = self._cluster.demand(amounts)
            return replace(self._job, **{str(key[0]): demand})
        if key[0] == "utility" and self._resolves_utility_alone:
            utility = self._utility(with_value(self.entry, key, value))
            return None if utility is None else replace(self._job, utility=utility)
        spec: JobSpec | None
        if key in (("steps",), ("epochs",), ("minibatches",)):
            spec = self._spec.model_copy(update={str(key[0]): value})
        elif key == ("arrival",):  # queried in every remaining slot
            spec = self._spec.model_copy(update={"arrival": parse_duration(value)})
        else:
            spec, _ = validate(JobSpec, with_value(self.entry, key, value), "job")
        return self._resolve_or_none(spec)

    def _resolve_or_none(self, spec: JobSpec | None) -> Job | None:
        try:
            return None if spec is None else self._resolve(spec)
        except InputError:
            return None

    def _utility(self, entry: JobFileRecord) -> Any:
        if entry.get("utility") is None:  # the default utility depends on the whole record
            return None
        try:
            spec = _UTILITY.validate_python(entry["utility"])
        except ValidationError:
            return None
        return resolve_utility(spec, self._cluster.slot_seconds, self._before)
