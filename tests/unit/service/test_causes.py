"""Broken promises name their causes: each one is provoked on the service in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.virtual import VirtualClock, VirtualExecutor, VirtualJob, run_virtual
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.queries.causes import broken_promise
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import change_server, revise_job
from shadowprice.service.state.timespan import set_timespan_end
from shadowprice.service.virtual import VirtualService

CLUSTER = {
    "slot": "1min",
    "horizon": 100,
    "servers": [{"name": "g", "count": 2, "capacity": {"cpu": 1}}],
}
SLOT = 60.0
Script = Callable[[VirtualService, VirtualExecutor], Awaitable[None]]


def record(**changes: Any) -> dict[str, Any]:
    """Return a job that states ten minutes and whose utility decreases with time."""
    return {
        "name": "job",
        "chunks": 1,
        "minibatches": 100,
        "minibatch_time": "6s",
        "worker": {"cpu": 1},
        "utility": {"kind": "linear", "value": 100, "slope": -1},
        "run": {"command": ["train"], "retries": 2},
        **changes,
    }


def runs(minutes: float = 10.0, work: float = 100.0, **more: Any) -> VirtualJob:
    """A job that really takes some minutes for 100 mini-batches."""
    return VirtualJob(work, lambda _: 100.0 / (60.0 * minutes), **more)


async def until_running(service: VirtualService, generation: int = 1) -> None:
    while (await service.view("job")).started < generation:
        await asyncio.sleep(1.0)


def run_and_explain(
    folder: Path,
    job: VirtualJob,
    script: Script | None = None,
    *,
    over: bool = True,
    state: State = State.FINISHED,
    log: str = "",
) -> dict[str, Any]:
    """Return the causes of the job's broken promise after a part of its life."""

    async def main(clock: VirtualClock) -> dict[str, Any]:
        executor = VirtualExecutor(clock, {"job": job})
        choice = PolicyChoice("rolling")
        service = VirtualService(folder, CLUSTER, choice, clock, executor)
        await service.start()
        await service.submit(record())
        assert (await service.view("job")).first_promise is not None
        if script is not None:
            await script(service, executor)
        if over:
            assert await service.run_until_over(40 * 3_600.0)
        view, servers = await service.view("job"), service.writer.published.servers
        assert not over or view.state is state
        if log:
            assert view.reason is not None
            view = replace(view, reason={"message": f"{view.reason['message']}\n{log}"})
        now = service.writer.clock.now()
        result = await service.read(
            lambda connection: broken_promise(
                connection, view, servers.cluster, servers.calendar, now
            )
        )
        service.check()
        await service.stop()
        assert result is not None
        return result.record

    result = run_virtual(main)
    causes = result["causes"]
    assert sum(cause["share"] for cause in causes) == pytest.approx(1.0, abs=1e-3)
    assert causes == sorted(causes, key=lambda cause: -cause["seconds"])
    early = state is not State.FINISHED and not result["late_seconds"]
    for cause in causes:
        assert (cause["cause"].replace("-", " ") in result["line"]) is not early
    return result


def seconds(found: dict[str, Any]) -> dict[str, float]:
    return {cause["cause"]: cause["seconds"] for cause in found["causes"]}


@pytest.mark.parametrize("report_every", [None, 5.0], ids=["silent", "reports"])
def test_an_overrun_names_stated_and_measured_time(
    tmp_path: Path, report_every: float | None
) -> None:
    result = run_and_explain(tmp_path, runs(13.4, report_every=report_every))
    assert seconds(result) == {"overrun": pytest.approx(204.0, abs=1.5)}
    assert "600 s stated" in result["causes"][0]["detail"]
    assert result["late_seconds"] > 0.0


def test_late_start_is_not_attributed_to_the_work(tmp_path: Path) -> None:
    job = runs(launch_seconds=70.0, start_seconds=(100.0,), report_every=5.0)
    result = run_and_explain(tmp_path, job)
    assert seconds(result)["late-start"] == pytest.approx(170.0, abs=5.0)
    assert seconds(result).get("overrun", 0.0) < 8.0


