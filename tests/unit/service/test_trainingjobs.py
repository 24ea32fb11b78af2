"""The pure parts of the controller of `TrainingJob` resources: status, edits, the queue."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import Owner
from shadowprice.core.refusal import RefusalReason as Refusal
from shadowprice.executors.virtual import run_virtual
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.definition import EXCLUDED_KEYS, build_crd
from shadowprice.kubernetes.errors import LeadershipLostError
from shadowprice.kubernetes.names import FINALIZER, Condition, Reason
from shadowprice.service.host import find_view
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.submission import REVISABLE_KEYS, merge_changes, read_submissions
from shadowprice.service.trainingjobs.controller import (
    NEW_RESOURCE_PRIORITY_SECONDS,
    STATUS_WRITE_SECONDS,
    STATUS_WRITES_PER_SECOND,
    Controller,
    WorkQueue,
    status_write_interval,
)
from shadowprice.service.trainingjobs.resource import (
    SubmissionRejected,
    TrainingJobResource,
    build_patch,
    build_status,
    diff_spec,
    needs_patch,
)
from shadowprice.service.writer import Writer
from tests.support.services import CLUSTER, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS

SCHEMA = build_crd(rules=False)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
    "status"
]
VALID = jsonschema.Draft4Validator(SCHEMA)
NOW = 1_763_800_000_000_000_000
OWNER = Owner("vision", "a", "6f0c1a2b-3c4d-5e6f-7081-92a3b4c5d6e7")


def resource(status: Mapping[str, Any] | None = None, generation: int = 1) -> TrainingJobResource:
    return TrainingJobResource(OWNER, "7", generation, False, (FINALIZER,), "", {}, status or {})


MOMENT = st.integers(NOW, NOW + 10**15)
CODES = [*(entry.value for entry in Refusal), "standby", "budget", "input", "else"]
REASON = st.none() | st.fixed_dictionaries(
    {"code": st.sampled_from(CODES), "message": st.text(max_size=30)}
)
VIEWS = st.builds(
    JobView,
    id=st.just(1),
    name=st.just(OWNER.job),
    tenant=st.just("vision"),
    state=st.sampled_from(list(State)),
    submitted=MOMENT,
    arrived=MOMENT,
    promise_at=st.none() | MOMENT,
    completion_at=st.none() | MOMENT,
    progress=st.floats(0, 1e6),
    required=st.floats(0, 1e6),
    generation=st.integers(0, 9),
    started=st.integers(0, 9),
    workers=st.integers(0, 9),
    ps=st.integers(0, 9),
    servers=st.sampled_from([(), ("one",), ("one", "two")]),
    payoff=st.none() | st.floats(-1e6, 1e6),
    utility=st.none() | st.floats(0, 1e6),
    cost=st.none() | st.floats(0, 1e6),
    reason=REASON,
    decided=st.none() | MOMENT,
)
FOUND = VIEWS | st.builds(SubmissionRejected, st.sampled_from(list(Reason)), st.text(max_size=30))
EDITED = st.none() | st.tuples(
    st.booleans(), st.sampled_from([Reason.APPLIED, Reason.IMMUTABLE]), st.text(max_size=9)
)


def status(before: TrainingJobResource, found: Any, now: int = NOW, **more: Any) -> dict[str, Any]:
    return build_status(before, found, **{"tenant": "vision", "epoch": 1, "now": now, **more})


@settings(deadline=None)
@given(found=FOUND, edited=EDITED)
def test_every_status_matches_the_definition(found: Any, edited: Any) -> None:
    record = json.loads(json.dumps(status(resource(), found, edited=edited)))
    assert record.keys() <= SCHEMA["properties"].keys()  # unknown fields are pruned
    items = SCHEMA["properties"]["conditions"]["items"]["properties"]
    assert all(condition.keys() <= items.keys() for condition in record["conditions"])
    VALID.validate(record)


@settings(deadline=None)
@given(view=VIEWS)
def test_job_has_at_most_one_terminal_condition(view: JobView) -> None:
    conditions = {
        condition["type"]: condition["status"]
        for condition in status(resource(), view)["conditions"]
    }
    ends = [
        conditions[entry] for entry in (Condition.FINISHED, Condition.REJECTED, Condition.FAILED)
    ]
    assert ends.count("True") == (not view.state.open)
    assert (conditions[Condition.RUNNING] == "True") == (view.state is State.RUNNING)
    assert (conditions[Condition.RESIZING] == "True") == (view.state is State.RESIZING)
    assert {conditions[Condition.ADMITTED], conditions[Condition.REJECTED]} != {"True"}


@settings(deadline=None)
@given(found=FOUND, edited=EDITED, later=FOUND)
def test_unchanged_status_is_not_written_again(found: Any, edited: Any, later: Any) -> None:
    first = status(resource(), found, edited=edited)
    assert needs_patch(resource(), first)
    seen = resource(json.loads(json.dumps(first)))
    unchanged = status(seen, found, now=NOW + 10**12, edited=edited)
    assert not needs_patch(seen, unchanged)  # nor do times of conditions move
    # A merge patch from the first status to the next one gives the next one.
    following = status(seen, later)
    merged = {**first, **build_patch(seen, following)["status"]}
    assert {key: value for key, value in merged.items() if value is not None} == following


@settings(deadline=None)
@given(view=VIEWS)
def test_new_leader_updates_open_jobs_only(view: JobView) -> None:
    seen = resource(status(resource(), view, epoch=4))
    assert needs_patch(seen, status(seen, view, epoch=5)) == view.state.open
    assert build_patch(seen, {})["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize("state", list(State))
def test_transition_times_change_only_with_the_status(state: State) -> None:
    view = JobView(1, OWNER.key, OWNER.job, None, State.PENDING, NOW, NOW)
    seen = resource(status(resource(), view))
    before = {condition["type"]: condition for condition in seen.status["conditions"]}
    for condition in status(seen, replace(view, state=state), now=NOW + 10**12)["conditions"]:
        moved = condition["lastTransitionTime"] != before[condition["type"]]["lastTransitionTime"]
        assert moved == (condition["status"] != before[condition["type"]]["status"])


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED])
@pytest.mark.parametrize("ran", [False, True])
def test_a_job_that_ends_on_standby_was_not_admitted(state: State, ran: bool) -> None:
    reason = {"code": "cancelled", "message": "cancelled"}
    waited = JobView(1, OWNER.key, OWNER.job, None, state, NOW, NOW, decided=NOW, reason=reason)
    view = replace(waited, first_start=NOW) if ran else waited
    [admitted] = [
        condition
        for condition in status(resource(), view)["conditions"]
        if condition["type"] == Condition.ADMITTED
    ]
    ended = Reason.CANCELLED if state is State.CANCELLED else Reason.GIVEN_UP
    expected = ("True", Reason.ADMITTED) if ran else ("False", ended)
    assert (admitted["status"], admitted["reason"]) == expected


KEYS = sorted(
    set(REVISABLE_KEYS) | {"worker", "ps", "run", "gradient", "family", "restart"} - EXCLUDED_KEYS
)
RECORDS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3)).map(
    lambda found: {key: value for key, value in found.items() if key != "labels"}
)


@settings(deadline=None)
@given(before=RECORDS, after=RECORDS)
def test_edits_transform_one_job_into_another_except_immutable_fields(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    changes, fixed = diff_spec(before, after)
    assert changes.keys() <= set(REVISABLE_KEYS)
    assert not set(fixed) & set(REVISABLE_KEYS)
    revised = merge_changes(before, changes)
    rest = {key for key in {*revised, *after} if revised.get(key) != after.get(key)}
    # A speed of its own takes a job out of its family.
    assert rest - {"family"} == set(fixed) - {"family"}
    assert diff_spec(before, dict(before)) == ({}, ())


def test_an_edit_beyond_a_limit_is_not_applied_until_there_is_room(tmp_path: Path) -> None:
    with run_service(tmp_path) as live:
        service, writer = live.service, live.service.require_writer()

        async def scenario() -> None:
            controller = Controller(service, ApiClient(None, "default"), identity="s")
            spec = {key: value for key, value in job("a").items() if key != "name"}
            first = replace(resource(), spec=spec)
            view, edited = await controller._job_for(first, "vision")
            assert isinstance(view, JobView)
            assert edited is None
            second = replace(first, generation=2, spec={**spec, "labels": {"team": "x" * 99}})
            unlimited, verdicts = service.settings, []
            for limit in (0, 1):
                service.settings = replace(unlimited, max_open_memory=limit)
                view, edited = await controller._job_for(second, "vision")
                assert isinstance(view, JobView)
                verdicts.append(edited)
                writer.usage.set("other", {"tenant": "vision"})
            assert verdicts[0] == verdicts[1]  # without figures, which would be written again
            assert verdicts[0] is not None
            assert verdicts[0][:2] == (False, Reason.NOT_APPLIED)
            assert "--max-open-memory" in verdicts[0][2]
            service.settings = unlimited
            _, edited = await controller._job_for(second, "vision")
            assert edited == (True, Reason.APPLIED, "labels changed")

        loop: asyncio.AbstractEventLoop = writer._wake._loop  # type: ignore[attr-defined]  # asyncio's
        asyncio.run_coroutine_threadsafe(scenario(), loop).result(WAIT_LIMIT_SECONDS)


def in_loop(writer: Writer, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in the service's event loop."""
    loop: asyncio.AbstractEventLoop = writer._wake._loop  # type: ignore[attr-defined]  # asyncio's
    asyncio.run_coroutine_threadsafe(scenario, loop).result(WAIT_LIMIT_SECONDS)


