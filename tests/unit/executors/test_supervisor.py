"""A supervisor's view of its generation, and the processes that it stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.executors.generations.generation import GenerationDirectory, Phase, start_time
from shadowprice.executors.supervision import cgroups, children
from shadowprice.executors.supervision.children import AGENT
from shadowprice.executors.supervision.supervisor import Supervisor
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are held by Linux's means"
)


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_children_started_by_a_sigterm_trap_get_no_signal(
    leader: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that saves by another program, which started after the search for descendants and
    before the one in the cgroup, which doesn't list a process's own group.
    """
    saving = os.getpid() + 1  # any number: the signals are recorded
    groups = {saving: leader.pid, leader.pid: leader.pid}
    received: list[tuple[str, int]] = []
    monkeypatch.setattr(children, "descendants", lambda _: {leader.pid: leader.pid})
    monkeypatch.setattr(children, "process_group", groups.__getitem__)
    monkeypatch.setattr(children, "signal_group", lambda one, _: received.append(("group", one)))
    monkeypatch.setattr(
        children, "signal_process", lambda one, _: received.append(("process", one))
    )
    monkeypatch.setattr(cgroups, "list_processes", lambda _: [leader.pid, saving])
    own: Any = Supervisor.__new__(Supervisor)
    own._children = {"worker-0": SimpleNamespace(process=leader, code=None)}
    own._cgroup = Path("/sys/fs/cgroup/any")
    own._end(20.0)
    assert received == [("group", leader.pid)]


def test_a_clock_that_is_set_forward_shortens_no_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = GenerationDirectory.create(
        tmp_path / "1", {"processes": []}, {"phase": Phase.RUNNING}
    )
    own: Any = Supervisor.__new__(Supervisor)
    own._generation, own._children, own._cgroup = generation, {}, None
    own._ending, own._stop_command = False, 0
    now = time.time()
    generation.request_stop(7, 30.0, now)
    own._apply_stop_command()
    deadline = own._deadline
    monkeypatch.setattr("time.time", lambda: now + 3_600)
    own._apply_stop_command()  # the executor signals again until the end
    assert own._deadline == deadline > time.monotonic() + 20
    generation.request_stop(8, 0.0, now)
    own._apply_stop_command()
    assert own._deadline <= time.monotonic()


def test_the_group_of_a_process_is_known_while_it_is_there(
    leader: subprocess.Popen[bytes],
) -> None:
    assert children.process_group(leader.pid) == leader.pid
    leader.send_signal(signal.SIGKILL)
    leader.wait(WAIT_LIMIT_SECONDS)
    assert children.process_group(leader.pid) == 0


@pytest.mark.parametrize("workers", [100, 161, 1_000])
def test_a_state_of_many_workers_fits(tmp_path: Path, workers: int) -> None:
    first = {"phase": Phase.RUNNING, "command": 1}
    generation = GenerationDirectory.create(tmp_path / "1", {"processes": []}, first)
    names = [f"worker-{rank}" for rank in range(workers)]
    full = first | {
        "processes": {name: [4_000_000 + rank, 10**9] for rank, name in enumerate(names)},
        "exits": [(name, 0) for name in names[1:]],
    }
    generation.write_state({**full, "tail": "x" * 2_000})
    stored = generation.state()
    assert stored["phase"] == Phase.RUNNING
    assert ("exits" in stored) == (workers == 100)
    assert ("processes" in stored) == (workers < 1_000)
    assert stored["tail"]


def test_exits_that_cannot_be_stored_neither_end_nor_delay_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"phase": Phase.RUNNING, "command": 1}
    generation = GenerationDirectory.create(tmp_path / "1", {"processes": []}, first)
    own: Any = Supervisor.__new__(Supervisor)
    own._generation, own._bell, own._ending = generation, str(tmp_path / "bell"), False
    own._tolerant, own._reported_exit_count = False, 0
    own._children = {f"worker-{rank}": SimpleNamespace(code=None) for rank in range(3)}
    own._exits = [("worker-1", 0)]
    (tmp_path / "1" / "state").rename(tmp_path / "aside")
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it must not wait"))
    own._end_if_decided()
    (tmp_path / "aside").rename(tmp_path / "1" / "state")
    own._end_if_decided()
    assert "exits" not in generation.state()  # one attempt for each exit
    own._exits.append(("worker-2", 0))
    own._end_if_decided()
    assert dict(generation.state()["exits"]) == {"worker-1": 0, "worker-2": 0}


