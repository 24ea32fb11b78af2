"""RRH, the risk-reward heuristic (OASiS, section V, (iii); Irwin et al. 2004)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import (
    Decision,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    PolicyEvent,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View, servers_out
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import FAMILIES
from shadowprice.kernels.reactive.risk_reward import appraise, run_in_order
from shadowprice.policies.baselines.crowd import Crowd
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import RrhParameters
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster
from shadowprice.policies.reactive.table import JobTable

_FAMILY: Final = {kind: at for at, kind in enumerate(FAMILIES)}
_PARAMETERS: Final = {
    kind: [field.name for field in fields(family)]  # type: ignore[arg-type]  # all dataclasses
    for kind, family in FAMILIES.items()
}


class Rrh:
    """Jobs are admitted for what they are worth less what they cost the others, and ranked so.

    Upon arrival a job is admitted if its utility at the time when it is likely to complete, less
    what the jobs behind it lose by waiting for it, is above a threshold. Whenever jobs come or go,
    unfinished jobs are ranked by their future gain less the cost of the delay that running them
    imposes, by unit of what they take; they run in that order for as long as they fit, always with
    the same number of workers, and are paused where they do not.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed.
    parameters : RrhParameters
        What was set.

    Notes
    -----
    An arrival costs time linear in the jobs there are (`Crowd`); where anything changed, a slot
    costs ``O(jobs log jobs)``.
    """

    capabilities: Final = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: RrhParameters) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._capacity = context.cluster.capacity
        self._workers_of = fixed_workers(parameters.workers, context.seed)
        self._empty = EmptyCluster(context.cluster)
        self._table = JobTable(context.cluster)
        self._cursors = np.zeros(2, dtype=np.int64)
        self._changed = False
        self._crowd: Crowd | None = None
        self._columns: dict[str, Any] = {
            "family": np.zeros(0, dtype=np.int64),
            "parameters": np.zeros((0, 3)),
            "arrival": np.zeros(0, dtype=np.int64),
            "gain": np.zeros(0, dtype=np.int64),
            "workers": np.zeros(0, dtype=np.int64),
            "ps": np.zeros(0, dtype=np.int64),
            "slots_left": np.zeros(0, dtype=np.int64),
            "share": np.zeros(0),
        }

    def resume(self, view: View) -> None:
        """Take in all open jobs where they stand; they are ranked anew."""
        Rrh.__init__(self, replace(self._context, cluster=view.cluster), self._parameters)
        for server in servers_out(view):
            self._table.lose(server)
        for state in view.open_jobs.values():
            wanted = self._workers_of(state.job)
            self._enter(state.job, self._empty.workers(state.job, wanted) or wanted)
            if state.placement is not None:
                self._table.stand(self._table.rows[state.job.name], state.placement)
        self._changed = True

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters.model_dump()

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        if not isinstance(event, JobsArrived):
            self._crowd = None
        match event:
            case SlotBegan():
                if self._changed:
                    self._changed = False
                    yield from self._rank_and_run(view)
                return
            case JobsArrived(_, jobs):
                yield from self._take_in(view, jobs)
            case JobsFinished(_, names):
                for name in names:
                    self._table.remove(name)
            case JobCancelled(_, name):
                self._table.remove(name)
            case JobsDisplaced(_, names):
                for name in names:
                    self._table.clear(self._table.rows[name])
            case ServerLost(_, _, server):
                self._table.lose(server)
            case ServerBack(_, _, server):
                self._table.restore(server)
        self._changed = True

    # ------------------------------------------------------------ admission

    def _take_in(self, view: View, jobs: Iterable[Job]) -> Iterator[Decision]:
        for job in jobs:
            refusal = self._appraised(view, job)
            if refusal is None:
                yield Queue(job.name)
            else:
                yield Reject(job.name, refusal)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued, and what it is likely to be worth.

        It enters the table for as long as it is appraised: so does a job that is refused.
        """
        del explained  # the reason comes with the answer
        refusal = self._appraised(view, job)
        if refusal is not None:
            return Quote.of(Reject(job.name, refusal), view.slot)
        assert self._crowd is not None
        self._crowd.leave()
        self._table.remove(job.name)
        return Quote.of(Queue(job.name), view.slot)

    def _appraised(self, view: View, job: Job) -> Refusal | None:
        """Enter a job; take it out again and return the reason if it is not worth it."""
        workers = self._empty.workers(job, self._workers_of(job))
        if not workers:
            return NO_PLACEMENT
        crowd = self._crowd
        if crowd is None or crowd.slot != view.slot:
            self._refresh(view)
            crowd = self._crowd = Crowd(view.slot, self._columns, self._table.in_order())
        row = self._enter(job, workers)
        crowd.join(row, self._columns)
        refusal = self._refusal(view, crowd)
        if refusal is not None:
            crowd.leave()
            self._table.remove(job.name)
        return refusal

    def _refusal(self, view: View, crowd: Crowd) -> Refusal | None:
        """Return why the job entered last is not worth what it costs, None if it is."""
        alpha, discount = self._parameters.alpha, self._parameters.discount
        value, cost, wait = crowd.admission(self._columns, alpha, discount)
        short = self._parameters.threshold - (value - cost)
        if short < 0:
            return None
        nothing = value <= 0
        message = (
            f"worth {value:.4g} when it is likely to complete, in {wait:.0f} slots, less a delay "
            f"cost of {cost:.4g} to the jobs behind it: not above the threshold of "
            f"{self._parameters.threshold:g}"
        )
        return Refusal(
            Reason.NO_VALUE if nothing else Reason.POLICY,
            message,
            value=value,
            cost=cost,
            completion=int(view.slot + wait) - 1,
            numbers={"threshold": self._parameters.threshold},
        )

    def _enter(self, job: Job, workers: int) -> int:
        """Take a job in; return its row."""
        row = self._table.add(job)
        columns = self._columns
        size = len(self._table.jobs)
        for name, column in columns.items():
            if len(column) < size:
                columns[name] = np.concatenate(
                    (column, np.zeros((size - len(column), *column.shape[1:]), column.dtype))
                )
        ps = job.ps_needed(workers)
        columns["family"][row] = _FAMILY[job.utility.kind]
        names = _PARAMETERS[job.utility.kind]
        values = [getattr(job.utility, name) for name in names]
        columns["parameters"][row, : len(names)] = values
        columns["arrival"][row] = job.arrival
        columns["gain"][row] = job.gain(workers)
        columns["workers"][row] = workers
        columns["ps"][row] = ps
        columns["slots_left"][row] = -(-job.required // job.gain(workers))
        columns["share"][row] = self._shares(np.array([row]))[0]
        return row

    # ------------------------------------------------------------ running

    def _rank_and_run(self, view: View) -> Iterator[Decision]:
        table, columns = self._table, self._columns
        rows = table.in_order()
        if not len(rows):
            return
        self._refresh(view)
        reward, _, _ = appraise(
            view.slot,
            rows,
            columns["family"],
            columns["parameters"],
            columns["arrival"],
            columns["slots_left"],
            columns["share"],
            self._parameters.alpha,
            self._parameters.discount,
        )
        ranked = rows[np.argsort(-reward, kind="stable")]
        change = np.zeros(len(rows), dtype=np.int64)
        run_in_order(
            self._capacity.copy(),
            ranked,
            table.worker,
            table.ps,
            columns["workers"],
            columns["ps"],
            table.hosts_workers,
            table.hosts_ps,
            table.on_workers,
            table.on_ps,
            table.new_workers,
            table.new_ps,
            table.standing,
            self._cursors,
            change,
        )
        yield from table.rearrange(ranked, change)

    def _refresh(self, view: View) -> None:
        """Take note of the progress that jobs made."""
        rows = self._table.in_order()
        states = view.open_jobs
        left = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        self._columns["slots_left"][rows] = np.maximum(1, -(-left // self._columns["gain"][rows]))
        self._columns["share"][rows] = self._shares(rows)

    def _shares(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the dominant shares of rows while they run, of the servers that are up."""
        table, total = self._table, self._table.total()
        used = self._columns["workers"][rows, None] * table.worker[rows]
        used += self._columns["ps"][rows, None] * table.ps[rows]
        counted = total > 0
        shares = (used[:, counted] / total[counted]).max(axis=1, initial=0.0)
        return np.asarray(shares, dtype=np.float64)


def build(context: PolicyContext, parameters: RrhParameters) -> Rrh:
    """Build the policy, as the registry asks."""
    return Rrh(context, parameters)
