"""The scarcest resource for a job, and the kind of server that lacks it."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from shadowprice.core.events import JobsArrived, SlotBegan
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.engine.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SlotCalendar
from shadowprice.service.state.ending import queue_reason, refusal_reason
from shadowprice.service.state.scarcity import ScarceResource, find_scarcest

CLUSTER_SPEC = {
    "slot": "10min",
    "horizon": 50,
    "servers": [
        {"name": "big", "count": 2, "capacity": {"gpu": 4, "cpu": 16, "memory": "64GiB"}},
        {"name": "host", "count": 3, "capacity": {"cpu": 32, "memory": "16GiB"}},
    ],
}
CLUSTER = ClusterSpec.model_validate(CLUSTER_SPEC).resolve()


def job(name: str, worker: dict[str, Any], **more: Any) -> Any:
    record = {"name": name, "steps": 100, "minibatch_time": "1min", "worker": worker, **more}
    return JobSpec.model_validate(record).resolve(CLUSTER)


def scarcest(engine: Engine, *args: Any, **more: Any) -> ScarceResource:
    result = find_scarcest(engine, job(*args, **more))
    assert result is not None
    return result


@pytest.fixture
def engine() -> Engine:
    return Engine(CLUSTER, PolicyChoice("fifo").build(PolicyContext(CLUSTER, (), None, 0)))


@pytest.mark.parametrize(
    ("worker", "minimum", "resource", "servers", "text"),
    [
        ({"gpu": 8}, 1, "gpu", "big", "a worker needs 8 gpu, and the largest big server has 4"),
        (
            {"gpu": 1, "memory": "80GiB"},
            1,
            "memory",
            "big",
            "a worker needs 80GiB memory, and the largest big server has 64GiB",
        ),
        (
            {"cpu": 40},
            1,
            "cpu",
            "host",
            "a worker needs 40 cpu, and the largest host server has 32",
        ),
        (
            {"gpu": 3},
            3,
            "gpu",
            "big",
            (
                "needs 3 workers with 3 gpu each, and the empty cluster has room for 2: gpu of big "
                "servers is too little"
            ),
        ),
    ],
)
def test_missing_resource_of_an_empty_cluster_is_named(
    engine: Engine, worker: dict[str, Any], minimum: int, resource: str, servers: str, text: str
) -> None:
    result = scarcest(engine, "a", worker, workers={"min": minimum, "max": minimum})
    assert (result.resource, result.servers, result.never_text) == (resource, servers, text)


def test_resource_removed_from_all_servers_is_named() -> None:
    capacity = CLUSTER.capacity.copy()
    capacity[:, CLUSTER.column["gpu"]] = 0  # the executor lost its GPUs
    without = replace(CLUSTER, capacity=capacity)
    engine = Engine(without, PolicyChoice("fifo").build(PolicyContext(without, (), None, 0)))
    resource = scarcest(engine, "a", {"gpu": 2})
    assert resource.never_text == "a worker needs 2 gpu, and no server has any"


def test_free_capacity_beside_running_jobs_is_named(engine: Engine) -> None:
    first = [job(f"a{i}", {"gpu": 4, "cpu": 4}) for i in range(2)]
    engine.handle(JobsArrived(0, tuple(first)))
    before = scarcest(engine, "b", {"gpu": 1, "cpu": 16})
    assert (before.resource, before.servers) == ("gpu", "big")  # both are about to start
    engine.handle(SlotBegan(0))
    assert len(engine.running) == 2
    assert scarcest(engine, "b", {"gpu": 1, "cpu": 1}).place == "gpu of big servers"
    assert scarcest(engine, "b", {"cpu": 30, "memory": "16GiB"}).servers == "host"
    engine.state.lost.add(2)
    assert scarcest(engine, "b", {"cpu": 1, "memory": "1GiB"}).resource in {"cpu", "memory"}


def test_a_job_waits_for_a_resource_only_if_it_does_not_fit(engine: Engine) -> None:
    calendar = SlotCalendar.starting(0, Fraction(600))
    two = {"min": 2, "max": 2}
    wide = job("b", {"gpu": 3}, workers=two)
    message = "waits without a promise: its utility is 1, below the price of its plan, 2"
    free = queue_reason(engine, calendar, wide, message)
    assert free["message"].startswith("not promised, but fits on free capacity: its utility is 1")
    assert "resource" not in free
    engine.handle(JobsArrived(0, (job("a", {"gpu": 2}),)))  # promised, and about to start
    waits = queue_reason(engine, calendar, wide, message)
    assert waits["message"].startswith("waits for gpu of big servers: its utility is 1")
    with_ps = job("c", {"gpu": 1}, ps={"cpu": 8}, workers=two)
    assert "resource" not in queue_reason(engine, calendar, with_ps, message)
    large_ps = job("d", {"gpu": 1}, ps={"cpu": 40}, workers=two)
    assert "resource" in queue_reason(engine, calendar, large_ps, message)


def test_a_job_that_needs_nothing_lacks_nothing(engine: Engine) -> None:
    bandwidth_only = job("a", {"bandwidth": "1Gbps"})
    assert find_scarcest(engine, bandwidth_only) is None


def test_job_that_never_fits_names_the_resource_of_the_empty_cluster(engine: Engine) -> None:
    busy = [job(f"a{i}", {"gpu": 4, "cpu": 4}) for i in range(2)]
    engine.handle(JobsArrived(0, tuple(busy)))
    engine.handle(SlotBegan(0))
    wide = job("b", {"gpu": 1}, ps={"cpu": 40})
    result = find_scarcest(engine, wide, empty=True)
    assert result is not None
    assert (result.process, result.resource) == ("parameter server", "cpu")
    assert find_scarcest(engine, job("c", {"gpu": 1}), empty=True) is None


@pytest.mark.parametrize("tenant", ["vision", "speech", None])
def test_reasons_name_no_jobs_of_other_tenants(engine: Engine, tenant: str | None) -> None:
    engine.handle(JobsArrived(0, (job("secret", {"gpu": 4}, tenant="vision"),)))
    request = job("mine", {"gpu": 4}, tenant=tenant)
    calendar = SlotCalendar.starting(0, Fraction(600))
    text = "without other jobs, its utility by slot 1 is 3, but the promise to secret would break"
    refusal = Refusal(RefusalReason.NO_ROOM, text, bottleneck="secret")
    reasons = (
        queue_reason(engine, calendar, request, f"waits without a promise: {text}"),
        refusal_reason(engine, calendar, request, refusal),
    )
    assert all(("secret" in str(reason)) == (tenant == "vision") for reason in reasons)


def test_a_job_that_fits_waits_for_the_next_slot(engine: Engine) -> None:
    """Policies that decide slot by slot give no message."""
    calendar = SlotCalendar.starting(0, Fraction(600))
    first, second = job("a", {"gpu": 4}), job("b", {"gpu": 4})
    reason = queue_reason(engine, calendar, first, "")
    assert reason["message"] == "waits for the next slot, in which it can start"
    assert "resource" not in reason
    engine.handle(JobsArrived(0, (first, second)))
    engine.state.set_status(engine.open_jobs["a"], Status.QUEUED)
    assert queue_reason(engine, calendar, second, "")["message"] == "waits for gpu of big servers"


@pytest.mark.parametrize("code", [RefusalReason.TOO_LATE, RefusalReason.NO_VALUE])
def test_a_late_job_names_the_resource_that_limits_its_workers(
    engine: Engine, code: RefusalReason
) -> None:
    calendar = SlotCalendar.starting(0, Fraction(600))
    refusal = Refusal(code, "takes 18 slots, and 6 are left until its deadline")
    text = "takes 18 slots (3h), and 6 slots (1h) are left until its deadline"
    wide = job("a", {"gpu": 2}, workers={"max": 20})
    reason = refusal_reason(engine, calendar, wide, refusal)
    assert reason["message"] == f"{text} (gpu of big servers limits it to 4 workers)"
    assert (reason["resource"], reason["servers"]) == ("gpu", "big")
    small = job("b", {"gpu": 2}, workers={"max": 4})  # only its own maximum limits it
    reason = refusal_reason(engine, calendar, small, refusal)
    assert (reason["message"], reason.get("resource")) == (text, None)


def test_rolling_names_the_resource_of_a_tenants_share() -> None:
    shares = {
        "tenants": [{"name": "red", "share": {"gpu": 2}}, {"name": "blue", "share": {"gpu": 5}}]
    }
    cluster = ClusterSpec.model_validate({**CLUSTER_SPEC, **shares}).resolve()
    engine = Engine(cluster, PolicyChoice("rolling").build(PolicyContext(cluster, (), None, 0)))
    calendar = SlotCalendar.starting(0, Fraction(600))
    record = {"steps": 100, "minibatch_time": "1min", "tenant": "red"}
    for name, gpus, text in (
        # One of the eight GPUs has no owner.
        ("wide", 4, "it needs 4 gpu, and they have 3"),
        ("late", 2, "in its tenant's share and what no tenant owns, 3 gpu"),
    ):
        utility = {"kind": "deadline", "value": 9, "by": "20min" if name == "late" else "9h"}
        spec = {**record, "name": name, "worker": {"gpu": gpus}, "utility": utility}
        resolved = JobSpec.model_validate({**spec, "workers": {"max": 8}}).resolve(cluster)
        quote = engine.quote(resolved)
        message = quote.message or str(quote.refusal and quote.refusal.message)
        assert queue_reason(engine, calendar, resolved, message)["message"].endswith(text)
