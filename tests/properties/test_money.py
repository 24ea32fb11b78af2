"""Points under any order of submissions, slots, ends, revisions and budget changes.

Jobs of vision run on beyond their stated work until they end, fail, are lost or can't pay.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings

from shadowprice.core.budget import POINT
from shadowprice.executors.contract import Ending
from shadowprice.service.budgets.operations import grant_points, put_tenant, start_due_periods
from shadowprice.service.budgets.usage import price_of_unused
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.operations import cancel_job, revise_job, set_server_availability
from tests.support.budget_bench import BudgetBench
from tests.support.examples import example_count

TENANT = st.sampled_from(["vision", "speech"])
JOB = st.integers(0, 10**6)
POINTS = st.sampled_from([0.0, 0.05, 0.3, 2.0, 10.0, 500.0])
STEP = st.one_of(
    st.tuples(st.just("submit"), TENANT, st.integers(1, 6), st.integers(20, 200)),
    st.tuples(st.just("slot"), st.integers(1, 4)),
    st.tuples(st.just("end"), JOB, st.sampled_from([Ending.DONE, Ending.FAILED, Ending.LOST])),
    st.tuples(st.just("lose"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), JOB),
    st.tuples(st.just("revise"), JOB, st.integers(10, 400)),
    st.tuples(st.just("budget"), TENANT, POINTS, st.sampled_from([0, POINT, None])),
    st.tuples(st.just("grant"), TENANT, POINTS),
    st.tuples(st.just("remove"), TENANT),
    st.tuples(
        st.just("period"),
    ),
)


def _take(bench: BudgetBench, number: int, step: tuple) -> None:  # type: ignore[type-arg]  # of any step
    open_jobs = sorted(name for name, view in bench.durable.state.views.items() if view.state.open)
    match step:
        case ("submit", tenant, chunks, minibatches):
            utility = {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "12 slots"}
            stated = {"chunks": chunks, "minibatches": minibatches, "utility": utility}
            bench.submit(f"job-{number}", tenant=tenant, **stated)
        case ("slot", slots):
            for _ in range(slots):
                bench.advance()
                bench.report_starts()
        case ("end", job, ending) if bench.durable.state.desired:
            names = sorted(bench.durable.state.desired)
            bench.report_end(names[job % len(names)], ending)
        case ("lose", server):
            bench.commit(set_server_availability(f"g-{server}"))
            bench.commit(set_server_availability(f"g-{server}", back=True))
        case ("cancel", job) if open_jobs:
            bench.commit(cancel_job(open_jobs[job % len(open_jobs)]))
        case ("revise", job, minibatches) if open_jobs:
            bench.commit(revise_job(open_jobs[job % len(open_jobs)], {"minibatches": minibatches}))
        case ("budget", tenant, points, carry):
            bench.set_budget(tenant, points, carry=carry)
        case ("grant", tenant, points) if points:
            bench.commit(grant_points(tenant, round(points * POINT), ""))
        case ("remove", tenant):
            bench.commit(put_tenant(tenant, None, None, budgeted=True))
        case ("period",):
            bench.clock.advance(86_400)
            bench.commit(start_due_periods())


def _check(bench: BudgetBench) -> None:
    """Check the ledger, and that unused processes are worth what is reserved for their job."""
    bench.check_accounts()
    for view in bench.durable.state.views.values():
        if view.unused is not None and view.refund is None:
            assert price_of_unused(view.unused) == (view.price or 0) - view.used


@example(  # a job that was admitted without a budget pays for slots, and is revised
    "oasis",
    ["speech"],
    [
        ("submit", "vision", 1, 20),
        ("slot", 1),
        ("budget", "vision", 500.0, 0),
        ("slot", 4),
        ("revise", 2, 60),
        ("slot", 2),
    ],
)
@given(
    policy=st.sampled_from(["oasis", "rolling"]),
    first=st.lists(TENANT, unique=True),
    steps=st.lists(STEP, min_size=4, max_size=24),
)
@settings(
    max_examples=example_count(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_points_are_conserved_in_any_order(
    policy: str,
    first: list[str],
    steps: list[tuple],  # type: ignore[type-arg]  # of any step
) -> None:
    """The tenants in ``first`` have budgets from the first job on."""
    with tempfile.TemporaryDirectory() as folder:
        bench = BudgetBench(Path(folder), policy)
        for tenant in first:
            bench.set_budget(tenant, 2.0)
        for number in range(6):  # until processes cost something
            _take(bench, 1000 + number, ("submit", "speech", 6, 200))
        for number, step in enumerate(steps):
            with suppress(ProblemError):  # it was refused, and changed nothing
                _take(bench, number, step)
            _check(bench)
        bench.recover()
        _check(bench)
        bench.store.close()
