"""An engine that is restored or cloned decides as the original, with every policy."""

from __future__ import annotations

import base64
import json
import multiprocessing
import pickle
import zlib
from itertools import islice
from typing import Any

import pytest

from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import DriverEvent
from shadowprice.core.policy import Status
from shadowprice.engine import Engine
from shadowprice.engine.policy_session import dump_policy_state, load_policy_state
from shadowprice.engine.snapshot import StateCapture, clone, restore, snapshot
from shadowprice.kernels.replanning.plans import JobArrays
from shadowprice.simulator.driver import Simulation
from tests.support.audited_runs import Auditor, random_world
from tests.support.engine_events import describe_commands, external_events
from tests.support.examples import sample
from tests.support.policies import EarliestPlanner, RandomPolicy
from tests.support.policy_cases import build_policy, policy_names, record_run, run_slot

SEEDS = (1, 4)


@pytest.mark.parametrize("policy", policy_names())
def test_restarts_at_every_event_change_nothing(policy: str) -> None:
    """A new engine after each event, through JSON, and a new policy."""
    seed = SEEDS[0]
    on, jobs, events, commands = record_run(policy, seed)
    engine = Engine(on, build_policy(policy, on, jobs, seed))
    straight = Engine(on, build_policy(policy, on, jobs, seed), saves_policy_state=False)
    for event, expected in zip(events, commands, strict=True):
        engine = restore(
            json.loads(json.dumps(snapshot(engine))), build_policy(policy, on, jobs, seed)
        )
        assert describe_commands(engine.handle(event)) == describe_commands(expected)
        straight.handle(event)
        assert engine.state_digest() == straight.state_digest()
        assert (engine.ledger.used == straight.ledger.used).all()
        assert list(engine.running) == list(straight.running)


@pytest.mark.parametrize("policy", policy_names())
def test_a_clone_is_independent(policy: str) -> None:
    """A clone decides as the original does next, and leaves no trace in it."""
    for seed in SEEDS:
        on, jobs, events, commands = record_run(policy, seed)
        engine = Engine(on, build_policy(policy, on, jobs, seed), saves_policy_state=False)
        half = len(events) // 2
        for event in events[:half]:
            engine.handle(event)
        before = engine.state_digest()
        copy = clone(engine)
        assert copy.state_digest() == before
        ends = []
        for each in (copy, engine):
            for event, expected in zip(events[half:], commands[half:], strict=True):
                assert describe_commands(each.handle(event)) == describe_commands(expected)
            ends.append(each.state_digest())
            if each is copy:
                assert engine.state_digest() == before
        assert ends[0] == ends[1]


@pytest.mark.parametrize("policy", policy_names())
def test_a_state_is_written_as_it_was_while_the_engine_continues(policy: str) -> None:
    """One part after every event, for any size of parts:

    together they are the state when it began.
    """
    on, jobs, events, _ = record_run(policy, SEEDS[1])
    engine = Engine(on, build_policy(policy, on, jobs, SEEDS[1]), saves_policy_state=False)
    half = len(events) // 2
    for event in events[:half]:
        engine.handle(event)
        while engine.state.update_digest(2):
            pass
    straight = Engine(on, build_policy(policy, on, jobs, SEEDS[1]), saves_policy_state=False)
    for event in events[:half]:
        straight.handle(event)
    assert engine.state_digest() == straight.state_digest()
    expected = json.loads(json.dumps(snapshot(engine)))
    assert expected["jobs"]
    under_way = [(StateCapture(engine).pieces(size), []) for size in (1, 3, 1_000)]
    for event in events[half:]:
        engine.handle(event)
        for pieces, text in under_way:
            text.extend(islice(pieces, 1))
    assert engine.state_digest() != expected["state_digest"]
    for pieces, text in under_way:
        text.extend(pieces)
        assert json.loads("".join(text)) == expected


def _go_on(order: tuple[str, int, str]) -> tuple[list[list[str]], str]:
    """Restore a snapshot in this process, and handle the remaining events."""
    policy, seed, text = order
    on, jobs, events, _ = record_run(policy, seed)
    engine = restore(json.loads(text), build_policy(policy, on, jobs, seed))
    half = len(events) // 2
    return [
        describe_commands(engine.handle(event)) for event in events[half:]
    ], engine.state_digest()


@pytest.mark.extended
def test_another_process_decides_on_as_this_one_would() -> None:
    orders, expected = [], []
    for policy in policy_names():
        seed = SEEDS[1]
        on, jobs, events, commands = record_run(policy, seed)
        engine = Engine(on, build_policy(policy, on, jobs, seed), saves_policy_state=False)
        half = len(events) // 2
        for event in events[:half]:
            engine.handle(event)
        orders.append((policy, seed, json.dumps(snapshot(engine))))
        for event in events[half:]:
            engine.handle(event)
        expected.append(
            ([describe_commands(command) for command in commands[half:]], engine.state_digest())
        )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.map(_go_on, orders)
    for (policy, _, _), there, here in zip(orders, result, expected, strict=True):
        assert there == here, policy


