"""Whether random calls find a broken service: each of these faults has to be detected.

Under ``make test SUITE=fuzz-api``, with the machine of `test_service_stateful`. A few calls show
that its rules and invariants see a fault. Whether drawn calls reach a fault takes dozens of
services, and is tried from ``API_EXAMPLES`` of 30 on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from shadowprice.core.events import ServerState
from shadowprice.service.api import references
from shadowprice.service.clock import SlotCalendar
from shadowprice.service.problems import ProblemError
from shadowprice.service.state import operations, recovery, store_queries
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import KnownJobs, cancel_job, update_servers
from shadowprice.service.state.submission import Submission
from tests.support.api_machine import EXAMPLES, ApiMachine

pytestmark = pytest.mark.skipif(not EXAMPLES, reason="runs in make test SUITE=fuzz-api")

Patch = pytest.MonkeyPatch
Servers = Mapping[str, ServerState | None]
Break = Callable[[Patch], None]
Step = Callable[[ApiMachine], None]
FAULTS: dict[str, tuple[Break, tuple[Step, ...]]] = {}
"""Each fault, and the steps after which the machine has to detect it."""

MIN_SEARCH_EXAMPLES = 30


def _function(operation: Any) -> Callable[..., Any]:
    """Return the function of a kind of operation, which a fault replaces."""
    function: Callable[..., Any] = operation.__wrapped__
    return function


def fault(*steps: Step) -> Callable[[Break], Break]:
    """Register a fault and the steps that show it."""

    def noted(broken: Break) -> Break:
        FAULTS[broken.__name__] = (broken, steps)
        return broken

    return noted


@fault(lambda api: api.submit_one("a", "red", 2, own=True))
def another_job_of_a_known_name_counts_as_the_same(patch: Patch) -> None:
    patch.setattr(operations, "_name_conflict", lambda *_: None)


@fault(lambda api: api.submit_one("a", "red", 1, own=True))
def the_same_job_again_is_refused(patch: Patch) -> None:
    find, conflict = KnownJobs.find, operations._name_conflict

    def refused(self: KnownJobs, submission: Submission) -> tuple[str, ProblemError | None] | None:
        result = find(self, submission)
        return None if result is None else (result[0], conflict(submission))

    patch.setattr(KnownJobs, "find", refused)


@fault(lambda api: api.cancelled("a", "blue"))
def anybody_cancels_anything(patch: Patch) -> None:
    find_job = references.find_job

    async def any_job(service: Any, caller: Any, name: str, *_: Any) -> JobView:
        named = service.require_writer().published.jobs_with_name(name)
        return named[0] if named else await find_job(service, caller, name)

    patch.setattr(references, "find_job", any_job)


@fault(lambda api: api.cancelled("a", "red"))
def a_cancelled_job_goes_on(patch: Patch) -> None:
    def perform(batch: Batch, key: str) -> JobView:
        view = batch.get_view(key)
        return replace(view, state=State.CANCELLED) if view.state.open else _cancel(batch, key)

    _cancel = _function(cancel_job)
    patch.setattr(cancel_job, "__wrapped__", perform)


@fault(lambda api: api.cancelled("b", "blue"))
def what_is_over_is_cancelled_once_more(patch: Patch) -> None:
    _cancel = _function(cancel_job)

    def perform(batch: Batch, key: str) -> JobView:
        view = batch.get_view(key)
        return view if not view.state.open else _cancel(batch, key)

    patch.setattr(cancel_job, "__wrapped__", perform)


@fault(lambda api: api.revised("a", "red", 10))
def a_revision_is_not_written(patch: Patch) -> None:
    patch.setattr(Batch, "update_spec", lambda *_: None)


@fault(lambda api: api.revised("a", "red", 10), ApiMachine.restart)
def a_revision_is_forgotten_by_the_next_start(patch: Patch) -> None:
    def revise(self: Batch, name: str, spec: Any, _content: str) -> None:
        self.state.specs[name] = spec

    patch.setattr(Batch, "update_spec", revise)


@fault(lambda api: api.change_server("g-0", "drain"))
def a_drained_server_takes_work(patch: Patch) -> None:
    perform = _function(update_servers)

    def changed(batch: Batch, servers: Servers, *more: Any, **options: Any) -> None:
        open_ = {
            name: None if state is None else replace(state, drained=False)
            for name, state in servers.items()
        }
        perform(batch, open_, *more, **options)

    patch.setattr(update_servers, "__wrapped__", changed)


@fault(ApiMachine.restart)
def a_start_forgets_open_jobs(patch: Patch) -> None:
    recover_jobs = recovery._jobs

    def forgetful(connection: Any) -> Any:
        views, specs, pending = recover_jobs(connection)
        return dict(list(views.items())[1:]), specs, pending

    patch.setattr(recovery, "_jobs", forgetful)


@fault(lambda api: api.time_goes_on(2), ApiMachine.restart)
def a_start_moves_time(patch: Patch) -> None:
    calendar = recovery._calendar

    def moved(*given: Any) -> SlotCalendar:
        result = calendar(*given)
        return result.moved(int(result.slot))

    patch.setattr(recovery, "_calendar", moved)


@fault()
def promises_are_made_silently(patch: Patch) -> None:
    emit = Batch.emit

    def quiet(self: Batch, kind: str, *given: Any, **data: Any) -> None:
        if kind != "admitted":
            emit(self, kind, *given, **data)

    patch.setattr(Batch, "emit", quiet)


@fault(
    lambda api: api.change_server("g-0", "drain"),
    lambda api: api.change_server("g-1", "drain"),
    lambda api: api.time_goes_on(4),
    lambda api: api.time_goes_on(4),
)
def promises_change_silently(patch: Patch) -> None:
    emit = Batch.emit

    def quiet(self: Batch, kind: str, *given: Any, **data: Any) -> None:
        if kind not in {"moved", "broken"}:
            emit(self, kind, *given, **data)

    patch.setattr(Batch, "emit", quiet)


@fault()
def a_page_leaves_one_out(patch: Patch) -> None:
    listed = store_queries.list_jobs

    def short(*given: Any, before: int | None = None, **requested: Any) -> list[JobView]:
        return listed(*given, before=None if before is None else before - 1, **requested)

    patch.setattr(store_queries, "list_jobs", short)


@fault(lambda api: api.quote("red", 1))
def a_quote_stays(patch: Patch) -> None:
    def perform(batch: Batch, submission: Submission) -> Any:
        batch.emit("quoted", decision=True)
        return _quote(batch, submission)

    _quote = _function(operations.quote_job)
    patch.setattr(operations.quote_job, "__wrapped__", perform)


@fault(lambda api: api.removed("g-1"))
def a_removed_server_stays(patch: Patch) -> None:
    perform = _function(update_servers)

    def kept(batch: Batch, servers: Servers, *more: Any, **options: Any) -> None:
        left = {name: state for name, state in servers.items() if state is not None}
        if left:
            perform(batch, left, *more, **options)

    patch.setattr(update_servers, "__wrapped__", kept)


def follow(steps: tuple[Step, ...]) -> None:
    """Take steps on a new service, and check the machine's invariants after each."""
    api = ApiMachine()
    try:
        for step in (ApiMachine.tokens_for_all, *steps):
            step(api)
            for invariant in api.invariants:
                invariant.function(api)
    finally:
        api.teardown()


@pytest.mark.parametrize("name", FAULTS)
def test_invariants_detect_each_injected_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, steps = FAULTS[name]
    follow(steps)
    broken(monkeypatch)
    with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever sees it
        follow(steps)
    assert not isinstance(raised.value, (ImportError, NameError)), raised.value


@pytest.mark.skipif(
    EXAMPLES < MIN_SEARCH_EXAMPLES, reason="takes minutes; runs with API_EXAMPLES of 30 or more"
)
@pytest.mark.parametrize("name", FAULTS)
def test_drawn_calls_find_a_broken_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, _ = FAULTS[name]
    broken(monkeypatch)
    chosen = settings(
        # The drawn calls change with any number in the project's source, and may need many
        # services. The first that sees the fault ends it.
        max_examples=max(300, EXAMPLES),
        stateful_step_count=12,
        phases=(Phase.generate,),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever sees it
        run_state_machine_as_test(ApiMachine, settings=chosen)
    assert not isinstance(raised.value, (ImportError, NameError)), raised.value