def test_first_state_may_name_thousands_of_servers(tmp_path: Path) -> None:
    placement = [[f"node-{number:04}.cluster.example", 1, 0] for number in range(2_000)]
    first = {"phase": Phase.RUNNING, "command": 1, "placement": placement}
    generation = GenerationDirectory.create(tmp_path / "1", {}, first)
    last = {**first, "tail": ["x" * 300] * 10}
    generation.write_state(last)
    assert generation.state() == last


def test_long_reason_neither_prevents_an_end_nor_costs_the_log_tail(tmp_path: Path) -> None:
    first = {"phase": Phase.RUNNING, "command": 1}
    generation = GenerationDirectory.create(tmp_path / "1", {}, first)
    note = f"cannot start in /{'d' * 4_000}: No such file or directory"
    last = {**first, "note": note, "reason": f"worker-0 exited 127: {note}", "tail": ["last line"]}
    generation.write_state(last)
    reason = f"worker-0 exited 127: {note}"[:500] + "..."
    assert generation.state() == {**last, "note": note[:500] + "...", "reason": reason}


def _accepted(path: Path, process: dict[str, Any], *, cgroup: str = "") -> GenerationDirectory:
    """Return an accepted generation of one process."""
    process = {
        "name": "worker-0",
        "environment": dict(os.environ),
        "directory": str(path.parent),
        "cores": [],
        "memory": 0,
        "cgroup_memory": 0,
        **process,
    }
    plan = {"processes": [process], "grace": 20.0, "tolerates_workers": False, "secrets": []}
    plan |= {"log_bytes": 10_000, "bell": "", "cgroup": cgroup, "execution": "one"}
    return GenerationDirectory.create(path, plan, {"phase": Phase.ACCEPTED, "command": 1})


def test_process_that_ended_before_its_deadline_was_not_forced(tmp_path: Path) -> None:
    """A busy machine: the supervisor runs again only after the grace period."""
    generation = _accepted(tmp_path / "1", {"command": ["sleep", "600"]})
    words = [sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "1")]
    with subprocess.Popen(words) as supervisor:
        try:
            wait_until(lambda: generation.state()["phase"] == Phase.RUNNING)
            (number, _) = generation.state()["processes"]["worker-0"]
            supervisor.send_signal(signal.SIGSTOP)
            wait_until(lambda: children.is_stopped(supervisor.pid))
            os.kill(number, signal.SIGTERM)
            wait_until(lambda: start_time(number) is None)
            generation.request_stop(2, 0.0, 0.0)
            supervisor.send_signal(signal.SIGTERM)
            supervisor.send_signal(signal.SIGCONT)
            supervisor.wait(WAIT_LIMIT_SECONDS)
        finally:
            supervisor.kill()
    ended = generation.state()
    assert (ended["phase"], ended["code"], ended["forced"]) == (Phase.ENDED, 143, False)


def test_memory_limit_stays_below_that_of_the_service(tmp_path: Path) -> None:
    """A hard limit is inherited, and only root may raise it."""
    show = "import resource; print(*resource.getrlimit(resource.RLIMIT_DATA))"
    process = {"command": [sys.executable, "-I", "-S", "-c", show], "memory": 3 << 30}
    generation = _accepted(tmp_path / "1", process)
    words = ["prlimit", f"--data={1 << 30}", sys.executable, "-I", "-S", str(AGENT)]
    subprocess.run([*words, str(tmp_path / "1")], check=True, timeout=WAIT_LIMIT_SECONDS)
    assert generation.state()["tail"] == [f"{1 << 30} {1 << 30}"]


def test_a_process_that_cannot_be_prepared_has_a_reason(tmp_path: Path) -> None:
    generation = _accepted(tmp_path / "1", {"command": ["true"]}, cgroup=str(tmp_path / "group"))
    words = [sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "1")]
    subprocess.run(words, check=True, timeout=WAIT_LIMIT_SECONDS)
    ended = generation.state()
    assert (ended["ending"], ended["code"]) == ("failed", 126)
    procs = tmp_path / "group" / "worker-0" / "cgroup.procs"  # in no control group file system
    assert ended["tail"] == [f"cannot prepare the process: {procs}: No such file or directory"]