@pytest.mark.parametrize("policy", policy_names())
def test_recovery_applies_what_was_decided(policy: str) -> None:
    """A snapshot, the journal's tail, and the policy state of the last event:

    as if uninterrupted.
    """
    seed = SEEDS[1]
    on, jobs, events, commands = record_run(policy, seed)
    engine = Engine(on, build_policy(policy, on, jobs, seed))
    third, tail = len(events) // 3, []
    for event in events[:third]:
        engine.handle(event)
    saved = json.dumps(snapshot(engine))
    for event in events[third : 2 * third]:
        engine.handle(event)
        assert engine.last is not None
        tail.append(engine.last)
    pickled = engine.session.dump_state()
    again = restore(json.loads(saved), build_policy(policy, on, jobs, seed))
    for entry in tail:
        again.apply(entry)
    assert again.state_digest() == engine.state_digest()
    again.session.load_state(pickled)
    for event, expected in zip(events[2 * third :], commands[2 * third :], strict=True):
        assert describe_commands(again.handle(event)) == describe_commands(expected)


def drive_on(engine: Engine, coming: list[DriverEvent], slots: int) -> None:
    """Drive an engine on: apply external events, and yield what jobs declare."""
    running = engine.slot_running
    for slot in range(engine.slot if running is None else running, engine.slot + slots):
        if engine.slot_running is None:
            while coming and coming[0].slot <= slot:
                engine.handle(coming.pop(0))
        run_slot(engine, slot)


@pytest.mark.parametrize("policy", policy_names())
def test_recovery_without_the_policy_state_continues_with_any_event(policy: str) -> None:
    """The policy resyncs with its view, in the middle of the next event."""
    for seed in SEEDS:
        on, jobs, events, _ = record_run(policy, seed)
        engine = Engine(on, build_policy(policy, on, jobs, seed))
        begun, entries = json.dumps(snapshot(engine)), []
        for event in events:
            engine.handle(event)
            assert engine.last is not None
            entries.append(engine.last)
        kinds = set()
        for cut in range(1, len(events)):
            kind = (type(events[cut]), engine.slot_running is None)
            if kind in kinds and cut % 11:
                continue
            kinds.add(kind)
            again = restore(json.loads(begun), build_policy(policy, on, jobs, seed))
            for entry in entries[:cut]:
                again.apply(entry)
            again.handle(events[cut])
            drive_on(again, external_events(events[cut + 1 :]), 40)
            assert again.jobs.keys() == {job.name for job in jobs}
            for record in again.jobs.values():
                assert record.status is not Status.FINISHED or record.progress


@pytest.mark.parametrize("seed", sample(range(6)))
def test_planners_with_faults_survive_restarts(seed: int) -> None:
    cluster, jobs, incidents, _ = random_world(seed)
    for made in (EarliestPlanner, lambda: RandomPolicy(seed)):
        auditor = Auditor(cluster, jobs)
        done = Simulation(cluster, jobs, made(), until=60, incidents=incidents).run([auditor])
        engine = Engine(cluster, made(), until=60)
        for event in auditor.events:
            engine = restore(json.loads(json.dumps(snapshot(engine))), made())
            engine.handle(event)
        assert engine.state_digest() == done.state_digest()


# ---------------------------------------------------------------- damage


def test_a_damaged_snapshot_is_refused() -> None:
    on, jobs, events, _ = record_run("fifo", 1)
    engine = Engine(on, build_policy("fifo", on, jobs, 1))
    for event in events[:9]:
        engine.handle(event)
    whole = json.dumps(snapshot(engine))

    def broken(**changes: Any) -> dict[str, Any]:
        return json.loads(whole) | changes

    for record, said in (
        ({}, "unknown format None; expected 1"),
        (broken(snapshot=3), "unknown format 3"),
        (broken(jobs=3), "is damaged"),
        (broken(versions={}), "is damaged: KeyError"),
        (broken(running={"ghost": []}), "is damaged"),
        (broken(lost=["nowhere"]), "is damaged: KeyError"),
        (broken(sequence=4), "its digest is not that of its state"),
    ):
        with pytest.raises(InputError, match=said):
            restore(record, build_policy("fifo", on, jobs, 1))
    nothing = base64.b64encode(zlib.compress(b"")).decode()
    other = base64.b64encode(zlib.compress(pickle.dumps(_OfAnotherShape()))).decode()
    for policy_state, said in (
        ("", "snapshot: is damaged"),
        (nothing, "failed to read the policy's state"),
        (other, "failed to read the policy's state"),
    ):
        with pytest.raises(ShadowpriceError, match=said):
            restore(broken(policy_state=policy_state), build_policy("fifo", on, jobs, 1))


class _OfAnotherShape:
    """Is written as a record of jobs that had fewer columns."""

    def __reduce__(self) -> tuple[type[JobArrays], tuple[int]]:
        return JobArrays, (1,)


def test_a_memory_holds_no_strange_classes() -> None:
    """Loading a policy state creates only parts of policies, and runs nothing else."""
    on, jobs, _, _ = record_run("fifo", 1)
    engine = Engine(on, build_policy("fifo", on, jobs, 1))
    hostile = b"cos\nsystem\n(S'true'\ntR."
    with pytest.raises(ShadowpriceError, match=r"os\.system is not allowed in policy state"):
        load_policy_state(engine.policy, hostile, engine.view)


def test_a_policy_that_holds_a_file_says_so() -> None:
    policy = EarliestPlanner()
    policy.answer = lambda: None  # type: ignore[attr-defined]
    engine = Engine(random_world(1)[0], policy)
    with pytest.raises(ShadowpriceError, match="failed to pickle the state of policy Earliest"):
        dump_policy_state(engine.policy, engine.view)
