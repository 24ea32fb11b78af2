"""Costs of slots beyond the stated work of jobs, and the texts that explain them.

Before a slot begins, each job of a tenant with a budget that runs in it beyond its stated work pays
for its placement at the posted price, or ends. Under a policy that charges for each slot (`Charge`)
it pays these charges in full instead of only up to its price. Simulated jobs end as stated.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from shadowprice.core.budget import POINT, format_points, in_points
from shadowprice.core.events import Charge, Command, Decided
from shadowprice.core.job import Job
from shadowprice.core.policy import as_priced_policy
from shadowprice.core.submit_options import states_no_length
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import OVERRUN
from shadowprice.service.state.prices import placement_costs
from shadowprice.service.state.stated_work import has_covered_stated_work

log = logging.getLogger("shadowprice.service")


def overrunning_jobs(batch: Batch) -> list[str]:
    """Return the jobs that run beyond their stated work, and whose tenants have accounts.

    A job whose budget was removed runs on for free.
    """
    state, engine = batch.state, batch.engine
    has_prices = engine.capabilities.prices or engine.capabilities.charges
    if state.virtual or not state.accounts or not has_prices:
        return []
    names = []
    for name in engine.running:
        view = state.views.get(name)
        if view is None or view.refund is not None:
            continue
        if state.accounts.get(view.tenant) is None:
            continue
        if has_covered_stated_work(view, engine.jobs[name]):
            names.append(name)
    return names


def slot_costs(batch: Batch, commands: Iterable[Command]) -> Mapping[str, float]:
    """Return the cost of a slot that begins, in points, for each job beyond its stated work.

    ``commands`` are those of its `SlotBegan`, which has been decided.
    """
    engine, names = batch.engine, overrunning_jobs(batch)
    if not names:
        return {}
    if engine.capabilities.charges:
        charged: Counter[str] = Counter()
        for command in commands:
            if isinstance(command, Decided) and isinstance(command.decision, Charge):
                charged[command.decision.job] += sum(command.decision.amounts.values())
        return {name: charged[name] / POINT for name in names}
    policy = as_priced_policy(engine.policy)
    assert policy is not None
    try:
        placements = {name: (engine.jobs[name].job, engine.running[name]) for name in names}
        costs = placement_costs(policy, engine.view, placements)
    except Exception:  # a policy from outside the package must not stop the service
        log.exception("failed to price slots beyond the stated work of jobs; they cost nothing")
        return {}
    invalid = [name for name, cost in costs.items() if not math.isfinite(cost)]
    if invalid:
        log.error(
            "the policy's prices of slots beyond the stated work of %d jobs, such as %r, aren't "
            "finite; they cost nothing",
            len(invalid),
            invalid[0],
        )
    return {name: cost for name, cost in costs.items() if math.isfinite(cost)}


def overrun_reason(job: Job, spec: Mapping[str, Any], price: int) -> dict[str, Any]:
    """Return the reason of a running job that pays for a slot beyond its stated work."""
    quantity = _stated_quantity(spec)
    return {
        "code": OVERRUN,
        "message": f"runs beyond {stated_work_text(job, spec)}: this slot costs "
        f"{format_points(price)} points; revise `{_work_key(spec)}`, and state the true "
        f"{quantity} of later jobs",
        "price": in_points(price),
    }


def stated_work_text(job: Job, spec: Mapping[str, Any]) -> str:
    """Return the stated work of a job, or the stated time of a command, for messages."""
    if states_no_length(spec):
        return "its predicted time"
    if _is_command(spec):
        return f"its stated time of {spec['minibatch_time']}"
    plural = "" if job.work == 1 else "es"
    return f"its stated work of {job.work:,} mini-batch{plural}"


def unaffordable_overrun_hint(spec: Mapping[str, Any]) -> str:
    """Return what the owner of a job can do that ended because its tenant can't pay for a slot."""
    stated = "predicted" if states_no_length(spec) else "stated"
    done = "time is over" if _is_command(spec) else "work is done"
    return (
        f"submit it again with its true {_stated_quantity(spec)}, or ask the operator for points; "
        f"while a job runs, its `{_work_key(spec)}` can be revised before its {stated} {done}"
    )


def _is_command(spec: Mapping[str, Any]) -> bool:
    """Return whether a job is a command with the time that it is expected to take."""
    is_timed = spec.get("steps") == 1 and spec.get("minibatch_time") is not None
    return is_timed or states_no_length(spec)


def _stated_quantity(spec: Mapping[str, Any]) -> str:
    """Return what determines how long a job takes, for messages."""
    return "time" if _is_command(spec) else "work and speed"


def _work_key(spec: Mapping[str, Any]) -> str:
    """Return the key of a job file with which a job states how long it takes."""
    if _is_command(spec):
        return "minibatch_time"
    return "steps" if spec.get("steps") is not None else "minibatches"
