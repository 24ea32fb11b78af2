"""How processes ended, by an API server's records of their pods."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from shadowprice.executors.generations.outcome import ProcessExit
from shadowprice.executors.kubernetes.session import (
    PodProcess,
    process_exit_of,
    start_error_message,
)
from shadowprice.executors.kubernetes.views import (
    ContainerExit,
    NodeView,
    PodView,
    merge_pod_view,
    pod_view,
)

RUNNING = PodView("n", "p", "u", "one", "Running", began=1.0, running=True)
READY = NodeView("one", "u", {})


def ended(
    view: PodView | None,
    *,
    stop_requested: bool = False,
    vanished: float | None = None,
    gone: float | None = None,
    node: NodeView | None = READY,
    over: float | None = None,
) -> ProcessExit | None:
    now = time.monotonic()
    part = PodProcess("worker-0", "one", "p", view=view, stop_requested=stop_requested)
    part.vanished = None if vanished is None else now - vanished
    part.finished_since = None if over is None else now - over
    since = None if gone is None else now - gone
    return process_exit_of(part, node=node, lost_after=60.0, gone_since=since, withdrawn=False)


def exited(code: int, reason: str = "", message: str = "") -> PodView:
    how = ContainerExit(code, reason, message, 5.0)
    return replace(RUNNING, phase="Succeeded" if not code else "Failed", running=False, exit=how)


def test_an_exit_that_was_seen_counts() -> None:
    assert ended(RUNNING) is None
    assert ended(exited(0)) == ProcessExit("worker-0", 0, 5.0)
    assert ended(exited(3)) == ProcessExit("worker-0", 3, 5.0)
    assert ended(exited(137), stop_requested=True) == ProcessExit(
        "worker-0", 137, 5.0, stop_requested=True, killed=True
    )
    short = ended(exited(137, "OOMKilled"), stop_requested=True)
    assert short is not None
    assert not short.killed
    assert "memory" in short.note


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_has_ended_though_a_sidecar_runs_on(code: int) -> None:
    statuses = [
        {"name": "proxy", "state": {"running": {"startedAt": "2026-11-22T12:00:00Z"}}},
        {
            "name": "job",
            "state": {"terminated": {"exitCode": code, "finishedAt": "2026-11-22T12:00:00Z"}},
        },
    ]
    item = {
        "metadata": {"name": "p", "namespace": "n", "labels": {"shadowprice.io/service": "s"}},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    view = pod_view(item)
    assert view.may_run
    assert ended(view) == ProcessExit("worker-0", code, 1795348800.0)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"terminated": {"exitCode": 0, "startedAt": None, "finishedAt": None}}, None),
        ({"waiting": {"reason": "ContainerCreating"}}, None),
        ({"terminated": {"exitCode": 9, "finishedAt": "2026-11-22T12:00:00Z"}}, 9),
    ],
)
def test_the_status_of_a_deleted_pod_by_an_old_kubelet_is_no_exit(
    state: dict[str, object], code: int | None
) -> None:
    item = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "x"},
        "spec": {},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "job", "state": state}]},
    }
    view = pod_view(item)
    assert (view.exit.code if view.exit else None) == code
    later = merge_pod_view(exited(4), view)
    assert later.exit is not None
    assert later.exit.code == (4 if code is None else code)
    assert merge_pod_view(replace(exited(4), uid="another"), view) == view
    end = ended(merge_pod_view(RUNNING, view), stop_requested=True)
    assert end is not None
    assert (end.code, end.lost) == (143 if code is None else 9, "")


def test_the_first_stop_of_a_pod_is_known_whatever_its_grace_became() -> None:
    def since(**meta: object) -> float | None:
        item = {"metadata": {"name": "p", "namespace": "n", **meta}}
        return pod_view(item).terminating_since

    first = "2026-11-22T12:01:00Z"
    assert since() is None
    assert since(deletionTimestamp=first, deletionGracePeriodSeconds=60) == 1795348800.0
    shorter = "2026-11-22T12:00:25Z"
    assert since(deletionTimestamp=shorter, deletionGracePeriodSeconds=25) == 1795348800.0
    assert since(deletionTimestamp="2026-11-22T12:00:00Z") == 1795348800.0


def test_a_generation_without_a_command_is_lost_and_not_failed() -> None:
    for view in (
        replace(exited(143), deleting=True),
        replace(exited(137), reason="Evicted", message="The node was low on memory"),
    ):
        result = ended(view)
        assert result is not None
        assert result.lost
    # Evicted in the API: its container has a moment to end.
    evicted = replace(RUNNING, phase="Failed", reason="Evicted")
    assert ended(evicted, over=1.0) is None
    result = ended(evicted, over=6.0)
    assert result is not None
    assert "Evicted" in result.lost
    refused = replace(RUNNING, phase="Failed", running=False, began=None, reason="OutOfcpu")
    result = ended(refused)
    assert result is not None
    assert result.lost == "the kubelet on one rejected worker-0: OutOfcpu"
    result = ended(replace(refused, reason="Preempted", message="for a critical pod"))
    assert result is not None
    assert "was ended on one: Preempted: for a critical pod" in result.lost


@pytest.mark.parametrize("code", [0, 1])
def test_an_exit_after_a_deletion_by_somebody_else_is_from_outside(code: int) -> None:
    for view in (
        replace(exited(code), reason="NodeShutdown"),
        replace(exited(code), deleting=True, terminating_since=4.0),
    ):
        result = ended(view)
        assert result is not None
        assert (result.outside, bool(result.lost)) == ((True, False) if not code else (False, True))
    itself = ended(replace(exited(code), deleting=True, terminating_since=6.0))
    assert itself == ProcessExit("worker-0", code, 5.0)
    ordered = ended(
        replace(exited(code), deleting=True, terminating_since=4.0), stop_requested=True
    )
    assert ordered == ProcessExit("worker-0", code, 5.0, stop_requested=True)


def test_a_pod_that_vanished_while_it_ran_is_given_a_moment() -> None:
    assert ended(RUNNING, vanished=1.0) is None
    result = ended(RUNNING, vanished=6.0)
    assert result is not None
    assert "by someone other than the scheduler" in result.lost
    result = ended(RUNNING, vanished=6.0, stop_requested=True)
    assert result is not None
    assert (result.code, result.stop_requested, result.lost) == (143, True, "")


def test_jobs_on_a_removed_node_have_ended_on_the_operators_word() -> None:
    assert ended(RUNNING, gone=30.0) is None
    # deleted by force: no one observed its end
    assert ended(RUNNING, gone=30.0, vanished=20.0) is None
    result = ended(RUNNING, gone=61.0)
    assert result is not None
    assert result.lost == "the node one was not ready for 60 s while worker-0 was on it"
    removed = ended(RUNNING, gone=61.0, node=None)
    assert removed is not None
    assert removed.lost == "the node one left the cluster while worker-0 was on it"
    off = ended(RUNNING, gone=1.0, node=replace(READY, ready=False, out_of_service=True))
    assert off is not None
    assert off.lost == "the node one was declared out of service while worker-0 was on it"
    assert ended(exited(0), gone=61.0) == ProcessExit("worker-0", 0, 5.0)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            'OCI runtime create failed: exec: "/no/p": stat /no/p: no such file or directory',
            "cannot run /no/p: No such file or directory",
        ),
        ('exec: "p": executable file not found in $PATH', "cannot run p: No such file"),
        ('exec: "/": permission denied: unknown', "cannot run /: Permission denied"),
        ("something else", "cannot run it: something else"),
    ],
)
def test_the_reason_why_a_program_cannot_run_is_as_elsewhere(message: str, said: str) -> None:
    assert said in start_error_message(message)