@pytest.mark.parametrize("report_every", [None, 5.0], ids=["silent", "reports"])
def test_a_lost_server_is_named(tmp_path: Path, report_every: float | None) -> None:
    lost: list[str] = []

    async def lose(service: VirtualService, executor: VirtualExecutor) -> None:
        await until_running(service)
        await asyncio.sleep(4 * SLOT)
        lost.append(executor.generations[0].spec.placement[0].server)
        executor.lose_server(lost[0])

    result = run_and_explain(tmp_path, runs(report_every=report_every), lose)
    [cause] = [cause for cause in result["causes"] if cause["cause"] == "lost-server"]
    assert cause["detail"] == lost[0]
    assert cause["seconds"] == pytest.approx(4 * SLOT, abs=70.0)  # and the rest of its slot
    assert cause["share"] > 0.95


def test_each_of_several_causes_has_its_share(tmp_path: Path) -> None:
    async def lose(service: VirtualService, executor: VirtualExecutor) -> None:
        await until_running(service)
        await asyncio.sleep(4 * SLOT)
        executor.lose_server(executor.generations[0].spec.placement[0].server)

    job = runs(12.0, launch_seconds=20.0, report_every=5.0, save_every=60.0)
    result = seconds(run_and_explain(tmp_path, job, lose))
    assert result["overrun"] == pytest.approx(120.0, abs=8.0)
    assert result["late-start"] == pytest.approx(20.0, abs=5.0)
    assert result["lost-server"] > 20.0  # it was launched again, and repeats what was not saved


def test_failure_costs_the_work_since_the_checkpoint(tmp_path: Path) -> None:
    result = seconds(run_and_explain(tmp_path, runs(report_every=5.0, fails_after={1: 240.0})))
    assert result["failure"] >= 235.0
    assert result.get("overrun", 0.0) < 8.0


def test_early_failure_is_no_delay(tmp_path: Path) -> None:
    fails = runs(start_seconds=(20.0,) * 3, fails_after=dict.fromkeys((1, 2, 3), 1.0))
    line = run_and_explain(tmp_path, fails, state=State.FAILED)["line"]
    assert line.startswith("failed before its promise was kept (")
    assert line.endswith(")")


def test_the_log_of_a_failure_is_left_out_of_the_line(tmp_path: Path) -> None:
    fails = runs(report_every=5.0, fails_after=dict.fromkeys((1, 2, 3), 240.0))
    line = run_and_explain(tmp_path, fails, state=State.FAILED, log="Traceback: no such file")[
        "line"
    ]
    assert line.startswith("failed before its promise was kept (")
    assert "Traceback" not in line
    assert "\n" not in line


def test_a_drained_server_is_named(tmp_path: Path) -> None:
    async def drain(service: VirtualService, executor: VirtualExecutor) -> None:
        await until_running(service)
        await asyncio.sleep(4 * SLOT)
        server = executor.generations[0].spec.placement[0].server
        await service.writer.do(change_server(server, "drained"))

    result = run_and_explain(tmp_path, runs(start_seconds=(0.0, 90.0), report_every=5.0), drain)
    [cause] = [cause for cause in result["causes"] if cause["cause"] == "drain"]
    assert cause["detail"].startswith("g-")
    assert cause["seconds"] > 200.0


def test_additional_work_is_attributed_to_the_owner(tmp_path: Path) -> None:
    async def revise(service: VirtualService, executor: VirtualExecutor) -> None:
        del executor
        await until_running(service)
        await service.writer.do(revise_job("job", {"minibatches": 150}))

    result = run_and_explain(tmp_path, runs(work=150.0, report_every=5.0), revise)
    assert seconds(result)["revision"] == pytest.approx(300.0, abs=1.0)
    [cause] = [cause for cause in result["causes"] if cause["cause"] == "revision"]
    assert cause["detail"] == "100 to 150 mini-batches"
    assert seconds(result).get("overrun", 0.0) < 8.0


@pytest.mark.parametrize("over", [True, False], ids=["over", "waits"])
def test_the_end_of_the_timespan_is_named(tmp_path: Path, *, over: bool) -> None:
    async def end(service: VirtualService, executor: VirtualExecutor) -> None:
        del executor
        await until_running(service)
        at = service.writer.clock.now() + int(4 * SLOT * 1e9)
        await service.writer.do(set_timespan_end(at))
        await asyncio.sleep(20 * SLOT)
        if over:
            await service.writer.do(set_timespan_end(None))

    job = runs(report_every=5.0, save_seconds=0.0)
    result = seconds(run_and_explain(tmp_path, job, end, over=over))
    assert result["timespan"] == pytest.approx(16 * SLOT, abs=1.1 * SLOT)
    assert result["timespan"] > 0.9 * sum(result.values())


def test_a_kept_promise_has_no_causes(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_and_explain(tmp_path, runs(9.0, report_every=5.0))