def test_an_orphaned_job_is_cancelled_once_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_service(tmp_path) as live:
        service, writer = live.service, live.service.require_writer()

        async def unavailable(operation: object) -> None:
            raise ProblemError("storage", "the store is away")

        async def scenario() -> None:
            controller = Controller(service, ApiClient(None, "default"), identity="s")
            spec = {key: value for key, value in job("a").items() if key != "name"}
            await controller._job_for(replace(resource(), spec=spec), "vision")
            key = f"{OWNER.namespace}/{OWNER.name}"
            with monkeypatch.context() as patch:
                patch.setattr(writer, "do", unavailable)
                with pytest.raises(ProblemError):
                    await controller._reconcile(key)
            assert writer.published.jobs[OWNER.key].state.open
            await controller._reconcile(key)
            view = await find_view(service, OWNER.key)
            assert view is not None
            assert view.state is State.CANCELLED
            await controller._reconcile(key)

        in_loop(writer, scenario())


def test_an_invalid_resource_is_retried_when_its_tenant_is_added(tmp_path: Path) -> None:
    cluster = {**CLUSTER, "tenants": [{"name": "other", "share": {"gpu": 1}}]}
    with run_service(tmp_path, cluster=cluster) as live:
        service, writer = live.service, live.service.require_writer()
        controller = Controller(service, ApiClient(None, "default"), identity="s")
        spec = {key: value for key, value in job("a").items() if key != "name"}
        valid = replace(resource(), spec=spec)

        async def submit() -> None:
            record = valid.record("vision")
            with pytest.raises(InputError, match="vision"):
                read_submissions(
                    [record],
                    writer.published.servers.cluster,
                    tenant=None,
                    runs=False,
                    single=True,
                    from_controller=True,
                    families=service.families,
                    now=writer.clock.now(),
                )
            invalid = replace(valid, status={"reason": Reason.INVALID, "state": "refused"})
            controller._resources.items["vision/a"] = invalid
            controller._resources.items["vision/b"] = valid
            controller._requeue_invalid()
            writer.subscribe(controller._on_published)

        async def queued() -> None:
            assert len(controller._queue) == 1
            await asyncio.sleep(0.1)
            assert controller._queue.take() == "vision/a"
            view, _ = await controller._job_for(valid, "vision")
            assert isinstance(view, JobView)
            writer.unsubscribe(controller._on_published)

        in_loop(writer, submit())
        assert live.client.post("/v1/jobs", json=job("b", tenant="other")).is_success
        assert len(controller._queue) == 0
        assert live.client.put("/v1/tenants/vision", json={"share": {"gpu": 1}}).is_success
        in_loop(writer, queued())


