"""Ends of generations on Ray, by their processes; states of nodes; requests to Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    ExecutorOptions,
    GenerationSpec,
    InvalidProgress,
    ServerAllocation,
)
from shadowprice.executors.generations.generation import (
    TERMINAL_PHASES,
    GenerationDirectory,
    Phase,
    boot_id,
    start_time,
)
from shadowprice.executors.generations.outcome import (
    ProcessExit,
    compute_outcome,
    is_outcome_final,
    outcome_from_exits,
)
from shadowprice.executors.processes import PlacementError, list_processes
from shadowprice.executors.ray.agent import ProcessActor, clean_up_dead_actor
from shadowprice.executors.ray.bridge_client import parse_endpoint, probe
from shadowprice.executors.ray.executor import RayExecutor
from shadowprice.executors.ray.launch_plan import (
    RayNode,
    actor_resources,
    build_process_plan,
    check_available,
    find_duplicate_names,
    list_nodes,
)
from shadowprice.executors.ray.session import RayGeneration, RayProcess, read_settings
from shadowprice.executors.supervision.children import AGENT
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

CODES = st.sampled_from([0, 0, 1, 137, 143])


@given(
    st.lists(
        st.tuples(CODES, st.floats(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=5
    ),
    st.integers(0, 2),
    st.booleans(),
)
def test_it_is_the_verdict_of_one_machine_where_clocks_agree(
    drawn: list[tuple[int, float, bool, bool]], servers: int, ordered: bool
) -> None:
    workers = max(1, len(drawn) - servers)
    names = [f"worker-{n}" for n in range(workers)]
    names += [f"ps-{n}" for n in range(len(drawn) - workers)]
    # As one supervisor sees it: the first failure stops all others, and so does a command.
    ends, first = [], min((at for code, at, _, _ in drawn if code), default=99.0)
    for name, (code, at, item, killed) in zip(names, drawn, strict=True):
        was_told = at > first or (ordered and item and at >= first)
        ends.append(
            ProcessExit(name, code, at, stop_requested=was_told, killed=killed and was_told)
        )
    in_order = sorted(ends, key=lambda end: (end.stop_requested, end.at))
    expected = compute_outcome(
        [(end.name, end.code) for end in in_order],
        workers,
        stopped=ordered and not any(end.code and not end.stop_requested for end in ends),
        from_outside=False,
        killed={end.name for end in ends if end.killed},
        notes={},
    )
    assert outcome_from_exits(ends, workers, stop_ordered=ordered) == expected


def test_clocks_that_differ_blame_no_stopped_process() -> None:
    # The clock of worker 1's node is an hour slow. By that clock it ended first, after it was
    # stopped.
    ends = [
        ProcessExit("worker-0", 9, 5000.0),
        ProcessExit("worker-1", 1, 1400.0, stop_requested=True),
    ]
    known = outcome_from_exits(ends, 2, stop_ordered=False)
    assert (known.ending, known.process, known.code) == ("failed", "worker-0", 9)


def test_a_lost_process_is_no_fault_of_those_that_failed_of_it() -> None:
    ends = [ProcessExit("worker-0", 1, 5.0), ProcessExit("worker-1", -1, 0.0, lost="two left")]
    known = outcome_from_exits(ends, 2, stop_ordered=False)
    assert (known.ending, known.reason) == ("lost", "two left")


def test_a_parameter_server_lost_after_all_workers_were_done_changes_nothing() -> None:
    ends = [ProcessExit("worker-0", 0, 5.0), ProcessExit("ps-0", -1, 0.0, lost="two left")]
    assert outcome_from_exits(ends, 1, stop_ordered=False).ending == "done"


@pytest.mark.parametrize("change", [{"phase": "running"}, {"cut": True}, {"code": None}])
def test_a_generation_without_an_observed_end_is_lost(change: dict[str, Any]) -> None:
    state = {"phase": "ended", "code": 0, "at": 1.0, "exited": 1.0, "ending": "done"}
    assert ProcessExit.from_state("worker-0", state, "gone").lost == ""
    assert ProcessExit.from_state("worker-0", {**state, **change}, "gone").lost == "gone"


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_process_that_its_node_stopped_is_no_failure(code: int) -> None:
    state = {"phase": "ended", "code": code, "at": 2.0, "exited": 2.0, "stop_requested": True}
    end = ProcessExit.from_state("worker-0", {**state, "outside": True}, "gone")
    assert is_outcome_final([end], 2, tolerant=True)
    rest = ProcessExit("worker-1", code, 3.0, stop_requested=True)
    result = outcome_from_exits([end, rest], 2, stop_ordered=False)
    assert (result.ending, result.outside) == ("lost" if code else "done", True)
    failed = ProcessExit("worker-1", 9, 1.0)  # by itself, before that
    result = outcome_from_exits([end, failed], 2, stop_ordered=False)
    assert (result.ending, result.outside) == ("failed", False)


# ------------------------------------------------------------------ nodes


def record(name: str, number: str, **resources: float) -> dict[str, Any]:
    return {
        "NodeID": number,
        "NodeName": name,
        "NodeManagerAddress": "127.0.0.2",
        "Alive": True,
        "Resources": {"node:127.0.0.2": 1.0, "object_store_memory": 9.0, **resources},
        "Labels": {"ray.io/accelerator-type": "A100", "zone": "a"},
    }


def test_nodes_become_servers() -> None:
    result = list_nodes([record("a", "1", CPU=2.5, GPU=4, memory=1e9, disk=2)], {})
    server = result["a"].server
    assert server.capacity == {
        "cpu": 2500,
        "gpu": 4000,
        "gpu/A100": 4000,
        "memory": 10**9,
        "disk": 2000,
    }
    assert server.labels["zone"] == "a"


def test_thousandths_of_a_nodes_resources_are_exact() -> None:
    result = list_nodes([record("a", "1", CPU=1.001, GPU=0.9999)], {})
    assert result["a"].server.capacity == {"cpu": 1001, "gpu": 999, "gpu/A100": 999}


def test_of_two_nodes_with_one_name_the_known_one_stays() -> None:
    both = [record("a", "1", CPU=1), record("a", "2", CPU=1)]
    assert list_nodes(both, {})["a"].id == "1"
    assert list_nodes(both, {"a": "2"})["a"].id == "2"


def test_duplicate_names_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [record("a", "1", CPU=1), record("a", "2", CPU=1), record("b", "3", CPU=1)]
    unusable = [{**record("b", "4", CPU=8), "Alive": False}, record("b", "5", memory=1e9)]
    assert find_duplicate_names([*records, *unusable]) == {"a"}
    executor = RayExecutor(ExecutorOptions(str(tmp_path)))
    for names in ({"a"}, {"a"}, set(), {"a"}):
        executor._warn_of_duplicates(frozenset(names))
    assert [entry.args for entry in caplog.records] == [("a",), ("a",)]


def test_a_node_without_capacity_is_no_server() -> None:
    dead = {**record("dead", "2", CPU=8), "Alive": False}
    assert list_nodes([record("head", "1", memory=1e9), dead], {}) == {}


@pytest.fixture
def node() -> RayNode:
    return list_nodes([record("a", "1", CPU=2, GPU=2, memory=1000, disk=3)], {})["a"]


def test_requests_to_ray(node: RayNode) -> None:
    wanted = {"cpu": 1500, "gpu/A100": 500, "memory": 300, "disk": 1000, "bandwidth": 5}
    assert actor_resources(wanted, node) == {
        "num_cpus": 1.5,
        "num_gpus": 0.5,
        "memory": 300,
        "resources": {"disk": 1.0},
    }


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        ([{"gpu": 1000}] * 3, [], "a has 2 GPUs, 2 of them free, and 3 are requested"),
        ([{"gpu": 500}], [{"gpu": 2000}], "no GPU with 0.5 of it free"),
        ([{"gpu": 1500}], [], "whole GPUs above one"),
        ([{"cpu": 1000}] * 2, [{"cpu": 1000}], "insufficient cpu on a: 2 requested, 1 free"),
        ([{"memory": 1001}], [], "insufficient memory on a: 1001 requested, 1000 free"),
        ([{"disk": 4000}], [], "insufficient disk on a: 4 requested, 3 free"),
    ],
)
def test_a_generation_that_does_not_fit_is_refused_before_ray_would_wait(
    node: RayNode, new: list[dict[str, int]], old: list[dict[str, int]], why: str
) -> None:
    with pytest.raises(PlacementError, match=why):
        check_available(node, new, old)


def test_jobs_that_fit_are_not_refused(node: RayNode) -> None:
    check_available(node, [{"gpu": 500, "cpu": 1000}] * 2, [{"gpu": 1000, "memory": 1000}])
    check_available(node, [{"bandwidth": 10**12}], [])


# ------------------------------------------------------------------ settings, addresses


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"patients": "3"}, "did you mean 'patience'?"),
        ({"lost_after": "0"}, "write seconds from 1"),
        ({"patience": "soon"}, "write seconds from 1"),
        ({"shared": "here"}, "write an absolute path"),
        ({"memory": "cgroup"}, "one of: rlimit, off"),
        ({"log_bytes": "7"}, "from 1,024 to"),
    ],
)
def test_wrong_settings_are_refused(given_: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_settings(given_)


def test_addresses() -> None:
    assert parse_endpoint("ray://head:10001") == ("head", 10001)
    assert parse_endpoint("[::1]:6379") == ("::1", 6379)
    assert parse_endpoint("auto") is parse_endpoint("head") is parse_endpoint("ray://:1") is None
    assert parse_endpoint("head:99999") is None
    assert probe("auto") == ""
    assert probe("ray://127.0.0.1:1") != ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's process control")
def test_a_supervisor_runs_a_process_by_its_plan(tmp_path: Path) -> None:
    program = Program(command=("/bin/sh", "-c", "echo done"), grace=5.0)
    spec = GenerationSpec(
        command=1,
        job="job",
        generation=1,
        placement=(ServerAllocation("one", 1),),
        program=program,
        worker={"cpu": 1000},
        ps=None,
        progress_url="",
        progress_token="token",
        slot_end=0.0,
    )
    [process] = list_processes(spec)
    plan = build_process_plan(
        spec,
        process,
        actor="actor",
        master=("127.0.0.1", 1),
        checkpoints=str(tmp_path),
        work=str(tmp_path),
        inherited=dict(os.environ),
        gpus=None,
        log_bytes=10_000,
        limit_memory=False,
    )
    state = {
        "phase": Phase.ACCEPTED,
        "command": 0,
        "agent": os.getpid(),
        "accepted": 0.0,
        "at": 0.0,
    }
    made = GenerationDirectory.create(tmp_path / "part", plan, state)
    reading, writing = os.pipe()
    words = [sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "part"), str(reading), "detach"]
    try:
        subprocess.run(words, pass_fds=[reading], timeout=WAIT_LIMIT_SECONDS, check=True)
        wait_until(lambda: made.state()["phase"] in TERMINAL_PHASES)
    finally:
        os.close(reading)
        os.close(writing)
    assert made.state()["phase"] == Phase.ENDED, made.state()
    assert made.state()["ending"] == "done"


# ------------------------------------------------------------------ progress


@pytest.fixture
def generation(tmp_path: Path) -> RayGeneration:
    return RayGeneration("job", 1, GenerationDirectory(tmp_path / "1"))


def test_invalid_report_that_stays_is_reported_at_its_second_poll(
    generation: RayGeneration,
) -> None:
    process = RayProcess("worker-0", "one", "1", "actor")
    generation.on_progress_file(process, ["not JSON", 1.0])
    assert generation.pop_reports() == []
    for _ in range(2):
        generation.on_progress_file(process, ["not JSON", 1.0])
    [report] = generation.pop_reports()
    assert isinstance(report, InvalidProgress)
    assert "not JSON" in report.reason


def test_reports_of_two_processes_are_emitted_once(generation: RayGeneration) -> None:
    processes = [RayProcess(f"worker-{rank}", "one", "1", f"{rank}") for rank in range(2)]

    def poll(minibatches: int) -> bool:
        for rank, process in enumerate(processes):
            content = f'{{"generation": 1, "minibatches": {minibatches + rank}}}'
            generation.on_progress_file(process, [content, float(minibatches)])
        return generation.poll_progress() is not None

    assert [poll(5), poll(5), poll(6)] == [True, False, True]


# ------------------------------------------------------------------ agents


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return {"root": str(tmp_path / "root"), "digest": "d", "bundle": {"empty": ""}, "key": "k"}


@pytest.mark.parametrize("content", [None, "plan"])
def test_an_interrupted_start_leaves_nothing_on_the_node(
    place: dict[str, Any], content: str | None
) -> None:
    part = Path(place["root"], "parts", "k")
    part.mkdir(parents=True)
    if content is not None:
        (part / "plan.json").write_text(content)
    result = clean_up_dead_actor(place, WAIT_LIMIT_SECONDS)
    assert result == {"known": False, "cleared": True, "state": None}
    assert not part.exists()


def test_damaged_plan_does_not_hinder_a_cleanup(place: dict[str, Any]) -> None:
    part = Path(place["root"], "parts", "k")
    part.parent.mkdir(parents=True)
    GenerationDirectory.create(part, {"execution": "k"}, {"phase": "running", "command": 0})
    (part / "plan.json").write_text("{")
    result = clean_up_dead_actor(place, WAIT_LIMIT_SECONDS)
    assert (result["known"], result["cleared"]) == (True, True)
    assert result["state"]["ending"] == "lost"


@pytest.mark.parametrize(
    ("phase", "boot", "is_killed"),
    [("running", "", True), ("running", "an earlier one", False), ("ended", "", False)],
)
def test_cleanup_kills_a_session_of_this_boot_without_its_mark(
    place: dict[str, Any], phase: str, boot: str, is_killed: bool
) -> None:
    process = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    try:
        part = Path(place["root"], "parts", "k")
        part.parent.mkdir(parents=True)
        processes = {"worker-0": [process.pid, start_time(process.pid)]}
        state = {"phase": phase, "command": 0, "processes": processes, "boot": boot or boot_id()}
        GenerationDirectory.create(part, {"execution": "k"}, state)
        assert clean_up_dead_actor(place, WAIT_LIMIT_SECONDS)["cleared"]
        assert (start_time(process.pid) is None) is is_killed
    finally:
        process.kill()
        process.wait(WAIT_LIMIT_SECONDS)


def test_progress_that_was_read_while_it_was_written_is_new(place: dict[str, Any]) -> None:
    actor = ProcessActor(place)
    actor._go_received = True  # otherwise it ends this process once it is idle for too long
    GenerationDirectory.create(actor._path, {}, {"phase": "running", "command": 0})
    versions = []
    for content in ("", '{"generation": 1}'):
        (actor._path / "progress.json").write_text(content)
        os.utime(actor._path / "progress.json", (5, 5))  # within one tick of its clock
        versions.append(actor.look()["version"])
    assert versions[0] != versions[1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"generation": 1, "minibatches": 7}' + b" " * 65_536, "exceeds 65,536 bytes"),
        (b'{"generation": 1}\xff', "is not JSON"),
    ],
)
def test_invalid_progress_file_is_reported_as_on_one_machine(
    place: dict[str, Any], generation: RayGeneration, content: bytes, says: str
) -> None:
    actor = ProcessActor(place)
    actor._go_received = True  # otherwise it ends this process once it is idle for too long
    GenerationDirectory.create(actor._path, {}, {"phase": "running", "command": 0})
    (actor._path / "progress.json").write_bytes(content)
    process = RayProcess("worker-0", "one", "1", "actor")
    for _ in range(3):
        generation.on_progress_file(process, actor.look()["progress"])
    [report] = generation.pop_reports()
    assert isinstance(report, InvalidProgress)
    assert says in report.reason


@pytest.mark.parametrize(
    ("phase", "deadline", "abandoned"),
    [
        ("accepted", 3600.0, False),  # its supervisor may still start
        ("accepted", -1.0, True),
        ("launching", 3600.0, True),
        ("running", 3600.0, True),
        ("ended", -1.0, False),
    ],
)
def test_a_process_whose_supervisor_died_is_abandoned(
    place: dict[str, Any], phase: str, deadline: float, abandoned: bool
) -> None:
    actor = ProcessActor(place)
    actor._go_received = True  # otherwise it ends this process once it is idle for too long
    actor._claim_deadline = time.monotonic() + deadline
    made = GenerationDirectory.create(actor._path, {}, {"phase": phase, "command": 0})
    assert actor._is_abandoned(actor.look()) is abandoned
    lock = made.try_lock()
    assert lock is not None
    with lock:
        assert not actor._is_abandoned(actor.look())
