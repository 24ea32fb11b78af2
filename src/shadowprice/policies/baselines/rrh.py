"""RRH, the risk-reward heuristic (OASiS, section V, scheme (iii); Irwin et al. 2004).

The *delay cost* of a job is the utility that others lose because it runs before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.events import Decision, JobsArrived, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive import risk_reward
from shadowprice.policies.baselines import RrhParameters
from shadowprice.policies.baselines.ranked import FixedWorkersPolicy
from shadowprice.policies.reactive.free_capacity import NO_PLACEMENT
from shadowprice.policies.reactive.table import enlarged
from shadowprice.policies.reactive.worths import UtilityTable


class OpenJobAppraisal:
    """Appraisal of the open jobs in one slot: arrays sorted by expiry and by delay cost.

    Adding a job takes linear time, because nothing is sorted or evaluated again. ``rows`` are the
    table rows of the open jobs, in order of arrival.
    """

    def __init__(self, slot: int, jobs: risk_reward.Candidates, rows: Integers) -> None:
        self.slot = slot
        self.count = len(rows)
        size = max(64, 2 * self.count)
        self._rows = np.zeros(size, dtype=np.int64)
        self._rows[: self.count] = rows
        self._arrays = risk_reward.new_appraisal(size)
        for position in range(self.count):
            risk_reward.set_values(position, rows[position], slot, jobs, self._arrays)
        for order, values in (
            (self._arrays.order, self._arrays.expiry),
            (self._arrays.by_delay, self._arrays.delay),
        ):
            order[: self.count] = stable_order(values[: self.count])

    def add(self, row: int, jobs: risk_reward.Candidates) -> None:
        """Add the job in a table row to the appraisal."""
        if self.count == len(self._rows):
            size = 2 * self.count
            self._rows = enlarged(self._rows, size)
            self._arrays = risk_reward.Appraisal(
                *(enlarged(values, size) for values in self._arrays)
            )
        position = self.count
        self._rows[position] = row
        risk_reward.set_values(position, row, self.slot, jobs, self._arrays)
        risk_reward.insert_position(position, self._arrays.expiry, self._arrays.order)
        risk_reward.insert_position(position, self._arrays.delay, self._arrays.by_delay)
        self.count += 1

    def remove_last(self) -> None:
        """Remove the job that was added last."""
        self.count -= 1
        risk_reward.remove_position(self.count, self._arrays.order)
        risk_reward.remove_position(self.count, self._arrays.by_delay)

    def admission(
        self, jobs: risk_reward.Candidates, alpha: float, discount: float
    ) -> tuple[float, float]:
        """Return the delay cost that the newest job imposes on others, and its wait in slots."""
        rows = self._rows[: self.count]
        risk_reward.set_rewards(self.count, rows, jobs, alpha, discount, self._arrays)
        cost, wait = risk_reward.admission(self.count - 1, rows, jobs, self._arrays)
        return cost, wait


class RiskRewardPolicy(FixedWorkersPolicy[RrhParameters]):
    """Admit and rank jobs by their utility less the delay cost that they impose on others.

    A job is admitted if its utility at its expected completion, less its delay cost, is above a
    threshold. When jobs arrive or leave, open jobs are ranked by future utility less delay cost,
    per unit of resources and time. They run in that order with a fixed number of workers; jobs that
    don't fit pause.
    """

    capabilities: ClassVar = replace(FixedWorkersPolicy.capabilities, forgets_refused=True)

    def __init__(self, context: PolicyContext, parameters: RrhParameters) -> None:
        super().__init__(context, parameters)
        self._appraisal: OpenJobAppraisal | None = None
        self._utilities = UtilityTable()
        self._table.add_columns("arrival", "gain", "remaining_slots")
        self._table.add_columns("share", dtype=np.float64)

    @property
    def _candidates(self) -> risk_reward.Candidates:
        columns = self._columns
        return risk_reward.Candidates(
            self._utilities.columns,
            columns["arrival"],
            columns["remaining_slots"],
            columns["share"],
        )

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        if not isinstance(event, JobsArrived):
            self._appraisal = None
        return super()._settle(view, event)

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        for name in names:
            self._utilities.enter(self._table.rows[name], view.open_jobs[name].job.utility)
        self._appraisal = None
        self._changed = True

    # ------------------------------------------------------------ admission

    def _find_refusal(self, view: View, job: Job) -> Refusal | None:
        refusal = self._try_admitting(view, job)
        if refusal is None:
            assert self._appraisal is not None
            self._appraisal.remove_last()
            self._table.remove(job.name)
        return refusal

    def _try_admitting(self, view: View, job: Job) -> Refusal | None:
        """Add a job; if it is refused, remove it and return the reason."""
        workers = self._empty.workers(job, self._target_worker_count(job))
        if not workers:
            return NO_PLACEMENT
        appraisal = self._appraisal
        if appraisal is None or appraisal.slot != view.slot:
            self._refresh(view)
            appraisal = self._appraisal = OpenJobAppraisal(
                view.slot, self._candidates, self._table.in_order()
            )
        self._enter(job, workers)
        appraisal.add(self._table.rows[job.name], self._candidates)
        refusal = self._refusal(view, appraisal, job)
        if refusal is not None:
            appraisal.remove_last()
            self._table.remove(job.name)
        return refusal

    def _refusal(self, view: View, appraisal: OpenJobAppraisal, job: Job) -> Refusal | None:
        """Return why the newest job isn't worth its delay cost, None if it is."""
        alpha, discount = self._parameters.alpha, self._parameters.discount
        cost, wait = appraisal.admission(self._candidates, alpha, discount)
        utility = utility_value(job.utility, view.slot + wait - 1.0 - job.arrival)
        value = utility / (1.0 + discount * wait)
        shortfall = self._parameters.threshold - (value - cost)
        if shortfall < 0:
            return None
        worthless = value <= 0
        message = (
            f"its discounted utility is {value:.4g} if it completes in {wait:.0f} slots; minus a "
            f"delay cost of {cost:.4g} to other jobs, that is not above the threshold of "
            f"{self._parameters.threshold:g}"
        )
        return Refusal(
            RefusalReason.NO_VALUE if worthless else RefusalReason.POLICY,
            message,
            value=value,
            cost=cost,
            completion=int(view.slot + wait) - 1,
            numbers={"threshold": self._parameters.threshold},
        )

    def _fill_columns(self, job: Job, row: int) -> None:
        columns = self._columns
        workers = int(columns["workers"][row])
        self._utilities.enter(row, job.utility)
        columns["arrival"][row] = job.arrival
        columns["gain"][row] = job.gain(workers)
        columns["remaining_slots"][row] = -(-job.required // job.gain(workers))
        columns["share"][row] = self._shares(np.array([row]))[0]

    # ------------------------------------------------------------ running

    def _begin(self, view: View) -> Iterator[Decision]:
        rows = self._table.in_order()
        if not self._changed or not len(rows):
            return
        self._changed = False
        self._refresh(view)
        alpha, discount = self._parameters.alpha, self._parameters.discount
        appraisal = risk_reward.appraise(view.slot, rows, self._candidates, alpha, discount)
        yield from self._place_in_order(view, rows[np.argsort(-appraisal.reward, kind="stable")])

    def _refresh(self, view: View) -> None:
        """Record the progress of the open jobs, and their shares."""
        rows = self._table.in_order()
        states = view.open_jobs
        remaining = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        self._columns["remaining_slots"][rows] = np.maximum(
            1, -(-remaining // self._columns["gain"][rows])
        )
        self._columns["share"][rows] = self._shares(rows)

    def _shares(self, rows: Integers) -> Floats:
        """Return the dominant shares of rows if they run, relative to available servers."""
        table, total = self._table, self._table.total()
        used = self._columns["workers"][rows, None] * table.worker[rows]
        used += self._columns["ps"][rows, None] * table.ps[rows]
        counted = total > 0
        shares = (used[:, counted] / total[counted]).max(axis=1, initial=0.0)
        return np.asarray(shares, dtype=np.float64)