@pytest.mark.parametrize(("epoch", "is_deposed"), [(0, False), (4, True), (5, False), (6, False)])
def test_a_resource_of_a_later_leader_is_left_alone_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int, is_deposed: bool
) -> None:
    with run_service(tmp_path) as live:
        service, writer = live.service, live.service.require_writer()

        async def scenario() -> None:
            client = ApiClient(None, "default")
            controller = Controller(service, client, identity="s", epoch=epoch)
            settled = {"epoch": 5, "state": "refused", "observedGeneration": 1}
            controller._resources.items["vision/a"] = replace(resource(settled), claim="s")
            for _ in range(3):
                if is_deposed:
                    with pytest.raises(LeadershipLostError):
                        await controller._reconcile("vision/a")
                else:
                    await controller._reconcile("vision/a")

        in_loop(writer, scenario())
    said = [record for record in caplog.messages if "left TrainingJobs alone" in record]
    assert len(said) == is_deposed


def test_labels_of_the_owner_are_no_edit() -> None:
    edited = replace(resource(), spec={**job("x"), "labels": {"mine": "y"}})
    record = edited.record("vision")
    assert record["name"] == OWNER.job
    assert Owner.from_labels(record["labels"]) == OWNER
    assert diff_spec(record, edited.record("else")) == ({}, ())
    with pytest.raises(InputError):
        merge_changes(record, {"labels": {**record["labels"], "shadowprice.io/uid": "other"}})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "soon", "take", "done", "fail", "wait"]), st.integers(0, 3)
        ),
        max_size=60,
    )
)
def test_queue_loses_no_key_and_gives_no_key_to_two_workers(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    queue = WorkQueue(0.5, clock)
    owed: set[str] = set()
    busy: list[str] = []
    for step, number in steps:
        key = str(number)
        if step in {"add", "soon"}:
            queue.add(key, 0.0 if step == "soon" else None)
            owed.add(key)
        elif step == "take":
            found = queue.take()
            if found is not None:
                assert found in owed
                assert found not in busy
                owed.discard(found)
                busy.append(found)
        elif step == "done" and busy:
            queue.mark_done(busy.pop())
        elif step == "fail" and busy:
            repeated = busy[-1]
            queue.add_rate_limited(repeated)
            owed.add(repeated)
            queue.mark_done(busy.pop())
        elif step == "wait":
            clock.now += 0.4
        assert len(queue) == len(owed)
    for key in busy:
        queue.mark_done(key)
    clock.now += 1_000.0
    left = set()
    while (found := queue.take()) is not None:
        left.add(found)
    assert left == owed


def test_new_keys_precede_waiting_ones_without_starvation() -> None:
    clock = Clock()
    queue = WorkQueue(0.5, clock)
    for number in range(100):
        queue.add(f"old-{number}")
    clock.now += NEW_RESOURCE_PRIORITY_SECONDS - 1.0
    queue.add("new", -NEW_RESOURCE_PRIORITY_SECONDS)
    assert queue.take() == "new"
    clock.now += 2.0  # one that waits for longer has its turn, however many are new
    for number in range(1000):
        queue.add(f"newer-{number}", -NEW_RESOURCE_PRIORITY_SECONDS)
    assert {queue.take() for _ in range(100)} == {f"old-{number}" for number in range(100)}
    assert queue.take() in {f"newer-{number}" for number in range(1000)}


@pytest.mark.parametrize("jobs", [0, 1, 100, 1_000, 10_000])
def test_status_writes_are_rate_limited(jobs: int) -> None:
    pause = status_write_interval(jobs)
    assert pause >= STATUS_WRITE_SECONDS
    assert jobs / pause <= STATUS_WRITES_PER_SECOND
    assert pause == STATUS_WRITE_SECONDS or jobs > STATUS_WRITE_SECONDS * STATUS_WRITES_PER_SECOND


def test_a_busy_key_delays_no_other_key() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        queue = WorkQueue(0.0, loop.time)
        processed: dict[str, float] = {}

        async def process(key: str) -> None:
            processed.setdefault(key, loop.time())
            if key == "slow":
                queue.add("slow", 0.0)  # first in the heap, and busy
                await asyncio.sleep(60.0)

        queue.add("slow")
        workers = [asyncio.create_task(queue.work(process)) for _ in range(2)]
        await asyncio.sleep(0.5)
        queue.add("quick", 0.2)
        begun = loop.time()
        await asyncio.sleep(10.0)
        for worker in workers:
            worker.cancel()
        return processed["quick"] - begun

    assert run_virtual(lambda clock: main()) == pytest.approx(0.2, abs=0.05)


def test_failures_increase_the_backoff() -> None:
    queue = WorkQueue(0.0, Clock())
    pauses = [queue.add_rate_limited("a") for _ in range(12)]
    assert all(later > 1.2 * sooner for sooner, later in itertools.pairwise(pauses[:9]))
    assert max(pauses) <= 72.0
    queue.reset_backoff("a")
    assert queue.add_rate_limited("a") < 0.13
