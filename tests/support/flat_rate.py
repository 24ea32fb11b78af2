"""A small planner that posts prices, for tests of the code around policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import (
    Commit,
    Decision,
    Drop,
    JobsArrived,
    JobsDisplaced,
    PolicyEvent,
    Reject,
)
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.policies.registry import Parameters, PolicyInfo
from tests.support.policies import EarliestPlanner


class FlatRateParameters(Parameters):
    """Parameters of `FlatPricePolicy`."""

    price: float = 0.01
    """Utility per worker-slot."""


class FlatPricePolicy(EarliestPlanner):
    """Plans the earliest slots with the most workers; refuses jobs below a flat price."""

    capabilities = Capabilities(plans_ahead=True, elastic=True, prices=True)

    def __init__(self, price: float = 0.01) -> None:
        self.price = price

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        if isinstance(event, JobsArrived):
            for job in event.jobs:
                yield self._answer(view, job.name, admitted=False)
        elif isinstance(event, JobsDisplaced):
            for name in event.jobs:
                yield self._answer(view, name, admitted=True)

    def _answer(self, view: View, name: str, *, admitted: bool) -> Decision:
        state = view.open_jobs[name]
        plan = self.plan(view, state)
        if plan is None:
            refusal = Refusal(
                RefusalReason.SERVER_LOST if admitted else RefusalReason.NO_ROOM,
                "there is no room for it before the end of the window",
                bottleneck="gpu of worker servers",
            )
            return Drop(name, refusal) if admitted else Reject(name, refusal)
        worth = utility_value(state.job.utility, plan.completion - state.job.arrival)
        cost = self.price * int(plan.workers.sum())
        if worth < cost and not admitted:
            return Reject(
                name,
                Refusal(
                    RefusalReason.PRICE,
                    f"it is worth {worth:.2f}, and what it uses costs {cost:.2f}",
                    value=worth,
                    cost=cost,
                    completion=plan.completion,
                    bottleneck=f"gpu of worker servers in slots {plan.start}-{plan.completion}",
                ),
            )
        return Commit(name, plan, worth - cost, worth, cost)

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        capacity = np.maximum(view.ledger.capacity, 1)
        return np.asarray(self.price * view.ledger.used[0] / capacity, dtype=np.float64)

    def parameters_in_force(self) -> Mapping[str, object]:
        return {"price": self.price}


def build(context: PolicyContext, parameters: FlatRateParameters) -> FlatPricePolicy:
    """Build the policy as the registry does."""
    del context
    return FlatPricePolicy(parameters.price)


INFO = PolicyInfo(
    name="flat-rate",
    summary="Earliest slots with room, at a flat price.",
    paper="none; for tests",
    parameters=FlatRateParameters,
    build="tests.support.flat_rate:build",
)
