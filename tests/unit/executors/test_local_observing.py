"""Processes of other schedulers on this machine, grouped into jobs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shadowprice.executors.contract import (
    GenerationPhase,
    GenerationStatus,
    ObservedJob,
    ServerAllocation,
)
from shadowprice.executors.local.executor import observe_jobs
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes

Start = Callable[..., None]


@pytest.fixture
def start() -> Iterator[Start]:
    processes = []

    def start_shell(script: str, name: str, tenant: str | None = None) -> None:
        mark = {"SHADOWPRICE_JOB": name}
        if tenant is not None:
            mark["SHADOWPRICE_TENANT"] = tenant
        processes.append(
            subprocess.Popen(
                ["/bin/sh", "-c", script],
                env={**os.environ, **mark},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        )

    yield start_shell
    for process in processes:
        os.killpg(process.pid, 9)
        process.wait(WAIT_LIMIT_SECONDS)


def observe(
    name: str, own: tuple[GenerationStatus, ...] = ()
) -> dict[tuple[bool, str | None], ObservedJob]:
    jobs = [job for job in observe_jobs(own, lambda _: "one") if job.is_own or job.job == name]
    by_kind = {(job.is_own, job.tenant): job for job in jobs}
    assert len(by_kind) == len(jobs)
    return by_kind


def test_jobs_of_two_tenants_with_one_name_are_two(start: Start, tmp_path: Path) -> None:
    name = f"train {tmp_path}"[-200:]
    start("sleep 600 & sleep 600", name, "red")
    # The child is a job of another tenant.
    start("SHADOWPRICE_TENANT=green sleep 600 & sleep 600", name, "blue")
    start("sleep 600 & sleep 600", name)
    tenants = {"red", "blue", "green", None}
    wait_until(lambda: {tenant for _, tenant in observe(name)} == tenants)
    jobs = observe(name)
    assert {tenant: jobs[False, tenant].placement for tenant in tenants} == dict.fromkeys(
        tenants, (ServerAllocation("one", 1),)
    )


def test_own_processes_are_observed_once_by_their_key(start: Start, tmp_path: Path) -> None:
    name = f"train-{tmp_path.name}"
    start("sleep 600", name)  # as a process of the executor, whose environment has no tenant
    start("sleep 600", name, "blue")
    wait_until(lambda: set(observe(name)) == {(False, None), (False, "blue")})
    own = GenerationStatus(
        f"red/{name}~7",
        1,
        GenerationPhase.RUNNING,
        (ServerAllocation("two", 1),),
        ("worker-0",),
        started=1.0,
    )
    jobs = observe(name, (own,))
    assert set(jobs) == {(True, None), (False, "blue")}
    assert jobs[True, None].job == f"red/{name}~7"
