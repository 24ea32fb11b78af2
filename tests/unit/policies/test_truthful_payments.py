"""No payment makes Astraea's allocations truthful: the example of design note 0020.

A payment rule charges a tenant an amount that depends on the reports alone. If reports of one
tenant lead to allocations a and b, and its true values are v or w, truth pays under both only if
v(a) - p(a) >= v(b) - p(b) and w(b) - p(b) >= w(a) - p(a), so that v(a) + w(b) >= v(b) + w(a).
"""

from __future__ import annotations

import pytest

from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from tests.support.astraea_cases import DecisionRecorder, shared_cluster, shared_job, simulate


def world(slope: float, clock: str, price: float) -> tuple[Job, int | None, list[object]]:
    """One server of two units, a unit for each tenant, and for each a job of one worker and two
    slots.
    """
    on = shared_cluster(1, {"u1": {"worker": 1, "ps": 1}, "u2": {"worker": 1, "ps": 0}}, worker=2)
    shape = {"chunks": 1, "epochs": 2, "ps": None}
    first = shared_job(on, "a", "u1", 0, **shape)
    utility = {"kind": "linear", "value": 100, "slope": slope}
    second = shared_job(on, "b", "u2", 0, utility=utility, **shape)
    # theta^(1/2) - 1 a slot beside the first job.
    settings = {"lambda": "1", "theta": {"worker": str((price / 2 + 1) ** 2), "ps": "2"}}
    notes = DecisionRecorder()
    engine = simulate(
        on, [first, second], "astraea", {**settings, "clock": clock}, observers=[notes]
    )
    return second, engine.jobs["b"].completion, list(notes.charges)


@pytest.mark.parametrize(("clock", "price"), [("round", 93.0), ("arrival", 80.0)])
def test_the_impatient_job_ends_later_so_that_no_payment_is_truthful(
    clock: str, price: float
) -> None:
    patient, early, paid = world(-2.0, clock, price)
    hasty, late, nothing = world(-10.0, clock, price)
    assert paid == nothing == []  # both are within their tenant's share
    assert early is not None
    assert late is not None
    # The job that loses more by waiting waits longer: its payoff at the first round's price is
    # negative.
    assert early < late

    def worth(job: Job, completion: int) -> float:
        return utility_value(job.utility, completion - job.arrival)

    kept = worth(patient, early) + worth(hasty, late)
    swapped = worth(patient, late) + worth(hasty, early)
    assert (worth(patient, early), worth(patient, late)) == (94.0, 90.0)
    assert (worth(hasty, early), worth(hasty, late)) == (70.0, 50.0)
    assert kept < swapped
